"""The directory bucket: readable, atomic, durable, right between processes, and one to one with its keys."""

from __future__ import annotations

import asyncio
import errno
import hashlib
import json
import os
import shutil
import signal
import subprocess
import sys
import threading
import unicodedata
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import anyio
import pytest
from hypothesis import given
from hypothesis import strategies as st

from r2d1.errors import (
    BucketNotFound,
    Closed,
    FormatError,
    NameRefused,
    NoSpace,
    ObjectNotFound,
    PreconditionFailed,
    RemoteError,
    UploadNotFound,
)
from r2d1.objects import Attributes, ByteRange, BytesSource
from r2d1.objects import local_names as names
from r2d1.objects.local import LocalStore
from r2d1.objects.local_ledger import Ledger, Record, Version, stamped, version_at
from r2d1.objects.local_tree import Tree
from tests.contract.objects import Blocks, Gathered, pattern


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return tmp_path / "bucket"


@pytest.fixture
async def store(root: Path) -> AsyncIterator[LocalStore]:
    store = LocalStore(root)
    yield store
    await store.aclose()


def leftovers(root: Path) -> list[str]:
    """Files that only belong to work under way."""
    return [str(path) for room in ("tmp", "uploads") for path in (root / ".r2d1" / room).iterdir()]


# -- names -------------------------------------------------------------------------------------------------

segments = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="/\x00"), max_size=40)
keys = st.lists(segments, min_size=1, max_size=4).map("/".join).map(lambda text: unicodedata.normalize("NFC", text))


def read_back(parts: list[str], long: dict[str, str], *, folds_case: bool) -> str | None:
    """The key that a path stands for."""
    found = [
        names.segment_of(name, folds_case=folds_case, at_top=at == 0, noted=long.get) for at, name in enumerate(parts)
    ]
    return None if None in found else "/".join(map(str, found))


@given(keys, st.booleans())
def test_every_key_has_a_path_that_leads_back(key: str, folds_case: bool) -> None:
    """Any key becomes names that a file system takes, and they become the key again."""
    parts = names.names_of(key, folds_case=folds_case)
    assert all(0 < len(name.encode()) < 255 for name in parts)
    assert not {".", "..", names.OWN if len(parts) == 1 else "."} & set(parts)
    assert not any(char in "/\x00\n" for name in parts for char in name)
    long = names.long_segments(key, folds_case=folds_case)
    assert read_back(parts, long, folds_case=folds_case) == key


@given(keys, keys)
def test_two_keys_never_share_a_path_where_case_is_folded(one: str, other: str) -> None:
    """On a file system that does not tell A from a, different keys still have different names."""
    paths = ["/".join(names.names_of(key, folds_case=True)).casefold() for key in (one, other)]
    assert (paths[0] == paths[1]) == (one == other)


@pytest.mark.parametrize(
    ("key", "path"),
    [
        ("jobs/run 7/chk_1/Model.safetensors", "jobs/run 7/chk_1/Model.safetensors"),
        ("jobs/j/.r2d1/heads/a.json", "jobs/j/.r2d1/heads/a.json"),
        (".r2d1/tmp", "%2Er2d1/tmp"),
        ("a%b", "a%25b"),
        ("a/../b/.", "a/%2E./b/%2E"),
        ("a//b/", "a/%/b/%"),
        ("tab\there", "tab%09here"),
        ("日本.bin", "日本.bin"),
    ],
)
def test_ordinary_names_stay_as_they_are(key: str, path: str) -> None:
    """People find their files; only what is unsafe is spelt out."""
    assert "/".join(names.names_of(key, folds_case=False)) == path


@pytest.mark.parametrize("name", ["a%20b", "%2er2d1", "a%", "%41", "%zz", "x%~0000", "bad\udcff"])
def test_names_of_others_are_not_keys(name: str) -> None:
    """A name that no key would have been given stands for nothing, so no object appears twice."""
    assert names.segment_of(name, folds_case=False, at_top=True, noted=lambda _: None) is None


