"""The command line as its users meet it: in child processes with real signals, or in this process when that will do."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from click.testing import CliRunner, Result

import r2d1
from r2d1.cli import cli
from r2d1.sources import VARIABLES

#: Long enough for any machine; a test that waits so long has failed.
PATIENCE_S = 60.0
R2D1 = (sys.executable, "-W", "error::ResourceWarning", "-m", "r2d1")


def store_env(directory: Path) -> dict[str, str]:
    """Settings of an embedded store below a directory."""
    return {"R2D1_STORE_URL": (directory / "bucket").as_uri()}


def run(*arguments: object, env: Mapping[str, str] | None = None) -> Result:
    """Run a command in this process, with no settings but ``env``."""
    bare: dict[str, str | None] = {name: None for variable in VARIABLES for name in variable.names}
    return CliRunner().invoke(cli, [str(one) for one in arguments], env=bare | dict(env or {}), catch_exceptions=False)


def answer(result: Result | Ended) -> dict[str, object]:
    """The JSON object that ``--json`` puts on the last line of stdout."""
    document = json.loads(result.stdout.splitlines()[-1])
    assert document["exit_code"] == result.exit_code
    assert document["status"] == ("done" if result.exit_code == 0 else "failed")
    return document


def last_line(result: Result | Ended) -> str:
    return result.stderr.splitlines()[-1]


def child_env(env: Mapping[str, str], home: Path) -> dict[str, str]:
    """The environment of a child: what Python needs, and ``env``."""
    kept = {name: os.environ[name] for name in ("PATH", "LANG", "TMPDIR") if name in os.environ}
    return {**kept, "HOME": str(home), "PYTHONPATH": str(Path(r2d1.__file__).parents[1]), **env}


@dataclass(frozen=True)
class Ended:
    """What a child left: negative exit codes are signals."""

    exit_code: int
    stdout: str
    stderr: str


class Child:
    """A running command; what it prints is read as it comes."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self.process = process
        self._lines: dict[str, list[str]] = {"out": [], "err": []}
        self._news = threading.Condition()
        self._ended = 0
        assert process.stdout is not None and process.stderr is not None
        self._readers = [
            threading.Thread(target=self._read, args=(stream, name), daemon=True)
            for stream, name in ((process.stdout, "out"), (process.stderr, "err"))
        ]
        for reader in self._readers:
            reader.start()

    def _read(self, stream: IO[str], name: str) -> None:
        for line in stream:
            with self._news:
                self._lines[name].append(line)
                self._news.notify_all()
        with self._news:
            self._ended += 1
            self._news.notify_all()

    def wait_for(self, text: str, *, where: str = "err") -> None:
        """Wait until a line with this text was printed; fail at once when the command ends without it."""
        with self._news:
            is_there = self._news.wait_for(lambda: self._has(text, where) or self._ended == 2, PATIENCE_S)
            assert is_there and self._has(text, where), f"{text!r} never came:\n{self.err}{self.out}"

    def _has(self, text: str, where: str) -> bool:
        return any(text in line for line in self._lines[where])

    @property
    def out(self) -> str:
        return "".join(self._lines["out"])

    @property
    def err(self) -> str:
        return "".join(self._lines["err"])

    def send(self, number: signal.Signals) -> None:
        self.process.send_signal(number)

    def end(self) -> Ended:
        """Wait for the end; nothing may have leaked."""
        code = self.process.wait(PATIENCE_S)
        for reader in self._readers:
            reader.join(PATIENCE_S)
        assert "ResourceWarning" not in self.err
        return Ended(code, self.out, self.err)


@contextmanager
def started(*arguments: object, env: Mapping[str, str], home: Path, command: Sequence[str] = R2D1) -> Iterator[Child]:
    """Start a command in ``home``; it is killed if the block ends before it."""
    process = subprocess.Popen(
        [*command, *map(str, arguments)],
        cwd=home,
        env=child_env(env, home),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    with process:
        child = Child(process)
        try:
            yield child
        finally:
            process.kill()
            for reader in child._readers:
                reader.join(PATIENCE_S)


def finished(*arguments: object, env: Mapping[str, str], home: Path, command: Sequence[str] = R2D1) -> Ended:
    """Run a command in a child process to its end."""
    with started(*arguments, env=env, home=home, command=command) as child:
        return child.end()
