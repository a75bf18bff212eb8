"""Running one verb on an event loop: events told, signals obeyed, the result printed, the exit code set."""

from __future__ import annotations

import functools
import os
import signal
import sys
import threading
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import NoReturn

import anyio
import anyio.abc
import click

from r2d1.cli.common import Common, speaking
from r2d1.cli.ending import Result, command_of, conclude, of_error, of_signal
from r2d1.events import Observer, Teller
from r2d1.objects import ObjectStore
from r2d1.objects.opening import open_store
from r2d1.settings import Settings
from r2d1.tasks import one_error

#: How long a command may take to stop once it was told to; what hangs longer is cut off, and nothing is lost by it.
STOP_WITHIN_S = 2.0


class Stop:
    """What the signals that came ask for, step by step.

    Where a command ends ``gently`` the first signal only sets ``asked``. The next one cancels ``scope``, and one
    more, or a command that does not stop in time, ends the process on the spot: r2d1 is made to be
    killed, and its journal knows what was done.
    """

    def __init__(self, *, gently: bool, end_now: Callable[[int], NoReturn], within_s: float = STOP_WITHIN_S) -> None:
        self.asked = anyio.Event()
        self.scope = anyio.CancelScope()
        self.by: int | None = None
        self._gently, self._end_now, self._within_s = gently, end_now, within_s

    async def listen(self, *, task_status: anyio.abc.TaskStatus[None]) -> None:
        """Take SIGINT and SIGTERM for ever; started once they are caught."""
        with anyio.open_signal_receiver(signal.SIGINT, signal.SIGTERM) as numbers:
            task_status.started()
            async for number in numbers:
                self.take(number)

    def take(self, number: int) -> None:
        """Do what one more signal asks for."""
        self.by = number
        if self._gently and not self.asked.is_set():
            self.asked.set()
        elif not self.scope.cancel_called:
            self.scope.cancel()
            timer = threading.Timer(self._within_s, self._end_now, [number])
            timer.daemon = True  # left running: a worker thread that hangs would keep the interpreter from ending
            timer.start()
        else:
            self._end_now(number)


@dataclass(frozen=True, slots=True)
class Session:
    """What a verb works with. There is one teller, so that what is to be told once is."""

    settings: Settings
    observer: Observer
    stop: Stop
    tell: Teller = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "tell", Teller(self.observer))


@asynccontextmanager
async def opened_store(session: Session) -> AsyncIterator[ObjectStore]:
    """The store that the settings name, closed whatever happens."""
    store = open_store(session.settings, tell=session.tell)
    try:
        yield store
    finally:
        with anyio.CancelScope(shield=True):
            await store.aclose()


Verb = Callable[[Session], Awaitable[Result]]


def run(
    common: Common,
    verb: Verb,
    *,
    gently: bool = False,
    settings: Callable[[], Settings] | None = None,
    stop_within_s: float = STOP_WITHIN_S,
) -> NoReturn:
    """Run a verb to its end and end the command with its exit code. ``settings`` stands in for the environment's."""
    command = command_of(click.get_current_context())

    def end(result: Result) -> int:
        return conclude(command, result, as_json=common.as_json, quiet=common.quiet)

    def end_now(number: int) -> NoReturn:
        code = end(of_signal(number))
        sys.stderr.flush()
        os._exit(code)

    try:
        with speaking(common) as observer:
            make_stop = functools.partial(Stop, gently=gently, end_now=end_now, within_s=stop_within_s)
            result = anyio.run(_supervised, verb, (settings or common.settings)(), observer, make_stop)
    except KeyboardInterrupt:  # before signals were caught
        result = of_signal(signal.SIGINT)
    except BrokenPipeError:
        raise  # whoever read stdout has gone: click ends the command without a word
    except Exception as error:
        result = of_error(error, verbose=common.verbose, command=command)
    raise click.exceptions.Exit(end(result))


async def _supervised(verb: Verb, settings: Settings, observer: Observer, make_stop: Callable[[], Stop]) -> Result:
    stop = make_stop()
    result: Result | None = None
    with one_error():
        async with anyio.create_task_group() as tasks:
            await tasks.start(stop.listen)
            with stop.scope:
                result = await verb(Session(settings, observer, stop))
            tasks.cancel_scope.cancel()
    if result is None:
        assert stop.by is not None
        return of_signal(stop.by)
    return result
