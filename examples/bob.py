"""The classic launcher, blocking: `python bob.py bob_job.json`.

The job file holds the secrets, the job's id, the checkpoint directory and the trainer's command line.
"""

import json
import subprocess
import sys

from r2d1 import Courier, Fetcher


def main(job_file: str) -> int:
    with open(job_file, encoding="utf-8") as file:
        cfg = json.load(file)
    job_id, checkpoints = cfg["job_id"], cfg["checkpoint_dir"]

    fetcher = Fetcher.from_config(cfg["secrets"])  # exported to os.environ, too
    info = fetcher.pull(f"r2://jobs/{job_id}/latest", dest=checkpoints)
    if info.found:
        print(f"resuming from epoch {info.epoch} at {info.local_dir}", flush=True)
    else:
        print("no checkpoint - fresh start", flush=True)

    with Courier.from_config(cfg["secrets"]) as courier:
        courier.watch(checkpoints, job_id=job_id)  # returns at once; ships in the background
        code = subprocess.run(cfg["command"], check=False).returncode
        report = courier.flush(timeout=300)
    print(f"in the bucket now: {', '.join(sorted(one.name for one in report.shipped)) or 'nothing new'}", flush=True)
    return code


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
