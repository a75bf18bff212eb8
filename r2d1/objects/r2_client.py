"""An S3 client from aioboto3 that knows what it is told and nothing else: no AWS_* variable, file or metadata service.

Importing this module costs a third of a second; ``r2.py`` does so in a worker thread, at the first request.
"""

from __future__ import annotations

import hashlib
import logging
import os
from base64 import b64encode
from datetime import UTC, datetime
from functools import cache, partial
from typing import TYPE_CHECKING, Any

import aioboto3
from aiobotocore.config import AioConfig
from aiobotocore.session import AioSession
from botocore.auth import AUTH_TYPE_MAPS, UNSIGNED_PAYLOAD, S3SigV4Auth
from botocore.configprovider import BOTOCORE_DEFAUT_SESSION_VARIABLES
from botocore.loaders import Loader
from botocore.utils import parse_timestamp

from r2d1 import __version__
from r2d1.objects.r2_bodies import UploadBody
from r2d1.objects.r2_transport import Transport

if TYPE_CHECKING:
    from collections.abc import Callable
    from contextlib import AbstractAsyncContextManager

    from botocore.awsrequest import AWSRequest

    from r2d1.settings import Settings

REGION = "auto"

#: Loggers that print headers, signatures or the credentials' effects when they are let.
_LOUD = (
    "aiobotocore.endpoint",
    "botocore.auth",
    "botocore.client",
    "botocore.endpoint",
    "botocore.handlers",
    "botocore.hooks",
    "botocore.httpchecksum",
    "botocore.parsers",
    "botocore.regions",
    "botocore.retryhandler",
    "botocore.signers",
)


class DeclaredPayloadAuth(S3SigV4Auth):  # type: ignore[misc]
    """SigV4 that signs a streamed body by the hash it declares, or as unsigned: never by reading it."""

    def payload(self, request: AWSRequest) -> str:
        body = request.body
        if isinstance(body, UploadBody):
            return body.sha256 or UNSIGNED_PAYLOAD
        return super().payload(request)  # type: ignore[no-any-return]


_SIGNER = "r2d1-s3v4"


def client_maker(settings: Settings, *, connections: int) -> Callable[[], AbstractAsyncContextManager[Any]]:
    """What makes the client, to be called and entered on the event loop.

    Blocks for a tenth of a second: call it in a worker thread. What it returns may be thrown away, as happens when
    the caller is cancelled; a client that is made holds a coroutine, which must be awaited.

    Raises ``ConfigError`` when the CA bundle cannot be read.
    """
    assert settings.access_key is not None
    assert settings.secret_key is not None
    assert settings.r2_endpoint is not None
    quieten()
    is_tls = settings.r2_endpoint.startswith("https:")
    transport = partial(
        Transport,
        limit=connections,
        tls=settings.ssl_context() if is_tls else None,
        proxy=settings.proxy_for(settings.r2_endpoint),
    )
    session = aioboto3.Session(botocore_session=_isolated_session())
    del _loader().search_paths[1:]  # every session of aioboto3 adds a folder
    return partial(
        session.client,
        "s3",
        endpoint_url=settings.r2_endpoint,
        region_name=REGION,
        verify=True,  # not asked: Transport verifies; but None would look into the environment
        aws_access_key_id=settings.access_key,
        aws_secret_access_key=settings.secret_key.reveal(),
        aws_session_token=settings.session_token.reveal() if settings.session_token else None,
        config=_config(transport),
    )


def _config(transport: partial[Transport]) -> AioConfig:
    return AioConfig(
        http_session_cls=transport,
        signature_version="s3v4",
        user_agent=f"r2d1/{__version__} aioboto3",
        s3={"addressing_style": "path", "payload_signing_enabled": True},  # DeclaredPayloadAuth decides
        request_checksum_calculation="when_required",
        response_checksum_validation="when_required",
        retries={"mode": "legacy", "total_max_attempts": 1},
        proxies={},  # Transport has its own; None would look into the environment
        inject_host_prefix=False,
    )


def _isolated_session() -> AioSession:
    session = AioSession()
    store = session.get_component("config_store")
    for name, (_, _, default, _) in BOTOCORE_DEFAUT_SESSION_VARIABLES.items():
        store.set_config_variable(name, default)
    for name in ("config_file", "credentials_file"):
        store.set_config_variable(name, os.devnull)
    for section in ("s3", "proxies_config"):
        store.set_config_variable(section, None)
    session.register_component("data_loader", _loader())
    session.get_component("response_parser_factory").set_parser_defaults(timestamp_parser=_moment)
    AUTH_TYPE_MAPS[_SIGNER] = DeclaredPayloadAuth
    session.register("choose-signer.s3", _choose_signer)
    session.register("before-call.s3", _before_call)
    session.get_component("event_emitter").register_last("before-call.s3.DeleteObjects", _md5_instead_of_crc32)
    session.register("before-sign.s3", _before_sign)
    return session


def _moment(text: str) -> datetime:
    """A timestamp of an answer. botocore's own way of guessing its form takes most of the time of a listing, and
    holds the event loop for a tenth of a second at each full page.
    """
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        return parse_timestamp(text)  # type: ignore[no-any-return]
    return moment if moment.tzinfo is not None else moment.replace(tzinfo=UTC)


@cache
def _loader() -> Loader:
    """Botocore's own data alone (``~/.aws/models`` would be read too), S3's read already, as it takes a while.

    The data never changes, so all clients of a process share it.
    """
    loader = Loader(extra_search_paths=[Loader.BUILTIN_DATA_PATH], include_default_search_paths=False)
    loader.load_service_model("s3", "service-2")
    loader.load_service_model("s3", "endpoint-rule-set-1")
    for data in ("partitions", "endpoints", "_retry", "sdk-default-configuration"):
        loader.load_data(data)
    return loader


def _choose_signer(**_event: object) -> str:
    return _SIGNER


def _before_call(context: dict[str, Any], **_event: object) -> None:
    # Looks as if the request had been redirected once, which keeps botocore from asking HeadBucket for a region.
    context.setdefault("s3_redirect", {})["redirected"] = True


def _before_sign(request: AWSRequest, **_event: object) -> None:
    # R2 does not answer Expect; the trace id comes from a variable of AWS Lambda.
    for header in ("Expect", "X-Amzn-Trace-Id"):
        del request.headers[header]


def _md5_instead_of_crc32(params: dict[str, Any], **_event: object) -> None:
    # DeleteObjects must carry a checksum; some stores refuse every x-amz-checksum header, none refuses this one.
    digest = hashlib.md5(params["body"], usedforsecurity=False).digest()
    params["headers"]["Content-MD5"] = b64encode(digest).decode()
    params["context"].pop("checksum", None)


class _Quiet(logging.Filter):
    def filter(self, record: logging.LogRecord) -> bool:
        return record.levelno >= logging.INFO


_QUIET = _Quiet()


def quieten() -> None:
    """Keep botocore's debug lines, which hold headers and signatures, out of everybody's log."""
    for name in _LOUD:
        logging.getLogger(name).addFilter(_QUIET)
