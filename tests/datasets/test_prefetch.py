"""Prefetch: right units in order, from bases that may be wrong, slow, elsewhere or dead."""

from __future__ import annotations

import asyncio
import gc
import gzip
import os
import socket
import threading
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from r2d1 import bases
from r2d1.bases import Base
from r2d1.datasets import (
    UnitCache,
    build_spec,
    fetch_manifest,
    fetch_manifest_async,
    generate_key,
    load_key,
    parse_spec,
    prefetch,
    sign_spec,
)
from r2d1.datasets.unit_source import Ranking
from r2d1.errors import ConfigError, FormatError, IntegrityError, RemoteUnavailable
from r2d1.events import Notice, Retried, Teller
from r2d1.objects import ByteRange
from r2d1.objects.wire_web import Web
from r2d1.retry import RetryPolicy
from r2d1.secret import Secret
from tests.children import child_env, run_script
from tests.datasets.making import sha
from tests.datasets.published import UNIT, UNIT_SIZE, make_set
from tests.datasets.web import Reply, dead_url, files, partial, web


@pytest.fixture
def made(tmp_path):
    return make_set(tmp_path / "set", with_record=True)


@pytest.fixture
def base(made):
    with web(files(made.objects)) as server:
        yield server


@pytest.fixture
def cache(tmp_path):
    return tmp_path / "cache"


def cached(cache):
    return {path.name for path in cache.iterdir()}


# The right way


def test_units_come_in_order_verified_and_cached(made, base, cache):
    """Ids come as asked for; each unit lies under its hash, byte for byte; NumPy rows have the documented shape."""
    order = [7, 3, 19, 0, 3]
    with prefetch(made.manifest, order, cache, [base.url]) as units:
        for wanted, unit in zip(order, units, strict=False):
            assert unit == wanted
            assert units.path(unit) == cache / made.manifest.unit_sha256s[unit]
            assert units.path(unit).read_bytes() == made.unit(unit)
            assert units.rows(unit).shape == (UNIT, made.manifest.seq_len + 1)
            assert units.rows(unit).tobytes() == made.unit(unit)
        assert next(units, None) is None
    assert cached(cache) == {made.manifest.unit_sha256s[unit] for unit in order}
    assert len(base.asked) == 4  # unit 3 once


async def test_the_async_iterator_is_the_same(made, base, cache):
    """``async for`` gives the same, all units when none are named, beside a running loop."""
    given = [unit async for unit in prefetch(made.manifest, None, cache, [base.url])]
    assert given == list(range(made.manifest.n_units))


async def test_the_blocking_iterator_works_inside_a_running_loop(made, base, cache):
    """A plain ``for`` in a coroutine blocks that loop and nothing else."""
    assert list(prefetch(made.manifest, [1, 2], cache, [base.url])) == [1, 2]


def test_what_is_cached_is_not_fetched_again(made, base, cache):
    """A run that was cut short leaves whole units only; the next one fetches the rest."""
    with prefetch(made.manifest, None, cache, [base.url], streams=1, depth=1) as units:
        assert [next(units), next(units)] == [0, 1]
    first = [(asked.path, asked.headers["range"]) for asked in base.asked[:2]]  # a third may be cut off on its way
    assert len(cached(cache)) >= 2
    assert list(prefetch(made.manifest, None, cache, [base.url])) == list(range(20))
    times = Counter((asked.path, asked.headers["range"]) for asked in base.asked)
    assert [times[unit] for unit in first] == [1, 1]
    assert len(times) == len(cached(cache)) == 20


