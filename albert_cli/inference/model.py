"""Open a checkpoint for `predict`, `encode` and `fill-mask`, and choose its device, precision and matmul library."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, TypeVar

import torch
from torch import nn

from albert_cli import console
from albert_cli.model import hub
from albert_cli.training import capacity
from albert_cli.training.device import choose_device, prepare_model, resolve_auto
from albert_cli.training.settings import TrainSettings

ModelT = TypeVar("ModelT", bound=nn.Module)
Precision = Literal["auto", "fp32", "bf16"]
_MEASURED_SEQUENCES = 32  # sequences in the batch on which precisions and matmul libraries are timed: a typical batch


@dataclass(frozen=True)
class InferenceCheckpoint:
    """A checkpoint with its device and its settings: precision and matmul library are chosen, none is "auto"."""

    checkpoint: hub.Checkpoint
    device: torch.device
    settings: TrainSettings

    def prepare(self, model: ModelT) -> ModelT:
        """Move a model with an encoder to the device, apply the settings to it, and return it in evaluation mode."""
        prepare_model(model, self.settings, self.device)
        return model.eval()


def open_for_inference(name: str, device: str, precision: Precision) -> InferenceCheckpoint:
    """Read a checkpoint, and choose its device and its precision; warn if the memory may not suffice.

    name: a directory, a run or a Hub id. device: a device of torch, or "auto". precision: "auto" measures whether bf16
    is faster than fp32 on this device; if it is not, the faster matmul library for fp32 is measured too. Training
    chooses in the same way.
    """
    checkpoint = hub.read_checkpoint(hub.find_checkpoint(name))
    torch_device = choose_device(device)
    capacity.warn_inference_memory(checkpoint.config, torch_device)
    settings = resolve_auto(
        TrainSettings(precision=precision, compile="off"),  # compiling takes longer than most inputs
        checkpoint.config,
        torch_device,
        sequences=_MEASURED_SEQUENCES,
        length=checkpoint.config.max_position_embeddings,
    )
    if precision == "auto" and settings.precision != "fp32":
        console.info(f"precision: {settings.precision}, measured to be faster here; use --precision fp32 to change it")
    return InferenceCheckpoint(checkpoint, torch_device, settings)
