"""Open a checkpoint for `predict`, `encode` and `fill-mask`, and choose its device, precision and matmul library.

First call `open_for_inference`, then `with_faster_matmul` unless all batches are small, then `prepare`.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal, TypeVar, cast

import torch
from torch import nn

from albert_cli import console
from albert_cli.model import hub
from albert_cli.model.encoder import Encoder
from albert_cli.training import capacity
from albert_cli.training.device import (
    MIN_ONEDNN_SPEEDUP,
    choose_device,
    measure_prepacking_speedup,
    prepare_model,
    resolve_auto,
)
from albert_cli.training.settings import TrainSettings

ModelT = TypeVar("ModelT", bound=nn.Module)
Precision = Literal["auto", "fp32", "bf16"]
_SEQUENCES = 32  # in a typical batch


@dataclass(frozen=True)
class InferenceCheckpoint:
    """A checkpoint with its device, and the settings that were chosen for this device.

    With `settings.matmul` "onednn", oneDNN computes the blocks with prepacked weights (`matmul.prepack_weight`).
    """

    checkpoint: hub.Checkpoint
    device: torch.device
    settings: TrainSettings

    def with_faster_matmul(self) -> InferenceCheckpoint:
        """Return the checkpoint with the faster matmul library.

        On a CPU the two libraries are compared, which takes up to 0.5 s; on other devices the library is not changed.
        Do not call this if all batches have fewer tokens than `encoder.MIN_PREPACKED_ROWS`: no weight is prepacked for
        them, and the measurement takes longer than the faster library saves.
        """
        if self.device.type != "cpu":
            return self
        config = self.checkpoint.config
        speedup = measure_prepacking_speedup(
            config.hidden_size, config.intermediate_size, config.hidden_act, self.settings.precision
        )
        if speedup < MIN_ONEDNN_SPEEDUP:
            return self
        return replace(self, settings=replace(self.settings, matmul="onednn"))

    def prepare(self, model: ModelT) -> ModelT:
        """Move a model with an encoder to the device, apply the settings to it, and return it in evaluation mode."""
        prepare_model(model, self.settings, self.device)
        cast(Encoder, model.encoder).prepacks_weights = self.settings.matmul == "onednn"
        return model.eval()


def open_for_inference(name: str, device: str, precision: Precision) -> InferenceCheckpoint:
    """Read a checkpoint, and choose its device and precision; warn if the memory may not suffice.

    name: a directory, a run or a Hub id. device: a device of torch, or "auto". precision: "auto" takes bf16 if it is
    faster than fp32: on a CPU this is measured, on a GPU it depends on the hardware.
    """
    checkpoint = hub.read_checkpoint(hub.find_checkpoint(name))
    config = checkpoint.config
    torch_device = choose_device(device)
    capacity.warn_inference_memory(config, torch_device)
    settings = resolve_auto(
        # Compiling takes longer than predicting most inputs. `matmul` is not "auto", because `resolve_auto` measures it
        # with gradients; `with_faster_matmul` measures it without.
        TrainSettings(precision=precision, compile="off", matmul="torch"),
        config,
        torch_device,
        sequences=_SEQUENCES,
        length=config.max_position_embeddings,
    )
    if precision == "auto" and settings.precision != "fp32":
        console.info(f"precision: {settings.precision}, which is faster here; use --precision fp32 to change it")
    return InferenceCheckpoint(checkpoint, torch_device, settings)