def test_not_more_than_asked_for_at_once_or_ahead(made, cache):
    """At most ``streams`` requests at once; ``depth`` units are started beyond what was given, and never more."""
    serve = files(made.objects)
    news = threading.Condition()
    state = {"active": 0, "most": 0, "started": 0, "asked": 0, "ahead": 0}

    def answer(asked):
        with news:
            state["active"] += 1
            state["started"] += 1
            state["most"] = max(state["most"], state["active"])
            state["ahead"] = max(state["ahead"], state["started"] - state["asked"])
            news.notify_all()
        try:
            return serve(asked)
        finally:
            with news:
                state["active"] -= 1

    with web(answer) as server, prefetch(made.manifest, None, cache, [server.url], streams=2, depth=4) as units:
        for wanted in range(20):
            with news:
                state["asked"] += 1
            assert next(units) == wanted
            with news:
                assert news.wait_for(lambda: state["started"] >= min(20, state["asked"] + 4), 30)
    assert state["started"] == 20
    assert state["most"] <= 2
    assert state["ahead"] == 4


def test_endless_ids_are_taken_as_they_are_needed(made, base, cache):
    """``unit_ids`` may be a generator without end."""
    taken = []

    def ids():
        while True:
            taken.append(1)
            yield len(taken) % 20

    with prefetch(made.manifest, ids(), cache, [base.url], depth=3) as units:
        assert [next(units) for _ in range(5)] == [1, 2, 3, 4, 5]
    assert len(taken) <= 5 + 3 + 2


# Bases that are wrong


def whole(data, start, stop):
    return Reply(200, data, {"Content-Length": str(len(data))})


WRONG = {
    "another range": lambda data, start, stop: partial(data, start + 1, stop + 1),
    "a wider range": lambda data, start, stop: partial(data, 0, len(data)),
    "no Content-Range": lambda data, start, stop: Reply(206, data[start:stop]),
    "several ranges": lambda data, start, stop: Reply(206, b"--x", {"Content-Type": "multipart/byteranges"}),
    "right range, bytes from elsewhere": lambda data, start, stop: partial(data, start, stop, body=bytes(stop - start)),
    "right range, too few bytes": lambda data, start, stop: partial(data, start, stop, body=data[start : stop - 1]),
    "right range, too many bytes": lambda data, start, stop: partial(data, start, stop, body=data[start : stop + 1]),
    "a short whole": lambda data, start, stop: Reply(200, data[: stop - 1]),
    "the range as a whole": lambda data, start, stop: Reply(200, data[start:stop]),
    "compressed": lambda data, start, stop: Reply(200, gzip.compress(data), {"Content-Encoding": "gzip"}),
    "a page": lambda data, start, stop: Reply(200, b"<!DOCTYPE html>"),
    "not found": lambda data, start, stop: Reply(404),
    "forbidden": lambda data, start, stop: Reply(403),
    "broken": lambda data, start, stop: Reply(500),
    "unsatisfiable": lambda data, start, stop: Reply(416),
    "nothing": lambda data, start, stop: Reply(204),
}


@pytest.mark.parametrize("how", WRONG)
def test_a_base_that_answers_wrongly_is_asked_three_times_then_the_next(how, made, base, cache):
    """Whatever is wrong with an answer: three tries, then the next base; nothing wrong is ever cached."""
    with web(lambda asked: WRONG[how](made.objects[asked.path], *asked.span)) as wrong:
        assert list(prefetch(made.manifest, [6], cache, [wrong.url, base.url])) == [6]
        assert (len(wrong.asked), len(base.asked)) == (3, 1)
    assert [path.read_bytes() for path in cache.iterdir()] == [made.unit(6)]


def test_a_whole_object_is_sliced(made, cache):
    """A base that does not know ranges answers 200 with everything: the unit is cut out of it, in one request."""
    with web(lambda asked: whole(made.objects[asked.path], *asked.span)) as server:
        assert list(prefetch(made.manifest, [0, 6, 19], cache, [server.url])) == [0, 6, 19]
        assert len(server.asked) == 3


def test_a_dead_base_is_passed_over(made, base, cache):
    """Nobody listens on the first base; the second gives everything."""
    units = list(prefetch(made.manifest, range(4), cache, [dead_url(), base.url], streams=4))
    assert units == [0, 1, 2, 3]
    assert len(base.asked) == 4


