"""Settings: every value r2d1 works with and where it came from, read once; secrets never show themselves."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Iterator, Mapping, MutableMapping, Sequence
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

from r2d1 import network, sources
from r2d1.errors import ConfigError
from r2d1.secret import Secret, mask
from r2d1.setting_rules import (
    MOST,
    MOST_THROUGH_AIOBOTO3,
    R2_HOST,
    START,
    STREAM,
    is_account_id,
    is_database_id,
    is_loopback,
    problems_of,
    to_directory,
)
from r2d1.sources import BY_FIELD, VARIABLES, Layer, Origin, Resolved, Sources, Variable

if TYPE_CHECKING:
    import ssl

__all__ = ["Missing", "Origin", "Secret", "SettingLine", "Settings", "mask"]

log = logging.getLogger("r2d1")

D1_BASE_URL = "https://api.cloudflare.com/client/v4"


@dataclass(frozen=True, slots=True)
class Missing:
    """A setting that is needed and absent. ``names``: every spelling that is accepted, canonical first."""

    field: str
    names: tuple[str, ...]
    note: str = ""

    def __str__(self) -> str:
        others = f" (or {', '.join(self.names[1:])})" if len(self.names) > 1 else ""
        return f"{self.names[0]}{others}{self.note}"


@dataclass(frozen=True, slots=True)
class SettingLine:
    """One line of ``r2d1 secrets``. ``needed_for`` is ``"R2"``, ``"D1"``, ``"R2, D1"`` or ``"optional"``.

    ``masked`` is empty and ``source`` is ``"not set"`` for what is not set.
    """

    field: str
    variable: str
    masked: str
    source: str
    needed_for: str


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class Settings:
    """Everything a courier or fetcher is told. Checked when made: ``ConfigError`` lists all that is wrong.

    ``endpoint_url`` is what was given; ``r2_endpoint`` is the one to use. ``https_proxy`` is a secret as it may
    hold a password; ask ``proxy_for``. ``part_size`` in bytes (``None``: chosen from the file's size),
    ``bandwidth_limit`` in bytes per second, ``settle_timeout`` in seconds, ``concurrency`` in requests at
    once (``None``: as many as pay, found by measuring). ``transport`` says whose connections carry
    bodies: ``"wire"`` (ours) or ``"aioboto3"``.
    ``origins`` tells where each setting came from, by field.
    """

    account_id: str | None = None
    bucket: str | None = None
    access_key: str | None = None
    secret_key: Secret | None = None
    session_token: Secret | None = None
    endpoint_url: str | None = None
    jurisdiction: str | None = None
    public_base: str | None = None
    api_token: Secret | None = None
    database_id: str | None = None
    d1_base_url: str = D1_BASE_URL
    store_url: str | None = None
    ca_bundle: str | None = None
    https_proxy: Secret | None = None
    no_proxy: str | None = None
    concurrency: int | None = None
    part_size: int | None = None
    bandwidth_limit: int | None = None
    upload_check: str = "crc64nvme"
    transport: str = "wire"
    settle_timeout: float = 60.0
    origins: Mapping[str, Origin] = field(default_factory=dict, compare=False)
    remarks: tuple[str, ...] = field(default=(), compare=False)

    def __post_init__(self) -> None:
        _refuse(_problems({each.name: getattr(self, each.name) for each in fields(self)}, self.origins))

    @classmethod
    def from_env(
        cls,
        *,
        env_file: str | os.PathLike[str] | None = None,
        environ: Mapping[str, str] | None = None,
        **overrides: object,
    ) -> Settings:
        """Read the settings: arguments (field names), the environment, ``env_file``, a ``.env`` found upwards.

        ``.env`` is looked for only with the extra ``dotenv``, and only when no ``environ`` stands in for the
        process's own environment. An argument that is ``None`` or empty counts as not given.
        Missing credentials are no error here: ``require_r2`` asks for them. Raises ``ConfigError``.
        """
        given, tuning, problems = _arguments(overrides)
        return _assembled(Sources((given,), sources.ambient_layers(env_file, environ)), tuning, problems)

    @classmethod
    def from_config(
        cls,
        secrets: Mapping[str, object],
        *,
        warn: Callable[[str], None] = log.warning,
        environ: MutableMapping[str, str] | None = None,
        **overrides: object,
    ) -> Settings:
        """Read the settings from a secrets block (variable names) and export it to the environment.

        Given values are used here even where the environment differs; ``warn`` gets a sentence for each that
        does. What is not given is looked up as ``from_env`` does. Exported is every entry that the environment
        lacks, known to r2d1 or not; nothing at all when ``ConfigError`` is raised.
        """
        if not isinstance(secrets, Mapping):
            raise ConfigError(f"the secrets must be a mapping of names to values, not {type(secrets).__name__}")
        given, tuning, problems = _arguments(overrides)
        entries, bad_entries = sources.config_entries(secrets)
        layers = Sources((given, Layer(sources.CONFIG, entries)), sources.ambient_layers(None, environ))
        settings = _assembled(layers, tuning, [*problems, *bad_entries])
        used = {origin.variable for origin in settings.origins.values() if origin.kind == sources.CONFIG}
        target = os.environ if environ is None else environ
        for sentence in sources.disagreements(entries, target, used):
            warn(sentence)
        target.update(sources.exports(entries, target))
        return settings

    @property
    def r2_endpoint(self) -> str | None:
        """The S3 endpoint to use, without a slash at the end; ``None`` without endpoint and account id."""
        if self.endpoint_url:
            return self.endpoint_url.rstrip("/")
        if not self.account_id:
            return None
        return "https://" + ".".join(filter(None, (self.account_id, self.jurisdiction, R2_HOST)))

    @property
    def store_dir(self) -> Path | None:
        """The directory of the embedded store; ``None`` when the store is R2."""
        return to_directory(self.store_url) if self.store_url else None

    @property
    def has_d1(self) -> bool:
        """All that D1 needs is there, and the store is not an embedded one (which has its own catalog)."""
        return self.store_url is None and not self._lacking("D1")

    def missing_r2(self) -> list[Missing]:
        """What the store still needs: nothing for an embedded one; no account id when an endpoint is given."""
        if self.store_url:
            return []
        return [gap for gap in self._lacking("R2") if gap.field != "account_id" or not self.endpoint_url]

    def missing_d1(self) -> list[Missing]:
        """What D1 still needs; nothing beside an embedded store."""
        return [] if self.store_url else self._lacking("D1")

    def require_r2(self, *, beside: Sequence[str] = ()) -> None:
        """Raise ``ConfigError`` naming everything the store still needs, in all spellings.

        ``beside`` are further fields (``public_base``) to be named with the others when they are missing, too.
        """
        if gaps := self.missing_r2():
            more = (each for each in VARIABLES if each.field in beside and getattr(self, each.field) is None)
            self._require("R2", [*gaps, *(_gap(each, "R2") for each in more)])

    def require_d1(self) -> None:
        """Raise ``ConfigError`` naming everything D1 still needs, in all spellings."""
        self._require("D1", self.missing_d1())

    def notices(self) -> list[str]:
        """What an operator should read once, a sentence each, without values: show each as a warning.

        Half-given D1 credentials (then there is no D1), an embedded store that stands in for a bucket, keys that
        were passed over, ids of an unusual form, a token that travels in the clear.
        """
        return [*self.remarks, *self._store_notices(), *self._d1_notices()]

    def hint_for(self, *names: str) -> str:
        """What looks odd about these fields (``account_id``, ``database_id``), for an error's hint; else empty."""
        forms = {
            "account_id": (is_account_id, "an account id, which has 32 hex digits"),
            "database_id": (is_database_id, "a database id, which is a UUID"),
        }
        return "; ".join(
            f"{_name_of(name, self.origins)} does not look like {form}"
            for name, (is_usual, form) in forms.items()
            if name in names and (value := getattr(self, name)) and not is_usual(value)
        )

    def report(self) -> list[SettingLine]:
        """A line for every setting that a variable can give, for ``r2d1 secrets``; values are masked."""
        return [self._line(variable) for variable in VARIABLES]

    def proxy_for(self, url: str) -> str | None:
        """The proxy for an address by ``HTTPS_PROXY`` and ``NO_PROXY``, or ``None``. It may hold a password."""
        return network.proxy_for(url, proxy=_text(self.https_proxy), no_proxy=self.no_proxy)

    @property
    def in_flight(self) -> int:
        """Requests at once where their number is not found by measuring."""
        return self.concurrency or START

    @property
    def most_in_flight(self) -> int:
        """Pieces in flight at most. A disk gains nothing from more than a few."""
        if self.concurrency is not None or self.store_url is not None:
            return self.in_flight
        most = MOST if self.transport == "wire" else MOST_THROUGH_AIOBOTO3
        if self.bandwidth_limit is None:
            return most
        # As many as fill the limit: were it shared by more, none would be done for long, and a stop would lose all.
        return min(most, max(2, -(-self.bandwidth_limit // STREAM)))

    def ssl_context(self) -> ssl.SSLContext:
        """A verifying TLS context for every client, made anew; it reads files, so call it in a worker thread.

        ``ConfigError`` names the CA bundle that cannot be read.
        """
        return network.ssl_context(self.ca_bundle, label=_name_of("ca_bundle", self.origins))

    def __repr__(self) -> str:
        shown = (
            f"{each.name}={_shown(getattr(self, each.name))}"
            for each in fields(self)
            if each.compare and getattr(self, each.name) != each.default
        )
        return f"Settings({', '.join(shown)})"

    def _lacking(self, need: str) -> list[Missing]:
        needed = (each for each in VARIABLES if need in each.needed_for.split(", "))
        return [_gap(each, need) for each in needed if getattr(self, each.field) is None]

    def _require(self, need: str, gaps: Sequence[Missing]) -> None:
        if gaps:
            remarks = "".join(f"\n  note: {remark}" for remark in self.remarks)
            listed = "".join(f"\n  {gap}" for gap in gaps)
            raise ConfigError(
                f"settings for {need} are missing:{listed}{remarks}\n"
                "set them in the environment or in an env file; `r2d1 secrets` shows what was found where"
            )

    def _line(self, variable: Variable) -> SettingLine:
        value = _text(getattr(self, variable.field))
        origin = self.origins.get(variable.field)
        unread = "not set" if value is None else sources.DEFAULT if value == D1_BASE_URL else sources.ARGUMENT
        return SettingLine(
            field=variable.field,
            variable=origin.variable if origin else variable.names[0],
            masked=mask(value or ""),
            source=origin.source if origin else unread,
            needed_for=variable.needed_for,
        )

    def _store_notices(self) -> Iterator[str]:
        if self.store_url and (self.bucket or self.access_key):
            yield f"{_name_of('store_url', self.origins)} is set: the store is a directory, and R2 and D1 are not used"
        if self.store_url and self.bandwidth_limit:
            yield "bandwidth_limit holds for R2: a directory is not slowed down"
        if not self.store_url and not self.endpoint_url and (hint := self.hint_for("account_id")):
            yield hint

    def _d1_notices(self) -> Iterator[str]:
        if self.store_url or not (self.api_token or self.database_id):
            return
        if gaps := self.missing_d1():
            yield f"D1 is not used and no rows are written, as these are missing: {'; '.join(map(str, gaps))}"
            return
        if self.d1_base_url == D1_BASE_URL and (hint := self.hint_for("database_id")):
            yield hint
        if self.d1_base_url.startswith("http:") and not is_loopback(self.d1_base_url):
            yield f"{_name_of('d1_base_url', self.origins)} is not https: the API token travels in the clear"


def _gap(variable: Variable, need: str) -> Missing:
    notes = {
        ("account_id", "R2"): ", or in its place an endpoint: R2D1_R2_ENDPOINT_URL (or R2_ENDPOINT)",
        ("access_key", "R2"): f"; {sources.AWS.access_key} counts only together with {sources.AWS.secret_key}",
    }
    return Missing(variable.field, variable.names, notes.get((variable.field, need), ""))


def _arguments(overrides: Mapping[str, object]) -> tuple[Layer, dict[str, object], list[str]]:
    """Keyword arguments apart: those a variable could give, as a source; the others; and what is wrong."""
    known = {each.name for each in fields(Settings)} - {"origins", "remarks"}
    if unknown := overrides.keys() - known:
        raise TypeError(f"unknown settings: {', '.join(sorted(unknown))}")
    texts: dict[str, str] = {}
    problems: list[str] = []
    for name, value in overrides.items():
        if name not in BY_FIELD:
            continue
        text = value.reveal() if isinstance(value, Secret) else os.fspath(value) if isinstance(value, Path) else value
        if isinstance(text, str):
            texts[BY_FIELD[name].names[0]] = text
        elif text is not None:
            problems.append(f"{name}: it must be text, not {type(text).__name__}")
    tuning = {name: value for name, value in overrides.items() if name not in BY_FIELD and value is not None}
    return Layer(sources.ARGUMENT, texts), tuning, problems


def _assembled(layers: Sources, tuning: Mapping[str, object], problems: list[str]) -> Settings:
    """Look everything up, gather every problem, and make the settings.

    No local variable here holds a value: crash reports print the locals of the frames they show.
    """
    resolved = sources.resolve(layers)
    origins = {name: hit.origin for name, hit in resolved.found.items()}
    unexpanded = [
        f"{hit.origin}: ${{NAME}} is not expanded in a file; write the value out"
        for hit in resolved.found.values()
        if hit.origin.file and "${" in hit.text
    ]
    _refuse([*problems, *unexpanded, *_problems(_values(resolved, tuning), origins)])
    return Settings(**_values(resolved, tuning), origins=origins, remarks=resolved.remarks)


def _problems(values: Mapping[str, object], origins: Mapping[str, Origin]) -> list[str]:
    return problems_of(values, lambda name: _name_of(name, origins))


def _values(resolved: Resolved, tuning: Mapping[str, object]) -> dict[str, Any]:
    return {**{name: _value(name, hit.text) for name, hit in resolved.found.items()}, **tuning}


def _value(name: str, text: str) -> str | Secret:
    if name == "jurisdiction":
        return text.lower()
    if name in ("public_base", "d1_base_url"):
        return text.rstrip("/")
    return Secret(text) if BY_FIELD[name].is_secret else text


def _refuse(problems: Sequence[str]) -> None:
    if len(problems) == 1:
        raise ConfigError(problems[0])
    if problems:
        raise ConfigError("".join((f"{len(problems)} settings are wrong:", *(f"\n  {each}" for each in problems))))


def _name_of(name: str, origins: Mapping[str, Origin]) -> str:
    return str(origins[name]) if name in origins else name


def _text(value: str | Secret | None) -> str | None:
    return value.reveal() if isinstance(value, Secret) else value


def _shown(value: object) -> str:
    return repr(mask(value)) if isinstance(value, str) else repr(value)
