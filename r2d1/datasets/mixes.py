"""The mix registry: which sources, filters, tokenizers and mixes there are, read strictly as values."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from dataclasses import fields as dataclass_fields
from importlib import resources
from pathlib import Path

from r2d1 import keys
from r2d1.datasets.canonical import canonical_sha256
from r2d1.datasets.fields import DocumentError, Fields, load_object, shown
from r2d1.errors import ConfigError, NameRefused

REGISTRY_VERSION = 1
#: The tokenizer that needs no file; an entry of this name in a registry is refused.
BYTE_TOKENIZER = "bytes"
SHIPPED = "registry.json"
_RATIO_TOLERANCE = 1e-9


class RegistryError(DocumentError, ConfigError):
    """A mix registry is malformed; ``problems`` names every field that is."""


@dataclass(frozen=True, slots=True)
class RowFilter:
    """Which rows of a source may be used, by the value of one column."""

    column: str
    allow: Mapping[str, str]
    deny: frozenset[str]


@dataclass(frozen=True, slots=True)
class Source:
    """Where the rows of one source come from, and how they are read."""

    id: str
    repo: str
    revision: str
    config: str | None
    files: tuple[str, ...]
    exclude: tuple[str, ...]
    text_field: str
    licence: str
    role: str
    filter: RowFilter | None


@dataclass(frozen=True, slots=True)
class TokenizerEntry:
    """A pinned ``tokenizer.json``. ``end_token`` names the token that ends a document, if not the usual one."""

    id: str
    repo: str
    revision: str
    filename: str
    sha256: str
    licence: str
    end_token: str | None


@dataclass(frozen=True, slots=True)
class Mix:
    """A weighted mix of sources. Exactly one of ``seq_len`` (a text mix) and ``record`` (a record mix) is given."""

    id: str
    components: tuple[tuple[str, float], ...]
    decontam_against: tuple[str, ...]
    holdout: str | None
    seq_len: int | None
    tokenizer: str | None


@dataclass(frozen=True, slots=True)
class Registry:
    """A whole registry; ``sha256`` is that of its canonical form (RFC 8785).

    ``unread`` names the fields of sources that this version does not know: they count for the hash, and do nothing.
    """

    sha256: str
    sources: Mapping[str, Source]
    mixes: Mapping[str, Mix]
    tokenizers: Mapping[str, TokenizerEntry]
    merkle_roots: Mapping[str, str]
    unread: tuple[str, ...] = ()

    def text_mix(self, mix_id: str) -> tuple[Mix, int]:
        """A mix that can be built here, and its ``seq_len``; ``ConfigError`` for an unknown or a record mix."""
        mix = self.mixes.get(mix_id)
        if mix is None:
            raise ConfigError(f"the registry has no mix {shown(mix_id)}; it has {', '.join(sorted(self.mixes))}")
        if mix.seq_len is None:
            raise ConfigError(f"mix {mix_id} is a record mix (it has no seq_len); only text mixes can be built here")
        return mix, mix.seq_len

    def tokenizer_of(self, mix: Mix) -> TokenizerEntry | None:
        """The pinned tokenizer of a text mix; ``None`` for the byte tokenizer."""
        return None if mix.tokenizer is None else self.tokenizers.get(mix.tokenizer)


def load_registry(path: str | os.PathLike[str] | None = None) -> Registry:
    """Read a registry file, or the shipped one; ``RegistryError`` (a ``ConfigError``) names every malformed field.

    Every source, tokenizer and mix is checked, used or not. All fields count for ``sha256``.
    """
    if path is None:
        return parse_registry(resources.files("r2d1.datasets").joinpath(SHIPPED).read_bytes(), SHIPPED)
    try:
        data = Path(path).read_bytes()
    except OSError as exc:
        raise ConfigError(f"the registry {os.fspath(path)} cannot be read: {exc.strerror}") from exc
    return parse_registry(data, os.fspath(path))


def parse_registry(data: bytes, document: str = SHIPPED) -> Registry:
    """``load_registry`` of bytes at hand; ``document`` is its name in errors."""
    try:
        return _read_registry(data, document)
    except DocumentError as exc:
        raise RegistryError(exc.document, exc.problems) from exc


def _read_registry(data: bytes, document: str) -> Registry:
    value = load_object(data, document)
    fields = Fields(document, value)
    version = fields.integer("version")
    if version != REGISTRY_VERSION and "version" in value:
        fields.note("version", f"is {version}; this version of r2d1 reads {REGISTRY_VERSION}")
    sources = {name: _read_source(name, part) for name, part in _entries(fields, "sources")}
    tokenizers = {name: _read_tokenizer(name, part) for name, part in _entries(fields, "tokenizers")}
    mixes = {name: _read_mix(name, part, sources, tokenizers) for name, part in _entries(fields, "mixes")}
    roots = {name: part.hexadecimal("merkle_root") for name, part in _entries(fields, "build_records", missing=True)}
    for name in sorted(set(roots) - set(mixes)):
        fields.note(f"build_records.{name}", "is the record of no mix")
    fields.finish()
    unread = _unread_of(_entries(fields, "sources"))
    return Registry(canonical_sha256(value, document), sources, mixes, tokenizers, roots, unread)


def _unread_of(sources: Iterable[tuple[str, Fields]]) -> tuple[str, ...]:
    known = {field.name for field in dataclass_fields(Source) if field.name != "id"}
    return tuple(f"sources.{name}.{field}" for name, part in sources for field in sorted(set(part.value) - known))


def _entries(fields: Fields, name: str, *, missing: bool = False) -> Iterator[tuple[str, Fields]]:
    if missing and name not in fields.value:
        return
    group = fields.child(name)
    for entry in group.value:
        yield entry, group.child(entry)


def _read_source(name: str, fields: Fields) -> Source:
    if problem := _folder_problem(name):
        fields.problems.append(f"sources: the id {shown(name)} names a folder of the cache, and {problem}")
    files = fields.texts("files")
    if not files and isinstance(fields.value.get("files"), list):
        fields.note("files", "is empty")
    return Source(
        id=name,
        repo=fields.text("repo"),
        revision=fields.hexadecimal("revision", 40),
        config=fields.optional_text("config"),
        files=files,
        exclude=fields.texts("exclude", missing=True),
        text_field=fields.text("text_field"),
        licence=fields.text("licence"),
        role=fields.text("role"),
        filter=None if fields.value.get("filter") is None else _read_filter(fields.child("filter")),
    )


def _folder_problem(name: str) -> str | None:
    try:
        keys.check_path(name)
    except NameRefused as exc:
        return str(exc)
    return "it holds a slash" if "/" in name else None


def _read_filter(fields: Fields) -> RowFilter:
    column, allow = fields.text("column"), fields.child("allow")
    licences = {value: allow.text(value) for value in allow.value}
    deny = fields.texts("deny", missing=True)
    for value in sorted(set(licences) & set(deny)):
        fields.note("deny", f"and allow both hold {shown(value)}")
    return RowFilter(column=column, allow=licences, deny=frozenset(deny))


def _read_tokenizer(name: str, fields: Fields) -> TokenizerEntry:
    if name == BYTE_TOKENIZER:
        fields.problems.append(f"tokenizers: {BYTE_TOKENIZER!r} is the built-in byte tokenizer and needs no entry")
    return TokenizerEntry(
        id=name,
        repo=fields.text("repo"),
        revision=fields.hexadecimal("revision", 40),
        filename=fields.text("filename"),
        sha256=fields.hexadecimal("sha256"),
        licence=fields.text("license"),
        end_token=fields.optional_text("end_token"),
    )


def _read_mix(
    name: str, fields: Fields, sources: Mapping[str, Source], tokenizers: Mapping[str, TokenizerEntry]
) -> Mix:
    has_text, has_record = (fields.value.get(kind) is not None for kind in ("seq_len", "record"))
    if has_text == has_record:
        fields.note("seq_len", "and record: exactly one of the two must be given")
    tokenizer = fields.text("tokenizer") if has_text else fields.optional_text("tokenizer")
    if tokenizer and tokenizer != BYTE_TOKENIZER and tokenizer not in tokenizers:
        fields.note("tokenizer", f"is {shown(tokenizer)}, which is not under tokenizers")
    mix = Mix(
        id=name,
        components=_read_components(fields),
        decontam_against=fields.texts("decontam_against"),
        holdout=fields.optional_text("holdout"),
        seq_len=fields.integer("seq_len", least=1) if has_text else None,
        tokenizer=tokenizer,
    )
    _check_references(mix, fields, sources)
    return mix


def _read_components(fields: Fields) -> tuple[tuple[str, float], ...]:
    found: list[tuple[str, float]] = []
    for at, item in enumerate(fields.items("components")):
        component = _component(item)
        if component is not None:
            found.append(component)
        else:
            fields.note(f"components[{at}]", f"is {shown(item)}, not [source, ratio] with a ratio above 0")
    total = sum(ratio for _, ratio in found)
    if abs(total - 1.0) > _RATIO_TOLERANCE:
        fields.note("components", f"have ratios that sum to {total!r}, not to 1")
    return tuple(found)


def _component(item: object) -> tuple[str, float] | None:
    if not isinstance(item, list) or len(item) != len(("source", "ratio")):
        return None
    source, ratio = item
    if not isinstance(source, str) or not isinstance(ratio, int | float) or isinstance(ratio, bool):
        return None
    return (source, float(ratio)) if 0 < ratio <= 1 + _RATIO_TOLERANCE else None


def _check_references(mix: Mix, fields: Fields, sources: Mapping[str, Source]) -> None:
    ids = [source for source, _ in mix.components]
    for source in sorted(_repeated(ids)):
        fields.note("components", f"hold {shown(source)} twice")
    named = [("components", source) for source in ids]
    named += [("decontam_against", source) for source in mix.decontam_against]
    named += [("holdout", mix.holdout)] if mix.holdout is not None else []
    for name, source in named:
        if source not in sources:
            fields.note(name, f"names {shown(source)}, which is not under sources")
    if mix.holdout is not None and mix.holdout in ids:
        fields.note("holdout", f"is {shown(mix.holdout)}, which is also a component: nothing would be held out")


def _repeated(names: Sequence[str]) -> set[str]:
    return {name for name in names if names.count(name) > 1}
