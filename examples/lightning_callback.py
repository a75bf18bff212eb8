"""Lightning: `Trainer(callbacks=[SidecarCallback("ckpts")])`; all ranks save together, one writes the sidecar."""

from pathlib import Path

from lightning.pytorch.callbacks import Callback

from r2d1 import write_sidecar


class SidecarCallback(Callback):
    def __init__(self, directory):
        self.directory = Path(directory)

    def on_train_epoch_end(self, trainer, pl_module):
        folder = self.directory / f"chk_{trainer.current_epoch:04d}"
        trainer.save_checkpoint(folder / "checkpoint.ckpt")  # returns when every rank has written
        if trainer.is_global_zero:
            metrics = {name: float(value) for name, value in trainer.callback_metrics.items()}
            write_sidecar(folder, epoch=trainer.current_epoch, metadata=metrics)
