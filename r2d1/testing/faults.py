"""A script of faults: which request meets which mishap, how often (no I/O here; ``exchange.py`` carries it out)."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from fnmatch import fnmatchcase

from r2d1.testing.requestlog import RequestRecord


@dataclass(frozen=True, slots=True)
class Call:
    """A request whose head has arrived, as matchers and hooks see it.

    ``at`` is the double's time in seconds since the epoch, ``size`` the announced body in bytes.
    """

    number: int
    at: float
    method: str
    operation: str
    key: str
    query: Mapping[str, str]
    headers: Mapping[str, str]
    part_number: int | None
    size: int
    connection: int
    access_key: str


@dataclass(frozen=True, slots=True, kw_only=True)
class When:
    """Which requests a fault is for; what is not given matches all. ``key`` is a glob, ``*`` also matches ``/``.

    ``nth`` counts, from 1, the requests that match all the rest: the fault begins with that one.
    """

    method: str | None = None
    operation: str | None = None
    key: str | None = None
    part: int | None = None
    nth: int = 1
    matches: Callable[[Call], bool] | None = None

    def is_for(self, call: Call) -> bool:
        return (
            self.method in (None, call.method)
            and self.operation in (None, call.operation)
            and self.part in (None, call.part_number)
            and (self.key is None or fnmatchcase(call.key, self.key))
            and (self.matches is None or self.matches(call))
        )


class Latch:
    """A flag that is set once, from any thread, and awaited in any event loop or thread."""

    def __init__(self) -> None:
        self._set = threading.Event()
        self._lock = threading.Lock()
        self._waiters: list[tuple[asyncio.AbstractEventLoop, asyncio.Event]] = []

    def set(self) -> None:
        with self._lock:
            self._set.set()
            waiters, self._waiters = self._waiters, []
        for loop, event in waiters:
            if not loop.is_closed():
                loop.call_soon_threadsafe(event.set)

    @property
    def is_set(self) -> bool:
        return self._set.is_set()

    async def wait(self) -> None:
        with self._lock:
            if self._set.is_set():
                return
            event = asyncio.Event()
            self._waiters.append((asyncio.get_running_loop(), event))
        await event.wait()

    def wait_blocking(self, timeout: float = 60.0) -> None:
        """Block this thread; ``TimeoutError`` after ``timeout`` seconds."""
        if not self._set.wait(timeout):
            raise TimeoutError(f"nothing happened within {timeout} s")


@dataclass(frozen=True, slots=True)
class Gate:
    """Where scripted requests wait: ``arrived`` is set when the first one is there, ``release`` lets all of them go."""

    arrived: Latch = field(default_factory=Latch)
    opened: Latch = field(default_factory=Latch)

    def release(self) -> None:
        self.opened.set()

    async def hold(self) -> None:
        self.arrived.set()
        await self.opened.wait()


@dataclass(frozen=True, slots=True)
class Answer:
    """Read the body, do nothing, answer with an error. ``retry_after`` in seconds; ``body`` replaces the XML."""

    status: int
    code: str = "InternalError"
    message: str = "scripted"
    retry_after: int | None = None
    headers: Mapping[str, str] = field(default_factory=dict)
    body: bytes | None = None


@dataclass(frozen=True, slots=True)
class Delay:
    """Go on after so many seconds."""

    seconds: float


@dataclass(frozen=True, slots=True)
class Hold:
    """Wait at the gate before anything is done."""

    gate: Gate


@dataclass(frozen=True, slots=True)
class HoldReply:
    """Do what was asked, then wait at the gate before the reply."""

    gate: Gate


@dataclass(frozen=True, slots=True)
class Stall:
    """Send the reply's head and ``after`` bytes of its body, then wait at the gate before the rest."""

    gate: Gate
    after: int = 0


@dataclass(frozen=True, slots=True)
class Trickle:
    """Send the reply's body slowly, a byte at a time."""

    bytes_per_s: float = 1.0


@dataclass(frozen=True, slots=True)
class CutReply:
    """Send the reply's head and ``after`` bytes of its body, then close the connection."""

    after: int = 0


@dataclass(frozen=True, slots=True)
class CutRequest:
    """Read ``after`` bytes of the request's body, then reset the connection; nothing is done."""

    after: int = 0


@dataclass(frozen=True, slots=True)
class Reset:
    """Reset the connection when the head has arrived; nothing is done."""


@dataclass(frozen=True, slots=True)
class Swallow:
    """Do what was asked, then close the connection without a reply."""


@dataclass(frozen=True, slots=True)
class FlipReply:
    """Damage one byte of the reply's body (``at`` < 0 counts from the end)."""

    at: int = 0


@dataclass(frozen=True, slots=True)
class FlipRequest:
    """Damage one byte of the request's body: on the wire, or after it was ``checked``, so that only bytes differ."""

    at: int = 0
    after_check: bool = False


@dataclass(frozen=True, slots=True)
class Rewrite:
    """Change headers of the reply; ``None`` takes one away."""

    headers: Mapping[str, str | None] | Callable[[Call], Mapping[str, str | None]]


@dataclass(frozen=True, slots=True)
class Hook:
    """Call a function at an exact request: before anything is done, or when it is done and before its reply.

    It runs on the double's own thread, so nothing else is served meanwhile; a coroutine function is awaited.
    """

    before: Callable[[Call], object] | None = None
    after: Callable[[RequestRecord], object] | None = None


Action = (
    Answer
    | CutReply
    | CutRequest
    | Delay
    | FlipReply
    | FlipRequest
    | Hold
    | HoldReply
    | Hook
    | Reset
    | Rewrite
    | Stall
    | Swallow
    | Trickle
)


@dataclass(frozen=True, slots=True)
class Fault:
    """A mishap for the requests that ``when`` matches; ``times=None`` is for ever."""

    when: When
    do: Action
    times: int | None = 1


@dataclass(slots=True)
class _State:
    fault: Fault
    seen: int = 0
    fired: int = 0

    def is_due(self) -> bool:
        return self.seen >= self.fault.when.nth and (self.fault.times is None or self.fired < self.fault.times)


class Script:
    """Faults in order: every one counts the requests it matches, the first one that is due fires. Thread safe."""

    def __init__(self, faults: Iterable[Fault] = ()) -> None:
        self._lock = threading.RLock()
        self._states = [_State(fault) for fault in faults]

    def add(self, *faults: Fault) -> None:
        """Append faults; they begin to count now."""
        with self._lock:
            self._states += [_State(fault) for fault in faults]

    def clear(self) -> None:
        """No more faults."""
        with self._lock:
            self._states.clear()

    def take(self, call: Call) -> Action | None:
        """The action for this request, if one is due."""
        with self._lock:
            matching = [state for state in self._states if state.fault.when.is_for(call)]
            for state in matching:
                state.seen += 1
            for state in matching:
                if state.is_due():
                    state.fired += 1
                    return state.fault.do
        return None

    def fired(self) -> int:
        """How many requests met a fault so far (faults that were cleared not counted)."""
        with self._lock:
            return sum(state.fired for state in self._states)
