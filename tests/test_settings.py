"""Settings: which source wins, what is refused, and that no secret ever shows itself."""

from __future__ import annotations

import copy
import dataclasses
import logging
import os
import pickle
import pprint
import ssl
import subprocess
import sys
import traceback
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import certifi
import pytest
from hypothesis import given
from hypothesis import strategies as st

from r2d1.errors import ConfigError
from r2d1.settings import Missing, Secret, Settings, mask
from r2d1.sources import (
    ARGUMENT,
    AWS,
    BY_FIELD,
    DOTENV,
    ENV_FILE,
    ENVIRONMENT,
    FAMILIES,
    KEY_FIELDS,
    VARIABLES,
    Layer,
    Origin,
    Sources,
    resolve,
)

ACCOUNT = "0123456789abcdef0123456789abcdef"
DATABASE = "01234567-89ab-cdef-0123-456789abcdef"
ACCESS_KEY = "AKfirstABCDEFGHIJKLMNOPQRSTUVlast"
SECRET_KEY = "SKfirst-very-secret-middle-0123456789-last"
API_TOKEN = "TKfirst-token-in-the-middle-0123456789-last"

R2 = {
    "R2D1_ACCOUNT_ID": ACCOUNT,
    "R2D1_R2_BUCKET": "checkpoints",
    "R2D1_R2_ACCESS_KEY": ACCESS_KEY,
    "R2D1_R2_SECRET_KEY": SECRET_KEY,
}
D1 = {"R2D1_API_TOKEN": API_TOKEN, "R2D1_D1_DATABASE_ID": DATABASE}

AWS_JUNK = {
    "AWS_REGION": "us-west-1",
    "AWS_DEFAULT_REGION": "us-west-1",
    "AWS_PROFILE": "nope",
    "AWS_ENDPOINT_URL": "http://127.0.0.1:1",
    "AWS_ENDPOINT_URL_S3": "http://127.0.0.1:1",
    "AWS_SESSION_TOKEN": "junk",
    "AWS_CA_BUNDLE": "/nope",
    "AWS_EC2_METADATA_SERVICE_ENDPOINT": "http://127.0.0.1:1",
    "AWS_ACCESS_KEY_ID": "AKIAJUNKJUNKJUNKJUNK",
    "AWS_SECRET_ACCESS_KEY": "junk/junk/junk/junk/junk/junk/junk/junk1",
}


@pytest.fixture
def bare(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Path]:
    """An empty working directory and an environment in which no setting is known; both are put back afterwards."""
    before = dict(os.environ)
    for name in [name for variable in VARIABLES for name in variable.names] + [n for n in before if n[:4] == "AWS_"]:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.chdir(tmp_path)
    yield tmp_path
    os.environ.clear()
    os.environ.update(before)


def read(environ: Mapping[str, str], **overrides: Any) -> Settings:
    return Settings.from_env(environ=environ, **overrides)


# --- Secret and mask


@pytest.mark.parametrize(
    "show",
    [
        repr,
        str,
        lambda s: f"{s}",
        lambda s: f"{s:>40}",
        lambda s: " ".join(map(str, (s, [s]))),
        pprint.pformat,
        lambda s: f"{[s]!r}",
    ],
)
def test_a_secret_does_not_show(show: object) -> None:
    """No common way of turning a secret into text gives any of it away, not even its ends."""
    shown = show(Secret(SECRET_KEY))  # type: ignore[operator]
    assert "Secret(****)" in shown
    assert "SKfi" not in shown and "last" not in shown


def test_a_secret_gives_its_text_when_asked() -> None:
    """``reveal`` is the text, ``masked`` its first and last four characters."""
    secret = Secret(SECRET_KEY)
    assert secret.reveal() == SECRET_KEY
    assert secret.masked() == "SKfi****last"


def test_a_secret_is_a_value() -> None:
    """Secrets compare and hash by their text, never equal a plain text, are copied as themselves, do not change."""
    secret = Secret("a")
    assert secret == Secret("a") and hash(secret) == hash(Secret("a"))
    assert secret != Secret("b") and secret != "a"
    assert copy.deepcopy(secret) is secret and copy.copy(secret) is secret
    assert not Secret("")
    with pytest.raises(AttributeError):
        secret._text = "b"
    with pytest.raises(AttributeError):
        del secret._text
    with pytest.raises(TypeError):
        Secret(5)  # type: ignore[arg-type]


def test_a_secret_is_not_pickled() -> None:
    """Pickling refuses with a sentence that says what to do, for a secret and for settings that hold one."""
    for thing in (Secret("a"), Settings(secret_key=Secret("a"))):
        with pytest.raises(TypeError, match="not pickled"):
            pickle.dumps(thing)


@given(st.text(max_size=60))
def test_mask_shows_at_most_the_ends_of_a_long_value(value: str) -> None:
    """Under 20 characters nothing shows; from 20 on the first and last four; the length never does."""
    shown = mask(value)
    if len(value) >= 20:
        assert shown == value[:4] + "****" + value[-4:]
    else:
        assert shown == ("****" if value else "")


# --- Which source wins