@pytest.mark.parametrize("key", ["", "k" * 1025, "é" * 513, "a\x00b", "bad\udcff"])
async def test_what_is_no_key_is_refused(store: LocalStore, key: str) -> None:
    """A key has 1 to 1,024 bytes of UTF-8; the error shows it escaped."""
    with pytest.raises(NameRefused) as caught:
        await store.put(key, BytesSource(b"x"))
    assert str(caught.value).isascii()


async def test_both_spellings_of_a_key_are_one(store: LocalStore) -> None:
    """Canonically equal keys are one object, as R2 has it."""
    await store.put("u\u0308.bin", BytesSource(b"x"))
    assert (await store.get("\u00fc.bin", limit=1))[0] == b"x"


# -- layout ------------------------------------------------------------------------------------------------


async def test_objects_are_plain_files(store: LocalStore, root: Path) -> None:
    """An object's bytes lie where its key says; the store's own folder is never part of the bucket."""
    await store.put("jobs/j/chk/model.bin", BytesSource(b"bytes"))
    await store.put(".r2d1/store.json", BytesSource(b"mine"))
    (root / ".r2d1" / "catalog.db").write_bytes(b"somebody else's")
    assert (root / "jobs" / "j" / "chk" / "model.bin").read_bytes() == b"bytes"
    assert [info.key async for info in store.list("")] == [".r2d1/store.json", "jobs/j/chk/model.bin"]
    assert list(await store.list_folders("")) == [".r2d1/", "jobs/"]
    await store.delete(["jobs/j/chk/model.bin", ".r2d1/store.json"])
    assert sorted(path.name for path in root.iterdir()) == [".r2d1"]
    assert (root / ".r2d1" / "catalog.db").exists()
    assert json.loads((root / ".r2d1" / "store.json").read_bytes())["version"] == 1


async def test_an_object_makes_room_for_a_folder(store: LocalStore, root: Path) -> None:
    """When ``x/y`` arrives, the file of ``x`` moves aside with its ETag and metadata, and keeps its place."""
    etag = await store.put("x", BytesSource(b"x"), attributes=Attributes(metadata={"a": "1"}))
    await store.put("x/y", BytesSource(b"y"))
    info = await store.head("x")
    assert (info.etag, dict(info.metadata)) == (etag, {"a": "1"})
    assert sorted(path.name for path in root.iterdir()) == [".r2d1", "x", "x%"]
    await store.delete(["x/y"])
    await store.put("x", BytesSource(b"again"))
    assert (await store.get("x", limit=9))[0] == b"again"
    assert [info.key async for info in store.list("")] == ["x"]


async def test_files_put_there_by_others_are_objects(store: LocalStore, root: Path) -> None:
    """A file copied in by hand is listed and read; its ETag changes with its bytes. Links and pipes are no objects."""
    await store.put("a", BytesSource(b"a"))
    (root / "dir").mkdir()
    (root / "dir" / "b.bin").write_bytes(b"1234")
    (root / "link").symlink_to(root / "dir" / "b.bin")
    (root / "up").symlink_to(root)
    os.mkfifo(root / "pipe")
    assert [info.key async for info in store.list("")] == ["a", "dir/b.bin"]
    first = await store.head("dir/b.bin")
    assert (first.size, (await store.get("dir/b.bin", limit=4))[0]) == (4, b"1234")
    with pytest.raises(ObjectNotFound):
        await store.get("pipe", limit=1)
    with pytest.raises(ObjectNotFound):
        await store.get("link", limit=9)
    (root / "dir" / "b.bin").write_bytes(b"12345")
    with pytest.raises(PreconditionFailed):
        await store.get_range("dir/b.bin", ByteRange(0, 1), Gathered(), if_match=first.etag)


