"""obstore moves a folder: ``up|down FOLDER PREFIX``; 16 requests of 16 MiB at once, the recipe its users share."""

import asyncio
import os
import sys
from pathlib import Path

import obstore
from obstore.store import S3Store

PART = 16 * 1024 * 1024
AT_ONCE = 16


def open_store() -> S3Store:
    url = os.environ["BENCH_ENDPOINT"]
    options: dict[str, object] = {"allow_http": url.startswith("http:")}
    if ca := os.environ.get("BENCH_CA"):
        with open(ca, "rb") as pem:
            options["root_certificate"] = pem.read()
    return S3Store(
        os.environ["BENCH_BUCKET"],
        endpoint=url,
        access_key_id=os.environ["BENCH_KEY"],
        secret_access_key=os.environ["BENCH_SECRET"],
        region="auto",
        virtual_hosted_style_request=False,
        unsigned_payload=True,  # as the others do over TLS: else it spends a second per GiB on SHA-256
        client_options=options,
    )


async def upload(store: S3Store, path: str, key: str, turn: asyncio.Semaphore) -> None:
    async with turn:
        await obstore.put_async(store, key, Path(path), chunk_size=PART, max_concurrency=AT_ONCE)


async def download(store: S3Store, key: str, size: int, path: str, turn: asyncio.Semaphore) -> None:
    async def fetch(start: int) -> None:
        async with turn:
            data = await obstore.get_range_async(store, key, start=start, end=min(start + PART, size))
            await asyncio.to_thread(put, path, data, start)

    await asyncio.gather(*(fetch(start) for start in range(0, size, PART)))


def put(path: str, data: object, start: int) -> None:
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT, 0o666)
    try:
        os.pwrite(descriptor, data, start)
    finally:
        os.close(descriptor)


async def main() -> None:
    direction, folder, prefix = sys.argv[1:4]
    store, turn = open_store(), asyncio.Semaphore(AT_ONCE)
    if direction == "up":
        files = [(path, os.path.relpath(path, folder)) for path in walk(folder)]
        large = [each for each in files if os.path.getsize(each[0]) > PART]
        for path, name in large:  # one after the other: each has its 16 requests
            await upload(store, path, f"{prefix}/{name}", turn)
        small = [each for each in files if each not in set(large)]
        await asyncio.gather(*(upload(store, path, f"{prefix}/{name}", turn) for path, name in small))
        return
    found = [each async for batch in obstore.list(store, prefix=prefix + "/") for each in batch]
    for each in found:
        os.makedirs(os.path.dirname(os.path.join(folder, each["path"][len(prefix) + 1 :])), exist_ok=True)
    await asyncio.gather(
        *(
            download(store, each["path"], each["size"], os.path.join(folder, each["path"][len(prefix) + 1 :]), turn)
            for each in found
        )
    )


def walk(folder: str) -> list[str]:
    return sorted(os.path.join(base, name) for base, _, names in os.walk(folder) for name in names)


asyncio.run(main())
os._exit(0)  # all is done; its threads abort some interpreters that leave in the usual way
