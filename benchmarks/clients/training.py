"""A training loop timed while a checkpoint travels: ``alone|inside|beside FOLDER JOB``; prints what its steps took.

``inside``: the courier is in this process. ``beside``: an ``r2d1 ship`` of its own does the same transfer.
"""

import json
import os
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Callable

import numpy as np

ALONE_S = 5.0
_ROWS = 384


def make_step() -> Callable[[], None]:
    """One step: half NumPy, which lets other threads run, half Python, which does not; some 20 ms in all."""
    rng = np.random.default_rng(1)
    weights, batch = rng.random((_ROWS, _ROWS)), rng.random((_ROWS, _ROWS))

    def step() -> None:
        for _ in range(4):
            np.tanh(batch @ weights)
        total = 0
        for number in range(120_000):
            total += number * number & 7

    return step


def timed(step: Callable[[], None], is_over: Callable[[], bool]) -> list[float]:
    took = []
    while not is_over():
        began = time.perf_counter()
        step()
        took.append(time.perf_counter() - began)
    return took


def main() -> None:
    mode, folder, job = sys.argv[1:]
    step = make_step()
    timed(step, iter([False] * 20 + [True]).__next__)  # warm
    began = time.perf_counter()
    if mode == "alone":
        took = timed(step, lambda: time.perf_counter() - began > ALONE_S)
    elif mode == "beside":
        command = [os.path.join(os.path.dirname(sys.executable), "r2d1"), "ship", folder, "--job-id", job, "--quiet"]
        with subprocess.Popen(command) as process:
            took = timed(step, lambda: process.poll() is not None)
        assert process.returncode == 0
    else:
        took = inside(step, folder, job)
    spent = time.perf_counter() - began
    print(
        json.dumps(
            {
                "step, mean ms": statistics.fmean(took) * 1e3,
                "step, median ms": statistics.median(took) * 1e3,
                "step, worst ms": max(took) * 1e3,
                "transfer and steps, s": spent,
            }
        )
    )


def quiet(event: object) -> None:
    """No event is told of: printing is not what is measured."""


def inside(step: Callable[[], None], folder: str, job: str) -> list[float]:
    from r2d1 import Courier

    shipped = []

    def ship() -> None:
        with Courier.from_env(observer=quiet) as courier:
            shipped.append(courier.ship(folder, job))

    thread = threading.Thread(target=ship)
    thread.start()
    took = timed(step, lambda: not thread.is_alive())
    assert shipped
    return took


main()
