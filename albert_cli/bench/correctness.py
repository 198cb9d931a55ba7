"""Whether a device computes what the CPU computes in fp32: losses and gradients, in every form of training."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, Final, Literal, NamedTuple

import torch
from torch import Tensor

from albert_cli import console
from albert_cli.bench import stream
from albert_cli.bench.step import pretraining_loss
from albert_cli.data.batches import PackedBatch, PairSettings, batch, step_indices
from albert_cli.model import encoder
from albert_cli.model.config import ModelConfig
from albert_cli.model.heads import PretrainingModel
from albert_cli.training.device import autocast, place, resolve_auto
from albert_cli.training.settings import TrainSettings

# Relative differences that rounding explains: of the loss, and of all gradients by the norm of their difference. In
# bf16 a CPU's are 9e-5 and 1.7e-2 for ALBERT-base.
TOLERANCES: Final = {"fp32": (1e-4, 1e-3), "bf16": (1e-3, 5e-2)}
_SEQUENCES, _LENGTH, _WINDOW = 8, 128, 16


class Form(NamedTuple):
    """A way to compute a step: precision of products, attention over a padded rectangle, a compiled block, windows."""

    precision: Literal["fp32", "bf16"]
    padded: bool = False
    compiled: bool = False
    windows: bool = False


FORMS: Final = {
    "fp32": Form("fp32"),
    "fp32, padded attention": Form("fp32", padded=True),
    "bf16": Form("bf16"),
    "bf16, padded attention": Form("bf16", padded=True),
    "bf16, compiled": Form("bf16", compiled=True),
    "fp32, windows": Form("fp32", windows=True),
    "bf16, windows": Form("bf16", windows=True),
    "bf16, windows, compiled": Form("bf16", compiled=True, windows=True),
}


@contextmanager
def padded_attention(wanted: bool = True) -> Iterator[None]:
    """While it is open, attention pads sequences to a rectangle, also where the variable-length kernel applies."""
    names: Any = encoder
    kept = names.has_varlen
    if wanted:
        names.has_varlen = lambda device, dtype, head_size: False
    try:
        yield
    finally:
        names.has_varlen = kept


def measure(config: ModelConfig, device: torch.device) -> dict[str, Any]:
    """Compare every form on the device with the CPU in fp32, on one small batch of sequences of all lengths.

    By form: the loss, how far it and the gradients are off (relative; the latter by norms), and whether both lie
    within `TOLERANCES`. A form that this machine cannot compile is left out. Dropout is off.
    """
    config = replace(config, hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0)
    length = min(_LENGTH, config.max_position_embeddings)
    text, _ = stream.read(None, config.vocab_size)
    pairs = PairSettings(max_seq_length=length, short_sequence_probability=0.5)
    drawn = batch(text.train, text.vocabulary, pairs, 0, step_indices(0, _SEQUENCES))
    cpu = torch.device("cpu")
    expected = [computed(config, drawn, Form("fp32", windows=windows), cpu) for windows in (False, True)]
    usual = resolve_auto(TrainSettings(precision="fp32"), config, device, sequences=1, length=length)
    forms = {}
    for name, form in FORMS.items():
        if not form.compiled or usual.compile == "on":
            with console.progress(f"correctness: {name}", None):
                before = _graphs()
                own = computed(config, drawn, form, device)
                found = _compared(own, expected[form.windows], TOLERANCES[form.precision])
                found["is_right"] &= not form.compiled or _graphs() > before  # it really was compiled
                forms[name] = found
    return {
        "sequences": _SEQUENCES,
        "tokens": len(drawn.ids),
        "loss_fp32_cpu": round(float(expected[0][0]), 6),
        "forms": forms,
        "is_right": all(found["is_right"] for found in forms.values()),
    }


def _graphs() -> int:
    return int(torch._dynamo.utils.counters["stats"]["unique_graphs"])


def computed(config: ModelConfig, drawn: PackedBatch, form: Form, device: torch.device) -> tuple[Tensor, Tensor]:
    """The loss and all gradients in a row, in fp32 on the CPU, of the model with the weights of seed 0."""
    config = replace(config, attention="window", attention_window=_WINDOW) if form.windows else config
    torch._dynamo.reset()  # a form compiled before must not stand for this one
    torch.manual_seed(0)
    model = PretrainingModel(config).train()
    place(model, TrainSettings(precision=form.precision, compile="on" if form.compiled else "off"), device)
    with padded_attention(form.padded):
        with autocast(form.precision, device):
            loss = pretraining_loss(model, drawn, device)
        loss.backward()  # type: ignore[no-untyped-call]
    gradients = torch.cat([p.grad.flatten().float().cpu() for p in model.parameters() if p.grad is not None])
    return loss.detach().float().cpu(), gradients


def _compared(
    found: tuple[Tensor, Tensor], expected: tuple[Tensor, Tensor], most: tuple[float, float]
) -> dict[str, Any]:
    off = [
        float(torch.linalg.vector_norm(x - y) / torch.linalg.vector_norm(y))
        for x, y in zip(found, expected, strict=True)
    ]
    return {
        "loss": round(float(found[0]), 6),
        "loss_off": float(f"{off[0]:.3g}"),
        "gradient_off": float(f"{off[1]:.3g}"),
        "is_right": off[0] <= most[0] and off[1] <= most[1],
    }


def rows(measured: Mapping[str, Any]) -> list[list[str]]:
    """A row each form for a table under `HEADERS`."""
    return [
        [name, f"{f['loss']:.5f}", f"{f['loss_off']:.1e}", f"{f['gradient_off']:.1e}", "yes" if f["is_right"] else "NO"]
        for name, f in measured["forms"].items()
    ]


HEADERS: Final = ("against the CPU in fp32", "loss", "loss off by", "gradients off by", "within rounding")
