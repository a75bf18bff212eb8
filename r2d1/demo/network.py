"""A network small enough to train in a second, with a state that is saved and restored bit for bit.

It has one hidden layer, learns ``sin(3x)`` from noisy points, and is trained with momentum. With NumPy its numbers lie
in arrays, without it in lists; either way the same state and step give the same next state.
"""

from __future__ import annotations

import json
import math
import random
from importlib.util import find_spec
from pathlib import Path
from typing import Protocol

HIDDEN = 24
BATCH = 16
MOMENTUM = 0.8
_PARAMETERS = 3 * HIDDEN + 1
_SEED = 20


class Network(Protocol):
    """What the trainer asks of a network. ``steps`` is how many of its training steps make an epoch."""

    steps: int

    def train(self, xs: list[float], ys: list[float]) -> float:
        """Take one step on a batch and return the loss before it."""

    def state(self) -> tuple[list[float], list[float]]:
        """Weights and momentum."""


def has_numpy() -> bool:
    return find_spec("numpy") is not None


def make(engine: str, weights: list[float] | None = None, momentum: list[float] | None = None) -> Network:
    """A network of ``engine`` (``"numpy"`` or ``"python"``), new or in a given state."""
    rng = random.Random(_SEED)
    weights = weights or [rng.gauss(0, 1) for _ in range(_PARAMETERS)]
    momentum = momentum or [0.0] * _PARAMETERS
    return _NumpyNetwork(weights, momentum) if engine == "numpy" else _PythonNetwork(weights, momentum)


def batch(step: int) -> tuple[list[float], list[float]]:
    """The points of a step: a function of its number alone, so a resumed run sees what an uninterrupted one does."""
    rng = random.Random(_SEED * 1_000_003 + step)
    xs = [rng.uniform(-1, 1) for _ in range(BATCH)]
    return xs, [math.sin(3 * x) + rng.gauss(0, 0.05) for x in xs]


def save_weights(network: Network, folder: Path) -> None:
    """Write the weights as JSON, which keeps every bit of a double."""
    (folder / "model.json").write_text(json.dumps(network.state()[0]))


def save_momentum(network: Network, folder: Path) -> None:
    """Write the other half of the state, without which a resumed run would take other steps."""
    (folder / "optimizer.json").write_text(json.dumps(network.state()[1]))


def load(folder: Path, engine: str) -> Network:
    """The network that was saved in a folder."""
    weights, momentum = (json.loads((folder / name).read_text()) for name in ("model.json", "optimizer.json"))
    return make(engine, weights, momentum)


class _PythonNetwork:
    """The network on lists of floats."""

    steps, rate = 200, 0.003

    def __init__(self, weights: list[float], momentum: list[float]) -> None:
        self._weights, self._momentum = list(weights), list(momentum)

    def state(self) -> tuple[list[float], list[float]]:
        return self._weights, self._momentum

    def train(self, xs: list[float], ys: list[float]) -> float:
        into, bias, out = (self._weights[HIDDEN * n : HIDDEN * (n + 1)] for n in range(3))
        gradient = [0.0] * _PARAMETERS
        loss = 0.0
        for x, y in zip(xs, ys, strict=True):
            hidden = [math.tanh(w * x + b) for w, b in zip(into, bias, strict=True)]
            error = sum(h * w for h, w in zip(hidden, out, strict=True)) + self._weights[-1] - y
            loss += error * error / BATCH
            slope = 2 * error / BATCH
            gradient[-1] += slope
            for n, h in enumerate(hidden):
                back = slope * out[n] * (1 - h * h)
                gradient[n] += back * x
                gradient[HIDDEN + n] += back
                gradient[2 * HIDDEN + n] += slope * h
        self._momentum = [MOMENTUM * m - self.rate * g for m, g in zip(self._momentum, gradient, strict=True)]
        self._weights = [w + m for w, m in zip(self._weights, self._momentum, strict=True)]
        return loss


class _NumpyNetwork:
    """The network on arrays."""

    steps, rate = 1500, 0.0003

    def __init__(self, weights: list[float], momentum: list[float]) -> None:
        import numpy as np

        self._np = np
        self._weights, self._momentum = np.array(weights), np.array(momentum)

    def state(self) -> tuple[list[float], list[float]]:
        return self._weights.tolist(), self._momentum.tolist()

    def train(self, xs: list[float], ys: list[float]) -> float:
        np = self._np
        into, bias, out = self._weights[:-1].reshape(3, HIDDEN)
        x = np.array(xs)[:, None]
        hidden = np.tanh(x * into + bias)
        errors = hidden @ out + self._weights[-1] - np.array(ys)
        slopes = 2 * errors / BATCH
        back = slopes[:, None] * out * (1 - hidden * hidden)
        gradient = np.concatenate([(back * x).sum(0), back.sum(0), slopes @ hidden, [slopes.sum()]])
        self._momentum = MOMENTUM * self._momentum - self.rate * gradient
        self._weights = self._weights + self._momentum
        return float((errors * errors).mean())
