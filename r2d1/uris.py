"""The three forms of a URI (formats §7). Literal: no percent-decoding, no query, no fragment. Pure."""

from __future__ import annotations

from dataclasses import dataclass

from r2d1 import keys
from r2d1.errors import NameRefused, UriError
from r2d1.keys import CheckpointKeys

_SCHEME = "r2://"


@dataclass(frozen=True, slots=True)
class Latest:
    """``r2://jobs/<id>/latest``: the checkpoint of the highest epoch."""

    job_id: str


@dataclass(frozen=True, slots=True)
class Named:
    """``r2://jobs/<id>/<name>``: that checkpoint."""

    of: CheckpointKeys


@dataclass(frozen=True, slots=True)
class Prefix:
    """``r2://<any/prefix>``: every object below ``<any/prefix>/``. ``prefix`` is in NFC, as R2 keeps keys."""

    prefix: str


@dataclass(frozen=True, slots=True)
class Job:
    """``r2://jobs/<id>``: a job, for the commands that list or clean one."""

    job_id: str


def parse_uri(uri: str) -> Latest | Named | Prefix:
    """Read a URI to pull from; ``UriError`` when it is none, ``NameRefused`` for an impossible job id."""
    path = _path_of(uri)
    first, _, rest = path.partition("/")
    if first == "jobs" and rest.endswith("/latest"):
        return Latest(keys.check_job_id(rest.removesuffix("/latest"), reading=True))
    job_id, _, name = rest.partition("/")
    if first == "jobs" and keys.is_name(name):
        try:
            return Named(CheckpointKeys(keys.check_job_id(job_id), name))
        except NameRefused:
            return Prefix(keys.nfc(path))  # no courier ships to such an id, but a tool may have put objects there
    return Prefix(keys.nfc(path))


def parse_job_uri(uri: str) -> Job | Named:
    """Read the URI of a job or of one of its checkpoints."""
    path = _path_of(uri)
    parts = path.split("/")
    if parts[0] != "jobs" or len(parts) not in (2, 3):
        raise UriError(f"{keys.shown(uri)} is neither r2://jobs/<id> nor r2://jobs/<id>/<name>")
    job_id = keys.check_job_id(parts[1])
    return Job(job_id) if len(parts) == 2 else Named(CheckpointKeys(job_id, keys.check_name(parts[2])))


def _path_of(uri: str) -> str:
    if not uri.startswith(_SCHEME):
        raise UriError(f"{keys.shown(uri)} is no r2:// URI; local paths go to your training code directly")
    path = uri.removeprefix(_SCHEME).rstrip("/")
    if any(segment in ("", ".", "..") for segment in path.split("/")):
        raise UriError(f"{keys.shown(uri)}: empty, '.' and '..' segments are not allowed")
    try:
        keys.check_key(path)
    except NameRefused as exc:
        raise UriError(f"{keys.shown(uri)}: {exc}") from exc
    return path