def test_a_base_that_stalls_fails_too(made, base, cache):
    """A base that stops in the middle of an answer is given up, and the next one asked."""
    release = threading.Event()

    def stall(asked):
        release.wait(30)
        return Reply(500)

    async def read(url):
        async with bases.open_reader(url, idle_s=0.05) as slow:
            tries = RetryPolicy(attempts=1)
            key, sha256 = made.manifest.shard_key(0), made.manifest.unit_sha256s[0]
            span = ByteRange(0, UNIT_SIZE)
            return await bases.read_verified(slow, key, span, sha256, tell=Teller(None), policy=tries)

    with web(stall) as server:
        try:
            with pytest.raises(RemoteUnavailable, match="too slow, or has stopped"):
                asyncio.run(read(server.url))
        finally:
            release.set()


def test_a_base_that_failed_three_units_in_a_row_is_asked_last():
    """Failures in a row count, a success forgives, and nobody is ever removed."""
    ranking = Ranking(3)
    for gave in (False, False, True, False, False):
        ranking.note(0, gave=gave)
    assert ranking.order() == [0, 1, 2]
    ranking.note(0, gave=False)
    assert ranking.order() == [1, 2, 0]
    for _ in range(3):
        ranking.note(1, gave=False)
    assert ranking.order() == [2, 0, 1]
    ranking.note(0, gave=True)
    assert ranking.order() == [2, 0, 1]


def test_a_base_that_is_given_up_is_told_once(made, base, cache):
    """Which one, and why; with a single base there is nothing to choose, and nothing to tell."""
    told = []
    with web(lambda asked: Reply(403)) as dead:
        list(prefetch(made.manifest, range(12), cache, [dead.url, base.url], observer=told.append))
        (text,) = [event.text for event in told if isinstance(event, Notice)]
        assert text.startswith(f"{dead.url} failed for 3 units in a row and is asked last from now on: GET {dead.url}")
        told.clear()
        with pytest.raises(RemoteUnavailable):
            list(prefetch(made.manifest, range(12, 20), cache, [dead.url], observer=told.append))
        assert [event for event in told if isinstance(event, Notice)] == []


def test_rows_of_a_unit_that_was_not_given(made, base, cache):
    """They cannot be read, and the error says when they can."""
    with prefetch(made.manifest, [0], cache, [base.url]) as units, pytest.raises(ConfigError, match="unit 1 is not in"):
        units.rows(1)


def test_a_demoted_base_is_spared(made, base, cache):
    """After three units in a row the wrong base is not asked again while the other one gives."""
    with web(lambda asked: Reply(500)) as wrong:
        list(prefetch(made.manifest, range(12), cache, [wrong.url, base.url], streams=1, depth=1))
        assert len(wrong.asked) == 9
    assert len(base.asked) == 12


def test_wrong_bytes_everywhere_are_an_integrity_error_in_their_place(made, cache):
    """Units before the bad one are given first; the error names unit, URL and both hashes."""
    bad = dict(made.objects)
    key = made.manifest.shard_key(1)
    bad[key] = bytes(len(bad[key]))
    told = []
    with web(files(bad)) as server, prefetch(made.manifest, None, cache, [server.url], observer=told.append) as units:
        assert [next(units) for _ in range(4)] == [0, 1, 2, 3]
        with pytest.raises(IntegrityError, match=f"unit 4: .*{server.url}/{key}.*have the sha256 .*, not "):
            next(units)
        with pytest.raises(StopIteration):
            next(units)
    assert any(isinstance(event, Retried) for event in told)


def test_no_base_left_names_each(made, cache):
    """When no base answers, the error says what each of them said."""
    dead = dead_url()
    with web(lambda asked: Reply(503)) as broken:
        with pytest.raises(RemoteUnavailable, match="unit 0.*503.*cannot be reached: Connection refused"):
            list(prefetch(made.manifest, [0], cache, [broken.url, dead]))
    assert cached(cache) == set() if cache.exists() else True