async def test_a_copy_of_the_directory_is_the_bucket(store: LocalStore, root: Path, tmp_path: Path) -> None:
    """A copy that keeps times has the same ETags and metadata, long keys too."""
    keys = ["a", "d/b", "l" * 900, "m" * 300 + "/inside"]
    for key in keys:
        await store.put(key, BytesSource(key.encode()), attributes=Attributes(metadata={"k": "v"}))
    shutil.copytree(root, tmp_path / "copy", copy_function=shutil.copy2)
    copy = LocalStore(tmp_path / "copy")
    assert [info.key async for info in copy.list("")] == keys
    for key in keys:
        assert await copy.head(key) == await store.head(key)
    await copy.aclose()


async def test_etags_are_those_of_r2(store: LocalStore) -> None:
    """MD5 of an object sent whole; MD5 of the parts' MD5s and their number for one that was joined."""
    assert await store.put("k", BytesSource(b"abc")) == hashlib.md5(b"abc", usedforsecurity=False).hexdigest()
    upload = await store.create_upload("m")
    parts = [await store.put_part("m", upload, number, BytesSource(data)) for number, data in ((1, b"ab"), (2, b"c"))]
    joined = b"".join(hashlib.md5(data, usedforsecurity=False).digest() for data in (b"ab", b"c"))
    expected = f"{hashlib.md5(joined, usedforsecurity=False).hexdigest()}-2"
    assert await store.complete_upload("m", upload, parts) == expected


def test_a_listing_sorts_a_page_of_a_folder_at_a_time(root: Path) -> None:
    """Folders with more names than are sorted at once are listed whole and in order."""
    plain = [f"d/{number:03}" for number in range(20)]
    keys = sorted(["a", "a/b", "a/b/c", "a-b", "a0", *plain, "d/005/x", "d/005-/x"])
    tree = Tree(root)
    tree.ledger.prepare()
    for key in keys:
        path = root.joinpath(*names.names_of(key, folds_case=False))
        marked = path.with_name(path.name + names.MARK) if any(other.startswith(f"{key}/") for other in keys) else path
        marked.parent.mkdir(parents=True, exist_ok=True)
        marked.write_bytes(b"x")
    for folder_page in (1, 2, 3, 7, 100):
        paged = Tree(root, folder_page=folder_page)
        assert [info.key for info in paged.walk("")] == keys
        assert [info.key for info in paged.walk("d/0", "d/005")] == [key for key in keys if key > "d/005"]
        assert paged.folders("") == ["a/", "d/"]
        assert paged.folders("d/") == ["d/005-/", "d/005/"]


# -- atomic and durable ------------------------------------------------------------------------------------


async def test_readers_see_one_version_or_the_other(store: LocalStore) -> None:
    """While an object is overwritten, what is read always belongs to the ETag that comes with it."""
    bodies = [pattern(50_000 + number, number) for number in range(3)]
    await store.put("k", BytesSource(bodies[0]))
    done = False

    async def write() -> None:
        nonlocal done
        for number in range(60):
            await store.put("k", BytesSource(bodies[number % 3]))
        done = True

    async def read() -> None:
        while not done:
            data, info = await store.get("k", limit=100_000)
            assert info.etag == hashlib.md5(data, usedforsecurity=False).hexdigest()
            assert [listed.size async for listed in store.list("k")] in [[len(body)] for body in bodies]

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(write)
        for _ in range(3):
            tasks.start_soon(read)


async def test_a_range_reads_the_version_it_opened(store: LocalStore) -> None:
    """An object replaced in the middle of a read does not change the bytes of that read."""
    old, new = pattern(20 << 20, 1), pattern(20 << 20, 2)
    await store.put("k", BytesSource(old))
    begun, go_on = threading.Event(), threading.Event()

    class Slow(Gathered):
        def write(self, block: bytes | bytearray | memoryview) -> None:
            super().write(block)
            begun.set()
            go_on.wait()

    sink = Slow()
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(store.get_range, "k", ByteRange(0, len(old)), sink)
        await anyio.to_thread.run_sync(begun.wait)
        await store.put("k", BytesSource(new))
        go_on.set()
    assert sink.data == old


