"""The way out to R2 and D1: the proxy for an address and the certificates to trust, alike for every client."""

from __future__ import annotations

from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from r2d1.errors import ConfigError

if TYPE_CHECKING:
    import ssl


def proxy_for(url: str, *, proxy: str | None, no_proxy: str | None) -> str | None:
    """The proxy's URL for this address, or ``None`` for a direct connection.

    ``HTTPS_PROXY`` is for ``https`` addresses alone, so a plain ``http`` double on the loopback is always
    reached directly; an ``https`` one wants its host in ``NO_PROXY``. The result may hold a password.
    """
    address = urlsplit(url)
    if not proxy or address.scheme != "https" or _is_direct(address.hostname or "", address.port or 443, no_proxy):
        return None
    return proxy if "://" in proxy else f"http://{proxy}"


def _is_direct(host: str, port: int, no_proxy: str | None) -> bool:
    # Imported here as it brings http, email and ssl along; typeshed does not know it on every platform.
    from urllib.request import proxy_bypass_environment  # type: ignore[attr-defined, unused-ignore]

    listed = {"no": (no_proxy or "").strip()}
    spellings = (host, f"[{host}]", f"[{host}]:{port}") if ":" in host else (f"{host}:{port}",)
    return any(proxy_bypass_environment(spelling, listed) for spelling in spellings)


def ssl_context(ca_bundle: str | None, *, label: str) -> ssl.SSLContext:
    """A TLS client context that verifies. It reads files: build it in a worker thread.

    With ``ca_bundle`` its certificates alone are trusted (it must suffice for R2 and D1), else the
    system's and certifi's. ``label`` names the setting in the ``ConfigError`` for a bundle that cannot be read.
    """
    import ssl

    if ca_bundle is None:
        import certifi

        context = ssl.create_default_context()
        context.load_verify_locations(certifi.where())  # a slim container image has no certificates of its own
        return context
    try:
        return ssl.create_default_context(cafile=ca_bundle)
    except OSError as exc:
        reason = exc.strerror or type(exc).__name__
        raise ConfigError(
            f"{label}: cannot read the certificates in {ca_bundle}: {reason}. It must be a file of PEM certificates"
        ) from exc
