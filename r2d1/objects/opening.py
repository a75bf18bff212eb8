"""The store that the settings name: R2 with retries, or a directory. Nothing is imported or opened before its time."""

from __future__ import annotations

from r2d1.events import Teller
from r2d1.objects import ObjectStore
from r2d1.objects.resilient import Resilient
from r2d1.retry import Brake, RetryPolicy
from r2d1.settings import Settings


def open_store(
    settings: Settings, *, tell: Teller, policy: RetryPolicy | None = None, brake: Brake | None = None
) -> ObjectStore:
    """The object store of these settings; close it with ``aclose``.

    Give all stores of one client the same ``brake``, so that one that is told to slow down slows all.
    ``ConfigError`` names everything that R2 still needs. A directory is not retried: what its disk refuses once
    it refuses again.
    """
    if settings.store_dir is not None:
        from r2d1.objects.local import LocalStore

        return LocalStore(settings.store_dir)
    from r2d1.objects.r2 import R2Store

    store = R2Store(settings, tell=tell)
    return Resilient(store, policy=policy or RetryPolicy(), brake=brake or Brake(), tell=tell)
