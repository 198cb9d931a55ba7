"""The report's section on pretraining: curves of every run over each other, and a table of what they are."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from contextlib import suppress

from albert_cli.console import duration
from albert_cli.errors import AlbertError
from albert_cli.evaluation import plots
from albert_cli.evaluation.page import Markup, figure, join, key, table, tag
from albert_cli.evaluation.results import Pretraining, number
from albert_cli.model.config import ModelConfig
from albert_cli.model.params import count


def section(runs: Sequence[Pretraining]) -> Markup:
    """Curves of loss, accuracies and speed, then the runs' shapes, lengths and last figures."""
    legend = [tag("p", *(key(run.name, _colour(i)) for i, run in _numbered(runs)))] if len(runs) > 1 else []
    panels = [p for p in (_loss_panel(runs), *_accuracy_panels(runs), _speed_panel(runs)) if p is not None]
    columns = [_facts(run) for run in runs]
    labels = list(dict.fromkeys(label for column in columns for label in column))
    rows = [[label, *(column.get(label, "–") for column in columns)] for label in labels]
    facts = tag("div", table(["", *(run.name for run in runs)], rows), class_="compact")
    return join(*legend, tag("div", *panels, class_="grid"), facts)


def last(run: Pretraining, name: str) -> float | None:
    """The last held-out value of a figure, or None."""
    points = run.series(name, heldout=True)
    return points[-1][1] if points else None


def _numbered(runs: Sequence[Pretraining]) -> list[tuple[int, Pretraining]]:
    return list(enumerate(runs, start=1))


def _colour(series: int) -> int:
    return (series - 1) % plots.SERIES + 1


# ---------------------------------------------------------------- facts


def _facts(run: Pretraining) -> dict[str, str]:
    facts = _shape(run)
    steps = max((x for x, _ in [*run.series("loss"), *run.series("mlm_loss", heldout=True)]), default=None)
    planned = number(run.setting("schedule", "total_steps"))
    if steps is not None:
        facts["steps"] = f"{steps:,.0f}" + (f" of {planned:,.0f}" if planned and planned != steps else "")
    for label, section_name, name in (
        ("sequences a step", "train", "batch_size"),
        ("longest sequence", "data", "max_seq_length"),
    ):
        if (value := number(run.setting(section_name, name))) is not None:
            facts[label] = f"{value:,.0f}"
    if (loss := last(run, "mlm_loss")) is not None:
        facts["held-out masked-word loss, nats"] = f"{loss:.3f}"
    if run.unigram_entropy is not None:
        facts["unigram entropy of the same text, nats"] = f"{run.unigram_entropy:.3f}"
    for label, name in (
        ("masked words right, %", "mlm_accuracy"),
        ("sentence order right, %", "order_accuracy"),
        ("sentence order right where both segments have 64 pieces, %", "order_accuracy_long"),
    ):
        if (value := last(run, name)) is not None:
            facts[f"held-out {label}"] = f"{100 * value:.1f}"
    if speeds := [value for _, value in run.series("tokens_per_second")]:
        facts["tokens a second, median"] = f"{statistics.median(speeds):,.0f}"
    if seconds := [value for _, value in run.series("seconds")]:
        facts["time"] = duration(max(seconds))
    return facts


def _shape(run: Pretraining) -> dict[str, str]:
    # A recipe of another version is no reason to leave a run out of the report.
    with suppress(AlbertError):
        values = run.recipe.get("model")
        if isinstance(values, dict):
            config = ModelConfig.from_values(values, run.name)
            sizes = f"H {config.hidden_size}, E {config.embedding_size}, {config.num_attention_heads} heads"
            return {
                "shape": f"{config.num_hidden_layers} layers, {sizes}",
                "layers share": {"ffn": "feed-forward"}.get(config.sharing, config.sharing),
                "parameters": f"{count(config).total:,}",
            }
    return {}


# ---------------------------------------------------------------- curves


def _loss_panel(runs: Sequence[Pretraining]) -> Markup | None:
    lines: list[plots.Line] = []
    for i, run in _numbered(runs):
        lines.append(plots.Line(run.series("mlm_loss"), i, "faint"))
        lines.append(plots.Line(run.series("mlm_loss", heldout=True), i, "marked"))
    entropies = dict.fromkeys(run.unigram_entropy for run in runs if run.unigram_entropy is not None)
    levels = [plots.Level(value, f"unigram entropy {value:.2f}") for value in entropies]
    single = len(runs) == 1
    keys = [key("held-out", 1, "line"), key("training", 1, "faint")] if single else ["Faint: training. "]
    return _panel("Masked-word loss", lines, levels, *keys, "Nats a masked token.")


def _accuracy_panels(runs: Sequence[Pretraining]) -> list[Markup | None]:
    def lines(name: str) -> list[plots.Line]:
        return [plots.Line(run.series(name, heldout=True), i, "marked") for i, run in _numbered(runs)]

    said = "Per cent, on held-out text."
    chance = [plots.Level(0.5, "chance")]
    return [
        _panel("Masked words right", lines("mlm_accuracy"), [], said, percent=True),
        _panel("Sentence order right", lines("order_accuracy"), chance, said, percent=True),
        _panel(
            "Sentence order right, both segments of 64 pieces",
            lines("order_accuracy_long"),
            chance,
            said,
            percent=True,
        ),
    ]


def _speed_panel(runs: Sequence[Pretraining]) -> Markup | None:
    lines = [plots.Line(run.series("tokens_per_second"), i, "thin") for i, run in _numbered(runs)]
    return _panel("Speed", lines, [], "Tokens a second.", from_zero=True)


def _panel(
    title: str,
    lines: Sequence[plots.Line],
    levels: Sequence[plots.Level],
    *caption: str,
    percent: bool = False,
    from_zero: bool = False,
) -> Markup | None:
    drawn = [line for line in lines if line.points]
    if not drawn:
        return None
    drawing = plots.curves(drawn, levels, describes=f"{title} over steps", percent=percent, from_zero=from_zero)
    return figure(drawing, *caption, title=title)
