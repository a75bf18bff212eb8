"""Where settings come from: the accepted names, the sources, and which of them wins.

Names and order: a setting is looked up name by name, canonical name first, and each name source by source,
so that an alias never beats a canonical name. What the caller gave, in whatever spelling, comes before all that
surrounds the process.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from io import StringIO
from itertools import chain
from pathlib import Path

from r2d1.errors import ConfigError
from r2d1.secret import Secret

# The kinds of source, strongest first.
ARGUMENT, CONFIG, ENVIRONMENT, ENV_FILE, DOTENV = "argument", "config", "environment", "env file", ".env"
DEFAULT = "default"

#: Stripped from both ends of a value: white space, and what invisible copying leaves behind.
_EDGES = " \t\r\n\v\f\u00a0\u200b\u2028\u2029\ufeff"


@dataclass(frozen=True, slots=True)
class Variable:
    """A setting that a variable can give. ``names``: every spelling, the canonical one first."""

    field: str
    names: tuple[str, ...]
    needed_for: str = "optional"
    is_secret: bool = False


@dataclass(frozen=True, slots=True)
class Family:
    """Names that belong together: a key pair, and the session token that only makes sense with it."""

    access_key: str
    secret_key: str
    session_token: str | None = None


FAMILIES = (
    Family("R2D1_R2_ACCESS_KEY", "R2D1_R2_SECRET_KEY", "R2D1_SESSION_TOKEN"),
    Family("R2_ACCESS_KEY_ID", "R2_SECRET_ACCESS_KEY"),
)
#: The last resort, and all of ``AWS_*`` that is ever read.
AWS = Family("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY")

VARIABLES = (
    Variable("account_id", ("R2D1_ACCOUNT_ID", "R2_ACCOUNT_ID", "CLOUDFLARE_ACCOUNT_ID"), "R2, D1"),
    Variable("bucket", ("R2D1_R2_BUCKET", "R2_BUCKET"), "R2"),
    Variable("access_key", tuple(family.access_key for family in (*FAMILIES, AWS)), "R2"),
    Variable("secret_key", tuple(family.secret_key for family in (*FAMILIES, AWS)), "R2", is_secret=True),
    Variable("session_token", ("R2D1_SESSION_TOKEN",), is_secret=True),
    Variable("endpoint_url", ("R2D1_R2_ENDPOINT_URL", "R2_ENDPOINT")),
    Variable("jurisdiction", ("R2D1_R2_JURISDICTION",)),
    Variable("public_base", ("R2D1_R2_PUBLIC_BASE", "R2_PUBLIC_BASE")),
    Variable("api_token", ("R2D1_API_TOKEN", "CLOUDFLARE_API_TOKEN"), "D1", is_secret=True),
    Variable("database_id", ("R2D1_D1_DATABASE_ID", "D1_DATABASE_ID"), "D1"),
    Variable("d1_base_url", ("R2D1_D1_BASE_URL",)),
    Variable("store_url", ("R2D1_STORE_URL",)),
    Variable("ca_bundle", ("R2D1_CA_BUNDLE", "SSL_CERT_FILE")),
    Variable("https_proxy", ("HTTPS_PROXY", "https_proxy"), is_secret=True),
    Variable("no_proxy", ("NO_PROXY", "no_proxy")),
)
BY_FIELD = {variable.field: variable for variable in VARIABLES}
KEY_FIELDS = ("access_key", "secret_key", "session_token")


@dataclass(frozen=True, slots=True)
class Origin:
    """Where a setting came from: the kind of source, the variable's name, and the file if it was one."""

    kind: str
    variable: str
    file: str = ""

    @property
    def source(self) -> str:
        return f"{self.kind} {self.file}" if self.file else self.kind

    def __str__(self) -> str:
        return f"{self.variable} ({self.source})"


@dataclass(frozen=True, slots=True)
class Layer:
    """One source: variable names and their raw values."""

    kind: str
    values: Mapping[str, str] = field(repr=False)
    file: str = ""


