"""A courier in a process of its own, made to be killed: ``python courier_child.py DIRECTORY``."""

import sys

from r2d1 import Courier, Settings

settings = Settings.from_env(part_size=5 * 2**20, concurrency=3)
with Courier(settings) as courier:
    courier.watch(sys.argv[1], job_id="job")
    courier.flush(timeout=60)
