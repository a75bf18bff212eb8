"""Local files on their way up and down: nothing that changed is sent as if it had not, and blocks stay small."""

from __future__ import annotations

import base64
import errno
import hashlib
import os
import socket
from concurrent.futures import ThreadPoolExecutor

import pytest
from awscrt.checksums import crc64nvme
from blake3 import blake3
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from r2d1.checkpoint import Identity
from r2d1.errors import CheckpointError, Superseded
from r2d1.objects import BodyCheck, ByteRange
from r2d1.transfer.files import SliceHashes, SliceSink, SliceSource, Staged, hash_span, open_unchanged, read_blocks
from r2d1.transfer.lane import BLOCK
from r2d1.transfer.plan import plan_ranges

DATA = os.urandom(3 * BLOCK + 12345)


@pytest.fixture
def path(tmp_path):
    path = tmp_path / "model.bin"
    path.write_bytes(DATA)
    return path


@pytest.fixture
def fd(path):
    fd = os.open(path, os.O_RDONLY)
    yield fd
    os.close(fd)


def hex_of(data):
    return blake3(data).hexdigest()


def identity_of(path):
    return Identity.of(os.stat(path))


# -- opening ----------------------------------------------------------------------------------------------------


def test_an_unchanged_file_is_opened(path):
    """The file that was looked at is the one that is read."""
    fd = open_unchanged(path, identity_of(path))
    assert os.read(fd, 10) == DATA[:10]
    assert os.get_inheritable(fd) is False
    os.close(fd)


@pytest.mark.parametrize(
    "change",
    [
        lambda path: path.write_bytes(DATA + b"x"),
        lambda path: os.truncate(path, 5),
        lambda path: os.utime(path, ns=(1, 1)),
        lambda path: os.replace(_copy(path), path),
        lambda path: os.unlink(path),
        lambda path: (os.unlink(path), os.mkfifo(path)),
        lambda path: (os.unlink(path), os.mkdir(path)),
    ],
)
def test_a_changed_file_is_superseded(path, change):
    """Longer, shorter, touched, replaced, deleted, or a FIFO by now: told at once, nothing stays open, nothing hangs."""
    expected, before = identity_of(path), len(os.listdir("/proc/self/fd"))
    change(path)
    with pytest.raises(Superseded, match=r"model\.bin"):
        open_unchanged(path, expected)
    assert len(os.listdir("/proc/self/fd")) == before


def _copy(path):
    """The same bytes and times under another inode."""
    info, copy = os.stat(path), path.with_name("copy")
    copy.write_bytes(path.read_bytes())
    os.utime(copy, ns=(info.st_atime_ns, info.st_mtime_ns))
    return copy


def test_a_folder_that_went_away_is_superseded(path):
    """A folder that became a file took its files with it."""
    expected = identity_of(path)
    with pytest.raises(Superseded):
        open_unchanged(path / "deeper", expected)


def test_a_file_that_cannot_be_read_fails_the_checkpoint(tmp_path, path):
    """A refusal of the disk names path and reason."""
    expected = identity_of(path)
    os.unlink(path)
    with socket.socket(socket.AF_UNIX) as unix:
        here = os.getcwd()
        os.chdir(tmp_path)  # the name of a socket may not be long
        try:
            unix.bind("model.bin")
        finally:
            os.chdir(here)
        with pytest.raises(CheckpointError, match=r"model\.bin: cannot be read: No such device"):
            open_unchanged(path, expected)


# -- reading ----------------------------------------------------------------------------------------------------


@given(st.integers(0, len(DATA)), st.integers(0, 3 * BLOCK), st.sampled_from([4096, 65536, BLOCK, 10**9]))
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=40)
def test_a_span_is_read_in_blocks(fd, start, size, block_size):
    """Whatever the span and the block, the bytes are the file's, in order, and no block is larger than asked for."""
    stop = min(len(DATA), start + size)
    blocks = [bytes(block) for block in read_blocks(fd, ByteRange(start, stop), block_size, "x")]
    assert b"".join(blocks) == DATA[start:stop]
    assert all(0 < len(block) <= block_size for block in blocks)


