"""`albert bench sharing`: ALBERT-base beside BERT-base in training and inference, by sequence length and batch.

Sharing saves parameters and no arithmetic. What it saves of time is the weights' way through memory, which weighs where
a batch has few tokens; so the two differ most there, and the plot shows from where on they do not.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from albert_cli import __version__, store
from albert_cli.bench import harness
from albert_cli.bench.speedup import buffer, cut_model, inference, training
from albert_cli.config import suggestion
from albert_cli.errors import ConfigError
from albert_cli.model.config import PRESETS
from albert_cli.report import page, plots
from albert_cli.report.page import Figure, Grid, Key, Page, Paragraph, Section, Table
from albert_cli.training.device import choose_device

LENGTHS: Final = (16, 32, 64, 128, 256, 512)
BATCHES: Final = (1, 2, 4, 8, 16, 32, 64)
WHAT: Final[dict[str, Callable[..., harness.Step]]] = {"training": training, "inference": inference}
JSON, PAGE = "bench.json", "report.html"


def run(models: Sequence[str], out: Path, tokens: int, rounds: int, precision: str, device_: str) -> dict[str, Any]:
    """Time the two models by turns in every cell of at most `tokens` tokens (0: 2,048 on a CPU), and draw the ratio.

    Cells that `out` has are not measured again, so that a stopped command goes on. Raises `ConfigError` where `out` was
    measured under other conditions.
    """
    if len(models) != 2:
        raise ConfigError(f"two models are compared, not {len(models)}", "such as albert-base bert-base")
    for name in models:
        if name not in PRESETS:
            raise ConfigError(f"{name}: no preset", suggestion(name, PRESETS) or f"presets: {', '.join(PRESETS)}")
    device = choose_device(device_)
    most = tokens or (2048 if device.type == "cpu" else 65_536)
    conditions = {**harness.conditions(device, precision), "models": list(models), "rounds": rounds}
    with store.lock(out):
        found: dict[str, Any] = {"conditions": conditions, "cells": {}} | harness.found_before(out / JSON, conditions)
        weights = buffer(models, device)
        made = {name: cut_model(name, weights) for name in models}
        for what, length, batch in ((w, n, b) for w in WHAT for n in LENGTHS for b in BATCHES if n * b <= most):
            key = f"{what} {length} {batch}"
            if key not in found["cells"]:
                cell = (length * batch, length, precision, device)
                steps = {name: WHAT[what](model, *cell) for name, model in made.items()}
                timed = harness.alternate(steps, rounds, device, key)
                found["cells"][key] = [round(1e3 * timed[name].median, 3) for name in models]
                store.write_json(out / JSON, found)
        store.write_text(out / PAGE, page.html(_page(found)))
    return found | {"report": str(out / PAGE)}


def times(found: Mapping[str, Any], what: str) -> dict[int, dict[int, float]]:
    """How many times as fast as the second model the first is: length -> batch -> ratio."""
    ratios: dict[int, dict[int, float]] = {}
    for key, (first, second) in found["cells"].items():
        kind, length, batch = key.split(" ")
        if kind == what:
            ratios.setdefault(int(length), {})[int(batch)] = second / first
    return ratios


def _page(found: Mapping[str, Any]) -> Page:
    first, second = found["conditions"]["models"]
    figures, tables = [], []
    for what in WHAT:
        ratios = times(found, what)
        lines = [
            plots.Line([(math.log2(batch), ratio) for batch, ratio in sorted(ratios[n].items())], i, "marked")
            for i, n in enumerate(ratios, start=1)
        ]
        level = plots.Level(1.0, f"as fast as {second}")
        drawing = plots.curves(lines, [level], describes=f"{what}: speed against the batch", x_label="batch, 2 to the")
        figures.append(Figure(drawing, what.capitalize(), [f"How many times as fast as {second} {first} is."]))
        rows = [[str(n), *(_cell(ratios[n].get(b)) for b in BATCHES)] for n in ratios]
        tables.append(Table([f"{what}: tokens a sequence", *map(str, BATCHES)], rows, caption="Columns: the batch."))
    legend = Paragraph([Key(f"{n} tokens", i) for i, n in enumerate(times(found, "training"), start=1)])
    c = found["conditions"]
    lead = f"{c['device']}, {c['threads']} threads, {c['precision']}; medians of {c['rounds']} rounds, by turns."
    footer = Section("", "", [Paragraph(f"Page made by albert {__version__}.", small=True)])
    title = f"{first} beside {second}"
    return Page(title, title, [Section("speed", "Speed", [legend, Grid(figures), *tables])], footer, lead)


def _cell(ratio: float | None) -> str:
    return "–" if ratio is None else f"{ratio:.2f}"


def text(found: Mapping[str, Any]) -> str:
    """The page's tables for a terminal."""
    return f"{page.markdown(_page(found))}\n{found['report']}"
