"""The paper's "speedup" columns on this machine: the seven models' training and inference, relative to one of them.

Table 2 gives the speed of training relative to BERT-large; the paper's first version (arXiv 1909.11942v1) gives it
relative to BERT-xlarge. The paper's are of 125,000 steps on TPUs, where communication and memory weigh as well.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, Final

import torch

from albert_cli import console
from albert_cli.bench.harness import Step, alternate, evaluating, passes
from albert_cli.bench.step import pretraining_loss
from albert_cli.bench.stream import random_batch
from albert_cli.counting import costs
from albert_cli.counting.costs import count
from albert_cli.counting.paper import SEVEN
from albert_cli.errors import ConfigError
from albert_cli.model.config import PRESETS
from albert_cli.model.heads import PretrainingModel
from albert_cli.model.packing import pack
from albert_cli.training import capacity
from albert_cli.training.device import autocast

# Relative to BERT-large (Table 2), and relative to BERT-xlarge (first version).
PAPER: Final[dict[str, tuple[float | None, float]]] = {
    "bert-base": (4.7, 17.7),
    "bert-large": (1.0, 3.8),
    "bert-xlarge": (None, 1.0),
    "albert-base": (5.6, 21.1),
    "albert-large": (1.7, 6.5),
    "albert-xlarge": (0.6, 2.4),
    "albert-xxlarge": (0.3, 1.2),
}
_CPU_ROUNDS: Final = 3
BASES: Final = ("bert-large", "bert-xlarge")


def measure(device: torch.device, precision: str, rounds: int, tokens: int = 0, length: int = 0) -> dict[str, Any]:
    """Time all seven, alternating: forward and backward pass, and the latency of one sequence through the encoder.

    tokens: of a training batch; 0: 128 on a CPU, 8,192 elsewhere. length: of a sequence; 0: 128 on a CPU, the paper's
    512 elsewhere. On a CPU there are at most three rounds: a round is 6 TFLOP at that size, half a minute on two cores.
    The update is left out: at the paper's batch it is below a hundredth of a step. Weights are random
    and lie in one buffer that all models share, so that memory is needed for the largest alone (10 GB in fp32 with its
    gradients). Raises `ConfigError` where there is less.
    """
    few = device.type == "cpu"
    length, tokens = length or (128 if few else 512), tokens or (128 if few else 8192)
    rounds = min(rounds, _CPU_ROUNDS) if few else rounds
    weights = buffer(SEVEN, device)
    variants: dict[str, Step] = {}
    for name in SEVEN:
        model = cut_model(name, weights)
        variants[f"{name} training"] = training(model, tokens, length, precision, device)
        variants[f"{name} inference"] = inference(model, length, length, precision, device)
    seconds = {key: timing.median for key, timing in alternate(variants, rounds, device, "speedup").items()}
    flops = {name: costs.training_flops(PRESETS[name], length) for name in SEVEN}
    rows: dict[str, dict[str, float | None]] = {}
    for name in SEVEN:
        rows[name] = {f"{what}_ms": round(1e3 * seconds[f"{name} {what}"], 2) for what in ("training", "inference")}
        for number, base in enumerate(BASES):
            key = base.replace("-", "_")
            for what in ("training", "inference"):
                rows[name][f"{what}_against_{key}"] = round(seconds[f"{base} {what}"] / seconds[f"{name} {what}"], 2)
            rows[name][f"flops_against_{key}"] = round(flops[base] / flops[name], 2)
            rows[name][f"paper_against_{key}"] = PAPER[name][number]
    return {"tokens": max(1, tokens // length) * length, "sequence_length": length, "rounds": rounds, "models": rows}


def largest(names: Sequence[str], device: torch.device) -> int:
    """The parameters of the largest of these presets; raises `ConfigError` where memory is short for it."""
    size, name = max((count(PRESETS[name]).total, name) for name in names)
    free = capacity.free(device)
    if free is not None and free < 9 * size:
        raise ConfigError(
            f"{name} takes {9 * size / 1e9:.0f} GB of memory, {free / 1e9:.0f} GB are free",
            "leave it out, and with it --speedup, which times it too",
        )
    return size


def buffer(names: Sequence[str], device: torch.device) -> torch.Tensor:
    """Random numbers for the weights of the largest of these presets; raises `ConfigError` where memory is short."""
    size = largest(names, device)
    torch.manual_seed(0)
    return torch.empty(size, device=device).uniform_(-0.03, 0.03)


def cut_model(name: str, weights: torch.Tensor) -> PretrainingModel:
    """The preset without dropout, its parameters cut from the buffer one after the other."""
    config = replace(PRESETS[name], hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0)
    with torch.device("meta"):
        model = PretrainingModel(config)
    used = 0
    for module in model.modules():
        for key, parameter in module.named_parameters(recurse=False):
            cut = weights[used : used + parameter.numel()].view(parameter.shape)
            setattr(module, key, torch.nn.Parameter(cut))
            used += parameter.numel()
    return model


def training(model: PretrainingModel, tokens: int, length: int, precision: str, device: torch.device) -> Step:
    """Forward and backward pass of a batch of full sequences."""
    batch = random_batch([length] * max(1, tokens // length), model.config.vocab_size)
    return passes(model, [lambda: pretraining_loss(model, batch, device)], precision)


def inference(model: PretrainingModel, tokens: int, length: int, precision: str, device: torch.device) -> Step:
    """A batch of full sequences through the encoder."""
    batch = random_batch([length] * max(1, tokens // length), model.config.vocab_size)

    def step() -> float:
        with evaluating(model), autocast(precision, device):
            model.encoder(pack(batch, device), all_rows=True)
        return 0.0

    return step


def text(measured: Mapping[str, Any]) -> str:
    """The measured ratios beside those of the paper, and beside those of the FLOPs."""

    def shown(value: float | None) -> str:
        return "–" if value is None else f"{value:.1f}x"

    parts = [
        console.wrapped(
            [
                f"{measured['tokens']:,} tokens a training batch, sequences of {measured['sequence_length']}, "
                f"medians of {measured['rounds']} rounds: fewer than the paper's 2 million and 512, so that all seven "
                "fit here; the ratios are what compares.",
                "With few tokens the weights' own way through memory weighs more: every weight and its gradient are "
                "read and written once a batch, however few tokens it has. That is to the disadvantage of the large "
                "BERTs, which have the most weights (1.3 billion in BERT-xlarge), so that ALBERT looks better here "
                "than with the paper's batch on one device.",
            ]
        )
    ]
    for base in BASES:
        columns = [f"{what}_against_{base.replace('-', '_')}" for what in ("training", "paper", "flops", "inference")]
        where = "Table 2" if base == "bert-large" else "arXiv v1"
        headers = (f"speed, {base} = 1", "training", where, "by FLOPs", "inference", "training ms", "inference ms")
        rows = [
            (name, *(shown(row[c]) for c in columns), f"{row['training_ms']:,.1f}", f"{row['inference_ms']:,.1f}")
            for name, row in measured["models"].items()
        ]
        parts.append(console.table(headers, rows))
    return "\n\n".join(parts)