def test_one_buffer_is_reused(fd):
    """Reading a large span takes one block of memory, not one a block."""
    blocks = {id(block.obj) for block in read_blocks(fd, ByteRange(0, len(DATA)), BLOCK, "x")}
    assert len(blocks) == 1


def test_a_file_that_became_shorter_is_superseded(path, fd):
    """The end of a file before the end of its span is a change, not an end."""
    os.truncate(path, BLOCK + 1)
    got = 0
    with pytest.raises(Superseded, match="x: became shorter"):
        for block in read_blocks(fd, ByteRange(0, len(DATA)), BLOCK, "x"):
            got += len(block)
    assert got == BLOCK + 1


def test_short_reads_are_read_on(fd, monkeypatch):
    """A read that gives less than asked for is no end."""
    real = os.preadv
    monkeypatch.setattr(os, "preadv", lambda fd, buffers, at: real(fd, [buffers[0][:1000]], at))
    assert b"".join(bytes(block) for block in read_blocks(fd, ByteRange(5, 20_000), BLOCK, "x")) == DATA[5:20_000]


def test_a_failing_disk_is_named(fd, monkeypatch):
    """An error of the disk says which file it was."""

    def fail(fd, buffers, at):
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    monkeypatch.setattr(os, "preadv", fail)
    with pytest.raises(OSError, match=r"Input/output error: 'model\.bin'"):
        list(read_blocks(fd, ByteRange(0, 1), BLOCK, "model.bin"))


# -- hashing ----------------------------------------------------------------------------------------------------


def check_of(algorithm, data):
    if algorithm == "none":
        return None
    value = crc64nvme(data).to_bytes(8, "big") if algorithm == "crc64nvme" else hashlib.md5(data).digest()
    return BodyCheck(algorithm, base64.b64encode(value).decode())


@pytest.mark.parametrize("algorithm", ["crc64nvme", "md5", "none"])
def test_slices_and_the_whole_are_hashed_in_one_pass(fd, algorithm):
    """Each slice's digest and check are those of its bytes alone, the whole digest is the file's."""
    hashes = SliceHashes(fd, "x", algorithm)
    for span in plan_ranges(len(DATA), BLOCK + 17):
        data = DATA[span.start : span.stop]
        assert hashes.next_part(span) == (hex_of(data), check_of(algorithm, data))
    assert hashes.whole() == hex_of(DATA)


@pytest.mark.parametrize("size", [0, 1, BLOCK, len(DATA)])
def test_a_file_of_one_slice_is_hashed_once(fd, size):
    """The slice's digest is the file's; an empty file has the digest of nothing."""
    hashes = SliceHashes(fd, "x", "crc64nvme")
    assert hashes.next_only(ByteRange(0, size)) == (hex_of(DATA[:size]), check_of("crc64nvme", DATA[:size]))
    assert hashes.whole() == hex_of(DATA[:size])


def test_the_check_of_a_known_value():
    """CRC-64/NVME of its published check input, as the header carries it."""
    assert check_of("crc64nvme", b"123456789") == BodyCheck(
        "crc64nvme", base64.b64encode(bytes.fromhex("ae8b14860a799888")).decode()
    )


def test_a_span_is_hashed(fd):
    """What an interrupted pull left is checked slice by slice."""
    assert hash_span(fd, ByteRange(5, 2 * BLOCK), blake3(), "x") == hex_of(DATA[5 : 2 * BLOCK])


# -- sending ----------------------------------------------------------------------------------------------------


def source_of(fd, start, stop):
    return SliceSource(fd, ByteRange(start, stop), hex_of(DATA[start:stop]), "x")


