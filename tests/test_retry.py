"""The only retry loop, on a clock that jumps: how often, how long, and how one push-back slows everybody."""

from __future__ import annotations

import random

import anyio
import pytest
from hypothesis import given
from hypothesis import strategies as st

from r2d1.errors import AccessRefused, NotSent, RemoteError, RemoteUnavailable, Throttled
from r2d1.events import Retried, Teller
from r2d1.retry import Brake, RetryPolicy, delay_before, retried
from tests.simulation.clock import run_virtual

SUBJECT = ("put", "jobs/j/x")


def unavailable(**fields):
    return RemoteUnavailable(*SUBJECT, **fields)


class Server:
    """Answers with the given outcomes in turn, for ever with the last one, and notes when it was asked."""

    def __init__(self, *outcomes):
        self._outcomes = list(outcomes)
        self.asked = []

    async def __call__(self):
        self.asked.append(anyio.current_time())
        outcome = self._outcomes.pop(0) if len(self._outcomes) > 1 else self._outcomes[0]
        if isinstance(outcome, BaseException):
            raise outcome
        return outcome


def run(server, *, policy=None, brake=None, **options):
    """Run the loop on the virtual clock; the events told, and the result or the error."""
    told = []

    async def main():
        return await retried(
            server,
            policy=policy or RetryPolicy(),
            brake=brake or Brake(random.Random(1)),
            tell=Teller(told.append),
            **options,
        )

    try:
        return told, run_virtual(main)
    except RemoteError as error:
        return told, error


def test_a_success_is_returned_at_once():
    """Nothing waits and nothing is told when all is well."""
    server = Server("good")
    assert run(server) == ([], "good")
    assert len(server.asked) == 1


def test_failures_that_pass_are_waited_out():
    """Each retry is told with its number, delay and reason, and happens no sooner than told."""
    server = Server(unavailable(status=502, reason="bad gateway"), NotSent(*SUBJECT), "good")
    told, result = run(server)
    assert result == "good"
    assert [(event.operation, event.subject, event.attempt) for event in told] == [(*SUBJECT, 1), (*SUBJECT, 2)]
    assert "502 - bad gateway" in told[0].error
    gaps = [later - earlier for earlier, later in zip(server.asked, server.asked[1:], strict=False)]
    assert gaps == pytest.approx([event.delay for event in told])


@pytest.mark.parametrize("error", [AccessRefused(*SUBJECT, status=403), RemoteError(*SUBJECT, status=400)])
def test_a_refusal_is_not_repeated(error):
    """What cannot change is raised at once, unchanged."""
    server = Server(error)
    told, raised = run(server)
    assert raised is error
    assert (told, len(server.asked), error.attempts) == ([], 1, 1)


def test_attempts_are_bounded_and_counted():
    """After the last attempt the last error leaves, and says how many there were."""
    server = Server(unavailable(reason="first"), unavailable(reason="last"))
    told, raised = run(server, policy=RetryPolicy(attempts=5))
    assert len(server.asked) == raised.attempts == 5
    assert len(told) == 4
    assert str(raised) == "put jobs/j/x: last (5 attempts)"


def test_time_is_bounded():
    """No attempt begins that the budget would not cover, however many are left."""
    server = Server(unavailable())
    run(server, policy=RetryPolicy(attempts=10_000, budget_s=60.0))
    assert 10 < server.asked[-1] - server.asked[0] <= 60
    assert len(server.asked) < 100


def test_time_that_attempts_take_counts():
    """A server that hangs uses the budget up as well."""

    class Slow(Server):
        async def __call__(self):
            await anyio.sleep(25)
            return await super().__call__()

    server = Slow(unavailable())
    run(server, policy=RetryPolicy(attempts=100, budget_s=60.0, base_s=0.001, cap_s=0.001))
    assert len(server.asked) == 3


@pytest.mark.parametrize(("asked_for", "waited"), [(5, 5), (299, 299), (4000, 300)])
def test_the_servers_wish_is_obeyed_within_reason(asked_for, waited):
    """``Retry-After`` is waited for, up to five minutes."""
    server = Server(Throttled(*SUBJECT, status=429, retry_after=asked_for), "good")
    assert run(server, policy=RetryPolicy(budget_s=1000))[1] == "good"
    assert waited <= server.asked[1] - server.asked[0] <= waited + 25


def test_who_calls_may_say_what_is_repeated():
    """A caller that knows a request is safe to repeat, or is not, decides."""
    assert run(Server(AccessRefused(*SUBJECT), "good"), again=lambda _error: True)[1] == "good"
    server = Server(unavailable())
    run(server, again=lambda _error: False)
    assert len(server.asked) == 1


def test_other_exceptions_pass_untouched():
    """A bug is not an outage."""
    server = Server(ValueError("bug"))
    with pytest.raises(ValueError, match="bug"):
        run(server)
    assert len(server.asked) == 1