@dataclass(frozen=True, slots=True)
class Found:
    """A value, stripped and not empty, and where it came from."""

    text: str = field(repr=False)
    origin: Origin


@dataclass(frozen=True, slots=True)
class Sources:
    """All sources, strongest first: ``given`` by the caller, ``ambient`` around the process."""

    given: tuple[Layer, ...]
    ambient: tuple[Layer, ...]

    @property
    def all(self) -> tuple[Layer, ...]:
        return (*self.given, *self.ambient)


@dataclass(frozen=True, slots=True)
class Resolved:
    """What was found, by field, and what an operator should know about how."""

    found: Mapping[str, Found]
    remarks: tuple[str, ...] = ()


def clean(text: str | None) -> str:
    """A value without what surrounds it by accident; empty counts as missing."""
    return (text or "").strip(_EDGES)


def look_up(names: tuple[str, ...], layers: tuple[Layer, ...]) -> Found | None:
    """The first value, name by name and for each name layer by layer."""
    for name in names:
        for layer in layers:
            if text := clean(layer.values.get(name)):
                return Found(text, Origin(layer.kind, name, layer.file))
    return None


def resolve(sources: Sources) -> Resolved:
    """Find every setting. Pure: the sources have been read."""
    found = {
        variable.field: hit
        for variable in VARIABLES
        if variable.field not in KEY_FIELDS
        and (hit := look_up(variable.names, sources.given) or look_up(variable.names, sources.ambient))
    }
    family = choose_family(sources)
    if family is None:
        return Resolved(found)
    keys = _take(family, sources)
    return Resolved({**found, **keys}, tuple(_key_remarks(keys, sources)))


def choose_family(sources: Sources) -> Family | None:
    """The one family that the key pair is taken from: the first of which anything was given, else is there.

    A half pair still decides, so that the other half is missed by name and never borrowed from another family.
    """
    for layers in (sources.given, sources.ambient):
        for family in FAMILIES:
            if look_up((family.access_key, family.secret_key), layers):
                return family
    is_whole = all(look_up((name,), sources.all) for name in (AWS.access_key, AWS.secret_key))
    return AWS if is_whole else None


def _take(family: Family, sources: Sources) -> dict[str, Found]:
    """The pair of one family, with a session token of the same; keys given whole take no token from around them."""
    given_whole = all(look_up((name,), sources.given) for name in (family.access_key, family.secret_key))
    hits = {
        "access_key": look_up((family.access_key,), sources.all),
        "secret_key": look_up((family.secret_key,), sources.all),
    }
    if family.session_token:
        hits["session_token"] = look_up((family.session_token,), sources.given if given_whole else sources.all)
    return {name: hit for name, hit in hits.items() if hit}


def _key_remarks(keys: Mapping[str, Found], sources: Sources) -> Iterator[str]:
    token = look_up(BY_FIELD["session_token"].names, sources.all)
    if token and "session_token" not in keys:
        yield f"{token.origin} is not used: it does not belong with {next(iter(keys.values())).origin}"
    for missing, present in (("access_key", "secret_key"), ("secret_key", "access_key")):
        other = look_up(BY_FIELD[missing].names, sources.all)
        if missing not in keys and present in keys and other:
            yield f"{other.origin} is not used with {keys[present].origin}: a key pair comes from one family of names"


def ambient_layers(env_file: str | os.PathLike[str] | None, environ: Mapping[str, str] | None) -> tuple[Layer, ...]:
    """The process's environment, the file asked for, and a ``.env`` found upwards.

    An ``environ`` stands in for the process's surroundings: no ``.env`` is looked for then.
    """
    layers = [Layer(ENVIRONMENT, dict(os.environ if environ is None else environ))]
    if env_file is not None:
        layers.append(read_env_file(env_file, ENV_FILE))
    if environ is None and (path := find_dotenv_file()):
        layers.append(read_env_file(path, DOTENV))
    return tuple(layers)


