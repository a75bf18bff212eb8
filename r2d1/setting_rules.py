"""What a setting may look like: pure checks that say what is wrong without repeating the value."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from urllib.parse import SplitResult, unquote, urlsplit

from r2d1.secret import Secret

MIB, GIB = 1 << 20, 1 << 30

#: R2's limits for a part of a multipart upload: https://developers.cloudflare.com/r2/platform/limits/
MIN_PART_SIZE = 5 * MIB
MAX_PART_SIZE = 5 * GIB - 5 * MIB

R2_HOST = "r2.cloudflarestorage.com"
JURISDICTIONS = ("eu", "fedramp")
UPLOAD_CHECKS = ("crc64nvme", "md5", "none")
TRANSPORTS = ("wire", "aioboto3")

#: Requests in flight at first, and at most where their number finds itself; aiohttp holds more in memory for each.
START, MOST, MOST_THROUGH_AIOBOTO3 = 8, 128, 32

#: Bytes a second that one stream carries at least, where a bandwidth limit is to be filled by few of them.
STREAM = 8 << 20

#: A rule gives what is wrong with a text, or nothing.
Rule = Callable[[str], str]

_ID = re.compile(r"[A-Za-z0-9_-]{1,63}")
_ACCOUNT_ID = re.compile(r"[0-9a-fA-F]{32}")
_UUID = re.compile(r"[0-9a-fA-F]{8}(-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}")


def plain(text: str) -> str:
    if text[0] == text[-1] and text[0] in "\"'":
        return "it is wrapped in quotation marks; leave them out"
    if any(not "!" <= character <= "~" for character in text):
        return "it holds white space or characters that are not plain ASCII; copy it again"
    return ""


def path_text(text: str) -> str:
    return "it holds a control character" if any(character < " " for character in text) else ""


def id_text(text: str) -> str:
    return plain(text) or ("" if _ID.fullmatch(text) else "it may hold letters, digits, - and _ only")


def bucket(text: str) -> str:
    if "/" in text:
        return "it must be the bucket's bare name, without a scheme or a slash"
    return plain(text)


def jurisdiction(text: str) -> str:
    return "" if text in JURISDICTIONS else f"it must be one of {', '.join(JURISDICTIONS)}, or be left out"


def web_url(text: str) -> str:
    """An ``http`` or ``https`` URL with a host, and without user, query and fragment."""
    if problem := plain(text):
        return problem
    url = _split(text)
    if url is None or not url.hostname:
        return "it is not a URL such as https://host"
    if url.scheme not in ("http", "https"):
        return "it must begin with https:// or http://"
    if url.username is not None or url.password is not None:
        return "it must not hold a user or a password"
    if "?" in text or "#" in text:
        return "it must not hold a query or a fragment"
    return ""


def endpoint(text: str) -> str:
    url = _split(text)
    if url and is_r2_host(url.hostname or "") and url.path.strip("/"):
        return f"it must end after the host {R2_HOST}: the bucket has a setting of its own"
    return web_url(text)


def proxy(text: str) -> str:
    """``http://[user:password@]host[:port]``; the scheme may be left out."""
    if problem := plain(text):
        return problem
    url = _split(text if "://" in text else f"http://{text}")
    if url is None or not url.hostname:
        return "it is not a proxy's URL such as http://host:port"
    return "" if url.scheme in ("http", "https") else "only proxies that speak http or https are supported"


def directory_url(text: str) -> str:
    try:
        to_directory(text)
    except ValueError as exc:
        return str(exc)
    return ""


def to_directory(text: str) -> Path:
    """``file:///DIR`` → the directory, percent-decoded; ``ValueError`` says what is wrong."""
    url = _split(text)
    if url is None or url.scheme != "file" or url.hostname not in (None, "localhost") or not url.path.startswith("/"):
        raise ValueError("it must be file:/// and an absolute path (three slashes)")
    if "?" in text or "#" in text:
        raise ValueError("write ? as %3F and # as %23")
    path = unquote(url.path)
    if problem := path_text(path):
        raise ValueError(problem)
    return Path(path)


