"""A trainer as training code is: it knows a directory and nothing of buckets. ``python -m r2d1.demo.trainer DIR``.

An epoch ends with a folder ``chk_<epoch>`` and, written last, its sidecar; one JSON line on stdout tells its loss.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from pathlib import Path
from typing import NoReturn

from r2d1.demo import network
from r2d1.sidecar import write_sidecar


def main(arguments: list[str] | None = None) -> None:
    """Train from the newest checkpoint of the directory, or from nothing, to ``--epochs``."""
    parser = argparse.ArgumentParser(description="Train a tiny network, with a checkpoint after each epoch.")
    parser.add_argument("directory", type=Path)
    parser.add_argument("--epochs", type=int, default=10)
    parser.add_argument("--engine", choices=("numpy", "python"), default="numpy" if network.has_numpy() else "python")
    parser.add_argument("--hang-in", type=int, metavar="EPOCH", help="stop for ever in the middle of that checkpoint")
    options = parser.parse_args(arguments)
    options.directory.mkdir(parents=True, exist_ok=True)
    begun = newest_epoch(options.directory)
    net = network.load(options.directory / name_of(begun), options.engine) if begun else network.make(options.engine)
    for epoch in range(begun + 1, options.epochs + 1):
        loss = _train_epoch(net, epoch)
        _checkpoint(net, options.directory, epoch, loss, hang=epoch == options.hang_in)


def name_of(epoch: int) -> str:
    """The name of an epoch's checkpoint."""
    return f"chk_{epoch:04d}"


def newest_epoch(directory: Path) -> int:
    """The newest epoch that has its sidecar; 0 for a fresh start."""
    return max((json.loads(path.read_bytes())["epoch"] for path in directory.glob("chk_*.json")), default=0)


def _train_epoch(net: network.Network, epoch: int) -> float:
    """Train one epoch and return its mean loss."""
    steps = range((epoch - 1) * net.steps, epoch * net.steps)
    return sum(net.train(*network.batch(step)) for step in steps) / net.steps


def _checkpoint(net: network.Network, directory: Path, epoch: int, loss: float, *, hang: bool) -> None:
    folder = directory / name_of(epoch)
    folder.mkdir(exist_ok=True)
    network.save_weights(net, folder)
    if hang:
        _say(epoch=epoch, hangs=True)
        _hang()
    network.save_momentum(net, folder)
    write_sidecar(folder, epoch=epoch, metadata={"loss": loss})
    _say(epoch=epoch, loss=loss)


def _hang() -> NoReturn:
    """Stay until somebody kills us, or whoever has started us is gone: an orphan would stay for ever."""
    parent = os.getppid()
    while os.getppid() == parent:
        time.sleep(0.5)
    raise SystemExit("the trainer hung, and who started it is gone")


def _say(**fields: object) -> None:
    sys.stdout.write(json.dumps(fields) + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main()
