"""The classic launcher, blocking: `python bob.py bob_job.json`.

The job file holds the secrets, the job's id, the checkpoint directory and the trainer's command line. SIGTERM (the
machine is being taken away) or Ctrl-C ends the trainer and ships what it wrote, in half a minute at most; a second
one stops at once. What is left then goes on with the next start.
"""

import json
import signal
import subprocess
import sys

from r2d1 import Courier, Fetcher

#: After a signal, in seconds: for the trainer to end, for the flush, and for what leaving the courier may take.
TRAINER_S, FLUSH_S, DRAIN_S = 10, 15, 5


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

    with Courier.from_config(cfg["secrets"], drain_timeout=DRAIN_S) as courier:
        courier.watch(checkpoints, job_id=job_id)  # returns at once; ships in the background
        stopped = on_signal()
        code = run(cfg["command"], stopped)
        report = courier.flush(timeout=FLUSH_S if stopped else 300)
    print(f"in the bucket now: {', '.join(sorted(one.name for one in report.shipped)) or 'nothing new'}", flush=True)
    return code if code >= 0 else 128 - code  # as a shell tells that a signal ended it


def on_signal() -> list[int]:
    """A list that the first SIGTERM or Ctrl-C is put into; the next one ends the program, whatever is done."""
    stopped: list[int] = []

    def stop(number: int, frame: object) -> None:
        if stopped:
            print("stopped at once; the next start goes on with what is left", file=sys.stderr)
            sys.exit(128 + number)
        stopped.append(number)

    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, stop)
    return stopped


def run(command: list[str], stopped: list[int]) -> int:
    """The exit code of the trainer. Once we are `stopped` it is told to end, and killed if it does not."""
    with subprocess.Popen(command) as trainer:
        try:
            while not stopped and not ends_within(0.5, trainer):
                pass
            trainer.terminate()  # as `kill` below, this does nothing to one that has ended
            ends_within(TRAINER_S, trainer)
        finally:
            trainer.kill()
        return trainer.wait()


def ends_within(seconds: float, trainer: subprocess.Popen[bytes]) -> bool:
    try:
        trainer.wait(timeout=seconds)
    except subprocess.TimeoutExpired:
        return False
    return True


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