NAMES = [name for variable in VARIABLES if variable.field not in KEY_FIELDS for name in variable.names]
KEY_NAMES = sorted({name for field in KEY_FIELDS for name in BY_FIELD[field].names})
RAW = st.sampled_from(["", " ", "\t\n", "a", "b ", " c\r\n", "\ufeffd", "e"])


def layers_of(names: list[str]) -> st.SearchStrategy[Sources]:
    values = st.dictionaries(st.sampled_from(names), RAW)
    return st.tuples(values, values, values, values).map(
        lambda four: Sources(
            (Layer(ARGUMENT, four[0]),),
            (Layer(ENVIRONMENT, four[1]), Layer(ENV_FILE, four[2], "a.env"), Layer(DOTENV, four[3], ".env")),
        )
    )


@given(layers_of(NAMES))
def test_lookup_goes_name_by_name_then_source_by_source(sources: Sources) -> None:
    """A setting is the first value that is not blank: arguments, then name by name, each name source by source."""
    found = resolve(sources).found
    for variable in VARIABLES:
        if variable.field in KEY_FIELDS:
            continue
        candidates = [
            (variable.field, layer.values.get(name, ""), Origin(layer.kind, name, layer.file))
            for group in (sources.given, sources.ambient)
            for name in variable.names
            for layer in group
        ]
        expected = next(((value, origin) for _, value, origin in candidates if value.strip(" \t\r\n\ufeff")), None)
        hit = found.get(variable.field)
        assert (hit and hit.origin) == (expected and expected[1])
        assert hit is None or hit.text == (expected or ("",))[0].strip(" \t\r\n\ufeff")


@given(layers_of(KEY_NAMES))
def test_keys_come_whole_from_one_family(sources: Sources) -> None:
    """Keys and token are of one family: the first that is begun, arguments before the rest; AWS only as a whole."""
    found = resolve(sources).found

    def has(name: str | None, layers: tuple[Layer, ...]) -> bool:
        return any((layer.values.get(name or "") or "").strip(" \t\r\n\ufeff") for layer in layers)

    families = [
        family
        for layers in (sources.given, sources.ambient)
        for family in FAMILIES
        if has(family.access_key, layers) or has(family.secret_key, layers)
    ]
    if not families and has(AWS.access_key, sources.all) and has(AWS.secret_key, sources.all):
        families = [AWS]
    used = {found[field].origin.variable for field in KEY_FIELDS if field in found}
    if not families:
        assert not used
    else:
        family = families[0]
        assert used <= {family.access_key, family.secret_key, family.session_token}
        assert ("access_key" in found) == has(family.access_key, sources.all)
        assert ("secret_key" in found) == has(family.secret_key, sources.all)