def is_r2_host(host: str) -> bool:
    return host.endswith(f".{R2_HOST}")


def is_loopback(url: str) -> bool:
    host = urlsplit(url).hostname or ""
    return host in ("localhost", "::1") or host.startswith("127.")


def is_account_id(text: str) -> bool:
    return _ACCOUNT_ID.fullmatch(text) is not None


def is_database_id(text: str) -> bool:
    return _UUID.fullmatch(text) is not None


def _split(text: str) -> SplitResult | None:
    try:
        url = urlsplit(text)
        url.port  # noqa: B018 - a port that is no number shows only when it is asked for
    except ValueError:
        return None
    return url


RULES: Mapping[str, Rule] = {
    "account_id": id_text,
    "bucket": bucket,
    "access_key": plain,
    "secret_key": plain,
    "session_token": plain,
    "endpoint_url": endpoint,
    "jurisdiction": jurisdiction,
    "public_base": web_url,
    "api_token": plain,
    "database_id": id_text,
    "d1_base_url": web_url,
    "store_url": directory_url,
    "ca_bundle": path_text,
    "https_proxy": proxy,
    "no_proxy": path_text,
}
_SECRETS = frozenset({"secret_key", "session_token", "api_token", "https_proxy"})


def problems_of(values: Mapping[str, object], name_of: Callable[[str], str]) -> list[str]:
    """Everything that is wrong, a line each; ``name_of`` turns a field into the name that people know it by."""
    complaints = [*_text_problems(values), *_tuning_problems(values), *_contradictions(values, name_of)]
    return [f"{name_of(name)}: {complaint}" for name, complaint in complaints]


def _text_problems(values: Mapping[str, object]) -> Iterator[tuple[str, str]]:
    for name, rule in RULES.items():
        value = values.get(name)
        if value is None or (name == "https_proxy" and values.get("store_url")):
            continue  # no proxy is ever asked for on the way to a directory
        wanted: type[Secret | str] = Secret if name in _SECRETS else str
        if not isinstance(value, wanted):
            yield name, f"it must be a {wanted.__name__}, not {type(value).__name__}"
            continue
        text = value.reveal() if isinstance(value, Secret) else str(value)
        if complaint := rule(text) if text else "it is empty; None means that there is none":
            yield name, complaint


def _tuning_problems(values: Mapping[str, object]) -> Iterator[tuple[str, str]]:
    for name in ("concurrency", "bandwidth_limit"):
        if problem := _whole(values.get(name), 1, None):
            yield name, problem
    if problem := _whole(values.get("part_size"), MIN_PART_SIZE, MAX_PART_SIZE):
        yield "part_size", f"{problem} (5 MiB to 5 GiB - 5 MiB, R2's limits)"
    for name, allowed in (("upload_check", UPLOAD_CHECKS), ("transport", TRANSPORTS)):
        if name in values and values[name] not in allowed:
            yield name, f"it must be one of {', '.join(allowed)}"
    if "settle_timeout" in values and not _is_seconds(values["settle_timeout"]):
        yield "settle_timeout", "it must be a number of seconds, 0 or more"


def _whole(value: object, least: int, most: int | None) -> str:
    if value is None:
        return ""
    if isinstance(value, bool) or not isinstance(value, int):
        return f"it must be a whole number, not {type(value).__name__}"
    if value < least or (most is not None and value > most):
        return f"it must be {least} or more" if most is None else f"it must be {least} to {most}"
    return ""


def _is_seconds(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value) and value >= 0


def _contradictions(values: Mapping[str, object], name_of: Callable[[str], str]) -> Iterator[tuple[str, str]]:
    given, wanted = values.get("endpoint_url"), values.get("jurisdiction")
    url = _split(given) if isinstance(given, str) else None
    host = url.hostname if url else None
    if host and is_r2_host(host) and wanted in JURISDICTIONS and not host.endswith(f".{wanted}.{R2_HOST}"):
        yield "endpoint_url", f"it belongs to another jurisdiction than {name_of('jurisdiction')} names; drop one"