async def test_order_of_durability(store: LocalStore, monkeypatch: pytest.MonkeyPatch) -> None:
    """Bytes and record are synced before the rename that makes them visible, and the folder after it."""
    await store.put("d/warm", BytesSource(b"x"))
    steps: list[tuple[str, str]] = []
    fsync, replace = os.fsync, os.replace

    def noted_fsync(fd: int) -> None:
        steps.append(("sync", os.readlink(f"/proc/self/fd/{fd}")))
        fsync(fd)

    def noted_replace(source: Path, target: Path) -> None:
        steps.append(("rename", f"{source} -> {target}"))
        replace(source, target)

    monkeypatch.setattr(os, "fsync", noted_fsync)
    monkeypatch.setattr(os, "replace", noted_replace)
    await store.put("d/k", BytesSource(b"bytes"))
    own = Path(store.where.removeprefix("file://"), ".r2d1")
    shown = [f"{what} {_room_of(Path(where.rpartition(' -> ')[2]), own)}" for what, where in steps]
    assert shown == ["sync tmp", "sync tmp", "rename meta", "sync meta", "rename d", "sync d"]


def _room_of(path: Path, own: Path) -> str:
    return path.relative_to(own).parts[0] if path.is_relative_to(own) else "d"


async def test_a_crash_before_the_rename_leaves_the_old_object(store: LocalStore, root: Path) -> None:
    """A record written for data that never came does not disturb the object that is there."""
    etag = await store.put("k", BytesSource(b"old"), attributes=Attributes(metadata={"v": "old"}))
    tree = Tree(root)
    temp = tree.ledger.new_temp()
    temp.write_bytes(b"new")
    version = stamped(temp, version_at(root / "k"))
    record = tree.ledger.read_record("k", version_at(root / "k") or version)
    assert record is not None
    tree.ledger.write_record("k", version, record)
    info = await store.head("k")
    assert (info.etag, dict(info.metadata)) == (etag, {"v": "old"})


def test_a_reader_that_was_overtaken_looks_again(root: Path) -> None:
    """When a version is replaced between opening its file and reading its record, the new version is found."""
    tree = Tree(root)
    tree.ledger.prepare()

    def put(data: bytes) -> None:
        temp = tree.ledger.new_temp()
        temp.write_bytes(data)
        with tree.ledger.locked("k"):
            assert tree.commit("k", temp, Record(etag=data.decode()))

    class Overtaken(Ledger):
        def read_record(self, key: str, version: Version) -> Record | None:
            if waiting:
                put(waiting.pop())
            return super().read_record(key, version)

    waiting: list[bytes] = []
    put(b"old")
    waiting.append(b"newer")
    reader = Tree(root)
    reader.ledger = Overtaken(root)
    info = reader.look("k")
    assert info is not None
    assert (info.etag, info.size) == ("newer", 5)


def test_two_versions_never_look_alike(tmp_path: Path) -> None:
    """A file of the same size and time as the one it replaces gets another time."""
    old, new = tmp_path / "old", tmp_path / "new"
    for path in (old, new):
        path.write_bytes(b"same size")
        os.utime(path, ns=(10**18, 10**18))
    version = version_at(old)
    assert version is not None
    assert stamped(new, version).mtime_ns != version.mtime_ns == 10**18
    assert stamped(new, None).mtime_ns == new.stat().st_mtime_ns


KILLED = """
import sys, anyio
from pathlib import Path
from r2d1.objects.local import LocalStore

class Hanging:
    size = 1 << 30
    def blocks(self, block_size):
        for _ in range(20):
            yield bytes(1 << 20)
        print("begun", flush=True)
        sys.stdin.read()

async def main():
    await LocalStore(Path(sys.argv[1])).put("k", Hanging())

anyio.run(main)
"""


