"""Runs one server as a process group of its own, until standard input ends: then the whole group goes.

``python supervise.py FOLDER COMMAND...``. Whoever started this holds the other end of standard input; when that
process dies, however it dies, the pipe closes, and neither the server nor its data folder is left behind.
"""

import ctypes
import os
import shutil
import signal
import subprocess
import sys
import threading

#: What a server may take to stop before it is killed.
PATIENCE_S = 5.0
_PR_SET_PDEATHSIG = 1


def main() -> int:
    folder, *command = sys.argv[1:]
    child = subprocess.Popen(command, stdin=subprocess.DEVNULL, start_new_session=True, preexec_fn=_end_with_parent)
    asked = threading.Event()

    def stop() -> None:
        sys.stdin.buffer.read()
        asked.set()
        _signal(child.pid, signal.SIGTERM)
        killer = threading.Timer(PATIENCE_S, _signal, (child.pid, signal.SIGKILL))
        killer.daemon = True
        killer.start()

    threading.Thread(target=stop, daemon=True).start()
    code = child.wait()
    _signal(child.pid, signal.SIGKILL)  # what the server itself started and left behind
    shutil.rmtree(folder, ignore_errors=True)
    return 0 if asked.is_set() else code or 1


def _end_with_parent() -> None:
    """Where the system can (Linux): the server is told to end when this process is killed as well."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)


def _signal(group: int, number: int) -> None:
    try:
        os.killpg(group, number)
    except ProcessLookupError:
        return


if __name__ == "__main__":
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)  # only the end of standard input counts
    code = main()
    sys.stdout.flush()
    os._exit(code)
