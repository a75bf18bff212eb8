"""obstore fetches all units of a set as ranges: ``SET PREFIX TARGET AT_ONCE``; files named by hash, none is checked."""

import asyncio
import json
import os
import sys
from pathlib import Path

import obstore
from obstore.store import S3Store


def open_store() -> S3Store:
    url = os.environ["BENCH_ENDPOINT"]
    options: dict[str, object] = {"allow_http": url.startswith("http:")}
    if ca := os.environ.get("BENCH_CA"):
        options["root_certificate"] = Path(ca).read_bytes()
    return S3Store(
        os.environ["BENCH_BUCKET"],
        endpoint=url,
        region="auto",
        skip_signature=True,  # what is published is read by anybody
        virtual_hosted_style_request=False,
        client_options=options,
    )


async def main() -> None:
    folder, prefix, target, at_once = sys.argv[1:]
    manifest = json.loads((Path(folder) / "manifest.json").read_bytes())
    store, turn = open_store(), asyncio.Semaphore(int(at_once))
    size, per_shard = (
        2 * manifest["unit"] * (manifest["seq_len"] + 1),
        manifest["samples_per_shard"] // manifest["unit"],
    )

    async def fetch(unit: int, sha256: str) -> None:
        shard, place = divmod(unit, per_shard)
        key = f"{prefix}/{manifest['shard_sha256s'][shard]}"
        async with turn:
            data = await obstore.get_range_async(store, key, start=place * size, length=size)
            await asyncio.to_thread(Path(target, sha256).write_bytes, data)

    await asyncio.gather(*(fetch(unit, sha256) for unit, sha256 in enumerate(manifest["unit_sha256s"])))


asyncio.run(main())
os._exit(0)  # all is done; its threads abort some interpreters that leave in the usual way