def test_the_four_sources_on_disk(bare: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Argument, environment, env file and a ``.env`` two folders up are read in this order, and each says so."""
    (bare / "deep" / "er").mkdir(parents=True)
    monkeypatch.chdir(bare / "deep" / "er")
    names = ("R2D1_R2_BUCKET", "R2D1_ACCOUNT_ID", "R2D1_D1_DATABASE_ID", "R2D1_R2_PUBLIC_BASE")
    bases = {"R2D1_R2_PUBLIC_BASE": "https://dotenv.example/"}
    (bare / ".env").write_text("".join(f"{name}={bases.get(name, 'dotenv')}\n" for name in names))
    env_file = bare / "my.env"
    env_file.write_text(
        "\ufeffexport R2D1_D1_DATABASE_ID='file' # note\nR2D1_ACCOUNT_ID=file\nR2D1_R2_BUCKET=\"file\"\n"
    )
    monkeypatch.setenv("R2D1_R2_BUCKET", "environment")
    monkeypatch.setenv("R2D1_ACCOUNT_ID", "environment")

    settings = Settings.from_env(env_file=env_file, bucket="argument")

    assert (settings.bucket, settings.account_id) == ("argument", "environment")
    assert (settings.database_id, settings.public_base) == ("file", "https://dotenv.example")
    assert settings.origins == {
        "bucket": Origin("argument", "R2D1_R2_BUCKET"),
        "account_id": Origin("environment", "R2D1_ACCOUNT_ID"),
        "database_id": Origin("env file", "R2D1_D1_DATABASE_ID", str(env_file)),
        "public_base": Origin(".env", "R2D1_R2_PUBLIC_BASE", str(bare / ".env")),
    }


def test_without_the_extra_no_env_is_searched(bare: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without python-dotenv a ``.env`` is not looked for, and an env file is refused with the extra's name."""
    (bare / ".env").write_text("R2D1_R2_BUCKET=dotenv\n")
    assert Settings.from_env().bucket == "dotenv"
    monkeypatch.setitem(sys.modules, "dotenv", None)
    assert Settings.from_env().bucket is None
    with pytest.raises(ConfigError, match=r"r2d1\[dotenv\]"):
        Settings.from_env(env_file=bare / ".env")


def test_nothing_is_interpolated_into_a_file(bare: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """``${NAME}`` in a file pulls nothing out of the environment: it is refused, and the file is named."""
    monkeypatch.setenv("AMBIENT", "leaked")
    (bare / "my.env").write_text("R2D1_R2_BUCKET=${AMBIENT}\nR2D1_R2_SECRET_KEY=a$b\nOTHER=${AMBIENT}\n")
    with pytest.raises(
        ConfigError, match=r"R2D1_R2_BUCKET \(env file .*my\.env\): \$\{NAME\} is not expanded"
    ) as caught:
        Settings.from_env(env_file=bare / "my.env")
    assert "leaked" not in str(caught.value)
    (bare / "my.env").write_text("R2D1_R2_SECRET_KEY=a$b\n")
    secret = Settings.from_env(env_file=bare / "my.env").secret_key
    assert secret is not None and secret.reveal() == "a$b"


@pytest.mark.parametrize(
    ("content", "reason"), [(None, "cannot be read: No such file"), (b"R2D1_R2_BUCKET=\xff\xfe", "not UTF-8")]
)
def test_an_env_file_that_cannot_be_read_is_named(bare: Path, content: bytes | None, reason: str) -> None:
    """A missing or undecodable env file is a configuration error that names it."""
    path = bare / "my.env"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(ConfigError, match=f"env file .*my.env: it (cannot|is).*{reason.split()[-1]}"):
        Settings.from_env(env_file=path)


def test_a_deleted_working_directory_has_no_env_file(bare: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Settings can be read from a directory that no longer exists."""
    gone = bare / "gone"
    gone.mkdir()
    monkeypatch.chdir(gone)
    gone.rmdir()
    assert Settings.from_env().bucket is None


def test_the_hosting_documents_names_are_enough() -> None:
    """The names of the hosting document configure R2 completely, endpoint and public base included."""
    settings = read(
        {
            "R2_ACCOUNT_ID": ACCOUNT,
            "R2_ACCESS_KEY_ID": "id",
            "R2_SECRET_ACCESS_KEY": "secret",
            "R2_BUCKET": "hypertrain-data",
            "R2_PUBLIC_BASE": "https://data.example.org/",
            "R2_ENDPOINT": "http://127.0.0.1:9000/",
        }
    )
    settings.require_r2()
    assert settings.public_base == "https://data.example.org"
    assert settings.r2_endpoint == "http://127.0.0.1:9000"
    assert settings.endpoint_url == "http://127.0.0.1:9000/"


def test_half_a_canonical_pair_borrows_nothing() -> None:
    """A canonical access key without its secret is missing that secret, though an alias pair is whole; all is named."""
    environ = {
        "R2D1_R2_ACCESS_KEY": "mine",
        "R2_ACCESS_KEY_ID": "other",
        "R2_SECRET_ACCESS_KEY": "other-secret",
        "AWS_ACCESS_KEY_ID": "third",
        "AWS_SECRET_ACCESS_KEY": "third-secret",
    }
    settings = read({**R2, "R2D1_R2_SECRET_KEY": "", **environ})
    assert settings.access_key == "mine" and settings.secret_key is None
    with pytest.raises(ConfigError, match=r"R2_SECRET_ACCESS_KEY \(environment\) is not used with R2D1_R2_ACCESS_KEY"):
        settings.require_r2()
    assert "R2_SECRET_ACCESS_KEY" in settings.notices()[0]


def test_a_session_token_goes_with_its_own_family_only() -> None:
    """``R2D1_SESSION_TOKEN`` is used with the canonical pair; beside another pair it is passed over, and said so."""
    with_token = read({**R2, "R2D1_SESSION_TOKEN": "token"})
    assert with_token.session_token == Secret("token") and not with_token.notices()
    others = {"R2_ACCESS_KEY_ID": "a", "R2_SECRET_ACCESS_KEY": "b", "R2D1_SESSION_TOKEN": "token"}
    beside = read(others)
    assert beside.access_key == "a" and beside.session_token is None
    assert beside.notices() == [
        "R2D1_SESSION_TOKEN (environment) is not used: it does not belong with R2_ACCESS_KEY_ID (environment)"
    ]


def test_keys_given_whole_take_no_token_from_the_environment() -> None:
    """Permanent keys in the secrets block are not sent with the session token of somebody else's environment."""
    environ = {"R2D1_SESSION_TOKEN": "stale", "R2D1_R2_ACCESS_KEY": "theirs", "R2D1_R2_SECRET_KEY": "theirs"}
    settings = Settings.from_config(R2, environ=environ, warn=lambda text: None)
    assert settings.access_key == ACCESS_KEY and settings.session_token is None
    assert "R2D1_SESSION_TOKEN (environment) is not used" in settings.notices()[0]


def test_aws_keys_are_a_last_resort_and_a_pair() -> None:
    """The AWS key pair counts when both are there and nothing else is; half of it counts for nothing."""
    pair = {"AWS_ACCESS_KEY_ID": "id", "AWS_SECRET_ACCESS_KEY": "secret"}
    assert read(pair).access_key == "id" and read(pair).secret_key == Secret("secret")
    half = read({"AWS_ACCESS_KEY_ID": "id"})
    assert half.access_key is None and half.secret_key is None
    assert read({**pair, "R2_ACCESS_KEY_ID": "a"}).access_key == "a"


# --- from_config


def test_from_config_exports_what_the_environment_lacks(bare: Path) -> None:
    """Every entry the environment lacks, known or not, reaches child processes; ``_`` keys and blanks do not."""
    os.environ["R2D1_R2_BUCKET"] = ""
    secrets = {**R2, "_note": {"for": "people"}, "HF_TOKEN_OF_TEST": " as it is ", "R2D1_API_TOKEN": None, "PORT_X": 5}
    Settings.from_config({**secrets, "R2D1_R2_SECRET_KEY": SECRET_KEY + "\n", "EMPTY_X": ""})
    code = "import os; print([os.environ.get(n) for n in ('R2D1_R2_BUCKET', 'R2D1_R2_SECRET_KEY', 'HF_TOKEN_OF_TEST', "
    code += "'PORT_X', '_note', 'R2D1_API_TOKEN', 'EMPTY_X')])"
    seen = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert seen.strip() == repr(["checkpoints", SECRET_KEY, " as it is ", "5", None, None, None])


def test_given_values_win_with_a_warning_that_names_the_variable(bare: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Where the environment differs the given value is used, the environment is left alone, no value is told."""
    os.environ.update(R2D1_R2_BUCKET="from-the-environment", UNKNOWN_X="theirs", R2D1_ACCOUNT_ID=ACCOUNT)
    settings = Settings.from_config({**R2, "UNKNOWN_X": "mine"})
    assert settings.bucket == "checkpoints"
    assert settings.origins["bucket"] == Origin("config", "R2D1_R2_BUCKET")
    assert os.environ["R2D1_R2_BUCKET"] == "from-the-environment" and os.environ["UNKNOWN_X"] == "theirs"
    assert [(record.levelname, record.getMessage()) for record in caplog.records] == [
        (
            "WARNING",
            "R2D1_R2_BUCKET differs from the environment: the given value is used here, "
            "other programs see the environment's",
        ),
        ("WARNING", "UNKNOWN_X differs from the environment, which keeps its own value"),
    ]


def test_a_given_alias_beats_the_environments_canonical_name() -> None:
    """A value handed over in code is never replaced by one that happens to surround the process; both are named."""
    said: list[str] = []
    environ = {"R2D1_R2_BUCKET": "ambient", "R2D1_R2_ACCESS_KEY": "ambient", "R2D1_R2_SECRET_KEY": "ambient"}
    given = {"R2_BUCKET": "given", "R2_ACCESS_KEY_ID": "given", "R2_SECRET_ACCESS_KEY": "given"}
    settings = Settings.from_config(given, environ=environ, warn=said.append)
    assert (settings.bucket, settings.access_key, settings.secret_key) == ("given", "given", Secret("given"))
    assert [text.split(":")[0] for text in said] == [
        "R2_BUCKET differs from the environment's R2D1_R2_BUCKET",
        "R2_ACCESS_KEY_ID differs from the environment's R2D1_R2_ACCESS_KEY",
        "R2_SECRET_ACCESS_KEY differs from the environment's R2D1_R2_SECRET_KEY",
    ]


def test_equal_values_are_not_warned_about() -> None:
    """A second ``from_config`` with the same block, which it has exported itself, is silent."""
    environ: dict[str, str] = {}
    said: list[str] = []
    copied = {**R2, "R2D1_R2_BUCKET": "checkpoints\n"}
    first = Settings.from_config(copied, environ=environ, warn=said.append)
    assert Settings.from_config(copied, environ=environ, warn=said.append) == first
    assert not said and environ == R2


def test_a_bad_block_names_every_key_and_exports_nothing() -> None:
    """Wrong types, names and values are told all at once, without a value; the environment stays as it was."""
    environ: dict[str, str] = {}
    bad = {
        "R2D1_R2_BUCKET": ["hush"],
        "X=Y": "hush",
        7: "hush",
        "NUL": "hush\0",
        "LONE": "hush\ud800",
        "R2_ENDPOINT": "hush",
    }
    with pytest.raises(ConfigError) as caught:
        Settings.from_config({**bad, "FINE": "x"}, environ=environ)  # type: ignore[dict-item]
    text = str(caught.value)
    assert text.startswith("6 settings are wrong:")
    assert all(name in text for name in ("R2D1_R2_BUCKET: a value must be text or a number, not list", "'X=Y'", "7:"))
    assert all(name in text for name in ("NUL:", "LONE:", "R2_ENDPOINT (config)"))
    assert "hush" not in text and not environ
    with pytest.raises(ConfigError, match="mapping"):
        Settings.from_config(None)  # type: ignore[arg-type]


def test_what_is_not_given_is_looked_up(bare: Path) -> None:
    """``from_config`` finds the settings that the block leaves out in the environment and in ``.env``."""
    os.environ["R2_BUCKET"] = "ambient"
    (bare / ".env").write_text("R2D1_R2_JURISDICTION=EU\n")
    settings = Settings.from_config({"R2D1_ACCOUNT_ID": ACCOUNT}, concurrency=3)
    assert (settings.bucket, settings.jurisdiction, settings.concurrency) == ("ambient", "eu", 3)


# --- What is missing


def test_everything_missing_is_named_in_all_spellings() -> None:
    """Without settings, the error names the four that R2 needs, each in every spelling."""
    settings = read({})
    with pytest.raises(ConfigError) as caught:
        settings.require_r2()
    text = str(caught.value)
    spelled = (
        "R2D1_ACCOUNT_ID (or R2_ACCOUNT_ID, CLOUDFLARE_ACCOUNT_ID)",
        "R2D1_R2_BUCKET (or R2_BUCKET)",
        "R2D1_R2_ACCESS_KEY (or R2_ACCESS_KEY_ID, AWS_ACCESS_KEY_ID)",
        "R2D1_R2_SECRET_KEY (or R2_SECRET_ACCESS_KEY, AWS_SECRET_ACCESS_KEY)",
        "R2D1_R2_ENDPOINT_URL",
    )
    for name in spelled:
        assert name in text
    assert [gap.field for gap in settings.missing_r2()] == ["account_id", "bucket", "access_key", "secret_key"]
    assert [gap.field for gap in settings.missing_d1()] == ["account_id", "api_token", "database_id"]
    with pytest.raises(ConfigError, match=r"R2D1_D1_DATABASE_ID \(or D1_DATABASE_ID\)"):
        settings.require_d1()


def test_an_endpoint_replaces_the_account_id_for_r2_only() -> None:
    """With an endpoint R2 needs no account id, D1 still does."""
    settings = read({**R2, **D1, "R2D1_ACCOUNT_ID": " ", "R2_ENDPOINT": "https://s3.example.org"})
    settings.require_r2()
    assert settings.missing_d1() == [Missing("account_id", BY_FIELD["account_id"].names)]
    assert not settings.has_d1


@pytest.mark.parametrize("name", list(D1))
def test_half_of_d1_is_no_d1_and_is_told(name: str) -> None:
    """With one of the two D1 credentials D1 is off, and a notice names the other one in all spellings."""
    settings = read({**R2, name: D1[name]})
    assert not settings.has_d1
    (notice,) = settings.notices()
    other = next(each for each in D1 if each != name)
    assert f"{other} (or " in notice and "D1 is not used" in notice


def test_no_d1_is_no_notice() -> None:
    """The account id alone, which R2 needs too, is not half a D1; both credentials are all of it."""
    assert not read(R2).has_d1 and not read(R2).notices()
    assert read({**R2, **D1}).has_d1 and not read({**R2, **D1}).notices()


def test_the_embedded_store_needs_nothing(tmp_path: Path) -> None:
    """``R2D1_STORE_URL`` stands in for R2 and D1: nothing is missing, and a bucket beside it is pointed out."""
    directory = tmp_path / "a store #1"
    settings = read({"R2D1_STORE_URL": directory.as_uri()})
    settings.require_r2()
    settings.require_d1()
    assert settings.store_dir == directory and not settings.notices()
    both = read({**R2, **D1, "R2D1_STORE_URL": directory.as_uri()})
    assert not both.has_d1
    assert both.notices() == [
        "R2D1_STORE_URL (environment) is set: the store is a directory, and R2 and D1 are not used"
    ]


# --- Endpoints and rules


@pytest.mark.parametrize(("jurisdiction", "host"), [(None, ""), ("eu", ".eu"), ("fedramp", ".fedramp")])
def test_the_endpoint_is_built_from_account_and_jurisdiction(jurisdiction: str | None, host: str) -> None:
    """Each jurisdiction has its own host; an endpoint given is used as it is."""
    settings = read({}, account_id=ACCOUNT, jurisdiction=jurisdiction)
    assert settings.r2_endpoint == f"https://{ACCOUNT}{host}.r2.cloudflarestorage.com"
    assert read({}, account_id=ACCOUNT, endpoint_url="https://s3.example.org").r2_endpoint == "https://s3.example.org"
    assert read({}).r2_endpoint is None


@pytest.mark.parametrize(
    ("name", "value", "reason"),
    [
        ("R2D1_R2_ENDPOINT_URL", "abc.r2.cloudflarestorage.com", "not a URL"),
        ("R2D1_R2_ENDPOINT_URL", "ftp://host", "begin with https"),
        ("R2D1_R2_ENDPOINT_URL", "https://hushed:pw@host", "user or a password"),
        ("R2D1_R2_ENDPOINT_URL", "https://host?x=1", "query"),
        ("R2D1_R2_ENDPOINT_URL", "https://host:port", "not a URL"),
        ("R2D1_R2_ENDPOINT_URL", "https://[::1", "not a URL"),
        ("R2D1_R2_ENDPOINT_URL", "https://a.r2.cloudflarestorage.com/checkpoints", "bucket has a setting"),
        ("R2D1_R2_PUBLIC_BASE", "data.example.org", "not a URL"),
        ("R2D1_D1_BASE_URL", "https://host/#x", "fragment"),
        ("R2D1_R2_JURISDICTION", "mars", "eu, fedramp"),
        ("R2D1_ACCOUNT_ID", "../other", "letters, digits"),
        ("R2D1_D1_DATABASE_ID", "a/b", "letters, digits"),
        ("R2D1_R2_BUCKET", "s3://bucket", "bare name"),
        ("R2D1_R2_BUCKET", '"quoted"', "quotation marks"),
        ("R2D1_API_TOKEN", "two words", "white space"),
        ("R2D1_R2_SECRET_KEY", "line\nline", "white space"),
        ("R2D1_R2_SECRET_KEY", "caf\u00e9", "plain ASCII"),
        ("R2D1_STORE_URL", "file://relative/dir", "three slashes"),
        ("R2D1_STORE_URL", "/plain/path", "three slashes"),
        ("R2D1_STORE_URL", "file:///dir?x", "%3F"),
        ("R2D1_STORE_URL", "file:///dir%00", "control"),
        ("HTTPS_PROXY", "socks5://127.0.0.1:1", "http or https"),
        ("HTTPS_PROXY", "http://:80", "not a proxy"),
    ],
)
def test_a_malformed_value_is_refused_by_name(name: str, value: str, reason: str) -> None:
    """Each rule's error names the variable and its source, says what is right, and does not repeat the value."""
    with pytest.raises(ConfigError) as caught:
        read({name: value})
    text = str(caught.value)
    assert text.startswith(f"{name} (environment): ") and reason in text
    assert value not in text and "hushed" not in text


def test_all_problems_come_in_one_error() -> None:
    """Malformed texts, wrong types and bad numbers are gathered before anything is raised."""
    with pytest.raises(ConfigError) as caught:
        read({"R2D1_R2_JURISDICTION": "us", "R2_ENDPOINT": "x"}, bucket=5, part_size=1, concurrency=0)
    text = str(caught.value)
    assert text.startswith("5 settings are wrong:") and text.count("\n") == 5
    assert "bucket: it must be text, not int" in text


def test_an_endpoint_of_another_jurisdiction_is_a_contradiction() -> None:
    """A jurisdiction's buckets are seen through its own endpoint only, so the two must agree."""
    plain = f"https://{ACCOUNT}.r2.cloudflarestorage.com"
    with pytest.raises(ConfigError, match="another jurisdiction"):
        read({"R2D1_R2_ENDPOINT_URL": plain, "R2D1_R2_JURISDICTION": "eu"})
    agreeing = f"https://{ACCOUNT}.eu.r2.cloudflarestorage.com"
    assert read({"R2D1_R2_ENDPOINT_URL": agreeing, "R2D1_R2_JURISDICTION": "eu"}).r2_endpoint == agreeing
    assert read({"R2D1_R2_ENDPOINT_URL": "http://127.0.0.1:1", "R2D1_R2_JURISDICTION": "eu"}).jurisdiction == "eu"


@pytest.mark.parametrize(
    ("name", "good", "bad"),
    [
        (
            "part_size",
            [None, 5_242_880, 5_363_466_240],
            [5_242_880 - 1, 5_363_466_240 + 1, 6e6, True, "8388608"],
        ),
        ("concurrency", [1, 512], [0, -1, 1.5, True, "8"]),
        ("bandwidth_limit", [None, 1, 10**9], [0, -1, 0.5]),
        ("settle_timeout", [0, 0.5, 60], [-1, float("nan"), float("inf"), "60", True]),
        ("upload_check", ["crc64nvme", "md5", "none"], ["sha256", ""]),
        ("transport", ["aioboto3"], ["carrier pigeon"]),
    ],
)
def test_numbers_and_choices_have_limits(name: str, good: list[object], bad: list[object]) -> None:
    """Tuning arguments take what they can mean, and refuse the rest by name, also in a direct construction."""
    for value in good:
        read({}, **{name: value})
    for value in bad:
        with pytest.raises(ConfigError, match=f"{name}: it must be"):
            read({}, **{name: value})
        with pytest.raises(ConfigError, match=f"{name}: it must be"):
            dataclasses.replace(Settings(), **{name: value})  # type: ignore[arg-type]


def test_a_plain_text_is_no_secret() -> None:
    """Settings made by hand refuse a bare text where a secret belongs, since its repr would show it."""
    with pytest.raises(ConfigError, match="secret_key: it must be a Secret, not str"):
        Settings(secret_key=SECRET_KEY)  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="bucket: it is empty"):
        Settings(bucket="")


def test_an_unknown_argument_is_a_type_error() -> None:
    """A misspelt argument fails like any other Python call, and without its value."""
    with pytest.raises(TypeError, match="unknown settings: bukcet"):
        read({}, bukcet="hush")


def test_ids_of_an_unusual_form_are_a_hint_not_a_refusal() -> None:
    """Odd ids are hinted at for R2's own host and for D1, and pass silently where a custom endpoint may want them."""
    odd = read({**R2, **D1, "R2D1_ACCOUNT_ID": "acct", "R2D1_D1_DATABASE_ID": "db"})
    assert ["32 hex" in odd.notices()[0], "UUID" in odd.notices()[1]] == [True, True]
    assert "R2D1_ACCOUNT_ID" in odd.hint_for("account_id", "database_id")
    double = read(
        {
            **R2,
            **D1,
            "R2D1_ACCOUNT_ID": "acct",
            "R2D1_D1_DATABASE_ID": "db",
            "R2_ENDPOINT": "http://127.0.0.1:1",
            "R2D1_D1_BASE_URL": "http://127.0.0.1:2/",
        }
    )
    assert double.has_d1 and not double.notices() and double.d1_base_url == "http://127.0.0.1:2"
    assert "UUID" in double.hint_for("database_id") and "hex" not in double.hint_for("database_id")
    assert read({**R2, **D1}).hint_for("account_id", "database_id") == ""


def test_a_token_in_the_clear_is_pointed_out() -> None:
    """A D1 address without TLS that is not on this machine is a notice."""
    (notice,) = read({**R2, **D1, "R2D1_D1_BASE_URL": "http://d1.example.org"}).notices()
    assert "R2D1_D1_BASE_URL (environment) is not https" in notice


# --- Proxy and certificates


@pytest.mark.parametrize(
    ("url", "no_proxy", "is_proxied"),
    [
        ("https://api.cloudflare.com/client/v4", None, True),
        ("http://127.0.0.1:9000", None, False),
        ("https://127.0.0.1:9000", None, True),
        ("https://127.0.0.1:9000", "localhost, 127.0.0.1", False),
        ("https://127.0.0.1:9000", "127.0.0.1:9001", True),
        ("https://127.0.0.1:9000", "127.0.0.1:9000", False),
        ("https://a.b.example.org", ".example.org", False),
        ("https://a.b.example.org", "EXAMPLE.org", False),
        ("https://badexample.org", "example.org", True),
        ("https://example.org", "*", False),
        ("https://example.org:443", "example.org:443", False),
        ("https://example.org", "example.org:443", False),
        ("https://[::1]:9000", "::1", False),
        ("https://[::1]:9000", "[::1]", False),
        ("https://[::1]:9000", "127.0.0.1", True),
    ],
)
def test_the_proxy_is_for_https_and_spares_no_proxy(
    url: str, no_proxy: str | None, is_proxied: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """``HTTPS_PROXY`` holds for https addresses but those in ``NO_PROXY``; what else the process has is not read."""
    monkeypatch.setenv("no_proxy", "*")
    settings = read({}, https_proxy="http://user:pw@proxy.example:3128", no_proxy=no_proxy)
    assert settings.proxy_for(url) == ("http://user:pw@proxy.example:3128" if is_proxied else None)


def test_proxy_spellings() -> None:
    """Lower case counts after upper case, a scheme may be left out, and without a proxy there is none."""
    assert read({"https_proxy": "p:1"}).proxy_for("https://x") == "http://p:1"
    assert read({"https_proxy": "p:1", "HTTPS_PROXY": "q:1"}).proxy_for("https://x") == "http://q:1"
    assert read({"https_proxy": "p:1", "no_proxy": "x"}).proxy_for("https://x") is None
    assert read({"HTTP_PROXY": "p:1", "ALL_PROXY": "p:1"}).proxy_for("https://x") is None


def test_a_proxy_nobody_needs_is_not_checked(tmp_path: Path) -> None:
    """A proxy that r2d1 cannot speak to does not keep the embedded store from working."""
    assert read({"HTTPS_PROXY": "socks5://x:1", "R2D1_STORE_URL": tmp_path.as_uri()}).store_dir == tmp_path


def test_a_ca_bundle_is_trusted_alone(tmp_path: Path) -> None:
    """With a CA bundle exactly its certificates are trusted; the context verifies names and chains."""
    one = Path(certifi.where()).read_text().split("-----END CERTIFICATE-----")[0] + "-----END CERTIFICATE-----\n"
    (tmp_path / "ca.pem").write_text(one)
    for environ in (
        {"R2D1_CA_BUNDLE": str(tmp_path / "ca.pem"), "SSL_CERT_FILE": "/nope"},
        {"SSL_CERT_FILE": str(tmp_path / "ca.pem")},
    ):
        context = read(environ).ssl_context()
        assert len(context.get_ca_certs()) == 1
        assert context.verify_mode is ssl.CERT_REQUIRED and context.check_hostname


def test_without_a_bundle_well_known_certificates_are_trusted() -> None:
    """The default context knows at least what certifi ships, so that a bare container can reach R2."""
    bundled = ssl.create_default_context(cafile=certifi.where()).get_ca_certs(binary_form=True)
    context = read({}).ssl_context()
    assert set(bundled) <= set(context.get_ca_certs(binary_form=True))
    assert context.verify_mode is ssl.CERT_REQUIRED


@pytest.mark.parametrize("content", [None, "no certificate"])
def test_a_ca_bundle_that_cannot_be_read_is_named(tmp_path: Path, content: str | None) -> None:
    """A bundle that is missing or holds no certificate names the file, the variable and its source."""
    path = tmp_path / "ca.pem"
    if content is not None:
        path.write_text(content)
    with pytest.raises(ConfigError, match=r"R2D1_CA_BUNDLE \(environment\): cannot read .*ca\.pem"):
        read({"R2D1_CA_BUNDLE": str(path)}).ssl_context()


# --- The report, and the field cases


def test_the_report_has_a_line_for_every_setting() -> None:
    """``report`` shows each value masked, where it came from and what needs it; what is not set says so."""
    lines = {line.field: line for line in read({**R2, "CLOUDFLARE_API_TOKEN": API_TOKEN}, bucket="b").report()}
    assert list(lines) == [variable.field for variable in VARIABLES]
    token = lines["api_token"]
    assert (token.variable, token.masked, token.source) == ("CLOUDFLARE_API_TOKEN", "TKfi****last", "environment")
    assert (lines["bucket"].masked, lines["bucket"].source, lines["bucket"].needed_for) == ("****", "argument", "R2")
    assert (lines["account_id"].needed_for, lines["public_base"].needed_for) == ("R2, D1", "optional")
    missing = lines["database_id"]
    assert (missing.variable, missing.masked, missing.source) == ("R2D1_D1_DATABASE_ID", "", "not set")
    assert lines["d1_base_url"].source == "default"


def test_a_report_of_settings_made_by_hand() -> None:
    """Settings without a recorded origin were arguments."""
    lines = {line.field: line for line in Settings(bucket="b").report()}
    assert (lines["bucket"].source, lines["bucket"].variable) == ("argument", "R2D1_R2_BUCKET")


def test_case_80_ambient_aws_variables_change_nothing(bare: Path) -> None:
    """Explicit configuration beside junk in ``AWS_*`` gives the same settings, read from either side."""
    alone = Settings.from_config(R2, environ={})
    os.environ.update(AWS_JUNK)
    settings = Settings.from_config(R2)
    assert settings == alone and not settings.notices()
    assert settings.session_token is None and settings.ca_bundle is None
    assert settings.r2_endpoint == f"https://{ACCOUNT}.r2.cloudflarestorage.com"
    assert not any("AWS" in line.variable for line in settings.report())
    assert Settings.from_env() == alone


@given(st.dictionaries(st.from_regex(r"AWS_[A-Z0-9_]{1,30}", fullmatch=True), st.text(st.characters(codec="ascii"))))
def test_case_80_no_aws_variable_but_the_pair_is_read(junk: dict[str, str]) -> None:
    """Whatever ``AWS_*`` holds, only the key pair can be seen in settings that have no keys of their own."""
    pair = {"AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"}
    assert read({**junk, **R2}) == read(R2)
    assert read({name: value for name, value in junk.items() if name not in pair}) == read({})


def test_case_126_no_secret_in_any_text(bare: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Repr, report, notices, logs, errors and tracebacks with locals hold neither keys, tokens nor a password."""
    caplog.set_level(logging.DEBUG)
    password = "proxy-password-in-the-middle"
    os.environ.update({**R2, **D1, "R2D1_SESSION_TOKEN": "session-token-in-the-middle-000"})
    os.environ["HTTPS_PROXY"] = f"http://user:{password}@proxy.example:3128"
    settings = Settings.from_env()
    texts = [
        repr(settings),
        str(settings),
        f"{settings}",
        pprint.pformat(settings),
        repr(dataclasses.asdict(settings)["secret_key"]),
        repr(settings.report()),
        *settings.notices(),
        repr(settings.origins),
    ]
    os.environ["R2D1_R2_JURISDICTION"] = "mars"
    try:
        Settings.from_env()
    except ConfigError as exc:
        inner = exc.__traceback__.tb_next if exc.__traceback__ else None  # this test's own locals hold them all
        texts += traceback.TracebackException(type(exc), exc, inner, capture_locals=True).format()
        texts += [str(exc), repr(exc)]
    Settings.from_config({**R2, "R2D1_R2_SECRET_KEY": SECRET_KEY + "x", "R2D1_R2_JURISDICTION": "eu"})
    texts += [record.getMessage() for record in caplog.records]
    assert any("R2D1_R2_SECRET_KEY" in text for text in texts)
    assert any("_assembled" in text for text in texts) and any("R2D1_R2_JURISDICTION (env" in text for text in texts)
    for hidden in (SECRET_KEY, ACCESS_KEY, API_TOKEN, password, "session-token-in-the-middle-000", "in-the-middle"):
        assert not [text for text in texts if hidden in text]


def test_importing_settings_is_cheap() -> None:
    """Reading the module brings in no client library, no TLS and no HTTP."""
    heavy = ("aioboto3", "botocore", "httpx", "dotenv", "certifi", "urllib.request", "asyncio")
    code = f"import sys, r2d1.settings; print([name for name in {heavy!r} if name in sys.modules])"
    seen = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert seen.strip() == "[]"


@pytest.mark.parametrize(
    ("limit", "most"), [(1, 2), (4 << 20, 2), (30 << 20, 4), (100 << 20, 13), (10 << 30, 128), (None, 128)]
)
def test_a_bandwidth_limit_is_filled_by_few(limit, most):
    """Pieces that share a small limit among many would all be half done when the transfer is stopped."""
    assert Settings.from_env(environ={}, bandwidth_limit=limit).most_in_flight == most
    assert Settings.from_env(environ={}, bandwidth_limit=limit, concurrency=5).most_in_flight == 5


def test_a_directory_is_not_slowed_and_that_is_said(tmp_path):
    settings = Settings.from_env(environ={"R2D1_STORE_URL": tmp_path.as_uri()}, bandwidth_limit=1 << 20)
    assert any("bandwidth_limit holds for R2" in notice for notice in settings.notices())
