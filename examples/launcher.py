"""Run a trainer with its checkpoints shipped: pull the newest one, watch, train in a child process, flush.

    python launcher.py my_run ./checkpoints -- python -m r2d1.demo.trainer ./checkpoints

The trainer sees the directory alone. Settings come from the environment (`r2d1 secrets` shows them). SIGTERM (the
machine is being taken away) or Ctrl-C ends the trainer and ships what it wrote, in half a minute at most; a second
one stops at once. What is left then goes on with the next start.
"""

import asyncio
import signal
import sys

from r2d1 import AsyncCourier, AsyncFetcher

#: After a signal, in seconds: for the trainer to end, for the flush, and for what leaving the courier may take.
TRAINER_S, FLUSH_S, DRAIN_S = 10, 15, 5


async def main(job_id: str, checkpoints: str, command: list[str]) -> int:
    async with AsyncFetcher.from_env() as fetcher:
        info = await fetcher.pull(f"r2://jobs/{job_id}/latest", dest=checkpoints)
    print(f"resuming from epoch {info.epoch}" if info.found else "fresh start", flush=True)

    async with AsyncCourier.from_env(drain_timeout=DRAIN_S) as courier:
        await courier.watch(checkpoints, job_id=job_id)  # ships in the background from here on
        stopped = on_signal()
        trainer = await asyncio.create_subprocess_exec(*command)
        try:
            code = await end_of(trainer, stopped)
        finally:
            if trainer.returncode is None:
                trainer.kill()
        # also after a crash: what it wrote is wanted all the more
        report = await courier.flush(timeout=FLUSH_S if stopped.is_set() else 300)
    print(f"shipped {', '.join(sorted(one.name for one in report.shipped)) or 'nothing new'}", flush=True)
    return code if code >= 0 else 128 - code  # as a shell tells that a signal ended it


def on_signal() -> asyncio.Event:
    """An event that the first SIGTERM or Ctrl-C sets; the next one ends the program, which cancels everything."""
    stopped = asyncio.Event()

    def stop(number: int) -> None:
        if stopped.is_set():
            print("stopped at once; the next start goes on with what is left", file=sys.stderr)
            sys.exit(128 + number)
        stopped.set()

    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stop, number)
    return stopped


async def end_of(trainer: asyncio.subprocess.Process, stopped: asyncio.Event) -> int:
    """The trainer's exit code. Once `stopped` is set it is told to end, and killed if it does not."""
    ended, stop = asyncio.create_task(trainer.wait()), asyncio.create_task(stopped.wait())
    await asyncio.wait({ended, stop}, return_when=asyncio.FIRST_COMPLETED)
    stop.cancel()
    if not ended.done():
        trainer.terminate()
        await asyncio.wait({ended}, timeout=TRAINER_S)
        if not ended.done():
            trainer.kill()
    return await ended


if __name__ == "__main__":
    if len(sys.argv) < 5:
        sys.exit("usage: python launcher.py JOB_ID DIRECTORY -- COMMAND ...")
    job, directory, dashes, *trainer_command = sys.argv[1:]
    sys.exit(asyncio.run(main(job, directory, trainer_command)))
