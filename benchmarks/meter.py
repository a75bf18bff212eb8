"""Runs one program and writes what it cost. Starts no site packages: a child's peak memory is never below its parent's.

``python -I -S meter.py REPORT PROGRAM [ARGUMENT ...]``
"""

import json
import os
import sys
import time


def main() -> None:
    report, *command = sys.argv[1:]
    started, began = time.time(), time.perf_counter()
    pid = os.fork()
    if pid == 0:
        try:
            os.execvpe(command[0], command, os.environ)
        except OSError as error:
            os.write(2, f"{command[0]}: {error}\n".encode())
        os._exit(127)
    os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)
    wall, moved = time.perf_counter() - began, moved_by(pid)
    _, status, used = os.wait4(pid, 0)
    cost = {
        "code": os.waitstatus_to_exitcode(status),
        "started": started,
        "wall": wall,
        "user": used.ru_utime,
        "system": used.ru_stime,
        "peak_mib": used.ru_maxrss / (1024 * 1024 if sys.platform == "darwin" else 1024),
        "read_bytes": moved.get("rchar", 0),
        "written_bytes": moved.get("wchar", 0),
    }
    with open(report, "w", encoding="utf-8") as out:
        json.dump(cost, out)


def moved_by(pid: int) -> dict[str, int]:
    """What the program's read and write calls carried, where the system tells (Linux)."""
    try:
        with open(f"/proc/{pid}/io", encoding="ascii") as lines:
            pairs = [line.split(":") for line in lines]
    except OSError:
        return {}
    return {name: int(value) for name, value in pairs}


if __name__ == "__main__":
    main()
