"""The doctor: whether bucket, public base and D1 do what r2d1 needs of them, one finding a check."""

from __future__ import annotations

import anyio

from r2d1.doctor.d1_checks import check_d1
from r2d1.doctor.finding import Finding, Status
from r2d1.doctor.public_checks import check_public, checked_origin
from r2d1.doctor.store_checks import WRITE_INTERVAL_S, Patient, check_store
from r2d1.events import Observer, Teller
from r2d1.objects.opening import open_store
from r2d1.retry import Brake, RetryPolicy
from r2d1.settings import Settings

__all__ = ["Finding", "Status", "checked_origin", "diagnose"]

#: The doctor is asked by a person who waits: what does not go in a few tries is a finding.
PATIENCE = RetryPolicy(attempts=4, budget_s=30.0, base_s=0.4, cap_s=5.0, longest_wait_s=10.0)


async def diagnose(
    settings: Settings,
    *,
    cors_origin: str | None = None,
    observer: Observer | None = None,
    write_interval_s: float = WRITE_INTERVAL_S,
) -> list[Finding]:
    """Check bucket, public base, clock and D1, and return what was found, in order.

    The bucket is checked with temporary objects below ``_doctor/``, which are removed at the end, also after a
    failure or when the call is cancelled. With ``cors_origin`` the public base must let pages of that origin read.
    Each of them is written once in ``write_interval_s`` seconds at most; a directory is not waited for.
    Raises ``ConfigError`` naming every missing setting of the bucket, or for an origin that is none; anything else
    that is wrong is a finding.
    """
    if cors_origin is not None:
        checked_origin(cors_origin)
    settings.require_r2(beside=["public_base"])
    tell = Teller(observer)
    findings = [Finding("settings", Status.NOTE, notice) for notice in settings.notices()]
    store = open_store(settings, tell=tell, policy=PATIENCE, brake=Brake())
    try:
        patient = Patient(store, settings, tell, 0.0 if settings.store_dir is not None else write_interval_s)
        findings += await check_store(
            patient, lambda: check_public(settings, patient.key, patient.body, cors_origin=cors_origin)
        )
    finally:
        with anyio.CancelScope(shield=True):
            await store.aclose()
    return [*findings, *await check_d1(settings, tell, PATIENCE)]
