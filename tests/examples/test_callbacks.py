"""The examples for training libraries, run against stand-ins: a courier takes what they write for a checkpoint."""

from __future__ import annotations

import importlib.util
import json
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace

import pytest

from r2d1 import AsyncCourier, Settings
from tests.cli.shell import store_env

EXAMPLES = Path(__file__).parents[2] / "examples"


def stand_in(monkeypatch: pytest.MonkeyPatch, name: str, **contents: object) -> None:
    """A module of that name with only this in it."""
    parts = name.split(".")
    for depth in range(1, len(parts) + 1):
        monkeypatch.setitem(sys.modules, ".".join(parts[:depth]), ModuleType(".".join(parts[:depth])))
    for attribute, value in contents.items():
        setattr(sys.modules[name], attribute, value)


def load(name: str) -> ModuleType:
    """An example as a module."""
    spec = importlib.util.spec_from_file_location(f"example_{name}", EXAMPLES / f"{name}.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


async def shipped_from(directory: Path, home: Path) -> dict[str, int]:
    """The checkpoints that a courier finds in a directory, with their epochs."""
    settings = Settings.from_env(environ=store_env(home))
    async with AsyncCourier(settings) as courier:
        await courier.watch(directory, "job")
        report = await courier.flush(timeout=60)
    return {shipped.name: shipped.epoch for shipped in report.shipped}


class Stateful:
    def __init__(self, state: object) -> None:
        self.state = state

    def state_dict(self) -> object:
        return self.state


async def test_plain_pytorch(monkeypatch, tmp_path):
    """Model and optimizer in one file, the sidecar last."""
    save = lambda state, path: Path(path).write_text(json.dumps(state))  # noqa: E731
    stand_in(monkeypatch, "torch", save=save)
    example = load("plain_pytorch")
    example.save_checkpoint(str(tmp_path / "ckpts"), 42, Stateful([1, 2]), Stateful({"lr": 0.1}), 0.043)
    saved = json.loads((tmp_path / "ckpts" / "chk_0042" / "checkpoint.pt").read_text())
    assert saved == {"model": [1, 2], "optimizer": {"lr": 0.1}}
    assert await shipped_from(tmp_path / "ckpts", tmp_path) == {"chk_0042": 42}


@pytest.mark.parametrize("state", ["one process", "several ranks", "no distributed state"])
async def test_hugging_face(state, monkeypatch, tmp_path):
    """After ``checkpoint-500`` was saved its sidecar is written, once every rank has written its part."""
    stand_in(monkeypatch, "transformers", TrainerCallback=object)
    callback = load("hugging_face").SidecarCallback()
    folder = tmp_path / "out" / "checkpoint-500"
    folder.mkdir(parents=True)
    (folder / "model.safetensors").write_bytes(b"weights")
    late = folder / "rng_state_1.pth"
    waiting = SimpleNamespace(wait_for_everyone=lambda: late.write_bytes(b"rank 1"))
    args = SimpleNamespace(
        output_dir=str(tmp_path / "out"), distributed_state=None if state == "no distributed state" else waiting
    )
    trained = SimpleNamespace(global_step=500, epoch=1.5, log_history=[{"loss": 0.25}], is_world_process_zero=True)
    if state == "several ranks":
        other = SimpleNamespace(**{**vars(trained), "is_world_process_zero": False})
        callback.on_save(args, other, SimpleNamespace())
        assert not (tmp_path / "out" / "checkpoint-500.json").exists()
    callback.on_save(args, trained, SimpleNamespace(), model=None)
    sidecar = json.loads((tmp_path / "out" / "checkpoint-500.json").read_text())
    assert sidecar["metadata"] == {"epoch": 1.5, "loss": 0.25}
    listed = {entry["path"] for entry in sidecar["files"]}
    assert ("rng_state_1.pth" in listed) is (state != "no distributed state")
    assert await shipped_from(tmp_path / "out", tmp_path) == {"checkpoint-500": 500}


class FakeTrainer:
    """As much of Lightning's trainer as the callback asks for."""

    current_epoch = 3
    callback_metrics = {"train_loss": 0.5}

    def __init__(self, rank: int) -> None:
        self.is_global_zero = rank == 0

    def save_checkpoint(self, path: Path) -> None:
        Path(path).parent.mkdir(parents=True, exist_ok=True)
        Path(path).write_bytes(b"weights")


async def test_lightning(monkeypatch, tmp_path):
    """All ranks save, the first one writes the sidecar."""
    stand_in(monkeypatch, "lightning.pytorch.callbacks", Callback=object)
    callback = load("lightning_callback").SidecarCallback(tmp_path / "ckpts")
    callback.on_train_epoch_end(FakeTrainer(rank=1), None)
    assert not (tmp_path / "ckpts" / "chk_0003.json").exists()
    callback.on_train_epoch_end(FakeTrainer(rank=0), None)
    assert json.loads((tmp_path / "ckpts" / "chk_0003.json").read_text())["metadata"] == {"train_loss": 0.5}
    assert await shipped_from(tmp_path / "ckpts", tmp_path) == {"chk_0003": 3}


def test_the_library_examples_are_short():
    """Ten lines of code each, or little more."""
    for name in ("plain_pytorch", "hugging_face", "lightning_callback"):
        lines = (EXAMPLES / f"{name}.py").read_text().splitlines()
        assert len([line for line in lines if line.strip() and not line.startswith(('"""', "import", "from"))]) <= 12
