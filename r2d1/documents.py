"""Ship records and heads as values: the two small documents the commit protocol turns on (formats §4). Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from r2d1 import keys, strictjson
from r2d1.digest import ALGORITHM, split_digest
from r2d1.errors import FormatError
from r2d1.manifest import check_version, is_count

MAX_DOCUMENT_BYTES = 2**20
OPEN, TAKEN = "open", "taken"


@dataclass(frozen=True, slots=True)
class ShipRecord:
    """The proof that a prefix, and the uploads below it, are ours."""

    state: str
    owner: str
    host: str
    created_by: str
    unknown: Mapping[str, Any] = field(default_factory=dict)

    def encode(self) -> bytes:
        return strictjson.encode(
            strictjson.clean(
                {
                    **self.unknown,
                    "version": 1,
                    "state": self.state,
                    "owner": self.owner,
                    "host": self.host,
                    "created_by": self.created_by,
                }
            )
        )

    def taken(self) -> ShipRecord:
        return replace(self, state=TAKEN)


def decode_record(raw: bytes, *, key: str) -> ShipRecord:
    """Read a ship record; ``FormatError`` when it is malformed or of an unknown version."""
    fields = _fields(raw, f"ship record {keys.shown(key)}")
    texts = {name: fields.pop(name, None) for name in ("state", "owner", "host", "created_by")}
    if not all(isinstance(text, str) for text in texts.values()):
        raise FormatError(f"ship record {keys.shown(key)} is malformed: {', '.join(texts)} must be text")
    fields.pop("version")
    return ShipRecord(**{name: str(text) for name, text in texts.items()}, unknown=fields)


@dataclass(frozen=True, slots=True)
class Head:
    """Which ship of a name counts. ``replaces`` is the prefix of the one before it, which lives one more ship.

    ``prefix`` and ``manifest`` are empty only in a ``deleted`` head that gc wrote where there was none.
    """

    seq: int
    name: str
    epoch: int
    timestamp: float
    prefix: str
    manifest: str
    replaces: str | None = None
    deleted: bool = False
    unknown: Mapping[str, Any] = field(default_factory=dict)

    def encode(self) -> bytes:
        return strictjson.encode(
            {
                **strictjson.clean(dict(self.unknown)),
                "version": 1,
                "seq": self.seq,
                "name": self.name,
                "epoch": self.epoch,
                "timestamp": self.timestamp,
                "prefix": self.prefix or None,
                "manifest": self.manifest or None,
                "replaces": self.replaces,
                "deleted": self.deleted,
            }
        )

    def names(self, prefix: str) -> bool:
        """Whether this head still needs the objects below ``prefix``."""
        return not self.deleted and prefix in (self.prefix, self.replaces)


_HEAD_FIELDS = ("version", "seq", "name", "epoch", "timestamp", "prefix", "manifest", "replaces", "deleted")


def decode_head(raw: bytes, *, key: str, of: keys.CheckpointKeys) -> Head:
    """Read a head of ``of``; ``FormatError`` when it is malformed, of an unknown version, or names foreign objects."""
    what = f"head {keys.shown(key)}"
    fields = _fields(raw, what)
    problems = _head_problems(fields, of)
    if problems:
        raise FormatError(f"{what} is malformed: " + "; ".join(problems))
    return Head(
        seq=fields["seq"],
        name=fields["name"],
        epoch=fields["epoch"],
        timestamp=float(fields["timestamp"]),
        prefix=fields.get("prefix") or "",
        manifest=fields.get("manifest") or "",
        replaces=fields.get("replaces"),
        deleted=fields["deleted"],
        unknown={name: value for name, value in fields.items() if name not in _HEAD_FIELDS},
    )


def _head_problems(fields: Mapping[str, Any], of: keys.CheckpointKeys) -> list[str]:
    problems = []
    if fields.get("name") != of.name:
        problems.append(f"it names {ascii(fields.get('name'))[:140]}")
    for name, top in (("seq", 2**63), ("epoch", keys.MAX_EPOCH)):
        if not is_count(fields.get(name), top):
            problems.append(f"'{name}' is no count")
    if strictjson.as_finite(fields.get("timestamp")) is None:
        problems.append("'timestamp' is no number")
    if not isinstance(fields.get("deleted"), bool):
        problems.append("'deleted' is neither true nor false")
    problems += [why for name in ("prefix", "replaces") if (why := _why_no_prefix(fields, name, of))]
    manifest = fields.get("manifest")
    if not (fields.get("deleted") is True and manifest is None):
        try:
            algorithm, _ = split_digest(manifest if isinstance(manifest, str) else "")
        except FormatError as exc:
            problems.append(f"'manifest': {exc}")
        else:
            problems += [] if algorithm == ALGORITHM else [f"'manifest' is no {ALGORITHM} digest"]
    return problems


def _why_no_prefix(fields: Mapping[str, Any], name: str, of: keys.CheckpointKeys) -> str | None:
    prefix = fields.get(name)
    if prefix is None and (name == "replaces" or fields.get("deleted") is True):
        return None
    if not isinstance(prefix, str) or of.ship_of(prefix) is None:
        return f"'{name}' {ascii(prefix)[:200]} is no prefix of this checkpoint"
    return None


def _fields(raw: bytes, what: str) -> dict[str, Any]:
    try:
        fields = strictjson.parse_object(raw)
    except FormatError as exc:
        raise FormatError(f"{what}: {exc}") from exc
    check_version(fields, what)
    return fields
