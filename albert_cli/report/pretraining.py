"""The report's section on pretraining: curves of every run over each other, and a table of what they are."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from contextlib import suppress

from albert_cli.console import format_duration
from albert_cli.counting.costs import count_parameters
from albert_cli.errors import AlbertError
from albert_cli.model.config import ModelConfig
from albert_cli.report import plots
from albert_cli.report.collect import Curve, PretrainingRun, setting
from albert_cli.report.page import Block, Details, Fact, Figure, Grid, Key, Paragraph, Part, Table

_ACCURACIES = {
    "mlm_accuracy": "masked words right",
    "order_accuracy": "sentence order right",
    "nsp_accuracy": "next sentence right",
    "sop_accuracy": "swapped sentences right",
}
_ROWS = 12  # of the table of held-out scores, for each run and corpus


def facts(runs: Sequence[PretrainingRun]) -> list[Fact]:
    """The last held-out figures of a single run; several runs have no one figure."""
    if len(runs) != 1:
        return []
    (run,) = runs
    found, loss, entropy = [], run.last("mlm_loss"), run.last("unigram_entropy")
    if loss is not None:
        beside = f"nats; the unigram entropy is {entropy:.2f}" if entropy is not None else "nats a masked token"
        found.append(Fact("Held-out masked-word loss", f"{loss:.2f}", beside))
    for name, beside in (
        ("mlm_accuracy", "per cent of the held-out masked tokens"),
        ("order_accuracy", f"per cent of the held-out pairs; chance is {100 * _chance(run):.0f}"),
    ):
        if (value := run.last(name)) is not None:
            found.append(Fact(_ACCURACIES[name].capitalize(), f"{100 * value:.1f}", beside))
    return found


def section(runs: Sequence[PretrainingRun]) -> list[Block]:
    """Curves of loss, accuracies and speed, then the runs' shapes, lengths and last figures."""
    numbered = dict(enumerate(runs, start=1))
    legend = [Paragraph([Key(run.name, i) for i, run in numbered.items()])] if len(runs) > 1 else []
    corpora = dict.fromkeys(corpus for run in runs for corpus in run.heldout)
    panels = [panel for corpus in corpora for panel in _panels(numbered, corpus)]
    speed = {i: run.training.get("tokens_per_second", []) for i, run in numbered.items()}
    panels += _panel("Speed", _lines(speed, "thin"), {}, "Tokens a second.", from_zero=True)
    columns = [_facts(run) for run in runs]
    rows = [
        [label, *(column.get(label, "–") for column in columns)]
        for label in dict.fromkeys(label for column in columns for label in column)
    ]
    table = Table(["", *(run.name for run in runs)], rows, look="compact")
    return [*legend, Grid(panels), *_numbers(runs), table]


def _facts(run: PretrainingRun) -> dict[str, str]:
    found = {}
    with suppress(AlbertError):  # a recipe of another version is no reason to leave a run out of the report
        if isinstance(values := run.recipe.get("model"), dict):
            config = ModelConfig.from_values(values, run.name)
            sizes = f"H {config.hidden_size}, E {config.embedding_size}, {config.num_attention_heads} heads"
            found["shape"] = f"{config.num_hidden_layers} layers, {sizes}"
            if config.is_sparse:
                found["a token sees"] = config.attention_summary
            found["layers share"] = {"ffn": "feed-forward"}.get(config.sharing, config.sharing)
            found["parameters"] = f"{count_parameters(config).total:,}"
    losses = [*run.training.get("loss", []), *run.points("mlm_loss")]
    planned = setting(run.recipe, "schedule", "total_steps")
    if losses:
        steps = max(step for step, _ in losses)
        found["steps"] = f"{steps:,.0f}" + (f" of {planned:,.0f}" if planned and planned != steps else "")
    for label, (table, key) in {
        "sequences a step": ("train", "batch_size"),
        "longest sequence": ("data", "max_seq_length"),
    }.items():
        if (value := setting(run.recipe, table, key)) is not None:
            found[label] = f"{value:,.0f}"
    if (loss := run.last("mlm_loss")) is not None:
        found["held-out masked-word loss, nats"] = f"{loss:.3f}"
    if (entropy := run.last("unigram_entropy")) is not None:
        found["unigram entropy of the same text, nats"] = f"{entropy:.3f}"
    for corpus in run.heldout:
        where = f"{corpus}: " if corpus else "held-out "
        if corpus and (loss := run.last("mlm_loss", corpus)) is not None:
            found[f"{where}masked-word loss, nats"] = f"{loss:.3f}"
        for name, label in _ACCURACIES.items():
            if (value := run.last(name, corpus)) is not None:
                found[f"{where}{label}, %"] = f"{100 * value:.1f}"
    if speeds := run.training.get("tokens_per_second"):
        found["tokens a second, median"] = f"{statistics.median(value for _, value in speeds):,.0f}"
    if seconds := run.training.get("seconds"):
        found["time"] = format_duration(max(value for _, value in seconds))
    return found


