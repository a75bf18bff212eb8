"""Run a trainer with its checkpoints shipped: pull the newest one, watch, train in a child process, flush.

    python launcher.py my_run ./checkpoints -- python train.py ./checkpoints

The trainer sees the directory alone. Settings come from the environment (`r2d1 secrets` shows them).
"""

import asyncio
import sys

from r2d1 import AsyncCourier, AsyncFetcher


async def main(job_id: str, checkpoints: str, command: list[str]) -> int:
    async with AsyncFetcher.from_env() as fetcher:
        info = await fetcher.pull(f"r2://jobs/{job_id}/latest", dest=checkpoints)
    print(f"resuming from epoch {info.epoch}" if info.found else "fresh start", flush=True)

    async with AsyncCourier.from_env() as courier:
        await courier.watch(checkpoints, job_id=job_id)  # ships in the background from here on
        trainer = await asyncio.create_subprocess_exec(*command)
        try:
            code = await trainer.wait()
        finally:
            if trainer.returncode is None:
                trainer.terminate()
        report = await courier.flush(timeout=300)  # also after a crash: what it wrote is wanted all the more
    print(f"shipped {', '.join(sorted(one.name for one in report.shipped)) or 'nothing new'}", flush=True)
    return code


if __name__ == "__main__":
    job, directory, dashes, *trainer_command = sys.argv[1:]
    sys.exit(asyncio.run(main(job, directory, trainer_command)))
