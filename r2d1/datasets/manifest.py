"""The two documents of a shard set, ``manifest.json`` and ``build_record.json``: read strictly, written byte for byte.

The format is formats.md §9. Pure: nothing here touches a disk.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field

from r2d1 import keys
from r2d1.datasets.fields import Fields, load_object, shown
from r2d1.datasets.layout import (
    MANIFEST_NAME,
    MAX_SHARDS,
    RECORD_NAME,
    ROW_FORMAT,
    SHARD_TEMPLATE,
    TEMPLATE_WORD,
    ShardLayout,
    layout_problems,
)
from r2d1.datasets.merkle import depth_of, root_of_hashes
from r2d1.errors import NameRefused


@dataclass(frozen=True, slots=True)
class TokenizerPin:
    """Which tokenizer made the ids: its name and the SHA-256 of its definition."""

    name: str
    sha256: str

    def to_json(self) -> dict[str, object]:
        """The pin as manifests store it."""
        return {"name": self.name, "sha256": self.sha256}


@dataclass(frozen=True, slots=True)
class ShardManifest:
    """What a shard set holds. ``tokenizer`` is ``None`` and ``extra`` empty only where nothing vouches for them."""

    seq_len: int
    samples_per_shard: int
    unit: int
    n_samples: int
    merkle_root: str
    shard_sha256s: tuple[str, ...]
    shard_sha256_root: str
    unit_sha256s: tuple[str, ...]
    unit_sha256_root: str
    tokenizer: TokenizerPin | None
    extra: Mapping[str, object] = field(default_factory=dict)
    sample_format: str = ROW_FORMAT
    shard_uri_template: str = SHARD_TEMPLATE

    @property
    def layout(self) -> ShardLayout:
        """The arithmetic of rows, units and shards."""
        return ShardLayout(seq_len=self.seq_len, unit=self.unit, samples_per_shard=self.samples_per_shard)

    @property
    def n_shards(self) -> int:
        """Shard files."""
        return len(self.shard_sha256s)

    @property
    def n_units(self) -> int:
        """Units, which are numbered through all shards."""
        return len(self.unit_sha256s)

    @property
    def depth(self) -> int:
        """Levels of the tree over all rows, below its root."""
        return depth_of(self.n_samples)

    def shard_rows(self, shard: int) -> int:
        """Rows of a shard: ``samples_per_shard``, fewer for the last one."""
        return min(self.samples_per_shard, self.n_samples - shard * self.samples_per_shard)

    def shard_size(self, shard: int) -> int:
        """Size of a shard file in bytes."""
        return self.shard_rows(shard) * self.layout.row_size

    def shard_key(self, shard: int) -> str:
        """The key of a shard below the set's prefix; ``NameRefused`` when the template leads astray."""
        return fill_template(self.shard_uri_template, self.shard_sha256s[shard])

    def shard_units(self, shard: int) -> range:
        """The ids of the units that a shard holds."""
        per_shard = self.samples_per_shard // self.unit
        return range(shard * per_shard, min((shard + 1) * per_shard, self.n_units))

    def unit_place(self, unit_id: int) -> tuple[int, int, int]:
        """Where a unit lies: shard, first byte in it, size in bytes."""
        shard, place = divmod(unit_id, self.samples_per_shard // self.unit)
        return shard, place * self.layout.unit_size, self.layout.unit_size

    def to_bytes(self) -> bytes:
        """``manifest.json`` as it is stored."""
        pin = self.tokenizer
        value = {
            "seq_len": self.seq_len,
            "samples_per_shard": self.samples_per_shard,
            "n_shards": self.n_shards,
            "n_samples": self.n_samples,
            "depth": self.depth,
            "merkle_root": self.merkle_root,
            "shard_sha256s": self.shard_sha256s,
            "shard_sha256_root": self.shard_sha256_root,
            "tokenizer": None if pin is None else pin.to_json(),
            "unit": self.unit,
            "unit_sha256s": self.unit_sha256s,
            "unit_sha256_root": self.unit_sha256_root,
            "sample_format": self.sample_format,
            "shard_uri_template": self.shard_uri_template,
            "extra": dict(self.extra),
        }
        return dump_json(value, indent=2)


@dataclass(frozen=True, slots=True)
class MixSource:
    """From which mix of which registry a set was built."""

    mix_id: str
    registry_sha256: str


@dataclass(frozen=True, slots=True)
class Fragment:
    """The part of a build record that a DatasetSpec repeats and signs."""

    merkle_root: str
    n_samples: int
    shard_sha256_root: str
    unit_sha256_root: str
    assign_unit: int
    source: MixSource
    sample_format: str = ROW_FORMAT
    shard_uri_template: str = SHARD_TEMPLATE

    @classmethod
    def of(cls, manifest: ShardManifest, source: MixSource) -> Fragment:
        """The fragment of a set built from ``source``."""
        return cls(
            merkle_root=manifest.merkle_root,
            n_samples=manifest.n_samples,
            shard_sha256_root=manifest.shard_sha256_root,
            unit_sha256_root=manifest.unit_sha256_root,
            assign_unit=manifest.unit,
            source=source,
            sample_format=manifest.sample_format,
            shard_uri_template=manifest.shard_uri_template,
        )

    def to_json(self) -> dict[str, object]:
        """The fragment as build records and specs store it."""
        return {
            "merkle_root": self.merkle_root,
            "depth": depth_of(self.n_samples),
            "n_samples": self.n_samples,
            "sample_format": self.sample_format,
            "shard_uri_template": self.shard_uri_template,
            "shard_sha256_root": self.shard_sha256_root,
            "assign_unit": self.assign_unit,
            "unit_sha256_root": self.unit_sha256_root,
            "source": {"mix_id": self.source.mix_id, "registry_sha256": self.source.registry_sha256},
        }

    def differences(self, manifest: ShardManifest) -> list[Difference]:
        """Every field in which a manifest contradicts this fragment."""
        named = {"assign_unit": "unit"}  # what the manifest calls otherwise
        ours = {name: value for name, value in self.to_json().items() if name != "source"}
        pairs = (
            Difference(name, named.get(name, name), value, getattr(manifest, named.get(name, name)))
            for name, value in ours.items()
        )
        return [pair for pair in pairs if pair.here != pair.there]


@dataclass(frozen=True, slots=True)
class Difference:
    """A field of a fragment, ``here``, and what the manifest has ``there`` under its own name for it."""

    field: str
    manifest_field: str
    here: object
    there: object


@dataclass(frozen=True, slots=True)
class BuildRecord:
    """``build_record.json``: the fragment, and the order keys of the rows that decontamination dropped."""

    fragment: Fragment
    removed_ids: tuple[str, ...]

    def to_bytes(self) -> bytes:
        """``build_record.json`` as it is stored."""
        return dump_json({"fragment": self.fragment.to_json(), "removed_ids": self.removed_ids}, indent=1)


def dump_json(value: object, *, indent: int) -> bytes:
    """JSON as shard sets store it: sorted keys, ASCII with escapes, no newline at the end."""
    return json.dumps(value, indent=indent, sort_keys=True, allow_nan=False).encode()


def fill_template(template: str, shard_sha256: str) -> str:
    """The key that a ``shard_uri_template`` gives; ``NameRefused`` when it is no safe path."""
    if template.count(TEMPLATE_WORD) != 1:
        raise NameRefused(f"shard_uri_template {shown(template)} refused: {TEMPLATE_WORD} must occur exactly once")
    return keys.check_key(keys.check_path(template.replace(TEMPLATE_WORD, shard_sha256)))


def parse_manifest(data: bytes, document: str = MANIFEST_NAME) -> ShardManifest:
    """Read ``manifest.json`` strictly; ``DocumentError`` names every field that is malformed or contradicts another.

    Both list roots, the depth and the lengths of the lists are computed anew; ``merkle_root`` needs the rows.
    """
    fields = Fields(document, load_object(data, document))
    fields.only(_MANIFEST_FIELDS)
    pin = fields.child("tokenizer")
    pin.only(("name", "sha256"))
    manifest = ShardManifest(
        seq_len=fields.integer("seq_len", least=1),
        samples_per_shard=fields.integer("samples_per_shard", least=1),
        unit=fields.integer("unit", least=1),
        n_samples=fields.integer("n_samples", least=1),
        merkle_root=fields.hexadecimal("merkle_root"),
        shard_sha256s=fields.digests("shard_sha256s"),
        shard_sha256_root=fields.hexadecimal("shard_sha256_root"),
        unit_sha256s=fields.digests("unit_sha256s"),
        unit_sha256_root=fields.hexadecimal("unit_sha256_root"),
        tokenizer=TokenizerPin(name=pin.text("name"), sha256=pin.hexadecimal("sha256")),
        extra=fields.child("extra").value,
        sample_format=fields.text("sample_format"),
        shard_uri_template=_read_template(fields),
    )
    n_shards = fields.integer("n_shards", least=1)
    depth = fields.integer("depth")
    if not fields.problems:
        _compare_counts(fields, manifest, n_shards, depth)
    fields.finish()
    return manifest


_MANIFEST_FIELDS = (
    *("seq_len", "samples_per_shard", "n_shards", "n_samples", "depth", "merkle_root", "shard_sha256s"),
    *("shard_sha256_root", "tokenizer", "unit", "unit_sha256s", "unit_sha256_root", "sample_format"),
    *("shard_uri_template", "extra"),
)
FRAGMENT_FIELDS = (
    *("merkle_root", "depth", "n_samples", "sample_format", "shard_uri_template", "shard_sha256_root"),
    *("assign_unit", "unit_sha256_root", "source"),
)


def _compare_counts(fields: Fields, manifest: ShardManifest, n_shards: int, depth: int) -> None:
    for text in layout_problems(manifest.layout):
        fields.problems.append(text)
    if manifest.sample_format != ROW_FORMAT:
        fields.note("sample_format", f"is {shown(manifest.sample_format)}; this version reads {ROW_FORMAT!r} only")
    if manifest.n_samples % manifest.unit:
        fields.note("n_samples", f"is {manifest.n_samples}, not a multiple of the unit {manifest.unit}")
    shards = -(-manifest.n_samples // manifest.samples_per_shard)
    if shards > MAX_SHARDS:
        fields.note("n_samples", f"asks for {shards} shards; their file names have room for {MAX_SHARDS}")
    for name, here, there in (
        ("n_shards", n_shards, shards),
        ("shard_sha256s", manifest.n_shards, shards),
        ("unit_sha256s", manifest.n_units, manifest.n_samples // manifest.unit),
        ("depth", depth, manifest.depth),
    ):
        if here != there:
            what = "has" if name.endswith("s") and name != "n_shards" else "is"
            fields.note(name, f"{what} {here}, where n_samples {manifest.n_samples} asks for {there}")
    for name, root, hexes in (
        ("shard_sha256_root", manifest.shard_sha256_root, manifest.shard_sha256s),
        ("unit_sha256_root", manifest.unit_sha256_root, manifest.unit_sha256s),
    ):
        if hexes and root != (found := root_of_hashes(hexes)):
            fields.note(name, f"is {root}, but the list has the root {found}")


def parse_record(data: bytes, document: str = RECORD_NAME) -> BuildRecord:
    """Read ``build_record.json`` strictly; ``DocumentError`` names every malformed field."""
    fields = Fields(document, load_object(data, document))
    fields.only(("fragment", "removed_ids"))
    part = fields.child("fragment")
    part.only(FRAGMENT_FIELDS)
    record = BuildRecord(fragment=read_fragment(part), removed_ids=fields.digests("removed_ids"))
    if list(record.removed_ids) != sorted(record.removed_ids):
        fields.note("removed_ids", "are not sorted")
    fields.finish()
    return record


def read_fragment(fields: Fields) -> Fragment:
    """The fragment's fields of an object; what is malformed is noted in ``fields``."""
    source = fields.child("source")
    source.only(("mix_id", "registry_sha256"))
    fragment = Fragment(
        merkle_root=fields.hexadecimal("merkle_root"),
        n_samples=fields.integer("n_samples", least=1),
        shard_sha256_root=fields.hexadecimal("shard_sha256_root"),
        unit_sha256_root=fields.hexadecimal("unit_sha256_root"),
        assign_unit=fields.integer("assign_unit", least=1),
        source=MixSource(mix_id=source.text("mix_id"), registry_sha256=source.hexadecimal("registry_sha256")),
        sample_format=fields.text("sample_format"),
        shard_uri_template=_read_template(fields),
    )
    if fields.integer("depth") != depth_of(fragment.n_samples) and "n_samples" in fields.value:
        fields.note("depth", f"is not {depth_of(fragment.n_samples)}, the depth of {fragment.n_samples} rows")
    return fragment


def _read_template(fields: Fields) -> str:
    template = fields.text("shard_uri_template")
    if template:
        try:
            fill_template(template, "0" * 64)
        except NameRefused as exc:
            fields.note("shard_uri_template", f"is refused: {exc}")
    return template