def test_a_redirect_keeps_the_range_and_not_the_token(made, base, cache):
    """A base may send readers to another host: the range goes along, the token stays behind."""

    def elsewhere(asked):
        return Reply(302, b"", {"Location": f"{base.url}/{asked.path}?X-Signature=secret"})

    plain = files(made.objects)
    base.answer = lambda asked: plain(type(asked)(asked.path.partition("?")[0], asked.headers))
    with web(elsewhere) as front:
        assert list(prefetch(made.manifest, [5], cache, [Base(front.url, Secret("token-of-the-front"))])) == [5]
        assert front.asked[0].headers["authorization"] == "Bearer token-of-the-front"
    assert base.asked[0].headers["range"] == front.asked[0].headers["range"]
    assert "authorization" not in base.asked[0].headers
    assert "cookie" not in base.asked[0].headers


def test_cookies_are_not_kept(made, cache):
    """What a base sets is not sent back to it, nor to anybody else."""
    serve = files(made.objects)

    def answer(asked):
        reply = serve(asked)
        return Reply(reply.status, reply.body, {**reply.headers, "Set-Cookie": "id=1; Path=/"})

    with web(answer) as server:
        list(prefetch(made.manifest, [0, 1, 2], cache, [server.url], streams=1))
        assert not any("cookie" in asked.headers for asked in server.asked)


def test_a_token_shows_in_no_error_or_log(made, cache, caplog):
    """Neither the token nor the query of a redirect is in what is raised, printed or logged."""
    caplog.set_level(0)

    def circle(asked):
        return Reply(302, b"", {"Location": f"/{asked.path.partition('?')[0]}?X-Signature=so-secret"})

    with web(circle) as server:
        base = Base(server.url, Secret("token-of-the-base"))
        with pytest.raises(RemoteUnavailable, match="redirects in circles") as caught:
            list(prefetch(made.manifest, [0], cache, [base]))
    said = f"{caught.value!r} {caught.value} {base!r} {caplog.text}"
    assert "token-of-the-base" not in said
    assert "so-secret" not in said


@pytest.mark.parametrize("wrong", [[20], [-1], [3.5]])
def test_an_id_that_is_none(wrong, made, base, cache):
    """An id outside of the set is an IndexError in its place; what is no integer a TypeError."""
    with prefetch(made.manifest, [0, *wrong], cache, [base.url]) as units:
        if isinstance(wrong[0], int):
            assert next(units) == 0
        with pytest.raises(IndexError if isinstance(wrong[0], int) else TypeError):
            list(units)


@pytest.mark.parametrize(
    "change",
    [
        {"bases": []},
        {"bases": "https://data.example"},
        {"bases": ["ftp://data.example"]},
        {"bases": ["https://user:password@data.example"]},
        {"streams": 0},
        {"depth": 0},
        {"cache": UnitCache("c", limit=5 * UNIT_SIZE)},
    ],
)
def test_arguments_that_make_no_sense(change, made):
    """They are refused at once, before anything is fetched."""
    arguments = {"manifest": made.manifest, "unit_ids": [0], "cache": "c", "bases": ["https://data.example"], **change}
    with pytest.raises(ConfigError):
        prefetch(**arguments)


# Life and death of an iterator


def threads():
    return [each for each in threading.enumerate() if each.name == "r2d1 prefetch"]


def connections_to(server):
    """Our ends of the connections to a server; its own ends, in the same process, close when it gets round to it."""
    address = ("127.0.0.1", urlsplit(server.url).port)
    found = 0
    for fd in os.listdir("/proc/self/fd"):
        with suppress(OSError), socket.socket(fileno=os.dup(int(fd))) as sock:
            found += sock.getpeername() == address
    return found


