"""The document that r2d1 began with: every block of it runs as printed, and its flow does what it promises."""

from __future__ import annotations

import json
import shlex
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import anyio
import httpx
import pytest

from r2d1 import Courier, Fetcher
from r2d1.catalog import DDL, SqliteCatalog, open_catalog
from r2d1.events import Teller
from r2d1.retry import RetryPolicy
from r2d1.testing import Fault, Hook, RequestRecord, When
from tests.checkpoints import files_of, write_checkpoint, write_files
from tests.children import child_env, run_script
from tests.remote_ends import bodies_sent, open_courier, settings_of

FETCH = """
from r2d1 import Fetcher

# Build from bob_job.json secrets block (also exports to os.environ)
fetcher = Fetcher.from_config(cfg["secrets"])

# Pull latest checkpoint for a job — returns found=False on fresh start, never raises
info = fetcher.pull("r2://jobs/my_run/latest", dest="/root/checkpoints")

if info.found:
    print(f"resuming from epoch {info.epoch} at {info.local_dir}")
else:
    print("no checkpoint — fresh start")

# Pull a specific checkpoint by name
fetcher.pull("r2://jobs/my_run/chk_0042", dest="/root/checkpoints")

# Pull any R2 prefix (e.g. a dataset stored in R2)
fetcher.pull("r2://datasets/mnist", dest="/root/data")
"""

WATCH = """
from r2d1 import Courier

courier = Courier.from_config(cfg["secrets"])

# Start background thread — returns immediately
courier.watch("/root/checkpoints", job_id="my_run")

# ... training runs here, writes chk_N/ + chk_N.json as it goes ...

# Wait for all uploads to finish before exiting
courier.flush(timeout=300)
"""

SIDECAR = """
{
    "name":      "chk_0042",
    "epoch":     42,
    "timestamp": 1748123456.7,
    "files":     ["checkpoint.pt", "config.json"],
    "metadata":  {"loss": 0.043}
}
"""

SCHEMA = """
CREATE TABLE IF NOT EXISTS checkpoints (
    job_id    TEXT    NOT NULL,
    name      TEXT    NOT NULL,
    epoch     INTEGER NOT NULL,
    timestamp REAL    NOT NULL,   -- doubles as heartbeat
    r2_prefix TEXT    NOT NULL,
    metadata  TEXT    DEFAULT '{}',
    PRIMARY KEY (job_id, name)
);
"""

PROGRESS = """
SELECT epoch, timestamp FROM checkpoints
WHERE job_id = ? ORDER BY epoch DESC LIMIT 1;
"""

SHIP_COMMAND = "python -m r2d1 watch ./checkpoints --job-id my_run --poll-every 30"
PULL_COMMANDS = ("python -m r2d1 pull r2://jobs/my_run/latest --dest ./checkpoints",
                 "python -m r2d1 pull r2://datasets/mnist      --dest ./data",
                 "python -m r2d1 secrets")  # fmt: skip

FILES = {"checkpoint.pt": b"weights" * 1000, "config.json": b"{}"}
DATA = {"train/images.bin": b"images", "labels.bin": b"labels"}

#: Runs printed blocks where a caller may be: in a script, in a thread, inside of a running event loop.
RUNNER = """
import asyncio, json, sys, threading
from pathlib import Path

job, where, *blocks = sys.argv[1:]
cfg = json.loads(Path(job).read_text())

def run():
    for block in blocks:
        exec(compile(Path(block).read_text(), block, "exec"), {"cfg": cfg, "train": train})

def train():
    folder = Path(cfg["watched"]) / "chk_0042"
    folder.mkdir()
    for name, text in cfg["files"].items():
        (folder / name).write_bytes(text.encode())
    folder.with_name("chk_0042.json").write_text(cfg["sidecar"])

async def main():
    run()

if where == "script":
    run()
elif where == "thread":
    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
else:
    asyncio.run(main())
"""


def printed(block: str, root: Path) -> Path:
    """A block as printed, but for its directories and for the place where it only says that training runs."""
    root.mkdir(exist_ok=True)
    placed = block.replace('"/root/', f'"{root}/')
    path = root / f"block{len(list(root.glob('block*')))}.py"
    path.write_text(placed.replace("# ... training runs here, writes chk_N/ + chk_N.json as it goes ...", "train()"))
    return path


