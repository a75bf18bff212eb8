"""Field case 126: secrets in logs and tracebacks. With everything turned up and every call failing, none shows."""

from __future__ import annotations

import asyncio
import itertools
import logging
import os
import re
import stat
import traceback
from collections.abc import Iterator
from pathlib import Path

import pytest

from r2d1 import AsyncCourier, AsyncFetcher
from r2d1.errors import R2D1Error
from r2d1.testing import Answer, CutReply, D1Double, Fault, Hook, Reset, Rules, S3Double, Swallow, When
from r2d1.testing import d1 as d1_faults
from r2d1.testing.d1_rules import CallLimit
from tests.checkpoints import write_checkpoint
from tests.remote_ends import Hasty, Told, settings_of

ACCESS_KEY = "a1b2c3d4e5f60718293a4b5c6d7e8f90"
SECRET_KEY = "5ecre7" * 10 + "abcd"
SESSION_TOKEN = "sess10n-t0ken-" + "x9y8z7" * 8
API_TOKEN = "ap1-t0ken-0f-cl0udflare-" + "q1w2e3" * 4
#: What a server may say back of what it was sent.
ECHO = f"AWSAccessKeyId {ACCESS_KEY} X-Amz-Security-Token: {SESSION_TOKEN} Signature={'f' * 64}"
D1_ECHO = f"Authorization: Bearer {API_TOKEN}"
#: What must appear nowhere: the values, and what a request carries that was made with them.
FORBIDDEN = re.compile(
    rf"{ACCESS_KEY}|{SECRET_KEY}|{SESSION_TOKEN}|{API_TOKEN}|AWS4-HMAC-SHA256|X-Amz-Signature|[Ss]ignature=[0-9a-f]{{64}}"
)
FAILURES = [
    Answer(403, "SignatureDoesNotMatch", ECHO),
    Answer(400, "InvalidArgument", ECHO),
    Answer(401, "Unauthorized", ECHO),
    Answer(500, "InternalError", ECHO),
    Answer(502, body=f"<html>{ECHO}</html>".encode(), headers={"Content-Type": "text/html"}),
    Answer(200, body=ECHO.encode(), headers={"Content-Type": "application/xml"}),
    Reset(),
    Swallow(),
    CutReply(after=10),
]
D1_FAILURES = [
    d1_faults.refused(401, 10000, D1_ECHO),
    d1_faults.refused(400, 7500, D1_ECHO),
    d1_faults.html(),
    d1_faults.statement_failed(D1_ECHO),
    d1_faults.dropped(),
    d1_faults.lost_reply(),
    d1_faults.cut(20),
]


class Everything(logging.Handler):
    """Keeps what any logger says at any level, with its arguments and its tracebacks."""

    def __init__(self) -> None:
        super().__init__(logging.NOTSET)
        self.setFormatter(logging.Formatter("%(name)s %(message)s"))
        self.texts: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.texts.append(f"{self.format(record)} {record.args!r}")


@pytest.fixture
def everything() -> Iterator[Everything]:
    """DEBUG for every logger there is and for those that come."""
    handler, root = Everything(), logging.getLogger()
    before = {name: logging.getLogger(name).level for name in ["root", *logging.root.manager.loggerDict]}
    root.addHandler(handler)
    for name in before:
        logging.getLogger(name if name != "root" else None).setLevel(logging.DEBUG)
    yield handler
    root.removeHandler(handler)
    for name, level in before.items():
        logging.getLogger(name if name != "root" else None).setLevel(level)


@pytest.fixture
def s3() -> Iterator[S3Double]:
    with S3Double(
        rules=Rules.lenient(), access_key=ACCESS_KEY, secret_key=SECRET_KEY, session_token=SESSION_TOKEN
    ) as double:
        yield double


@pytest.fixture
def d1() -> Iterator[D1Double]:
    with D1Double(api_token=API_TOKEN, calls=CallLimit(1_000_000)) as double:
        yield double


def shown(error: BaseException) -> str:
    """An error in every way it may be shown, the locals of its frames included."""
    told = traceback.TracebackException.from_exception(error, capture_locals=True)
    return "".join([str(error), repr(error), *traceback.format_exception(error), *told.format()])