async def test_leaving_a_loop_early_stops_the_work(made, base, cache):
    """``break`` in either kind of loop ends thread and connections as soon as the iterator is dropped."""
    with socket.create_connection(("127.0.0.1", urlsplit(base.url).port)):
        assert connections_to(base) == 1
    for _ in prefetch(made.manifest, None, cache, [base.url]):
        break
    async for _ in prefetch(made.manifest, None, cache, [base.url]):
        break
    gc.collect()
    assert threads() == []
    assert connections_to(base) == 0


async def test_a_cancelled_wait_ends_it(made, cache):
    """Cancelling the wait for a unit stops the requests under way; the iterator has ended."""
    release = threading.Event()
    arrived = threading.Event()

    def hang(asked):
        arrived.set()
        release.wait(30)
        return Reply(500)

    with web(hang) as server:
        units = prefetch(made.manifest, None, cache, [server.url])
        waiting = asyncio.create_task(anext(units))
        await asyncio.to_thread(arrived.wait, 30)
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
        assert threads() == []
        with pytest.raises(StopAsyncIteration):
            await anext(units)
        release.set()


def test_closing_ends_the_wait_of_another_thread(made, cache):
    """A thread that waits for a unit finds the iteration ended, as one does that asks for the next one later."""
    release, arrived = threading.Event(), threading.Event()

    def hang(asked):
        arrived.set()
        release.wait(30)
        return Reply(500)

    with web(hang) as server, ThreadPoolExecutor(1) as pool:
        units = prefetch(made.manifest, None, cache, [server.url])
        waiting = pool.submit(list, units)
        assert arrived.wait(30)
        units.close()
        assert waiting.result(30) == []
        assert next(units, None) is None
        release.set()
    assert threads() == []


def test_what_a_generator_of_ids_raises_is_raised(made, base, cache):
    """An error of the caller's own ids reaches the caller."""

    def ids():
        yield 0
        raise ZeroDivisionError("no more")

    with pytest.raises(ZeroDivisionError, match="no more"):
        list(prefetch(made.manifest, ids(), cache, [base.url]))


FORKED = """
import os, sys
from r2d1.datasets import parse_manifest, prefetch
from r2d1.errors import Closed
manifest = parse_manifest(open(sys.argv[1], "rb").read())
units = prefetch(manifest, None, sys.argv[2], [sys.argv[3]])
assert next(units) == 0
child = os.fork()
if not child:
    try:
        next(units)
    except Closed as error:
        print(error, flush=True)
    assert list(prefetch(manifest, [5], sys.argv[2], [sys.argv[3]])) == [5]
    del units
    sys.exit(0)
assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
print(list(units) == list(range(1, 20)))
"""


def test_a_forked_child_is_told_to_make_its_own(made, base, cache):
    """A child that goes on with its parent's iterator gets a clear error, its own one works, and both end."""
    printed = run_script(FORKED, made.directory / "manifest.json", cache, base.url, env=child_env())
    assert printed.splitlines() == [
        "this prefetch belongs to the parent process; make a new one after the fork",
        "True",
    ]


SHARING = """
import sys
from r2d1.datasets import UnitCache, parse_manifest, prefetch
manifest = parse_manifest(open(sys.argv[1], "rb").read())
which = int(sys.argv[4])
cache = UnitCache(sys.argv[2], limit=int(sys.argv[5]))
with prefetch(manifest, [(7 * step + which) % 20 for step in range(60)], cache, [sys.argv[3]], depth=3) as units:
    import hashlib
    for unit in units:
        assert hashlib.sha256(units.rows(unit).tobytes()).hexdigest() == manifest.unit_sha256s[unit]
print("right")
"""


