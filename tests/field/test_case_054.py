"""Field case 54: NaN and Infinity in the sidecar. The checkpoint is shipped, its metadata stays, the JSON is strict."""

from __future__ import annotations

import json

from tests.checkpoints import write_files
from tests.remote_ends import Told, open_courier, open_fetcher

HUGE = "9" * 6000
RAW = (
    '{"name": "chk_1", "epoch": 1, "timestamp": 5, "files": ["a.bin"], "metadata": {"loss": NaN, "grad_norm": Infinity, '
    f'"seed": {2**70}, "state": {HUGE}, "deep": {{"list": [1, -Infinity]}}, "ok": 0.25, "text": "\\ud800\\u00fc"}}}}'
).encode()


def strict(text):
    def refuse(constant):
        raise AssertionError(f"{constant} is not JSON")

    return json.loads(text, parse_constant=refuse, parse_int=str, parse_float=str)


MEANT = {
    "loss": None,
    "grad_norm": None,
    "seed": str(2**70),
    "state": HUGE,
    "deep": {"list": ["1", None]},
    "ok": "0.25",
    "text": "\ufffdü",
}


async def test_numbers_that_json_does_not_have(s3, d1, tmp_path):
    """Row and manifest have null for them and every integer exact, a warning names each, the sidecar stays as it was."""
    folder = tmp_path / "up" / "chk_1"
    write_files(folder, {"a.bin": b"a"})
    (tmp_path / "up" / "chk_1.json").write_bytes(RAW)
    told = Told()
    async with open_courier(s3, d1, observer=told) as courier:
        await courier.watch(tmp_path / "up", "job")
        report = await courier.flush()
    assert [shipped.name for shipped in report.shipped] == ["chk_1"]
    assert report.rows_owed == ()
    (row,) = d1.sql("SELECT * FROM checkpoints")
    assert strict(row["metadata"]) == MEANT
    assert strict(s3.get("jobs/job/chk_1/r2d1.manifest.json"))["metadata"] == MEANT
    assert s3.get("jobs/job/chk_1/chk_1.json") == RAW
    warnings = " ".join(told.notices("warning"))
    assert all(name in warnings for name in ("loss", "grad_norm", "deep.list[1]"))
    async with open_fetcher(s3, d1) as fetcher:
        info = await fetcher.pull("r2://jobs/job/latest", tmp_path / "down")
    assert (tmp_path / "down" / "chk_1.json").read_bytes() == RAW
    assert (info.metadata["loss"], info.metadata["seed"]) == (None, 2**70)
