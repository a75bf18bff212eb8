"""The embedded twin's file: shared by processes and threads, patient with locks, made only when written."""

from __future__ import annotations

import sqlite3
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import anyio
import pytest

from r2d1.catalog import Row, SqliteCatalog
from r2d1.d1_wire import Statement
from r2d1.errors import CatalogError
from r2d1.events import Teller
from r2d1.sqlite_database import SqliteDatabase

WRITER = """
import sys
from pathlib import Path
import anyio
from r2d1.catalog import Row, SqliteCatalog

async def main(path, who):
    catalog = SqliteCatalog(Path(path))
    for n in range(15):
        await catalog.put([Row("job", f"{who}_{n}", n, 1.0, "p"), Row("job", "shared", n, 1.0, "p")])

anyio.run(main, *sys.argv[1:])
"""


def a_row(name: str = "a") -> Row:
    return Row("job", name, 1, 1.0, "p")


def test_processes_share_one_file(tmp_path: Path) -> None:
    """Three processes that write at once lose no row and see no error."""
    path = tmp_path / "new" / "catalog.db"
    arguments = [[sys.executable, "-c", WRITER, str(path), who] for who in ("x", "y", "z")]
    writers = [subprocess.Popen(each, stderr=subprocess.PIPE, text=True) for each in arguments]
    assert [(writer.communicate(timeout=60)[1], writer.returncode) for writer in writers] == [("", 0)] * 3
    rows = anyio.run(SqliteCatalog(path).rows, "job")
    assert len(rows) == 3 * 15 + 1
    assert rows[0].epoch == 14


async def test_reading_makes_no_file(tmp_path: Path) -> None:
    """Looking for rows leaves neither file nor folder behind."""
    path = tmp_path / "store" / "catalog.db"
    catalog = SqliteCatalog(path)
    assert await catalog.rows("job") == []
    assert await catalog.query("SELECT 1 AS a") == [{"a": 1}]
    assert not path.parent.exists()


@contextmanager
def locked(path: Path) -> Iterator[sqlite3.Connection]:
    """Hold the file's write lock, as another program's long transaction would."""
    with closing(sqlite3.connect(path, isolation_level=None, check_same_thread=False)) as db:
        db.execute("BEGIN EXCLUSIVE")
        yield db


async def test_lock_of_another_is_waited_for(tmp_path: Path) -> None:
    """While another program holds the file nothing fails; once it lets go the row is written."""
    again = anyio.Event()
    catalog = SqliteCatalog(tmp_path / "catalog.db", tell=Teller(lambda _: again.set()))
    await catalog.put([a_row()])
    with locked(tmp_path / "catalog.db") as other:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(catalog.put, [a_row("b")])
            tasks.start_soon(catalog.rows, "job")
            await again.wait()  # SQLite itself has given up waiting once
            other.execute("COMMIT")
    assert [row.name for row in await catalog.rows("job")] == ["a", "b"]


async def test_waiting_for_a_lock_can_be_cancelled(tmp_path: Path) -> None:
    """A call that waits for a lock lets go when it is cancelled, and has written nothing."""
    catalog = SqliteCatalog(tmp_path / "catalog.db")
    await catalog.put([a_row()])
    with locked(tmp_path / "catalog.db"):
        with anyio.move_on_after(0.1) as waited:
            await catalog.put([a_row("b")])
        assert waited.cancelled_caught
    assert [row.name for row in await catalog.rows("job")] == ["a"]


async def test_failed_transaction_leaves_nothing(tmp_path: Path) -> None:
    """When a later statement fails, the earlier ones are undone, tables too, and no lock stays."""
    database = SqliteDatabase(tmp_path / "catalog.db")
    with pytest.raises(CatalogError, match="no such table: nowhere"):
        await database.batch([Statement("CREATE TABLE t (a)"), Statement("INSERT INTO nowhere VALUES (1)")])
    assert await database.batch([]) == []
    await database.batch([Statement("CREATE TABLE t (a)")])
    assert await database.query("SELECT * FROM t") == []


async def test_reading_connection_cannot_write(tmp_path: Path) -> None:
    """The door for reading is locked by SQLite itself, whatever the statement looks like."""
    database = SqliteDatabase(tmp_path / "catalog.db")
    await database.batch([Statement("CREATE TABLE t (a)")])
    with pytest.raises(CatalogError, match="readonly"):
        await database.query("INSERT INTO t VALUES (1)")


async def test_file_that_is_no_database_is_named(tmp_path: Path) -> None:
    """A damaged file is an error with its path, not an empty catalog."""
    path = tmp_path / "catalog.db"
    path.write_bytes(b"something else entirely" * 100)
    with pytest.raises(CatalogError, match="not a database") as caught:
        await SqliteCatalog(path).rows("job")
    assert str(path) in str(caught.value)


async def test_folder_that_cannot_be_made_is_an_error(tmp_path: Path) -> None:
    """A file where the folder should be is reported as such."""
    (tmp_path / "taken").write_text("")
    with pytest.raises(CatalogError, match="taken"):
        await SqliteCatalog(tmp_path / "taken" / "catalog.db").put([a_row()])


def test_threads_with_their_own_loops_share_a_catalog(tmp_path: Path) -> None:
    """One catalog object serves several threads, each with an event loop of its own."""
    catalog = SqliteCatalog(tmp_path / "catalog.db")
    threads = [threading.Thread(target=anyio.run, args=(catalog.put, [a_row(f"t{n}")])) for n in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert len(anyio.run(catalog.rows, "job")) == 4


async def test_loop_goes_on_while_sqlite_waits(tmp_path: Path) -> None:
    """A lock blocks a worker thread, never the event loop."""
    catalog = SqliteCatalog(tmp_path / "catalog.db")
    await catalog.put([a_row()])
    ticks = 0
    with locked(tmp_path / "catalog.db"), anyio.move_on_after(5) as bound:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(catalog.rows, "job")
            for _ in range(50):
                await anyio.sleep(0)
                ticks += 1
            tasks.cancel_scope.cancel()
    assert ticks == 50
    assert not bound.cancelled_caught