def _panels(runs: Mapping[int, PretrainingRun], corpus: str) -> list[Figure]:
    """Loss and accuracies on the held-out text (`corpus` is ""), or on another corpus by its name."""
    of, where = (f", {corpus}", f"of {corpus}") if corpus else ("", "held-out")

    def heldout(name: str) -> list[plots.Line]:
        return _lines({i: run.points(name, corpus) for i, run in runs.items()}, "marked")

    losses, levels = heldout("mlm_loss"), dict[float, str]()
    keys: list[Part] = [Key(where, 1, "line")] if len(runs) == 1 else []
    if not corpus:
        losses += _lines({i: run.training.get("mlm_loss", []) for i, run in runs.items()}, "faint")
        keys.append(Key("training", 1, "faint") if len(runs) == 1 else "Faint: training. ")
        entropies = [run.last("unigram_entropy") for run in runs.values()]
        levels = {value: f"unigram entropy {value:.2f}" for value in entropies if value is not None}
    panels = _panel("Masked-word loss" + of, losses, levels, *keys, "Nats a masked token.")
    chance = {_chance(run): "chance" for run in runs.values()}
    for name, levels in (("mlm_accuracy", {}), ("order_accuracy", chance)):
        title, beside = _ACCURACIES[name].capitalize() + of, f"Per cent, on {corpus or 'held-out text'}."
        panels += _panel(title, heldout(name), levels, beside, percent=True)
    return panels


def _chance(run: PretrainingRun) -> float:
    """The share of sentence orders that a guess gets right: one label of two, and of three in three-way pretraining."""
    data = run.recipe.get("data")
    return 1 / 3 if isinstance(data, dict) and data.get("sentence_loss") == "three-way" else 1 / 2


def _lines(points: Mapping[int, Curve], kind: plots.Kind) -> list[plots.Line]:
    return [plots.Line(of, series, kind) for series, of in points.items() if of]


def _panel(
    title: str,
    lines: Sequence[plots.Line],
    levels: Mapping[float, str],
    *caption: Part,
    percent: bool = False,
    from_zero: bool = False,
) -> list[Figure]:
    if not lines:
        return []
    drawing = plots.curves(lines, levels, describes=f"{title} over steps", percent=percent, from_zero=from_zero)
    return [Figure(drawing, title, caption)]


def _numbers(runs: Sequence[PretrainingRun]) -> list[Block]:
    """The held-out curves as a table, of many points every n-th and the last; empty where nothing was held out."""
    labels = {"mlm_loss": "masked-word loss, nats"} | {name: f"{label}, %" for name, label in _ACCURACIES.items()}
    scored = [(run, corpus) for run in runs for corpus in run.heldout]
    used = [name for name in labels if any(run.points(name, corpus) for run, corpus in scored)]
    rows = []
    for run, corpus in scored:
        points = {name: dict(run.points(name, corpus)) for name in used}
        steps = sorted({step for of in points.values() for step in of})
        for step in sorted({*steps[:: -(-len(steps) // _ROWS) or 1], *steps[-1:]}):
            values = {name: of[step] for name, of in points.items() if step in of}
            shown = {name: f"{v:.3f}" if name == "mlm_loss" else f"{100 * v:.1f}" for name, v in values.items()}
            rows.append([run.name, corpus or "held-out", f"{step:,.0f}", *(shown.get(name, "–") for name in used)])
    table = Table(["run", "text", "step", *(labels[name] for name in used)], rows, text_columns=2)
    return [Details("The curves as numbers", [table])] if rows else []
