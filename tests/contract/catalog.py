"""The law of catalogs: one suite, run on the SQLite twin, the D1 client, the model, and Cloudflare's own engine."""

from __future__ import annotations

import json
import random
from collections.abc import Awaitable, Callable
from dataclasses import replace

import anyio
import pytest

from r2d1.catalog import Catalog, Row
from r2d1.errors import CatalogError

JOB = "my_run"
TOP = 2**53 - 1

#: Runs one writing statement on the database past the catalog, as a program of someone else would.
Plant = Callable[[str], Awaitable[object]]

SEED_QUERY = """SELECT epoch, timestamp FROM checkpoints
WHERE job_id = ? ORDER BY epoch DESC LIMIT 1;"""


def row(name: str = "chk_0042", epoch: int = 42, **changes: object) -> Row:
    made = Row(JOB, name, epoch, 1748123456.7, f"jobs/{JOB}/{name}", '{"loss":0.043}')
    return replace(made, **changes)  # type: ignore[arg-type]


class CatalogContract:
    """Subclasses supply ``catalog`` (an empty database, no table yet) and ``plant``."""

    async def test_without_table_there_are_no_rows(self, catalog: Catalog) -> None:
        """A database without the table holds no rows, and nothing is there to remove."""
        assert await catalog.rows(JOB) == []
        await catalog.remove(JOB, ["chk_0042"])
        assert await catalog.rows(JOB) == []

    async def test_what_was_put_is_read_back(self, catalog: Catalog) -> None:
        """A row comes back equal in every field, and putting it makes the table."""
        await catalog.put([row()])
        assert await catalog.rows(JOB) == [row()]

    async def test_table_is_the_documented_one(self, catalog: Catalog) -> None:
        """The table has the documented columns, types and key, however it was made."""
        await catalog.put([row()])
        sql = """SELECT name, type, "notnull", dflt_value, pk FROM pragma_table_info('checkpoints')"""
        assert [tuple(each.values()) for each in await catalog.query(sql)] == [
            ("job_id", "TEXT", 1, None, 1),
            ("name", "TEXT", 1, None, 2),
            ("epoch", "INTEGER", 1, None, 0),
            ("timestamp", "REAL", 1, None, 0),
            ("r2_prefix", "TEXT", 1, None, 0),
            ("metadata", "TEXT", 0, "'{}'", 0),
        ]

    async def test_ensure_may_be_repeated(self, catalog: Catalog) -> None:
        """Ensuring the table twice leaves the rows alone."""
        await catalog.ensure()
        await catalog.put([row()])
        await catalog.ensure()
        assert await catalog.rows(JOB) == [row()]

    async def test_put_replaces_the_row_of_that_name(self, catalog: Catalog) -> None:
        """A row put again with other values takes the place of the old one, and repeating it changes nothing."""
        newer = row(epoch=43, timestamp=5.25, r2_prefix="jobs/my_run/.r2d1/v/0123456789ab/chk_0042", metadata="{}")
        await catalog.put([row(), row("chk_0041", 41)])
        await catalog.put([newer])
        await catalog.put([newer])
        assert await catalog.rows(JOB) == [newer, row("chk_0041", 41)]

    async def test_last_of_two_rows_with_one_name_wins(self, catalog: Catalog) -> None:
        """When one call puts a name twice, the later row stays."""
        await catalog.put([row(epoch=1), row(epoch=2)])
        assert await catalog.rows(JOB) == [row(epoch=2)]

    async def test_putting_nothing_is_nothing(self, catalog: Catalog) -> None:
        """Empty calls are no errors."""
        await catalog.put([])
        await catalog.remove(JOB, [])
        assert await catalog.rows(JOB) == []

    async def test_order_is_epoch_then_timestamp_then_name(self, catalog: Catalog) -> None:
        """Rows come by epoch descending (as numbers), then timestamp descending, then name."""
        rows = [
            row("z", 10_000),
            row("y", 9_000, timestamp=3.0),
            row("b", 9_000, timestamp=2.0),
            row("c", 9_000, timestamp=2.0),
            row("a", 9_000, timestamp=1.5),
            row("x", 1_000),
            row("w", 900),
            row("v", 0),
        ]
        shuffled = rows[:]
        random.Random(7).shuffle(shuffled)
        await catalog.put(shuffled)
        assert await catalog.rows(JOB) == rows
        assert await catalog.rows(JOB, limit=3) == rows[:3]
        assert await catalog.rows(JOB, limit=0) == []

    async def test_numbers_stay_exact(self, catalog: Catalog) -> None:
        """The largest epoch is stored as an exact integer, and a timestamp keeps its last digit."""
        rows = [row("a", TOP), row("b", TOP - 1, timestamp=1748123456.789012), row("c", 5, timestamp=1748123456.0)]
        await catalog.put(rows)
        assert await catalog.rows(JOB) == rows
        stored = await catalog.query(
            "SELECT CAST(epoch AS TEXT) AS epoch, typeof(epoch) AS e, typeof(timestamp) AS t FROM checkpoints ORDER BY name"
        )
        assert stored == [
            {"epoch": str(TOP), "e": "integer", "t": "real"},
            {"epoch": str(TOP - 1), "e": "integer", "t": "real"},
            {"epoch": "5", "e": "integer", "t": "real"},
        ]

    async def test_table_made_by_hand_without_types(self, catalog: Catalog, plant: Plant) -> None:
        """In a table whose columns have no types an epoch is an integer all the same, and rows read back equal."""
        await plant(
            "CREATE TABLE checkpoints (job_id, name, epoch, timestamp, r2_prefix, metadata, PRIMARY KEY (job_id, name))"
        )
        await catalog.put([row(epoch=TOP), row("b", 5, timestamp=2.0)])
        assert await catalog.rows(JOB) == [row(epoch=TOP), row("b", 5, timestamp=2.0)]
        stored = await catalog.query("SELECT DISTINCT typeof(epoch) AS e, typeof(timestamp) AS t FROM checkpoints")
        assert stored == [{"e": "integer", "t": "real"}]

    async def test_texts_stay_as_they_are(self, catalog: Catalog) -> None:
        """Quotes, semicolons, backslashes, emoji and SQL in any field are data, never statements."""
        nasty = """x'); DROP TABLE checkpoints; -- "quoted" `tick` \\ ? ?1 :a 日本 🚀 \u00e9"""
        rows = [row(nasty, 2, job_id=JOB, r2_prefix=nasty, metadata=json.dumps({"note": nasty, "big": 10**40}))]
        await catalog.put(rows)
        assert await catalog.rows(JOB) == rows
        other = replace(rows[0], job_id=nasty)
        await catalog.put([other])
        assert await catalog.rows(nasty) == [other]
        await catalog.remove(nasty, [nasty])
        assert await catalog.rows(nasty) == []
        assert await catalog.rows(JOB) == rows

    async def test_jobs_do_not_mix(self, catalog: Catalog) -> None:
        """Case 58: jobs whose ids look alike, wildcards included, never see or remove each other's rows."""
        jobs = ["run1", "run10", "run_1", "run%", "RUN1", "run1 "]
        rows = {job: row(epoch=at, job_id=job) for at, job in enumerate(jobs)}
        await catalog.put(list(rows.values()))
        for job in jobs:
            assert await catalog.rows(job) == [rows[job]]
        await catalog.remove("run%", ["chk_0042"])
        await catalog.remove("run_1", ["chk%"])
        for job in jobs:
            assert await catalog.rows(job) == ([] if job == "run%" else [rows[job]])

    async def test_many_rows_and_names(self, catalog: Catalog) -> None:
        """Case 52: 2,100 rows go in, all are listed, 1,150 names are removed: bound values never are too many."""
        rows = [row(f"chk_{epoch:04}", epoch) for epoch in range(2_099, -1, -1)]
        await catalog.put(rows)
        assert await catalog.rows(JOB) == rows
        await catalog.remove(JOB, [each.name for each in rows[:1_150]])
        assert await catalog.rows(JOB) == rows[1_150:]

    async def test_long_metadata(self, catalog: Catalog) -> None:
        """Case 53: metadata of 300 KB, and many rows with 1,000,000 bytes each, are stored and read back equal."""
        note = """he said "hi"; it's 🚀; """ * 12_500
        rows = [row("config", 99, metadata=json.dumps({"config": note}, ensure_ascii=False))]
        rows += [row(f"chk_{n}", n, metadata=json.dumps({"x": "ä" * 499_995}, ensure_ascii=False)) for n in (3, 2, 1)]
        assert len(rows[1].metadata.encode()) == 1_000_000 - 1
        await catalog.put(rows)
        assert await catalog.rows(JOB) == rows

    @pytest.mark.parametrize(
        ("bad", "words"),
        [
            (row("big", metadata="x" * 3_000_000), "3,000,0"),
            (row("big", metadata="x" * 1_999_990), "2,000,000"),
            (row("nan", timestamp=float("nan")), "finite"),
            (row("inf", timestamp=float("inf")), "finite"),
            (row("epoch", TOP + 1), "2\\^53-1"),
            (row("epoch", -1), "2\\^53-1"),
            (row("lone", metadata='"\ud800"'), "surrogate"),
        ],
    )
    async def test_row_that_cannot_go_in_is_refused_whole(self, catalog: Catalog, bad: Row, words: str) -> None:
        """Cases 53 and 54: a row over D1's limits is refused by name, and nothing of that call is written."""
        with pytest.raises(CatalogError, match=words) as caught:
            await catalog.put([row(), bad])
        assert bad.name in str(caught.value)
        assert await catalog.rows(JOB) == []

    async def test_rows_of_others_are_read_leniently(self, catalog: Catalog, plant: Plant) -> None:
        """Rows as the 0.2 line or a person may leave them do not break the reading; epochs that are none are left out."""
        await catalog.ensure()
        for values in (
            "'my_run', 'fraction', 1.5, 7.5, 'jobs/my_run/checkpoints/fraction', '{\"loss\": NaN}'",
            "'my_run', 'nothing', 1, 'yesterday', '', NULL",
            "'my_run', 'text', 'seven', 1, 'p', '{}'",
            "'my_run', 'negative', -1, 1, 'p', '{}'",
            "'my_run', 'huge', 9007199254740993, 1, 'p', '{}'",
            "'my_run', 'endless', 9e999, 1, 'p', '{}'",
            "'my_run', x'00ff', 3, 1, 'p', '{}'",
        ):
            await plant(f"INSERT OR REPLACE INTO checkpoints VALUES ({values})")
        assert await catalog.rows(JOB) == [
            Row(JOB, "fraction", 1, 7.5, "jobs/my_run/checkpoints/fraction", '{"loss": NaN}'),
            Row(JOB, "nothing", 1, 0.0, "", "{}"),
        ]

    async def test_columns_of_others_keep_their_values(self, catalog: Catalog, plant: Plant) -> None:
        """Writing a row again leaves a column alone that someone added to the table."""
        await catalog.put([row()])
        await plant("ALTER TABLE checkpoints ADD COLUMN pinned TEXT")
        await plant("UPDATE checkpoints SET pinned = 'yes'")
        await catalog.put([row(epoch=43)])
        assert await catalog.query("SELECT epoch, pinned FROM checkpoints") == [{"epoch": 43, "pinned": "yes"}]

    async def test_table_dropped_in_between_is_made_again(self, catalog: Catalog, plant: Plant) -> None:
        """A table that someone dropped is made anew by the next row."""
        await catalog.put([row()])
        await plant("DROP TABLE checkpoints")
        assert await catalog.rows(JOB) == []
        await catalog.put([row(epoch=43)])
        assert await catalog.rows(JOB) == [row(epoch=43)]

    async def test_seed_query_word_for_word(self, catalog: Catalog) -> None:
        """The documented query of an orchestrator works as printed, with its semicolon."""
        await catalog.put([row("chk_0041", 41, timestamp=1.5), row(timestamp=2.5), row("other", 99, job_id="another")])
        assert await catalog.query(SEED_QUERY, [JOB]) == [{"epoch": 42, "timestamp": 2.5}]

    async def test_query_binds_every_kind_of_value(self, catalog: Catalog) -> None:
        """Text, numbers and NULL are bound; a number compares with the columns as one expects."""
        await catalog.put([row("a", 1, timestamp=0.5), row("b", 2, timestamp=1.5)])
        sql = "SELECT name FROM checkpoints WHERE epoch = ? AND timestamp = ? AND job_id = ? AND ? IS NULL"
        assert await catalog.query(sql, [2, 1.5, JOB, None]) == [{"name": "b"}]
        assert await catalog.query("SELECT name FROM checkpoints ORDER BY name LIMIT ?", [1]) == [{"name": "a"}]

    @pytest.mark.parametrize(
        "sql",
        [
            "DELETE FROM checkpoints",
            "INSERT INTO checkpoints VALUES ('j', 'n', 1, 1, 'p', '{}')",
            "WITH x AS (SELECT 1) DELETE FROM checkpoints",
            "/* SELECT */ UPDATE checkpoints SET epoch = 0",
            "SELECT 1; DROP TABLE checkpoints",
            "DROP TABLE checkpoints",
            "",
        ],
    )
    async def test_query_does_not_write(self, catalog: Catalog, sql: str) -> None:
        """A statement that writes, or a second one behind the first, is refused and changes nothing."""
        await catalog.put([row()])
        with pytest.raises(CatalogError, match="read"):
            await catalog.query(sql)
        assert await catalog.rows(JOB) == [row()]

    async def test_writing_words_in_quotes_are_data(self, catalog: Catalog) -> None:
        """A reading statement may hold the words of a writing one as text, comment or function."""
        sql = """SELECT 'DELETE; it''s' AS "update", replace('ab', 'b', 'c') AS r -- INSERT; DROP\n"""
        assert await catalog.query(sql) == [{"update": "DELETE; it's", "r": "ac"}]

    @pytest.mark.parametrize(
        ("sql", "params", "words"),
        [
            ("SELECT nope FROM checkpoints", [], "no such column: nope"),
            ("SELECT * FROM elsewhere", [], "no such table: elsewhere"),
            ("SELECT 1 FROM", [], "incomplete input|syntax error"),
            ("SELECT ?", [], "bindings"),
            ("SELECT 1", ["x"], "bindings"),
            ("SELECT " + ", ".join("?" * 101), ["x"] * 101, "100"),
            ("SELECT 1 --" + "x" * 100_000, [], "100,000"),
            ("SELECT ?", ["x" * 2_000_001], "2,000,000"),
            ("SELECT ?", [float("nan")], "nan"),
            ("SELECT ?", [2**53], "2\\^53-1"),
            ("SELECT ?", [b"bytes"], "bytes"),
        ],
    )
    async def test_what_the_engine_cannot_run_is_an_error(
        self, catalog: Catalog, sql: str, params: list[object], words: str
    ) -> None:
        """Wrong SQL, wrong numbers of values and D1's limits raise CatalogError with the reason, on every engine."""
        await catalog.ensure()
        with pytest.raises(CatalogError, match=words):
            await catalog.query(sql, params)

    async def test_writers_at_once(self, catalog: Catalog) -> None:
        """Twelve writers at once, half of them on one name, leave one row each and no error."""
        async with anyio.create_task_group() as tasks:
            for n in range(6):
                tasks.start_soon(catalog.put, [row("same", 7)])
                tasks.start_soon(catalog.put, [row(f"chk_{n}", n)])
        assert await catalog.rows(JOB) == [row("same", 7), *(row(f"chk_{n}", n) for n in range(5, -1, -1))]

    async def test_closing_twice_is_fine(self, catalog: Catalog) -> None:
        """Closing again is no error, and messages know where the rows lie."""
        await catalog.rows(JOB)
        assert catalog.where
        await catalog.aclose()
        await catalog.aclose()
