"""Plain PyTorch: the folder first, the sidecar last. A courier beside the training does the rest."""

from pathlib import Path

import torch

from r2d1 import write_sidecar


def save_checkpoint(directory: str, epoch: int, model, optimizer, loss: float) -> None:
    folder = Path(directory, f"chk_{epoch:04d}")
    folder.mkdir(parents=True, exist_ok=True)
    torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict()}, folder / "checkpoint.pt")
    write_sidecar(folder, epoch=epoch, metadata={"loss": loss})