@pytest.mark.parametrize(("start", "stop"), [(0, 0), (0, 1), (7, 7 + BLOCK), (BLOCK, len(DATA))])
def test_a_slice_can_be_sent_again(fd, start, stop):
    """Every attempt yields the same bytes from the start."""
    source = source_of(fd, start, stop)
    assert source.size == stop - start
    for block_size in (4096, BLOCK):
        assert b"".join(bytes(block) for block in source.blocks(block_size)) == DATA[start:stop]


def test_an_attempt_given_up_half_way_does_not_spoil_the_next(fd):
    """A connection that broke in mid-body starts over."""
    source = source_of(fd, 0, len(DATA))
    next(iter(source.blocks(4096)))
    assert b"".join(bytes(block) for block in source.blocks(65536)) == DATA


@pytest.mark.parametrize("at", [0, BLOCK, len(DATA) - 1])
def test_bytes_changed_after_hashing_never_arrive_whole(path, fd, at):
    """Rewritten in place between hashing and sending: noticed before the last block, whatever else leaves."""
    source = source_of(fd, 0, len(DATA))
    with open(path, "r+b") as file:
        file.seek(at)
        file.write(bytes([DATA[at] ^ 1]))
    sent = 0
    with pytest.raises(Superseded, match="x: its bytes changed"):
        for block in source.blocks(65536):
            sent += len(block)
    assert sent < len(DATA)


def test_a_slice_cut_off_while_it_is_sent(path, fd):
    """A truncated file is told by its name."""
    source = source_of(fd, 0, len(DATA))
    os.truncate(path, 10)
    with pytest.raises(Superseded, match="x: became shorter"):
        list(source.blocks(BLOCK))


# -- receiving --------------------------------------------------------------------------------------------------


def test_slices_arrive_in_any_order(tmp_path):
    """Each sink writes its own span, hashed in the same pass, and touches nothing else."""
    fd = os.open(tmp_path / "down", os.O_RDWR | os.O_CREAT)
    os.ftruncate(fd, len(DATA))
    for span in reversed(plan_ranges(len(DATA), BLOCK)):
        sink = SliceSink(Staged(fd), span, blake3())
        data = DATA[span.start : span.stop]
        for at in range(0, len(data), 100_000):
            sink.write(data[at : at + 100_000])
        assert sink.hexdigest() == hex_of(data)
    os.close(fd)
    assert (tmp_path / "down").read_bytes() == DATA


def test_many_threads_write_one_file(tmp_path):
    """They take turns with the file, and each writes where its own slice is."""
    fd = os.open(tmp_path / "down", os.O_RDWR | os.O_CREAT)
    file = Staged(fd)
    spans = plan_ranges(len(DATA), 10_000)

    def land(span):
        sink = SliceSink(file, span, blake3())
        for at in range(span.start, span.stop, 1000):
            sink.write(DATA[at : min(at + 1000, span.stop)])
        return sink.hexdigest()

    with ThreadPoolExecutor(16) as threads:
        assert list(threads.map(land, spans)) == [hex_of(DATA[span.start : span.stop]) for span in spans]
    os.close(fd)
    assert (tmp_path / "down").read_bytes() == DATA


def test_short_writes_are_written_on(tmp_path, monkeypatch):
    """A write that takes less than it was given is continued."""
    real = os.pwrite
    monkeypatch.setattr(os, "pwrite", lambda fd, data, at: real(fd, data[:999], at))
    fd = os.open(tmp_path / "down", os.O_RDWR | os.O_CREAT)
    sink = SliceSink(Staged(fd), ByteRange(10, 10 + 5000), blake3())
    for kind in (bytes, bytearray, memoryview):
        sink.write(kind(DATA[:1000]))
    sink.write(b"")
    os.close(fd)
    assert (tmp_path / "down").read_bytes() == b"\0" * 10 + DATA[:1000] * 3
    assert sink.hexdigest() == hex_of(DATA[:1000] * 3)