@pytest.mark.parametrize("where", ["script", "thread", "running loop"])
def test_blocks_run_as_printed(s3, d1, tmp_path, where):
    """A fresh start, a run that ships, and a second machine that resumes, each by the printed lines alone."""
    for path, data in DATA.items():
        s3.put(f"datasets/mnist/{path}", data)
    one, two = tmp_path / "one", tmp_path / "two"
    blocks = [printed(FETCH, one), printed(WATCH, one), printed(FETCH, two)]
    texts = {name: data.decode() for name, data in FILES.items()}
    secrets = {"_comment": "of the job", **s3.env(), **d1.settings_env()}
    job = {"secrets": secrets, "watched": str(one / "checkpoints"), "files": texts, "sidecar": SIDECAR}
    tmp_path.joinpath("bob_job.json").write_text(json.dumps(job))
    said = run_script(RUNNER, tmp_path / "bob_job.json", where, *blocks, env=child_env()).splitlines()
    folder = two / "checkpoints" / "chk_0042"
    assert said == ["no checkpoint — fresh start", f"resuming from epoch 42 at {folder}"]
    assert files_of(folder) == FILES
    assert folder.with_name("chk_0042.json").read_text() == SIDECAR
    for root in (one, two):
        assert {path: (root / "data" / path).read_bytes() for path in DATA} == DATA
    (row,) = d1.sql("SELECT * FROM checkpoints")
    assert row.pop("r2_prefix") == "jobs/my_run/chk_0042"
    assert json.loads(row.pop("metadata")) == {"loss": 0.043}
    assert row == {"job_id": "my_run", "name": "chk_0042", "epoch": 42, "timestamp": 1748123456.7}


