"""The bucket's layout: names and paths checked, keys built and parsed. Pure; rules: docs/formats.md §2, §4."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterable
from dataclasses import dataclass

from r2d1.errors import NameRefused

MANIFEST_NAME = "r2d1.manifest.json"
#: Where checkpoints lie in a bucket.
JOBS = "jobs/"
STATE_DIR = ".r2d1"
FIRST_SHIP = "0"
MAX_EPOCH = 2**53 - 1  # what survives a JSON double; D1 keeps no more
MAX_KEY_BYTES = 1024  # R2's limit
MAX_SEGMENT_BYTES = 255  # what common file systems take for one name
MAX_JOB_ID_BYTES = 128

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._=-]{0,127}", re.ASCII)
_SHIP = re.compile(r"[0-9a-f]{12}", re.ASCII)
_HINT = re.compile(r"([0-9]{16})-(.+)\.json", re.ASCII)
_HINT_TOP = 10**16 - 1
_DEVICES = {"con", "prn", "aux", "nul"} | {f"{port}{n}" for port in ("com", "lpt") for n in range(1, 10)}


def shown(text: str) -> str:
    """A name as messages show it: escaped, and shortened when it is very long."""
    return ascii(text if len(text) <= 300 else text[:300] + "…")


def is_name(name: str) -> bool:
    return _why_no_name(name) is None


def check_name(name: str) -> str:
    """Return a checkpoint name that obeys formats §2, else raise ``NameRefused``."""
    if why := _why_no_name(name):
        raise NameRefused(f"checkpoint name {shown(name)} refused: {why}")
    return name


def _why_no_name(name: str) -> str | None:
    if name == "latest":
        return "'latest' means the newest checkpoint in a URI; name the folder 'slot_0' instead"
    if name == "checkpoints":
        return "'checkpoints' is where the 0.2 line kept its objects"
    if not _NAME.fullmatch(name):
        return "allowed are 1 to 128 of A-Z a-z 0-9 . _ = -, beginning with a letter or digit"
    if name.endswith("."):
        return "it ends with a dot"
    if name.split(".", maxsplit=1)[0].lower() in _DEVICES:
        return "it is the name of a device on Windows"
    return None


def check_job_id(job_id: str, *, reading: bool = False) -> str:
    """Return a job id that obeys formats §2; ``reading`` allows the slashes that 0.2.1 allowed."""
    if why := _why_no_job_id(job_id, reading):
        raise NameRefused(f"job id {shown(job_id)} refused: {why}")
    return job_id


def _why_no_job_id(job_id: str, reading: bool) -> str | None:
    if not _is_text(job_id) or not 1 <= len(job_id.encode()) <= MAX_JOB_ID_BYTES:
        return f"it must be text of 1 to {MAX_JOB_ID_BYTES} bytes"
    if unicodedata.normalize("NFC", job_id) != job_id:
        return "it is not in Unicode's composed form (NFC), and R2 would take it for another spelling"
    segments = job_id.split("/")
    if "/" in job_id and not reading:
        return "a slash is not allowed; ids with one can be read (0.2 allowed them), not shipped to"
    if any(segment in ("", ".", "..") for segment in segments):
        return "'.', '..' and empty segments are not allowed"
    if "\\" in job_id or any(unicodedata.category(char) == "Cc" for char in job_id):
        return "backslashes and control characters are not allowed"
    return None


def check_path(path: str) -> str:
    """Return a path inside a checkpoint that obeys formats §2, else raise ``NameRefused``."""
    if why := _why_no_path(path):
        raise NameRefused(f"path {shown(path)} refused: {why}")
    return path


def _why_no_path(path: str) -> str | None:
    if not _is_text(path):
        return "it is not valid UTF-8"
    if not path or path.startswith("/"):
        return "it is empty or absolute"
    if "\0" in path or "\\" in path:
        return "it holds a NUL or a backslash"
    segments = path.split("/")
    if any(segment in ("", ".", "..") for segment in segments):
        return "it holds an empty, '.' or '..' segment"
    return _why_too_long(path, segments)


def _why_too_long(path: str, segments: list[str]) -> str | None:
    if any(len(segment.encode()) > MAX_SEGMENT_BYTES for segment in segments):
        return f"a segment is longer than {MAX_SEGMENT_BYTES} bytes"
    if len(nfc(path).encode()) > MAX_KEY_BYTES:
        return f"it is longer than a key may be ({MAX_KEY_BYTES} bytes)"
    return None


def _is_text(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def nfc(text: str) -> str:
    return unicodedata.normalize("NFC", text)


def check_key(key: str) -> str:
    """Return a key in NFC form of at most 1,024 bytes, else raise ``NameRefused``."""
    if not _is_text(key):
        raise NameRefused(f"key {shown(key)} refused: it is not valid UTF-8")
    key = nfc(key)
    if not 1 <= len(key.encode()) <= MAX_KEY_BYTES:
        raise NameRefused(f"key {shown(key)} refused: R2 takes 1 to {MAX_KEY_BYTES} bytes")
    return key


def check_paths(paths: Iterable[str]) -> list[str]:
    """Check all paths of one checkpoint together; returns warnings, raises ``NameRefused`` with every problem.

    Refused: two paths with one NFC form, and a file that is a folder of another. Two that differ only
    in case are a warning: file systems that fold case cannot hold both.
    """
    problems: list[str] = []
    by_form: dict[str, str] = {}
    by_case: dict[str, str] = {}
    warnings: list[str] = []
    for path in paths:
        if why := _why_no_path(path):
            problems.append(f"path {shown(path)}: {why}")
            continue
        form = nfc(path)
        if form in by_form:
            problems.append(f"paths {shown(by_form[form])} and {shown(path)} are one key in R2 (NFC)")
        elif (other := by_case.setdefault(form.casefold(), path)) != path:
            warnings.append(f"paths {shown(other)} and {shown(path)} differ only in case")
        by_form.setdefault(form, path)
    problems += [
        f"path {shown(by_form[parent])} is also a folder of {shown(path)}"
        for form, path in by_form.items()
        for parent in parents(form)
        if parent in by_form
    ]
    if problems:
        raise NameRefused("refused: " + "; ".join(problems[:20]))
    return warnings


def parents(path: str) -> list[str]:
    """``"a/b/c"`` → ``["a", "a/b"]``."""
    segments = path.split("/")
    return ["/".join(segments[:n]) for n in range(1, len(segments))]


@dataclass(frozen=True, slots=True)
class CheckpointKeys:
    """The keys of one checkpoint name of one job."""

    job_id: str
    name: str

    @property
    def head(self) -> str:
        return f"{heads_prefix(self.job_id)}{self.name}.json"

    @property
    def records(self) -> str:
        return f"{records_prefix(self.job_id)}{self.name}/"

    @property
    def legacy(self) -> str:
        """Where the 0.2 line put this name."""
        return f"{legacy_prefix(self.job_id)}{self.name}"

    def record(self, ship: str) -> str:
        return f"{self.records}{ship}.json"

    def prefix(self, ship: str) -> str:
        """Where ``ship`` puts its objects, without a slash at the end."""
        if ship == FIRST_SHIP:
            return f"jobs/{self.job_id}/{self.name}"
        return f"jobs/{self.job_id}/{STATE_DIR}/v/{ship}/{self.name}"

    def hint(self, epoch: int) -> str:
        return f"{hints_prefix(self.job_id)}{_HINT_TOP - epoch:016d}-{self.name}.json"

    def ship_of(self, prefix: str) -> str | None:
        """The ship that owns ``prefix``, or None when it is no prefix of this checkpoint."""
        if prefix == self.prefix(FIRST_SHIP):
            return FIRST_SHIP
        ship = prefix.removeprefix(f"jobs/{self.job_id}/{STATE_DIR}/v/").split("/")[0]
        return ship if is_ship(ship) and prefix == self.prefix(ship) else None

    def manifest(self, prefix: str) -> str:
        return f"{prefix}/{MANIFEST_NAME}"

    def sidecar(self, prefix: str) -> str:
        return f"{prefix}/{self.name}.json"

    def moved_sidecar(self) -> str:
        """Where a file of the checkpoint goes that is called like the sidecar but differs; relative to the prefix."""
        return f"{STATE_DIR}/{self.name}.json"


def is_ship(ship: str) -> bool:
    return _SHIP.fullmatch(ship) is not None


def heads_prefix(job_id: str) -> str:
    return f"jobs/{job_id}/{STATE_DIR}/heads/"


def records_prefix(job_id: str) -> str:
    return f"jobs/{job_id}/{STATE_DIR}/ships/"


def hints_prefix(job_id: str) -> str:
    return f"jobs/{job_id}/{STATE_DIR}/latest/"


def legacy_prefix(job_id: str) -> str:
    return f"jobs/{job_id}/checkpoints/"


def is_legacy(r2_prefix: str, job_id: str) -> bool:
    """Whether a row's ``r2_prefix`` was written by the 0.2 line."""
    return r2_prefix.startswith(legacy_prefix(job_id))


def parse_head_key(job_id: str, key: str) -> str | None:
    """The checkpoint name of a head's key, or None when it is not one."""
    name = key.removeprefix(heads_prefix(job_id)).removesuffix(".json")
    return name if is_name(name) and key == CheckpointKeys(job_id, name).head else None


def parse_hint_key(job_id: str, key: str) -> tuple[int, str] | None:
    """``(epoch, name)`` of a hint's key, or None when it is not one."""
    prefix = hints_prefix(job_id)
    match = _HINT.fullmatch(key, len(prefix)) if key.startswith(prefix) else None
    if not match or not is_name(match[2]):
        return None
    epoch = _HINT_TOP - int(match[1])
    return (epoch, match[2]) if epoch <= MAX_EPOCH else None