def test_cancelling_ends_the_wait():
    """Who waits for the next attempt can be stopped at once."""

    async def main():
        server = Server(Throttled(*SUBJECT, retry_after=100))
        with anyio.move_on_after(5) as scope:
            await retried(server, policy=RetryPolicy(), brake=Brake(), tell=Teller(None))
        assert scope.cancelled_caught
        assert len(server.asked) == 1

    run_virtual(main)


@given(st.integers(1, 40), st.none() | st.floats(-10, 10_000), st.integers())
def test_delays(attempt, retry_after, seed):
    """Full jitter below the doubled base and the cap, never below the server's wish, never above both."""
    policy = RetryPolicy()
    delay = delay_before(attempt, unavailable(retry_after=retry_after), policy, random.Random(seed))
    wish = min(retry_after or 0.0, policy.longest_wait_s)
    assert max(0.0, wish) <= delay <= max(min(policy.cap_s, policy.base_s * 2 ** (attempt - 1)), wish)


def test_delays_are_jittered():
    """Two couriers that fail together do not come back together."""
    policy = RetryPolicy()
    delays = {delay_before(5, unavailable(), policy, random.Random(seed)) for seed in range(20)}
    assert len(delays) == 20


# -- the brake --------------------------------------------------------------------------------------------------


def test_one_throttled_request_slows_all_of_a_client():
    """While one request is told to wait, no other begins; afterwards they do not all begin in one instant."""

    async def main():
        brake = Brake(random.Random(1))
        began = anyio.current_time()
        others = [Server("good") for _ in range(10)]
        first = Server(Throttled(*SUBJECT, status=503, retry_after=20), "good")

        async def call(server):
            await retried(server, policy=RetryPolicy(), brake=brake, tell=Teller(None))

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(call, first)
            await anyio.sleep(0.001)
            for other in others:
                tasks.start_soon(call, other)
        starts = [server.asked[0] - began for server in others]
        assert min(starts) >= 20
        assert max(starts) < 22
        assert len(set(starts)) == len(starts)
        assert first.asked[1] - began >= 20

    run_virtual(main)


def presses(error):
    """Whether an error makes the brake bite."""
    brake = Brake(random.Random(1))
    run(Server(error), policy=RetryPolicy(attempts=1), brake=brake)
    return brake._pressure > 0


@pytest.mark.parametrize("status", [429, 500, 503])
def test_what_presses_the_brake(status):
    """The answers by which a store says that it has too much to do."""
    assert presses(unavailable(status=status))
    assert presses(Throttled(*SUBJECT))


@pytest.mark.parametrize(
    "error", [unavailable(), unavailable(status=502), NotSent(*SUBJECT), AccessRefused(*SUBJECT, status=403)]
)
def test_what_does_not_press_the_brake(error):
    """A connection that broke, or a refusal, is no reason for the others to wait."""
    assert not presses(error)


def test_pressure_doubles_and_is_bounded():
    """Repeated push-backs slow a client more and more, at most by half a minute a time."""

    async def main():
        brake = Brake(random.Random(1))
        pressures, pauses = [], []
        for _ in range(20):
            brake.press(0)
            pressures.append(brake._pressure)
            began = anyio.current_time()
            await brake.wait()
            pauses.append(anyio.current_time() - began)
        assert pressures[:4] == [0.1, 0.2, 0.4, 0.8]
        assert pressures[-1] == 30.0
        assert max(pauses) <= 31.0

    run_virtual(main)


def test_recovery_is_slow_and_complete():
    """Each success takes a tenth of the pressure, and in the end nothing of it is left."""
    brake = Brake(random.Random(1))

    async def main():
        for _ in range(10):
            brake.press(0)

    run_virtual(main)
    worst = brake._pressure
    run(Server("good"), brake=brake)
    assert brake._pressure == pytest.approx(worst * 0.9)
    for _ in range(100):
        brake.ease()
    assert brake._pressure == 0.0


def test_a_pause_is_never_cut_short_by_a_shorter_one():
    """Who was told to wait a minute waits a minute, whatever others were told meanwhile."""

    async def main():
        brake = Brake(random.Random(1))
        began = anyio.current_time()
        brake.press(60)
        brake.press(1)
        await brake.wait()
        assert anyio.current_time() - began >= 60

    run_virtual(main)


def test_retries_are_events():
    """What is told is the documented event."""
    told, _ = run(Server(unavailable(), "good"))
    assert [type(event) for event in told] == [Retried]


async def test_many_complaints_at_once_count_once(monkeypatch):
    """Fifty requests that are refused in the same moment cost one short pause, not one that has doubled fifty times."""
    brake = Brake()
    before = anyio.current_time()
    monkeypatch.setattr(brake.rng, "uniform", lambda low, high: high)
    for _ in range(50):
        brake.press(0.0)
    assert brake._until - before < 1
