"""Work spread over all cores: one function over many items, in processes of their own, results in order.

Processes, because hashing rows and splitting words hold the interpreter lock. They are plain child
processes that read tasks from a pipe: unlike ``multiprocessing`` they do not import the caller's main
module (a script needs no guard), are not forked from a process with threads, and end at once when
their parent dies, so that a killed build leaves nobody behind who would write into its resumption.
"""

from __future__ import annotations

import os
import pickle
import queue
import signal
import subprocess
import sys
import threading
import traceback
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Self, TypeVar

from r2d1.errors import ConfigError, R2D1Error

T = TypeVar("T")
R = TypeVar("R")

_BOOT = (
    "import pickle, sys; sys.path[:] = pickle.load(sys.stdin.buffer); from r2d1.datasets.workers import serve; serve()"
)


@dataclass(frozen=True, slots=True)
class Progress:
    """How far a stage is; ``unit`` says what is counted (``"bytes"``, ``"shards"``)."""

    stage: str
    done: int
    total: int
    unit: str


#: Called in the thread that called the verb. An exception it raises stops the work and is passed on.
OnProgress = Callable[[Progress], object]


def available_cores() -> int:
    """Cores that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def checked_workers(workers: int | None) -> int:
    """The number of processes asked for; all cores for ``None``."""
    if workers is None:
        return available_cores()
    if workers < 1:
        raise ConfigError(f"workers is {workers}; it must be 1 or more")
    return workers


class Workers:
    """Up to ``count`` processes, started when first needed; with ``count`` 1 everything runs in the caller."""

    def __init__(self, count: int, *, threads: int = 1) -> None:
        self.count = count
        self._children: list[_Child] = []
        self._idle: queue.SimpleQueue[_Child] = queue.SimpleQueue()
        self._threads = threads
        self._pool: ThreadPoolExecutor | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, exc: BaseException | None, tb: TracebackType | None) -> None:
        for child in self._children:
            child.kill()
        if self._pool is not None:
            self._pool.shutdown(cancel_futures=True)
        for child in self._children:
            child.close()
        self._children.clear()

    def map(self, func: Callable[[T], R], items: Iterable[T]) -> Iterator[R]:
        """``func`` of every item, in order. At most ``2 * count`` items are under way or wait to be taken.

        ``func`` is a module's function; items and results are pickled. Its exception is raised here.
        """
        if self.count == 1:
            yield from map(func, items)
            return
        waiting: deque[Future[R]] = deque()
        try:
            for item in items:
                waiting.append(self._submit(func, item))
                if len(waiting) >= 2 * self.count:
                    yield waiting.popleft().result()
            while waiting:
                yield waiting.popleft().result()
        finally:
            for future in waiting:
                future.cancel()

    def _submit(self, func: Callable[[T], R], item: T) -> Future[R]:
        if self._pool is None:
            self._pool = ThreadPoolExecutor(self.count, thread_name_prefix="r2d1-datasets")
            self._children = [_Child(self._threads) for _ in range(self.count)]
            for child in self._children:
                self._idle.put(child)
        return self._pool.submit(self._call, func, item)

    def _call(self, func: Callable[[T], R], item: T) -> R:
        child = self._idle.get()
        try:
            result: R = child.call(func, item)
            return result
        finally:
            self._idle.put(child)


class _Child:
    """One worker process, as its parent sees it."""

    def __init__(self, threads: int) -> None:
        self._threads = threads
        self._process: subprocess.Popen[bytes] | None = None
        self._ended = False
        self._lock = threading.Lock()

    def call(self, func: Callable[[Any], Any], item: object) -> Any:
        process = self._started()
        assert process.stdin is not None
        assert process.stdout is not None
        try:
            pickle.dump(pickle.dumps((func, item)), process.stdin)
            process.stdin.flush()
            good, value = pickle.loads(pickle.load(process.stdout))  # noqa: S301  our own child
        except (EOFError, BrokenPipeError, pickle.UnpicklingError, ValueError) as exc:
            raise R2D1Error(
                f"a worker process ended (exit code {process.wait()}) while it ran {func.__name__};"
                " if the system killed it for want of memory, use fewer workers"
            ) from exc
        if good:
            return value
        raise value

    def kill(self) -> None:
        with self._lock:
            self._ended = True
            if self._process is not None:
                self._process.kill()

    def close(self) -> None:
        if self._process is not None:
            self._process.wait()
            for pipe in (self._process.stdin, self._process.stdout):
                if pipe is not None:
                    _close_quietly(pipe)

    def _started(self) -> subprocess.Popen[bytes]:
        with self._lock:
            if self._ended:
                raise R2D1Error("the work was stopped")
            if self._process is None:
                self._process = subprocess.Popen(
                    [sys.executable, "-c", _BOOT],
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    env={**os.environ, "RAYON_NUM_THREADS": str(self._threads), **_ONE_THREAD},
                )
                assert self._process.stdin is not None
                pickle.dump(sys.path, self._process.stdin)
        return self._process


# What a worker imports must not open a thread a core of its own: the workers are the cores.
_ONE_THREAD = {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", "TOKENIZERS_PARALLELISM": "true"}


def _close_quietly(pipe: Any) -> None:
    try:
        pipe.close()
    except BrokenPipeError:
        return  # what was still buffered was for a process that has ended


def serve() -> None:
    """The loop of a worker process: tasks from standard input, results to standard output."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent decides what an interrupt means
    sink = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    tasks: queue.SimpleQueue[bytes] = queue.SimpleQueue()
    threading.Thread(target=_feed, args=(tasks,), daemon=True).start()
    while True:
        pickle.dump(_answer(tasks.get()), sink)
        sink.flush()


def _feed(tasks: queue.SimpleQueue[bytes]) -> None:
    while True:
        try:
            tasks.put(pickle.load(sys.stdin.buffer))  # noqa: S301  our own parent
        except (EOFError, pickle.UnpicklingError):
            os._exit(0)  # the parent has gone or wants no more: stop in the middle of a task too


def _answer(task: bytes) -> bytes:
    try:
        func, item = pickle.loads(task)  # noqa: S301  our own parent
        return pickle.dumps((True, func(item)))
    except BaseException as exc:
        return _pickled_error(exc)


def _pickled_error(exc: BaseException) -> bytes:
    if not isinstance(exc, R2D1Error):
        exc.add_note("in a worker process:\n" + "".join(traceback.format_exception(exc)))
    try:
        data = pickle.dumps((False, exc))
        pickle.loads(data)  # noqa: S301  made one line above
    except Exception:  # an exception that cannot travel is told in words
        return pickle.dumps((False, R2D1Error(f"{type(exc).__name__}: {exc}")))
    return data