def find_dotenv_file() -> str | None:
    """The nearest ``.env`` from the working directory upwards; none without the extra ``dotenv``."""
    try:
        from dotenv import find_dotenv
    except ImportError:
        return None
    try:
        return find_dotenv(usecwd=True) or None
    except FileNotFoundError:  # the working directory itself was deleted
        return None


def read_env_file(path: str | os.PathLike[str], kind: str) -> Layer:
    """The variables of a file in ``.env`` form. ``${NAME}`` is not expanded: nothing around the file leaks in."""
    shown = os.fspath(path)
    try:
        from dotenv import dotenv_values
    except ImportError as exc:
        raise ConfigError(f"{kind} {shown}: reading it needs python-dotenv: pip install 'r2d1[dotenv]'") from exc
    try:
        text = Path(path).read_text(encoding="utf-8-sig")
    except UnicodeDecodeError:
        raise ConfigError(f"{kind} {shown}: it is not UTF-8 text") from None  # the cause would show the bytes
    except OSError as exc:
        raise ConfigError(f"{kind} {shown}: it cannot be read: {exc.strerror}") from exc
    values = dotenv_values(stream=StringIO(text), interpolate=False)
    return Layer(kind, {name: value or "" for name, value in values.items()}, shown)


def config_entries(secrets: Mapping[str, object]) -> tuple[dict[str, str], list[str]]:
    """The entries of a secrets block as text, and what is wrong with the others.

    Keys that begin with ``_`` and values that are ``None`` or empty are passed over.
    """
    entries: dict[str, str] = {}
    problems: list[str] = []
    for key, value in secrets.items():
        if value is None or (isinstance(key, str) and key.startswith("_")):
            continue
        text = value.reveal() if isinstance(value, Secret) else value
        if problem := _entry_problem(key, text):
            problems.append(problem)
        elif clean(str(text)):
            entries[key] = str(text)
    return entries, problems


def _entry_problem(key: object, value: object) -> str:
    if not isinstance(key, str) or not key or "=" in key or "\0" in key:
        return f"{key!r}: it is not a variable's name"
    if not isinstance(value, str | int | float):
        return f"{key}: a value must be text or a number, not {type(value).__name__}"
    try:
        is_exportable = b"\0" not in os.fsencode(str(value))
    except UnicodeEncodeError:
        is_exportable = False
    return "" if is_exportable else f"{key}: the value holds a character that no environment variable can hold"


def exports(entries: Mapping[str, str], environ: Mapping[str, str]) -> dict[str, str]:
    """The entries that an environment lacks. Values r2d1 knows are cleaned, others stay as they are."""
    known = set(chain.from_iterable(variable.names for variable in VARIABLES))
    missing = {name: text for name, text in entries.items() if not clean(environ.get(name))}
    return {name: clean(text) if name in known else text for name, text in missing.items()}


def disagreements(entries: Mapping[str, str], environ: Mapping[str, str], used: set[str]) -> list[str]:
    """A sentence for each given entry that the environment contradicts, naming variables and never a value.

    ``used``: the names whose given value this process uses.
    """
    stronger = {name: variable.names[:at] for variable in VARIABLES for at, name in enumerate(variable.names)}
    said = []
    for name, text in entries.items():
        rivals = (name, *(stronger.get(name, ()) if name in used else ()))
        for rival in rivals:
            theirs = clean(environ.get(rival))
            if theirs and theirs != clean(text) and (rival == name or rival not in entries):
                said.append(_disagreement(name, rival, name in used))
    return said


def _disagreement(name: str, rival: str, is_used: bool) -> str:
    where = "the environment" if rival == name else f"the environment's {rival}"
    if is_used:
        return f"{name} differs from {where}: the given value is used here, other programs see the environment's"
    return f"{name} differs from {where}, which keeps its own value"
