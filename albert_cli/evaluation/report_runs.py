"""The report's section on pretraining: curves of every run over each other, and a table of what they are."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from contextlib import suppress

from albert_cli.console import duration
from albert_cli.counting.costs import count
from albert_cli.errors import AlbertError
from albert_cli.evaluation import plots
from albert_cli.evaluation.page import Markup, figure, join, key, table, tag
from albert_cli.evaluation.results import Pretraining, number
from albert_cli.model.config import ModelConfig

_ACCURACIES = {
    "mlm_accuracy": "masked words right",
    "order_accuracy": "sentence order right",
    "order_accuracy_long": "sentence order right, both segments of 64 pieces",
    "nsp_accuracy": "next sentence right",
    "sop_accuracy": "swapped sentences right",
}
_ROWS = 12  # of the table of held-out scores, for each run and corpus


def section(runs: Sequence[Pretraining]) -> Markup:
    """Curves of loss, accuracies and speed, then the runs' shapes, lengths and last figures."""
    legend = [tag("p", *(key(run.name, _colour(i)) for i, run in _numbered(runs)))] if len(runs) > 1 else []
    further = dict.fromkeys(name for run in runs for name in run.further)
    drawn = [panel for corpus in ("", *further) for panel in _panels(runs, corpus)]
    panels = [panel for panel in (*drawn, _speed_panel(runs)) if panel is not None]
    columns = [_facts(run) for run in runs]
    labels = list(dict.fromkeys(label for column in columns for label in column))
    rows = [[label, *(column.get(label, "–") for column in columns)] for label in labels]
    facts = tag("div", table(["", *(run.name for run in runs)], rows), class_="compact")
    return join(*legend, tag("div", *panels, class_="grid"), *_numbers(runs), facts)


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
    facts |= _accuracies(run)
    for name in run.further:
        if (loss := last(run, f"{name}/mlm_loss")) is not None:
            facts[f"{name}: masked-word loss, nats"] = f"{loss:.3f}"
        facts |= _accuracies(run, f"{name}/", f"{name}: ")
    if speeds := [value for _, value in run.series("tokens_per_second")]:
        facts["tokens a second, median"] = f"{statistics.median(speeds):,.0f}"
    if seconds := [value for _, value in run.series("seconds")]:
        facts["time"] = duration(max(seconds))
    return facts


def _accuracies(run: Pretraining, prefix: str = "", said: str = "held-out ") -> dict[str, str]:
    """The last shares that were right on a corpus (`prefix` is "" or "NAME/"), by what is counted."""
    found = {label: last(run, prefix + name) for name, label in _ACCURACIES.items()}
    return {f"{said}{label}, %": f"{100 * value:.1f}" for label, value in found.items() if value is not None}


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


def _panels(runs: Sequence[Pretraining], corpus: str) -> list[Markup | None]:
    """Loss and accuracies on the held-out text (`corpus` is ""), or on another corpus by its name."""
    prefix, of = (f"{corpus}/", f", {corpus}") if corpus else ("", "")

    def lines(name: str) -> list[plots.Line]:
        return [plots.Line(run.series(prefix + name, heldout=True), i, "marked") for i, run in _numbered(runs)]

    where = f"of {corpus}" if corpus else "held-out"
    accuracies = [
        _panel(label.capitalize() + of, lines(name), levels, f"Per cent, on {corpus or 'held-out text'}.", percent=True)
        for name, label, levels in (
            ("mlm_accuracy", _ACCURACIES["mlm_accuracy"], []),
            ("order_accuracy", _ACCURACIES["order_accuracy"], [plots.Level(0.5, "chance")]),
            ("order_accuracy_long", _ACCURACIES["order_accuracy_long"], [plots.Level(0.5, "chance")]),
        )
    ]
    losses, levels = lines("mlm_loss"), []
    keys: list[str] = [key(where, 1, "line")] if len(runs) == 1 else []
    if not corpus:
        losses += [plots.Line(run.series("mlm_loss"), i, "faint") for i, run in _numbered(runs)]
        keys.append(key("training", 1, "faint") if len(runs) == 1 else "Faint: training. ")
        entropies = dict.fromkeys(run.unigram_entropy for run in runs if run.unigram_entropy is not None)
        levels = [plots.Level(value, f"unigram entropy {value:.2f}") for value in entropies]
    return [_panel("Masked-word loss" + of, losses, levels, *keys, "Nats a masked token."), *accuracies]


def _speed_panel(runs: Sequence[Pretraining]) -> Markup | None:
    lines = [plots.Line(run.series("tokens_per_second"), i, "thin") for i, run in _numbered(runs)]
    return _panel("Speed", lines, [], "Tokens a second.", from_zero=True)


def _numbers(runs: Sequence[Pretraining]) -> list[Markup]:
    """The held-out curves as a table, of many points every n-th and the last; empty where nothing was held out."""
    columns = {"mlm_loss": "masked-word loss"} | _ACCURACIES
    rows: list[list[str]] = []
    used: set[str] = set()
    for run in runs:
        for corpus in ("", *run.further):
            prefix = f"{corpus}/" if corpus else ""
            points = {name: dict(run.series(prefix + name, heldout=True)) for name in columns}
            used |= {name for name in columns if points[name]}
            steps = sorted({step for of_name in points.values() for step in of_name})
            shown = {*steps[:: -(-len(steps) // _ROWS) or 1], *steps[-1:]}
            for step in sorted(shown):
                values = (_value(name, points[name].get(step)) for name in columns)
                rows.append([run.name, corpus or "held-out", f"{step:,.0f}", *values])
    if not rows:
        return []
    kept = [0, 1, 2, *(3 + i for i, name in enumerate(columns) if name in used)]
    headers = ["run", "text", "step", "masked-word loss, nats", *(f"{label}, %" for label in _ACCURACIES.values())]
    shown_rows = [[row[i] for i in kept] for row in rows]
    body = table([headers[i] for i in kept], shown_rows, text_columns=2)
    return [tag("details", tag("summary", "The curves as numbers"), body)]


def _value(name: str, value: float | None) -> str:
    if value is None:
        return "–"
    return f"{value:.3f}" if name == "mlm_loss" else f"{100 * value:.1f}"


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
