"""Whether a device computes what the CPU computes in fp32: losses and gradients, in every form of training."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, replace
from typing import Any, Final, Literal

import torch
import torch.nn.functional as F
from torch import Tensor

from albert_cli import console
from albert_cli.bench import stream
from albert_cli.data.batches import PackedBatch, PairSettings, batch, step_indices
from albert_cli.model import block
from albert_cli.model.config import ModelConfig
from albert_cli.model.heads import PretrainingModel
from albert_cli.model.packing import pack
from albert_cli.training.device import autocast, place, resolve_auto
from albert_cli.training.settings import TrainSettings

# Relative differences that rounding explains: of the loss, and of all gradients by the norm of their difference. In
# bf16 a CPU's are 9e-5 and 1.7e-2 for ALBERT-base.
TOLERANCES: Final = {"fp32": (1e-4, 1e-3), "bf16": (1e-3, 5e-2)}
_SEQUENCES, _LENGTH = 8, 128
CPU: Final = torch.device("cpu")


@dataclass(frozen=True)
class Form:
    """A way to compute a step: the precision of products, attention over a padded rectangle, a compiled block."""

    precision: Literal["fp32", "bf16"]
    padded: bool = False
    compiled: bool = False


FORMS: Final = {
    "fp32": Form("fp32"),
    "fp32, padded attention": Form("fp32", padded=True),
    "bf16": Form("bf16"),
    "bf16, padded attention": Form("bf16", padded=True),
    "bf16, compiled": Form("bf16", compiled=True),
}


@contextmanager
def padded_attention(wanted: bool = True) -> Iterator[None]:
    """While it is open, attention pads sequences to a rectangle, also where the variable-length kernel applies."""
    kept = block.has_varlen
    if wanted:
        block.has_varlen = lambda x, dropout: False
    try:
        yield
    finally:
        block.has_varlen = kept


def measure(config: ModelConfig, device: torch.device) -> dict[str, Any]:
    """Compare every form on the device with the CPU in fp32, on one small batch of sequences of all lengths.

    By form: the loss, how far it and the gradients are off (relative; the latter by norms), and whether both lie
    within `TOLERANCES`. A form that this machine cannot compile is left out. Dropout is off.
    """
    config = replace(config, hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0)
    length = min(_LENGTH, config.max_position_embeddings)
    text = stream.read(None, config.vocab_size)
    drawn = batch(
        text.corpus,
        text.vocabulary,
        PairSettings(max_seq_length=length, short_sequence_probability=0.5),
        0,
        step_indices(0, _SEQUENCES),
    )
    expected = computed(config, drawn, Form("fp32"), CPU)
    forms = {}
    usual = resolve_auto(TrainSettings(precision="fp32"), config, device, sequences=1, length=length)
    compiles = usual.compile == "on"
    for name, form in FORMS.items():
        if form.compiled and not compiles:
            continue
        with console.progress(f"correctness: {name}", None):
            forms[name] = _compared(computed(config, drawn, form, device), expected, form.precision)
    return {
        "sequences": _SEQUENCES,
        "tokens": len(drawn.ids),
        "loss_fp32_cpu": round(float(expected[0]), 6),
        "forms": forms,
        "is_right": all(found["is_right"] for found in forms.values()),
    }


def computed(config: ModelConfig, drawn: PackedBatch, form: Form, device: torch.device) -> tuple[Tensor, Tensor]:
    """The loss and all gradients in a row, in fp32 on the CPU, of the model with the weights of seed 0."""
    torch._dynamo.reset()  # a form compiled before must not stand for this one
    torch.manual_seed(0)
    model = PretrainingModel(config).train()
    place(model, TrainSettings(precision=form.precision, compile="on" if form.compiled else "off"), device)
    labels, orders = (torch.from_numpy(a).long().to(device) for a in (drawn.masked_labels, drawn.order_labels))
    with padded_attention() if form.padded else nullcontext():
        with autocast(form.precision, device):
            logits = model(pack(drawn, device, drawn.masked_index))
        loss = F.cross_entropy(logits.masked.float(), labels)
        if bool((orders >= 0).any()):
            loss = loss + F.cross_entropy(logits.order.float(), orders, ignore_index=-1)
        loss.backward()  # type: ignore[no-untyped-call]
    gradients = torch.cat([p.grad.flatten().float().cpu() for p in model.parameters() if p.grad is not None])
    return loss.detach().float().cpu(), gradients


def _compared(found: tuple[Tensor, Tensor], expected: tuple[Tensor, Tensor], precision: str) -> dict[str, Any]:
    loss, gradient = float(found[0]), found[1]
    of_loss = abs(loss - float(expected[0])) / abs(float(expected[0]))
    of_gradient = float(torch.linalg.vector_norm(gradient - expected[1]) / torch.linalg.vector_norm(expected[1]))
    most = TOLERANCES[precision]
    return {
        "loss": round(loss, 6),
        "loss_off": float(f"{of_loss:.3g}"),
        "gradient_off": float(f"{of_gradient:.3g}"),
        "is_right": of_loss <= most[0] and of_gradient <= most[1],
    }


def rows(measured: Mapping[str, Any]) -> list[list[str]]:
    """A row each form for a table under `HEADERS`."""
    return [
        [name, f"{f['loss']:.5f}", f"{f['loss_off']:.1e}", f"{f['gradient_off']:.1e}", "yes" if f["is_right"] else "NO"]
        for name, f in measured["forms"].items()
    ]


HEADERS: Final = ("against the CPU in fp32", "loss", "loss off by", "gradients off by", "within rounding")
