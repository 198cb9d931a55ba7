"""`albert bench sharing`: ALBERT-base beside BERT-base in training and inference, or the paper's "speedup" columns.

Sharing saves parameters and no arithmetic. What it saves of time is the weights' way through memory, which weighs where
a batch has few tokens; so the two differ most there, and the plot shows from where on they do not.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any, Final

import torch

from albert_cli import __version__, store
from albert_cli.bench import harness
from albert_cli.bench.harness import pretraining_loss, random_batch
from albert_cli.config import suggest
from albert_cli.counting import costs
from albert_cli.counting.paper import PAPER_MODELS
from albert_cli.errors import ConfigError
from albert_cli.model.config import PRESETS
from albert_cli.model.heads import PretrainingModel
from albert_cli.model.packing import pack
from albert_cli.report import figures
from albert_cli.report.figures import Figure, LegendEntry, LineSeries, series_color
from albert_cli.report.render import Table, render_html, render_markdown
from albert_cli.training import capacity
from albert_cli.training.device import autocast, choose_device, evaluation_mode

WHAT: Final = ("training", "inference")
LENGTHS: Final = (16, 32, 64, 128, 256, 512)
BATCHES: Final = (1, 2, 4, 8, 16, 32, 64)
# Speeds of training relative to BERT-large (Table 2) and to BERT-xlarge (version 1, arXiv 1909.11942v1), in the order
# of `SEVEN`: of 125,000 steps on TPUs, where communication and memory weigh as well.
PAPER: Final[dict[str, tuple[float | None, ...]]] = {
    "bert-large": (4.7, 1.0, None, 5.6, 1.7, 0.6, 0.3),
    "bert-xlarge": (17.7, 3.8, 1.0, 21.1, 6.5, 2.4, 1.2),
}
JSON, PAGE = "bench.json", "report.html"


def run(models: Sequence[str], out: Path, tokens: int, rounds: int, precision: str, device_: str) -> dict[str, Any]:
    """Time the models by turns in every cell; two are drawn beside each other, "paper" stands for the paper's seven.

    Cells that `out` has are not measured again, so that a stopped command goes on. The update is left out: at the
    paper's batch it is below a hundredth of a step. Weights are random and lie in one buffer that all models share, so
    that memory is needed for the largest alone. Raises `ConfigError` where there is less, and where `out` was measured
    under other conditions.
    """
    names = PAPER_MODELS if list(models) == ["paper"] else tuple(models)
    for name in names:
        if name not in PRESETS:
            raise ConfigError(f"{name}: no preset", suggest(name, PRESETS) or f"presets: {', '.join(PRESETS)}")
    if len(names) != 2 and names != PAPER_MODELS:
        raise ConfigError(f"two models are compared, not {len(names)}", "such as albert-base bert-base; or paper")
    device = choose_device(device_)
    conditions = {**harness.conditions(device, precision), "models": list(names), "rounds": rounds}
    if names == PAPER_MODELS:
        conditions["tokens"] = tokens  # of one batch alone, where two models are compared over many
    made = _models(names, device)
    with store.lock(out):
        found: dict[str, Any] = {"conditions": conditions, "cells": {}} | harness.load_previous(out / JSON, conditions)
        for what, length, batch in _cells(names, tokens, device):
            key = f"{what} {length} {batch}"
            if key not in found["cells"]:
                steps = {name: _step(what, model, length, batch, precision, device) for name, model in made.items()}
                seconds, _ = harness.time_alternating(steps, rounds, device, key)
                found["cells"][key] = [round(1e3 * median(seconds[name]), 3) for name in names]
                store.write_json(out / JSON, found)
        store.write_text(out / PAGE, render_html("benchmark", _page(found)))
    return found | {"report": str(out / PAGE)}


def _cells(names: Sequence[str], tokens: int, device: torch.device) -> list[tuple[str, int, int]]:
    """(what, tokens a sequence, batch) of every cell; of the seven a training batch, and the latency of a sequence."""
    few = device.type == "cpu"
    if names == PAPER_MODELS:
        # On a CPU a round of 128 tokens is 6 TFLOP, half a minute on two cores.
        length, most = (128, tokens or 128) if few else (512, tokens or 8192)
        return [("training", length, max(1, most // length)), ("inference", length, 1)]
    most = tokens or (2048 if few else 65_536)
    return [(what, n, b) for what in WHAT for n in LENGTHS for b in BATCHES if n * b <= most]


def _models(names: Sequence[str], device: torch.device) -> dict[str, PretrainingModel]:
    """The presets without dropout; their parameters are cut from one buffer. Raises `ConfigError` without memory."""
    size, name = max((costs.count_parameters(PRESETS[name]).total, name) for name in names)
    free = capacity.available_memory(device)
    if free is not None and free < 9 * size:
        raise ConfigError(
            f"{name} takes {9 * size / 1e9:.0f} GB of memory, {free / 1e9:.0f} GB are free", "choose smaller models"
        )
    torch.manual_seed(0)
    weights, made = torch.empty(size, device=device).uniform_(-0.03, 0.03), {}
    for name in names:
        config, used = replace(PRESETS[name], hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0), 0
        with torch.device("meta"):
            made[name] = PretrainingModel(config)
        for module in made[name].modules():
            for key, parameter in module.named_parameters(recurse=False):
                cut = weights[used : used + parameter.numel()].view(parameter.shape)
                setattr(module, key, torch.nn.Parameter(cut))
                used += parameter.numel()
    return made


def _step(
    what: str, model: PretrainingModel, length: int, batch: int, precision: str, device: torch.device
) -> harness.Step:
    """A batch of full sequences: forward and backward pass in training, through the encoder in inference."""
    drawn = random_batch([length] * batch, model.config.vocab_size)
    if what == "training":
        return harness.make_passes(model, partial(pretraining_loss, model, device), [drawn], precision)

    def step() -> float:
        with evaluation_mode(model), autocast(precision, device):
            model.encoder(pack(drawn, device), all_rows=True)
        return 0.0

    return step


# ---------------------------------------------------------------- shown


def times(found: Mapping[str, Any], what: str) -> dict[int, dict[int, float]]:
    """How many times as fast as the second model the first is: length -> batch -> ratio."""
    ratios: dict[int, dict[int, float]] = {}
    for key, (first, second) in found["cells"].items():
        kind, length, batch = key.split(" ")
        if kind == what:
            ratios.setdefault(int(length), {})[int(batch)] = second / first
    return ratios


@dataclass(frozen=True)
class SpeedPage:
    """What the page's template lays out."""

    title: str
    summary: str
    note: str
    tables: Sequence[Table]
    version: str = __version__
    legend: Sequence[LegendEntry] = ()
    figures: Sequence[Figure] = ()
    facts: Sequence[object] = ()


