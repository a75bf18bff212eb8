"""The one place where what botocore and aiohttp raise becomes an error of r2d1.

Importing it imports both, so ``r2.py`` does so when it connects. No secret survives here: texts are cleaned of the
credentials, and exceptions that carry request headers or a proxy's password are not chained.
"""

from __future__ import annotations

import re
import ssl
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import aiohttp
from botocore.exceptions import BotoCoreError, ClientError, ParamValidationError
from botocore.parsers import ResponseParserError

from r2d1.errors import ConfigError, NotSent, RemoteError, RemoteUnavailable
from r2d1.objects.r2_refusals import CHECK_NETWORK, Refusal, error_for
from r2d1.objects.r2_transport import ConnectionBroken

Redact = Callable[[str], str]

NOT_S3 = "Something other than an S3 server answers there: check R2D1_ACCOUNT_ID or R2D1_R2_ENDPOINT_URL"
_SIGNED = re.compile(r"(?i)(signature|credential|authorization|x-amz-security-token)\s*[=:]\s*[^\s,&<]+")
_MAX_REASON = 300


def redactor(*secrets: str | None) -> Redact:
    """A function that takes these texts, and anything that looks like a signature, out of a message."""
    hidden = sorted(filter(None, secrets), key=len, reverse=True)

    def redact(text: str) -> str:
        for secret in hidden:
            text = text.replace(secret, "****")
        return _SIGNED.sub(r"\1=****", text)[:_MAX_REASON]

    return redact


@contextmanager
def translated(operation: str, subject: str, *, redact: Redact, idle_s: float) -> Iterator[None]:
    """Raise r2d1's errors for what happens inside; its own errors and those of sources and sinks pass through."""
    try:
        yield
    except ClientError as exc:
        exc.args = tuple(redact(str(arg)) for arg in exc.args)
        # Without its frames: they hold the answer as it came, and some error reporters print locals.
        raise error_for(operation, subject, refusal(exc.response, redact)) from exc.with_traceback(None)
    except ParamValidationError as exc:
        raise ConfigError(f"{operation} {subject}: {redact(str(exc))}") from exc
    except (BotoCoreError, ResponseParserError) as exc:
        raise RemoteError(operation, subject, reason=redact(f"the answer cannot be read: {exc}"), hint=NOT_S3) from exc
    except aiohttp.ClientError as exc:
        raise _transport_error(operation, subject, exc, redact) from _harmless_cause(exc)
    except TimeoutError as exc:
        raise RemoteUnavailable(
            operation, subject, reason=f"nothing moved for {idle_s:g} seconds", hint=CHECK_NETWORK
        ) from exc


def refusal(response: Mapping[str, Any], redact: Redact) -> Refusal:
    """A refusal from what botocore's parser made of an answer."""
    error = response.get("Error", {})
    meta = response.get("ResponseMetadata", {})
    code = error.get("Code")
    # botocore puts the status or nothing where the answer had no code.
    return Refusal(
        status=int(meta.get("HTTPStatusCode", 0)),
        code=None if not code or str(code).isdigit() or code == "Unknown" else str(code),
        message=redact(str(error.get("Message") or "")),
        headers=meta.get("HTTPHeaders", {}),
    )


def _transport_error(operation: str, subject: str, exc: aiohttp.ClientError, redact: Redact) -> RemoteError:
    """The error for a request that got no S3 answer. Only what failed before it was sent had no effect for sure."""
    if isinstance(exc, aiohttp.ClientHttpProxyError):
        error = NotSent(
            operation,
            subject,
            status=exc.status,
            reason=redact(f"the proxy refused to connect: {exc.message}"),
            hint="Check HTTPS_PROXY, and NO_PROXY for addresses that need none",
        )
        _set_transient(error, exc.status >= 500 or exc.status == 429)
        return error
    if isinstance(exc, aiohttp.InvalidURL):
        raise ConfigError(f"{operation} {subject}: the endpoint's address is not a URL") from None
    if isinstance(exc, aiohttp.ClientConnectorError | aiohttp.ConnectionTimeoutError):
        reason, hint, transient = _why_not_connected(exc)
        error = NotSent(operation, subject, reason=redact(reason), hint=hint)
        _set_transient(error, transient)
        return error
    if isinstance(exc, aiohttp.ClientResponseError):
        return RemoteUnavailable(operation, subject, reason="the answer is not HTTP", hint=NOT_S3)
    return RemoteUnavailable(operation, subject, reason=redact(_how_it_broke(exc)), hint=CHECK_NETWORK)


def _set_transient(error: RemoteError, transient: bool) -> None:
    """What a class says of most of its errors may be known better for one of them."""
    error.transient = transient


def _why_not_connected(exc: aiohttp.ClientError) -> tuple[str, str, bool]:
    """Reason, hint, and whether trying again may help."""
    if isinstance(exc, aiohttp.ConnectionTimeoutError):
        return "no connection within the time allowed", CHECK_NETWORK, True
    if isinstance(exc, aiohttp.ClientConnectorCertificateError):
        return (
            f"the server's certificate is not trusted: {exc.certificate_error}",
            "If the endpoint or a proxy uses a private CA, name its file in R2D1_CA_BUNDLE",
            False,
        )
    host = f"{exc.host}:{exc.port}" if isinstance(exc, aiohttp.ClientConnectorError) else "the server"
    if isinstance(exc, aiohttp.ClientConnectorDNSError):
        return f"the host name cannot be resolved: {host}", "Check R2D1_ACCOUNT_ID, the endpoint and the network", True
    if isinstance(exc, aiohttp.ClientSSLError):
        return f"TLS with {host} failed: {_os_reason(exc)}", "Check that the endpoint speaks https, and the proxy", True
    if isinstance(exc, aiohttp.ClientProxyConnectionError):
        return f"the proxy {host} cannot be reached: {_os_reason(exc)}", "Check HTTPS_PROXY and NO_PROXY", True
    return f"{host} cannot be reached: {_os_reason(exc)}", CHECK_NETWORK, True


def _os_reason(exc: aiohttp.ClientError) -> str:
    cause = exc.os_error if isinstance(exc, aiohttp.ClientConnectorError) else exc
    if isinstance(cause, ssl.SSLError):
        return cause.reason or "TLS error"
    return getattr(cause, "strerror", None) or type(cause).__name__


def _how_it_broke(exc: aiohttp.ClientError) -> str:
    if isinstance(exc, aiohttp.ClientPayloadError):
        return f"the answer ended early: {str(exc).splitlines()[0] if str(exc) else type(exc).__name__}"
    if isinstance(exc, ConnectionBroken | aiohttp.ClientOSError | aiohttp.ServerDisconnectedError):
        return "the connection broke before the answer came"
    return str(exc) or type(exc).__name__


def _harmless_cause(exc: aiohttp.ClientError) -> BaseException | None:
    """The exception to chain: aiohttp's own show request headers or the proxy's password in their repr."""
    if isinstance(exc, aiohttp.ClientConnectorCertificateError):
        return exc.certificate_error
    if isinstance(exc, aiohttp.ClientConnectorError):
        return exc.os_error
    return exc if isinstance(exc, ConnectionBroken | aiohttp.ClientPayloadError) else None
