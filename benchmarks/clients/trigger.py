"""A trainer beside an idle courier: ``FOLDER JOB COUNT``; prints when each sidecar was renamed, in ms since 1970."""

import asyncio
import json
import os
import sys
import time
from pathlib import Path

from r2d1 import AsyncCourier
from r2d1.events import Committed

IDLE_S = 0.5


async def main() -> None:
    folder, job, count = Path(sys.argv[1]), sys.argv[2], int(sys.argv[3])
    committed = asyncio.Event()
    loop = asyncio.get_running_loop()

    def observe(event: object) -> None:
        if isinstance(event, Committed):
            loop.call_soon_threadsafe(committed.set)

    renamed = []
    async with AsyncCourier.from_env(observer=observe) as courier:
        await courier.watch(folder, job_id=job)
        for epoch in range(1, count + 1):
            name = f"chk_{epoch:04}"
            (folder / name).mkdir()
            (folder / name / "model.bin").write_bytes(os.urandom(65536))
            draft = folder / f".{name}.draft"
            draft.write_text(json.dumps({"name": name, "epoch": epoch, "files": ["model.bin"]}), encoding="utf-8")
            committed.clear()
            await asyncio.sleep(IDLE_S)
            renamed.append(time.time() * 1e3)
            draft.rename(folder / f"{name}.json")
            await asyncio.wait_for(committed.wait(), 60)
    print(json.dumps(renamed))


asyncio.run(main())
