"""Child processes of tests: scripts run by this interpreter, killed at an exact request."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

from r2d1.testing import Call, Hook

REPOSITORY = Path(__file__).parents[1]
_KEPT = ("PATH", "HOME", "TMPDIR", "LANG", "LD_LIBRARY_PATH", "SYSTEMROOT")


def child_env(*environs: Mapping[str, str]) -> dict[str, str]:
    """An environment with nothing of this process's but what an interpreter needs, and what is given."""
    env = {name: os.environ[name] for name in _KEPT if name in os.environ}
    env["PYTHONPATH"] = str(REPOSITORY)
    for environ in environs:
        env |= environ
    return env


def run_script(text: str, *args: object, env: Mapping[str, str], timeout: float = 60.0, status: int = 0) -> str:
    """Run a script to its end and return what it printed; its errors are shown when it ends otherwise."""
    done = subprocess.run(
        [sys.executable, "-c", text, *map(str, args)], env=env, timeout=timeout, capture_output=True, text=True
    )
    assert done.returncode == status, f"ended with {done.returncode}\n{done.stdout}\n{done.stderr}"
    return done.stdout


@contextmanager
def started(text: str, *args: object, env: Mapping[str, str]) -> Iterator[subprocess.Popen[str]]:
    """A script that runs meanwhile; killed at the end if it still does."""
    command = [sys.executable, "-c", text, *map(str, args)]
    with subprocess.Popen(command, env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as child:
        try:
            yield child
        finally:
            if child.poll() is None:
                child.kill()


@dataclass
class Killer:
    """Kills a child with SIGKILL when the double gets an exact request: nothing of the child runs any further."""

    victims: list[subprocess.Popen[str]] = field(default_factory=list)

    @property
    def hook(self) -> Hook:
        return Hook(before=self._kill)

    def _kill(self, call: Call) -> None:
        for victim in self.victims:
            victim.send_signal(signal.SIGKILL)
            with suppress(ChildProcessError):  # a test that waits for it was quicker, and then it is gone as well
                os.waitid(os.P_PID, victim.pid, os.WEXITED | os.WNOWAIT)
