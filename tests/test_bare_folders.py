"""A checkpoint folder whose sidecar was forgotten is not shipped, and a flush says so."""

from __future__ import annotations

from pathlib import Path

from r2d1.courier import AsyncCourier
from r2d1.events import Event, Notice
from r2d1.remote import Remote
from r2d1.settings import Settings
from r2d1.sidecar import write_sidecar
from r2d1.testing.memory import MemoryStore


async def test_a_flush_names_folders_without_a_sidecar(tmp_path: Path) -> None:
    """The whole checkpoint is shipped, the bare folder is named once, and other folders are nobody's business."""
    told: list[Event] = []
    for name in ("chk_0001", "chk_0002", "logs"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "model.bin").write_bytes(b"weights")
    write_sidecar(tmp_path / "chk_0001", epoch=1)
    async with AsyncCourier(Settings(), given=Remote(MemoryStore(), None), observer=told.append) as courier:
        await courier.watch(tmp_path, "job")
        report = await courier.flush(timeout=30)
        await courier.flush(timeout=30)
    assert [shipped.name for shipped in report.shipped] == ["chk_0001"]
    (text,) = [event.text for event in told if isinstance(event, Notice) and "no sidecar" in event.text]
    assert text.endswith(": chk_0002")