def _page(found: Mapping[str, Any]) -> SpeedPage:
    c = found["conditions"]
    summary = f"{c['device']}, {c['threads']} threads, {c['precision']}; medians of {c['rounds']} rounds, interleaved."
    return _speedups(found, summary) if c["models"] == list(PAPER_MODELS) else _ratios(found, summary)


def _ratios(found: Mapping[str, Any], summary: str) -> SpeedPage:
    """Return the speed of the first of two models relative to the second as figures and tables."""
    first, second = found["conditions"]["models"]
    drawings = []
    tables = []
    for what in WHAT:
        ratios = times(found, what)
        series = [
            LineSeries(
                [(math.log2(batch), ratio) for batch, ratio in sorted(ratios[n].items())], series_color(i), "marked"
            )
            for i, n in enumerate(ratios)
        ]
        image = figures.draw_curves(series, {1.0: f"as fast as {second}"}, x_label="log2 of the batch size")
        caption = f"Speed of {first} relative to {second}."
        drawings.append(Figure(what.capitalize(), f"{what}: relative speed by batch size", image, caption))
        rows = [[str(n), *(_cell(ratios[n].get(b)) for b in BATCHES)] for n in ratios]
        tables.append(Table([f"{what}: tokens per sequence", *(f"batch {b}" for b in BATCHES)], rows))
    legend = [LegendEntry(f"{n} tokens", series_color(i)) for i, n in enumerate(times(found, "training"))]
    return SpeedPage(f"{first} and {second}", summary, "", tables, legend=legend, figures=drawings)


def _cell(ratio: float | None) -> str:
    return "–" if ratio is None else f"{ratio:.2f}"


def _speedups(found: Mapping[str, Any], summary: str) -> SpeedPage:
    """Return the measured ratios next to those of the paper and those of the FLOPs."""
    training, inference = (dict(zip(PAPER_MODELS, cell, strict=True)) for cell in found["cells"].values())
    _, length, batch = next(iter(found["cells"])).split(" ")
    flops = {name: costs.training_flops(PRESETS[name], int(length)) for name in PAPER_MODELS}
    note = (
        f"A training batch of {batch} x {length} tokens, one sequence for inference. "
        "Fewer tokens than the paper's 2 million a batch, so that all seven fit here. Every weight and its gradient "
        "are read and written once a batch, however few tokens it has: that is to the disadvantage of the large "
        "BERTs, which have the most weights, so that ALBERT looks better here than with the paper's batch."
    )
    tables = []
    for base, printed in PAPER.items():
        rows = []
        for name, paper in zip(PAPER_MODELS, printed, strict=True):
            ours, by_flops, latency = (of[base] / of[name] for of in (training, flops, inference))
            milliseconds = (f"{of[name]:,.1f}" for of in (training, inference))
            rows.append([name, *map(_cell, (ours, paper, by_flops, latency)), *milliseconds])
        headers = (f"speed, {base} = 1", "training", "paper", "by FLOPs", "inference", "training ms", "inference ms")
        tables.append(Table(headers, rows))
    return SpeedPage("The paper's speedup columns", summary, note, tables)


def text(found: Mapping[str, Any]) -> str:
    """The page's tables for a terminal."""
    return f"{render_markdown('benchmark', _page(found))}\n{found['report']}"