def test_four_processes_share_one_small_cache(made, base, cache):
    """Four readers in different orders, room for eight units: nobody's unit is evicted while it is in use."""

    def reader(which):
        manifest = made.directory / "manifest.json"
        return run_script(SHARING, manifest, cache, base.url, which, 8 * UNIT_SIZE, env=child_env())

    with ThreadPoolExecutor(4) as pool:
        assert list(pool.map(reader, range(4))) == ["right\n"] * 4
    assert not [name for name in cached(cache) if name.endswith(".tmp")]


@pytest.mark.parametrize("ids", [[0], [0, 999]])
def test_the_unit_given_last_stays_while_it_is_read(ids, made, base, cache, monkeypatch):
    """At the end, and before an error, another process that needs room leaves the unit until the next is asked for."""
    close, closed = Web.close, threading.Event()

    def close_and_tell(self):
        close(self)
        closed.set()

    monkeypatch.setattr(Web, "close", close_and_tell)
    other = UnitCache(cache, limit=1)
    with prefetch(made.manifest, ids, cache, [base.url]) as units:
        assert next(units) == 0
        assert closed.wait(30)  # all work is done
        other.store(sha(b"other"), b"other").release()
        assert units.path(0).read_bytes() == made.unit(0)
        with pytest.raises((StopIteration, IndexError)):
            next(units)
        other.store(sha(b"more"), b"more").release()
        assert not units.path(0).exists()


# Starting from a signed spec


@pytest.fixture
def signed(made, tmp_path):
    public = generate_key(tmp_path / "issuer.pem")
    return sign_spec(build_spec(made.directory), load_key(tmp_path / "issuer.pem")), public


def test_a_signed_spec_is_enough(made, base, cache, signed):
    """The manifest comes from the base and is believed as far as the spec goes; ``manifest`` is known then."""
    spec, public = signed
    units = prefetch(parse_spec(spec.to_bytes()), [2, 1], cache, [base.url], trusted=[public])
    with pytest.raises(FormatError):
        _ = units.manifest
    assert list(units) == [2, 1]
    assert units.manifest.unit_sha256s == made.manifest.unit_sha256s
    assert units.manifest.extra == {}


def test_a_base_with_another_manifest_is_passed_over(made, base, cache, signed, tmp_path):
    """A well-formed manifest of another set, and a page, are refused; the next base has the right one."""
    spec, public = signed
    other = make_set(tmp_path / "other", shards=3)
    with web(files(other.objects)) as hostile, web(lambda asked: Reply(200, b"<html>")) as page:
        bases = [hostile.url, page.url, base.url]
        assert list(prefetch(spec, [3], cache, bases, trusted=[public])) == [3]
        with pytest.raises(IntegrityError, match="merkle_root is .*is not readable as JSON"):
            fetch_manifest(spec, bases[:2], trusted=[public])


async def test_the_manifest_alone(base, signed):
    """``fetch_manifest_async`` gives what the spec binds, from bytes too; a dead base alone is no damage."""
    spec, public = signed
    manifest = await fetch_manifest_async(spec.to_bytes(), [dead_url(), base.url], trusted=[public])
    assert manifest.n_units == 20
    with pytest.raises(RemoteUnavailable, match=r"manifest\.json"):
        await fetch_manifest_async(spec, [dead_url()], trusted=[public])


def test_a_spec_that_nobody_trusted_signed(base, cache, signed):
    """Without keys it is refused at once; with other keys nothing is fetched."""
    spec, _ = signed
    with pytest.raises(ConfigError, match="public keys that you trust"):
        prefetch(spec, [0], cache, [base.url])
    with pytest.raises(IntegrityError, match="not a trusted one"):
        list(prefetch(spec, [0], cache, [base.url], trusted=["ab" * 32]))
    assert base.asked == []


def test_the_cache_directory_may_be_text(made, base, tmp_path, monkeypatch):
    """Paths may be relative texts, as in the shell."""
    monkeypatch.chdir(tmp_path)
    assert list(prefetch(made.manifest, [0], "units", [f"{base.url}/"])) == [0]
    assert Path("units", made.manifest.unit_sha256s[0]).exists()
