"""Hugging Face: `Trainer(..., callbacks=[SidecarCallback()])`, and each `checkpoint-<step>` is shipped once saved."""

from pathlib import Path

from transformers import TrainerCallback

from r2d1 import write_sidecar


class SidecarCallback(TrainerCallback):
    def on_save(self, args, state, control, **kwargs):
        if args.distributed_state is not None:
            args.distributed_state.wait_for_everyone()  # other ranks may still be writing their part of the folder
        if state.is_world_process_zero:
            folder = Path(args.output_dir, f"checkpoint-{state.global_step}")
            last = state.log_history[-1] if state.log_history else {}
            write_sidecar(folder, epoch=state.global_step, metadata={"epoch": state.epoch, **last})