async def test_a_killed_writer_leaves_the_old_object(store: LocalStore, root: Path) -> None:
    """SIGKILL in the middle of a put changes nothing, and what it left is swept away a day later."""
    await store.put("k", BytesSource(b"old"))
    with subprocess.Popen(
        [sys.executable, "-c", KILLED, str(root)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as writer:
        assert writer.stdout is not None
        assert writer.stdout.readline() == "begun\n"
        writer.send_signal(signal.SIGKILL)
    assert (await store.get("k", limit=9))[0] == b"old"
    (left,) = leftovers(root)
    again = LocalStore(root)
    assert (await again.get("k", limit=9))[0] == b"old"
    assert leftovers(root) == [left]
    os.utime(left, (0, 0))
    again = LocalStore(root)
    await again.head("k")
    assert leftovers(root) == []


@pytest.mark.parametrize("native", [True, False], ids=["asyncio", "anyio"])
async def test_a_cancelled_put_leaves_nothing(store: LocalStore, root: Path, native: bool) -> None:
    """Cancelling waits for the block under way, closes the source, and removes the temporary file."""
    begun, go_on = threading.Event(), threading.Event()
    closed: list[bool] = []

    class Held(Blocks):
        def blocks(self, block_size: int) -> Iterator[memoryview]:
            try:
                for block in super().blocks(block_size):
                    yield block
                    begun.set()
                    go_on.wait()
            finally:
                closed.append(True)

    async def put() -> None:
        await store.put("k", Held(pattern(30 << 20)))

    async with anyio.create_task_group() as tasks:
        task = asyncio.ensure_future(put()) if native else None
        if task is None:
            tasks.start_soon(put)
        await anyio.to_thread.run_sync(begun.wait)
        if task is None:
            tasks.cancel_scope.cancel()
        else:
            task.cancel()
        go_on.set()
    if task is not None:
        with pytest.raises(asyncio.CancelledError):
            await task
    assert (closed, leftovers(root)) == ([True], [])
    with pytest.raises(ObjectNotFound):
        await store.head("k")


# -- between processes and tasks ---------------------------------------------------------------------------

COUNTER = """
import sys, anyio
from pathlib import Path
from r2d1.errors import PreconditionFailed
from r2d1.objects import BytesSource
from r2d1.objects.local import LocalStore

async def main():
    store = LocalStore(Path(sys.argv[1]))
    try:
        await store.put("claim", BytesSource(sys.argv[2].encode()), if_none_match=True)
        print("won")
    except PreconditionFailed:
        print("lost")
    left = 15
    while left:
        data, info = await store.get("counter", limit=99)
        try:
            await store.put("counter", BytesSource(b"%d" % (int(data) + 1)), if_match=info.etag)
            left -= 1
        except PreconditionFailed:
            pass

anyio.run(main)
"""


async def test_conditions_hold_between_processes(store: LocalStore) -> None:
    """Of four processes one wins a creation, and no increment by compare-and-swap is lost."""
    await store.put("counter", BytesSource(b"0"))
    root = store.where.removeprefix("file://")
    running = [
        subprocess.Popen([sys.executable, "-c", COUNTER, root, str(number)], stdout=subprocess.PIPE, text=True)
        for number in range(4)
    ]
    said = [(await anyio.to_thread.run_sync(process.communicate))[0].strip() for process in running]
    assert [process.returncode for process in running] == [0] * 4
    assert sorted(said) == ["lost", "lost", "lost", "won"]
    assert (await store.get("claim", limit=1))[0] == str(said.index("won")).encode()
    assert (await store.get("counter", limit=9))[0] == b"60"


async def test_folders_that_come_and_go(store: LocalStore) -> None:
    """Writers and deleters of one folder, and of an object of its name, do not trip over each other."""

    async def churn(key: str) -> None:
        for number in range(25):
            await store.put(key, BytesSource(b"%d" % number))
            assert (await store.get(key, limit=9))[0] == b"%d" % number
            await store.delete([key])
        await store.put(key, BytesSource(b"end"))

    keys = ["d", "d/e", "d/e/f", "d/e/g", "d/h"]
    async with anyio.create_task_group() as tasks:
        for key in keys:
            tasks.start_soon(churn, key)
    assert [info.key async for info in store.list("")] == keys


# -- refusals ----------------------------------------------------------------------------------------------


async def test_a_missing_mount_is_no_empty_bucket(tmp_path: Path) -> None:
    """When not even the folder around the bucket is there, that is an error and nothing is made."""
    store = LocalStore(tmp_path / "not" / "mounted")
    with pytest.raises(BucketNotFound, match="not/mounted"):
        [info async for info in store.list("")]
    assert not (tmp_path / "not").exists()


async def test_a_bucket_that_is_a_file(tmp_path: Path) -> None:
    """What the system refuses is told with operation, key and path."""
    (tmp_path / "file").write_bytes(b"x")
    with pytest.raises(RemoteError, match=r"PutObject k: .*file"):
        await LocalStore(tmp_path / "file").put("k", BytesSource(b"x"))


async def test_a_full_disk(store: LocalStore, root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No room is an error of its own, and leaves no temporary file."""
    await store.put("k", BytesSource(b"old"))

    def full(fd: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as patched:
        patched.setattr(os, "fsync", full)
        with pytest.raises(NoSpace, match="PutObject k"):
            await store.put("k", BytesSource(b"new"))
    assert leftovers(root) == []
    assert (await store.get("k", limit=9))[0] == b"old"


async def test_a_version_of_the_future(store: LocalStore, root: Path) -> None:
    """A bucket of an unknown version is refused, not misread."""
    await store.put("k", BytesSource(b"x"))
    (root / ".r2d1" / "store.json").write_text('{"version": 2}')
    with pytest.raises(FormatError, match="version 2"):
        await LocalStore(root).head("k")


@pytest.mark.parametrize("upload_id", ["../../etc", "", "0" * 32, "x" * 32, "."])
async def test_an_upload_id_is_no_path(store: LocalStore, root: Path, upload_id: str) -> None:
    """An id that the store never gave is unknown, whatever it looks like, and removes nothing."""
    await store.put("k", BytesSource(b"x"))
    await store.abort_upload("k", upload_id)
    for call in (
        store.put_part("k", upload_id, 1, BytesSource(b"x")),
        store.complete_upload("k", upload_id, []),
        store.list_parts("k", upload_id),
    ):
        with pytest.raises(UploadNotFound):
            await call
    assert (root / ".r2d1" / "uploads").is_dir()


async def test_an_upload_belongs_to_its_key(store: LocalStore) -> None:
    """An upload id is of no use with another key."""
    upload = await store.create_upload("mine")
    with pytest.raises(UploadNotFound):
        await store.put_part("other", upload, 1, BytesSource(b"x"))
    with pytest.raises(RemoteError, match="10000"):
        await store.put_part("mine", upload, 10_001, BytesSource(b"x"))


async def test_a_failed_condition_ends_the_upload(store: LocalStore, root: Path) -> None:
    """As in R2, an upload whose condition fails at Complete is gone with its parts."""
    await store.put("k", BytesSource(b"old"))
    upload = await store.create_upload("k")
    part = await store.put_part("k", upload, 1, BytesSource(b"new"))
    with pytest.raises(PreconditionFailed):
        await store.complete_upload("k", upload, [part], if_none_match=True)
    assert leftovers(root) == []


async def test_a_closed_store_says_so(store: LocalStore) -> None:
    """A call after the end is an error of its own."""
    await store.aclose()
    with pytest.raises(Closed):
        await store.head("k")
