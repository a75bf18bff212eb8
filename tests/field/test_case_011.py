"""Field case 11: a folder is overwritten while its upload is in flight. Old or new is recorded, never a blend."""

from __future__ import annotations

import json
import os
from pathlib import Path

import anyio
import pytest

from r2d1.events import Committed
from r2d1.testing import Fault, Gate, Hold, RequestRecord, S3Double, When
from tests.checkpoints import files_of, write_checkpoint, write_files, write_sidecar
from tests.remote_ends import PATIENCE_S, Told, assert_nothing_left, open_courier, open_fetcher

PART = 16 << 10
HEAD = "jobs/job/.r2d1/heads/slot_0.json"

#: Where the shipping of the old version stands when the folder is written again.
STAGES = {
    "the first part": When(operation="UploadPart"),
    "half of the parts": When(operation="UploadPart", nth=16),
    "the last of the files": When(operation="CompleteMultipartUpload"),
    "the sidecar": When(method="PUT", key="*/slot_0/slot_0.json"),
    "the manifest": When(method="PUT", key="*/r2d1.manifest.json"),
    "the hint": When(method="PUT", key="*/.r2d1/latest/*"),
    "the head": When(method="PUT", key=HEAD),
}


def version() -> dict[str, bytes]:
    """A version of the folder; all have files of the same names and sizes."""
    return {"model.bin": os.urandom(31 * PART + 5), "state.bin": os.urandom(300)}


def rewrite(folder: Path, files: dict[str, bytes], way: str) -> None:
    """What a trainer does to its one folder: the files in place, or new ones in their stead; the sidecar last."""
    if way == "in place":
        write_files(folder, files)
    else:
        write_files(folder.parent / "next", files)
        for name in files:
            os.replace(folder.parent / "next" / name, folder / name)
    write_sidecar(folder, 2)


class Seen:
    """What a reader would have got by each head that was ever written."""

    def __init__(self, s3: S3Double) -> None:
        self.versions: list[dict[str, bytes]] = []
        self._s3 = s3
        s3.after_request = self._note

    def _note(self, record: RequestRecord) -> None:
        if (record.method, record.key, record.status) == ("PUT", HEAD, 200):
            prefix = json.loads(self._s3.get(HEAD))["prefix"]
            manifest = json.loads(self._s3.get(f"{prefix}/r2d1.manifest.json"))
            self.versions.append(
                {entry["path"]: self._s3.get(f"{prefix}/{entry['path']}") for entry in manifest["files"]}
            )


@pytest.mark.parametrize("way", ["in place", "renamed"])
@pytest.mark.parametrize("stage", STAGES)
async def test_a_slot_written_again_while_it_is_shipped(s3, tmp_path, stage, way):
    """Wherever its upload stands, each head leads to one whole version, and the new one is there in the end."""
    old, new = version(), version()
    watched = tmp_path / "w"
    folder = write_checkpoint(watched, "slot_0", 1, old)
    seen, gate, told = Seen(s3), Gate(), Told()
    s3.faults.add(Fault(STAGES[stage], Hold(gate)))
    async with open_courier(s3, part_size=PART, observer=told) as courier:
        await courier.watch(watched, "job")
        with anyio.fail_after(PATIENCE_S):
            await gate.arrived.wait()
        rewrite(folder, new, way)
        gate.release()
        await told.until(lambda: any(event.epoch == 2 for event in told.of(Committed)))
        await courier.flush()
    assert seen.versions == ([old, new] if stage == "the head" else [new])
    was_told = any("settling it anew" in text for text in told.notices("warning"))
    assert was_told == (stage != "the head")
    assert_nothing_left(s3, watched)
    async with open_fetcher(s3) as fetcher:
        info = await fetcher.pull("r2://jobs/job/latest", tmp_path / "down")
    assert (info.epoch, info.verified) == (2, True)
    assert files_of(info.local_dir) == new
