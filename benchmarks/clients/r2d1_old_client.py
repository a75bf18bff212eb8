"""r2d1 0.2.1 ships or pulls one checkpoint: ``up|down FOLDER PREFIX``; what its thread does, called once."""

import sys
from pathlib import Path

from r2d1 import Courier, Fetcher


def main() -> None:
    direction, folder, prefix = sys.argv[1:]
    if direction == "up":
        courier = Courier.from_env()
        courier._scan(Path(folder).parent, prefix)
        courier.flush(timeout=900)
    else:
        # by prefix: without D1 its "latest" does not find what its own courier ships
        Fetcher.from_env().pull(f"r2://jobs/{prefix}/checkpoints/chk_0001", dest=folder)


main()