def test_commands_run_as_printed(s3, d1, tmp_path):
    """``watch`` ships as a decoupled process until it is told to stop; ``pull`` and ``secrets`` do what they say."""
    env = child_env(s3.env(), d1.settings_env())
    one, two = tmp_path / "one", tmp_path / "two"
    two.mkdir()
    write_checkpoint(one / "checkpoints", "chk_0042", 42, FILES)
    for path, data in DATA.items():
        s3.put(f"datasets/mnist/{path}", data)
    arguments = [sys.executable, *shlex.split(SHIP_COMMAND)[1:]]
    with subprocess.Popen(arguments, cwd=one, env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as courier:
        stop = Hook(after=lambda record: courier.send_signal(signal.SIGTERM))
        s3.faults.add(Fault(When(method="PUT", key="*/heads/chk_0042.json"), stop))
        out, err = courier.communicate(timeout=60)
        assert courier.returncode == 0, (out, err)
    for command in PULL_COMMANDS:
        arguments = [sys.executable, *shlex.split(command)[1:]]
        done = subprocess.run(arguments, cwd=two, env=env, capture_output=True, text=True, timeout=60)
        assert done.returncode == 0, (done.stdout, done.stderr)
    assert s3.secret_key not in done.stdout
    assert "R2D1_R2_SECRET_KEY" in done.stdout
    assert files_of(two / "checkpoints" / "chk_0042") == FILES
    assert (two / "data" / "labels.bin").read_bytes() == b"labels"


TRAINER = """
import sys, time
from pathlib import Path
from r2d1 import write_sidecar

folder, committed = map(Path, sys.argv[1:])
folder.mkdir()
(folder / "checkpoint.pt").write_bytes(b"next" * 1000)
write_sidecar(folder, epoch=43, metadata={"loss": 0.04})
deadline = time.monotonic() + 60
while not committed.exists():
    assert time.monotonic() < deadline, "nobody shipped it"
    time.sleep(0.01)
"""


def test_the_flow_on_one_folder(s3, d1, tmp_path, bare_environ):
    """Pull ``latest`` into a folder and watch it: nothing is sent. What a trainer writes is shipped meanwhile."""
    secrets = {**s3.env(), **d1.settings_env()}
    with Courier.from_config(secrets) as elsewhere:
        elsewhere.ship(write_checkpoint(tmp_path / "elsewhere", "chk_0042", 42, FILES), job_id="my_run")
    watched, committed = tmp_path / "checkpoints", tmp_path / "committed"
    rows, count, calls = d1.sql("SELECT * FROM checkpoints"), len(s3.requests), len(d1.requests)
    info = Fetcher.from_config(secrets).pull("r2://jobs/my_run/latest", dest=watched)
    assert (info.found, info.epoch, info.local_dir) == (True, 42, watched / "chk_0042")

    courier = Courier.from_config(secrets)
    courier.watch(watched, job_id="my_run")
    report = courier.flush(timeout=60)
    assert report.shipped == report.rows_owed == ()
    assert [record.operation for record in s3.requests[count:] if record.method not in ("GET", "HEAD")] == []
    assert not any("INSERT" in str(call.body) for call in list(d1.requests)[calls:])
    assert d1.sql("SELECT * FROM checkpoints") == rows

    def note(record: RequestRecord) -> None:
        committed.touch()

    s3.faults.add(Fault(When(method="PUT", key="*/heads/chk_0043.json"), Hook(after=note)))
    command = [sys.executable, "-c", TRAINER, watched / "chk_0043", committed]
    subprocess.run(command, env=child_env(), check=True, timeout=90)  # the main thread sits here meanwhile
    report = courier.flush(timeout=60)
    courier.close()
    assert [shipped.name for shipped in report.shipped] == ["chk_0043"]
    assert {row["name"] for row in d1.sql("SELECT name FROM checkpoints")} == {"chk_0042", "chk_0043"}

    count, rows = len(s3.requests), d1.sql("SELECT * FROM checkpoints ORDER BY epoch")
    shutil.rmtree(watched / ".r2d1")  # the journal is lost
    with Courier.from_config(secrets) as again:
        again.watch(watched, job_id="my_run")
        report = again.flush(timeout=60)
    assert (report.shipped, report.already) == ((), 2)
    assert bodies_sent(s3, count) == []
    assert d1.sql("SELECT * FROM checkpoints ORDER BY epoch") == rows


def test_our_table_is_the_documented_one():
    """The statement that couriers send is the documented one, word for word."""
    assert SCHEMA.strip() == DDL


async def ask_d1(d1, sql: str, *params: object) -> list[dict[str, object]]:
    """As any orchestrator asks D1, without r2d1."""
    url = f"{d1.url}/accounts/{d1.account_id}/d1/database/{d1.database_id}/query"
    async with httpx.AsyncClient(headers={"Authorization": f"Bearer {d1.api_token}"}, trust_env=False) as http:
        answer = await http.post(url, json={"sql": sql, "params": list(params)})
    assert answer.status_code == 200, answer.text
    return answer.json()["result"][0]["results"]


@pytest.mark.parametrize("first", ["the orchestrator", "the courier"])
async def test_the_sql_against_d1(s3, d1, tmp_path, first):
    """Whoever makes the table, the documented statements work as printed, sent by anybody or through r2d1."""
    if first == "the orchestrator":
        await ask_d1(d1, SCHEMA)
    write_files(tmp_path / "chk_0042", FILES)
    (tmp_path / "chk_0042.json").write_text(SIDECAR)
    async with open_courier(s3, d1) as courier:
        await courier.ship(write_checkpoint(tmp_path, "chk_0041", 41, FILES), "my_run")
        await courier.ship(tmp_path / "chk_0042", "my_run")
    await ask_d1(d1, SCHEMA)
    assert await ask_d1(d1, PROGRESS, "my_run") == [{"epoch": 42, "timestamp": 1748123456.7}]
    assert await ask_d1(d1, PROGRESS, "another") == []
    catalog = open_catalog(settings_of(s3, d1), tell=Teller(None), policy=RetryPolicy())
    assert await catalog.query(PROGRESS, ["my_run"]) == [{"epoch": 42, "timestamp": 1748123456.7}]
    await catalog.aclose()


def test_the_sql_against_the_embedded_catalog(tmp_path, bare_environ):
    """The same beside the embedded store, where the catalog is an SQLite file."""
    write_files(tmp_path / "up" / "chk_0042", FILES)
    (tmp_path / "up" / "chk_0042.json").write_text(SIDECAR)
    with Courier.from_config({"R2D1_STORE_URL": (tmp_path / "bucket").as_uri()}) as courier:
        courier.ship(tmp_path / "up" / "chk_0042", job_id="my_run")

    async def ask() -> list[dict[str, object]]:
        catalog = SqliteCatalog(tmp_path / "bucket" / ".r2d1" / "catalog.db")
        try:
            return await catalog.query(PROGRESS, ["my_run"])
        finally:
            await catalog.aclose()

    assert anyio.run(ask) == [{"epoch": 42, "timestamp": 1748123456.7}]
