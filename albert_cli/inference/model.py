"""Open a checkpoint for inference: its device, its precision, and its length limit."""

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
_MEASURED_SEQUENCES = 32  # of a batch; only the number of threads, which is not used here, depends on it


@dataclass(frozen=True)
class InferenceCheckpoint:
    """A checkpoint with the device and the resolved settings of its computation: precision and library of matmuls."""

    checkpoint: hub.Checkpoint
    device: torch.device
    settings: TrainSettings

    @property
    def precision(self) -> str:
        """The precision of matmuls, "fp32" or "bf16"."""
        return self.settings.precision

    def prepare(self, model: ModelT) -> ModelT:
        """Return a model with an encoder on the device, configured by the settings, in evaluation mode."""
        prepare_model(model, self.settings, self.device)
        return model.eval()


def open_for_inference(name: str, device: str, precision: Precision = "auto") -> InferenceCheckpoint:
    """Read a checkpoint and choose device and precision; prints the precision and a warning if memory may not suffice.

    precision: "auto" measures whether bf16 is faster here, and in fp32 which library is, as training does.
    """
    checkpoint = hub.read_checkpoint(hub.find_checkpoint(name))
    chosen = choose_device(device)
    capacity.warn_inference_memory(checkpoint.config, chosen)
    settings = resolve_auto(
        TrainSettings(precision=precision, compile="off"),  # compiling takes longer than most inputs
        checkpoint.config,
        chosen,
        sequences=_MEASURED_SEQUENCES,
        length=checkpoint.config.max_position_embeddings,
    )
    if precision == "auto" and settings.precision != "fp32":
        console.info(f"precision: {settings.precision}, measured to be faster here (--precision fp32 changes it)")
    return InferenceCheckpoint(checkpoint, chosen, settings)