async def ship_and_pull(s3, d1, folder: Path, job_id: str, dest: Path) -> str:
    """Both ways once; everything that could be shown of it."""
    settings = settings_of(s3, d1)
    told = Told()
    texts = [repr(settings), str(settings), repr(settings.report()), *settings.notices()]
    courier = AsyncCourier(settings, observer=told, rng=Hasty(), drain_timeout=0.1)
    try:
        async with courier, AsyncFetcher(settings, observer=told, rng=Hasty()) as fetcher:
            texts += map(repr, (courier, fetcher, courier.__dict__, fetcher.__dict__, courier._lane))
            await courier.ship(folder, job_id)
            await fetcher.pull(f"r2://jobs/{job_id}/latest", dest)
            texts.append(repr(courier.status()))
    except* R2D1Error as errors:
        texts.append(shown(errors))
    return "\n".join([*texts, *map(repr, told.events), *map(str, told.events)])


async def test_every_call_fails_in_turn(s3, d1, tmp_path, everything):
    """Each request of a ship and a pull fails once in one of many ways, and no text anywhere gives a secret away."""
    asyncio.get_running_loop().set_debug(True)
    folder = write_checkpoint(tmp_path / "up", "chk_1", 1, {"a.bin": b"a", "big.bin": os.urandom(100_000)})
    carried: list[str] = []
    s3.faults.add(Fault(When(), Hook(before=lambda call: carried.append(call.headers["authorization"])), times=None))
    texts = [await ship_and_pull(s3, d1, folder, "job", tmp_path / "down")]
    s3_calls, d1_calls = len(s3.requests), len(d1.requests)
    assert all(FORBIDDEN.search(value) for value in carried)  # so the pattern finds what it is to find
    failures = itertools.cycle(FAILURES)
    for nth in range(1, s3_calls + 1):
        asyncio.get_running_loop().set_debug(nth % 4 == 0)  # it says more, and doubles the time
        s3.faults.clear()
        s3.faults.add(Fault(When(nth=nth), next(failures)))
        texts.append(await ship_and_pull(s3, d1, folder, f"job-{nth}", tmp_path / "down"))
    s3.faults.clear()
    asyncio.get_running_loop().set_debug(False)
    for number, failure in enumerate(D1_FAILURES):
        d1._script.clear()
        d1.script(*[None] * (number % d1_calls), failure)
        texts.append(await ship_and_pull(s3, d1, folder, f"job-d1-{number}", tmp_path / "down"))
    assert len(everything.texts) > 100
    leaks = {around(text) for text in (*texts, *everything.texts)} - {""}
    assert not leaks, "\n--\n".join(sorted(leaks))


def around(text: str) -> str:
    """Where a secret shows, for whoever mends it."""
    match = FORBIDDEN.search(text)
    return "" if match is None else text[max(0, match.start() - 1000) : match.end() + 100]


async def test_what_lies_on_the_disk(s3, d1, tmp_path):
    """State is for its owner alone and holds no secret; what was pulled has the modes that the umask gives."""
    folder = write_checkpoint(tmp_path / "up", "chk_1", 1, {"a.bin": b"a", "sub/b.bin": b"b"})
    await ship_and_pull(s3, d1, folder, "job", tmp_path / "down")
    umask = os.umask(0o027)
    try:
        await ship_and_pull(s3, d1, folder, "job", tmp_path / "narrow")
    finally:
        os.umask(umask)
    for root in (tmp_path / "up", tmp_path / "down", tmp_path / "narrow"):
        assert stat.S_IMODE((root / ".r2d1").stat().st_mode) == 0o700
        for path in (root / ".r2d1").rglob("*"):
            if path.is_file():
                assert stat.S_IMODE(path.stat().st_mode) & 0o077 == 0, path
                assert not FORBIDDEN.search(path.read_bytes().decode("latin-1"))
    for root, mode in ((tmp_path / "down", 0o666 & ~umask), (tmp_path / "narrow", 0o640)):
        for name in ("chk_1/a.bin", "chk_1/sub/b.bin", "chk_1.json"):
            assert stat.S_IMODE((root / name).stat().st_mode) == mode, name
