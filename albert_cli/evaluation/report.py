"""One self-contained HTML page from any set of result directories: curves, scores with every seed, provenance."""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from albert_cli import __version__, store
from albert_cli.console import duration
from albert_cli.errors import AlbertError
from albert_cli.evaluation import plots
from albert_cli.evaluation.page import Markup, document, figure, join, key, table, tag
from albert_cli.evaluation.results import Evaluation, Examples, Pretraining, Results, collect, number

METRICS = {
    "mcc": "Matthews correlation",
    "f1": "F1",
    "macro_f1": "macro F1",
    "pearson": "Pearson correlation",
    "spearman": "Spearman correlation",
}


def build(directories: Sequence[Path], out: Path, title: str = "") -> dict[str, Any]:
    """Write the report on everything below `directories` to the file `out`, and say what is on it.

    Raises InputError for a missing directory or when there is nothing to report, CheckpointError for a
    damaged file.
    """
    results = collect(directories)
    results.evaluations = _told_apart(results.evaluations)
    page = _page(results, title)
    out.parent.mkdir(parents=True, exist_ok=True)
    store.write_text(out, page)
    return {
        "report": str(out),
        "bytes": len(page.encode()),
        "pretraining": [run.name for run in results.pretraining],
        "tasks": list(dict.fromkeys(e.task for e in results.evaluations)),
        "models": list(dict.fromkeys(e.model for e in results.evaluations)),
        "scores": sum(len(e.scores) for e in results.evaluations),
        "examples": len(results.examples),
    }


def _page(results: Results, title: str) -> str:
    series = _series(results)
    sections: list[tuple[str, str, Markup]] = []
    if results.pretraining:
        sections.append(("pretraining", "Pretraining", _pretraining(results.pretraining)))
    if results.evaluations:
        sections.append(("scores", "Scores", _scores(results.evaluations, series)))
        learning = _learning(results.evaluations, series)
        if learning:
            sections.append(("learning", "Learning curves", learning))
    for i, examples in enumerate(results.examples, start=1):
        sections.append((f"examples-{i}", examples.title, _examples(examples)))
    sections.append(("provenance", "Provenance", _provenance(results)))
    title = title or _title(results)
    parts = [tag("section", tag("h2", name), body, id=anchor) for anchor, name, body in sections[:-1]]
    anchor, name, body = sections[-1]
    footer = tag("footer", tag("h2", name), body, id=anchor)
    navigation = [(anchor, name) for anchor, name, _ in sections]
    return document(title, navigation, _header(results, title), *parts, footer)


def _told_apart(evaluations: Sequence[Evaluation]) -> list[Evaluation]:
    """The same with directory names added where two results would share a task and a model's name."""
    times = Counter((e.task, e.model) for e in evaluations)
    return [
        replace(e, model=f"{e.model} ({e.path.name})") if times[e.task, e.model] > 1 else e for e in evaluations
    ]


def _series(results: Results) -> dict[str, int]:
    """A colour for every run and model, the same on the whole page; a checkpoint has its run's."""
    series = {run.name: i for i, run in enumerate(results.pretraining, start=1)}
    for model in _models(results.evaluations):
        run = next((r.name for r in results.pretraining if model.startswith(f"{r.name}/")), None)
        series[model] = series[run] if run else max(series.values(), default=0) + 1
    return series


def _models(evaluations: Sequence[Evaluation]) -> list[str]:
    """Names of the models, those that began from random weights last."""
    return list(dict.fromkeys(e.model for e in sorted(evaluations, key=lambda e: e.is_random)))


# ---------------------------------------------------------------- the top


def _title(results: Results) -> str:
    if results.pretraining and results.evaluations:
        return "An encoder, pretrained and scored"
    return "Pretraining" if results.pretraining else "Scores" if results.evaluations else "Examples"


def _header(results: Results, title: str) -> Markup:
    counts = [
        (len(results.pretraining), "pretraining run"),
        (len({e.task for e in results.evaluations}), "task"),
        (sum(len(e.scores) for e in results.evaluations), "scored run"),
    ]
    said = [f"{n} {what}{'s' if n != 1 else ''}" for n, what in counts if n]
    lead = [tag("p", ", ".join(said) + ".", class_="lead")] if said else []
    facts = [*_pretraining_facts(results.pretraining), *_score_facts(results.evaluations)][:6]
    tiles = [
        tag(
            "div",
            tag("dt", name),
            tag("dd", value, class_="value"),
            tag("dd", beside, class_="beside"),
        )
        for name, value, beside in facts
    ]
    return tag("header", tag("h1", title), *lead, *([tag("dl", *tiles, class_="facts")] if tiles else []))


def _pretraining_facts(runs: Sequence[Pretraining]) -> list[tuple[str, str, str]]:
    if not runs:
        return []
    run, facts = runs[0], []
    loss, entropy = _last(run, "mlm_loss"), run.unigram_entropy
    if loss is not None:
        below = f"{entropy - loss:.2f} below the unigram entropy" if entropy is not None else "nats a masked token"
        facts.append(("Held-out masked-word loss", f"{loss:.2f}", below))
    for name, label, beside in (
        ("mlm_accuracy", "Masked words right", "% of held-out masked tokens"),
        ("order_accuracy", "Sentence order right", "% of held-out pairs; chance is 50"),
    ):
        value = _last(run, name)
        if value is not None:
            facts.append((label, f"{100 * value:.1f}", beside))
    return facts


def _score_facts(evaluations: Sequence[Evaluation]) -> list[tuple[str, str, str]]:
    facts = []
    for task in dict.fromkeys(e.task for e in evaluations):
        ours = [e for e in evaluations if e.task == task]
        best = max(ours, key=lambda e: e.median)
        others = [f"{e.model} {_score(e.median)}" for e in ours if e is not best]
        others += [f"{name} {_score(score)}" for name, score in best.baselines.items()]
        facts.append((f"{_task_name(best)}, median of {len(best.scores)}", _score(best.median), "; ".join(others)))
    return facts


# ---------------------------------------------------------------- pretraining


def _pretraining(runs: Sequence[Pretraining]) -> Markup:
    rows = [[label, *(values)] for label, values in _run_facts(runs)]
    legend = [key(run.name, i) for i, run in enumerate(runs, start=1)] if len(runs) > 1 else []
    panels = [p for p in (_loss_panel(runs), *_accuracy_panels(runs), _speed_panel(runs)) if p is not None]
    shape = table(["", *(run.name for run in runs)], rows)
    return join(tag("p", *legend) if legend else Markup(""), tag("div", *panels, class_="grid"), shape)


def _run_facts(runs: Sequence[Pretraining]) -> list[tuple[str, list[str]]]:
    columns = [_one_run(run) for run in runs]
    labels = list(dict.fromkeys(label for column in columns for label in column))
    return [(label, [column.get(label, "–") for column in columns]) for label in labels]


def _one_run(run: Pretraining) -> dict[str, str]:
    facts: dict[str, str] = {}
    with _tolerated():
        from albert_cli.model.config import ModelConfig
        from albert_cli.model.params import count

        config = ModelConfig.from_values(dict(run.recipe.get("model", {})), run.name)
        if run.recipe.get("model"):
            facts["shape"] = (
                f"{config.num_hidden_layers} layers, H {config.hidden_size}, E {config.embedding_size}, "
                f"{config.num_attention_heads} heads"
            )
            facts["shared"] = config.sharing
            facts["parameters"] = f"{count(config).total:,}"
    train, schedule, data = (run.recipe.get(name, {}) for name in ("train", "schedule", "data"))
    steps = max((step for step, _ in [*run.series("loss"), *run.series("mlm_loss", heldout=True)]), default=None)
    planned = number(schedule.get("total_steps"))
    if steps is not None:
        facts["steps"] = f"{steps:,.0f}" + (f" of {planned:,.0f}" if planned and planned != steps else "")
    for label, section, name in (
        ("sequences a step", train, "batch_size"),
        ("longest sequence", data, "max_seq_length"),
    ):
        if (value := number(section.get(name))) is not None:
            facts[label] = f"{value:,.0f}"
    for label, name, percent in (
        ("held-out masked-word loss (nats)", "mlm_loss", False),
        ("held-out masked words right (%)", "mlm_accuracy", True),
        ("held-out sentence order right (%)", "order_accuracy", True),
    ):
        if (last := _last(run, name)) is not None:
            facts[label] = f"{100 * last:.1f}" if percent else f"{last:.3f}"
    if run.unigram_entropy is not None:
        facts["unigram entropy of the same text (nats)"] = f"{run.unigram_entropy:.3f}"
    speeds = [value for _, value in run.series("tokens_per_second")]
    if speeds:
        facts["tokens a second, median"] = f"{statistics.median(speeds):,.0f}"
    seconds = [value for _, value in run.series("seconds")]
    if seconds:
        facts["time"] = duration(max(seconds))
    return facts


def _last(run: Pretraining, name: str) -> float | None:
    points = run.series(name, heldout=True)
    return points[-1][1] if points else None


def _loss_panel(runs: Sequence[Pretraining]) -> Markup | None:
    lines, levels = [], []
    for i, run in enumerate(runs, start=1):
        lines.append(plots.Line(run.series("mlm_loss"), i, "faint"))
        lines.append(plots.Line(run.series("mlm_loss", heldout=True), i, "marked"))
        if run.unigram_entropy is not None and not any(lv.value == run.unigram_entropy for lv in levels):
            levels.append(plots.Level(run.unigram_entropy, f"unigram entropy {run.unigram_entropy:.2f}"))
    lines = [line for line in lines if line.points]
    if not lines:
        return None
    drawing = plots.curves(lines, levels, describes="Masked-word loss over steps, in training and on held-out text")
    caption = [key("held-out", 1, "line"), key("training", 1, "faint")] if len(runs) == 1 else []
    return figure(drawing, *caption, "Nats a masked token.", title="Masked-word loss")


def _accuracy_panels(runs: Sequence[Pretraining]) -> list[Markup]:
    panels = []
    for name, title, levels in (
        ("mlm_accuracy", "Masked words right", []),
        ("order_accuracy", "Sentence order right", [plots.Level(0.5, "chance")]),
    ):
        lines = [plots.Line(run.series(name, heldout=True), i, "marked") for i, run in enumerate(runs, start=1)]
        lines = [line for line in lines if line.points]
        if lines:
            drawing = plots.curves(lines, levels, percent=True, describes=f"{title} over steps, on held-out text")
            panels.append(figure(drawing, "Per cent, on held-out text.", title=title))
    return panels


def _speed_panel(runs: Sequence[Pretraining]) -> Markup | None:
    lines = [plots.Line(run.series("tokens_per_second"), i) for i, run in enumerate(runs, start=1)]
    lines = [line for line in lines if line.points]
    if not lines:
        return None
    drawing = plots.curves(lines, describes="Training speed over steps")
    return figure(drawing, "Tokens a second.", title="Speed")


# ---------------------------------------------------------------- tasks


def _scores(evaluations: Sequence[Evaluation], series: dict[str, int]) -> Markup:
    tasks = list(dict.fromkeys(e.task for e in evaluations))
    groups = [[e for e in evaluations if e.task == task] for task in tasks]
    verdicts = [verdict for group in groups for verdict in _verdicts(group)]
    panels = [_dot_panel(group, series) for group in groups]
    return join(
        _task_table(evaluations, groups),
        *(tag("p", verdict, class_="verdict") for verdict in verdicts),
        *panels,
        _seed_table(evaluations),
    )


def _task_table(evaluations: Sequence[Evaluation], groups: Sequence[Sequence[Evaluation]]) -> Markup:
    models = _models(evaluations)
    baselines = list(dict.fromkeys(name for e in evaluations for name in e.baselines))
    rows = []
    for group in groups:
        best = max(e.median for e in group)
        by_model = {e.model: e for e in group}
        known = {name: score for e in group for name, score in e.baselines.items()}
        cells = [_score_cell(by_model.get(model), best) for model in models]
        cells += [_score(known[name]) if name in known else "–" for name in baselines]
        rows.append([join(_task_name(group[0]), " ", tag("span", _metric(group[0]), class_="beside")), *cells])
    return table(
        ["task", *models, *baselines], rows, caption="Median over the seeds, times 100, on the development set."
    )


def _score_cell(evaluation: Evaluation | None, best: float) -> Markup:
    if evaluation is None:
        return Markup("–")
    kind = "best" if evaluation.median == best else "score"
    n = len(evaluation.scores)
    beside = f"spread {100 * evaluation.spread:.1f}, {n} seeds" if n > 1 else "1 seed"
    return join(tag("span", _score(evaluation.median), class_=kind), tag("span", beside, class_="beside"))


def _verdicts(group: Sequence[Evaluation]) -> list[str]:
    """How the pretrained models stand to random weights, seed by seed."""
    said = []
    for random in (e for e in group if e.is_random):
        for other in (e for e in group if not e.is_random):
            gap = 100 * (other.median - random.median)
            apart = min(other.scores.values()) > max(random.scores.values())
            how = (
                f"every seed of {other.model} is above every seed of {random.model}"
                if apart
                else f"the seeds of {other.model} and {random.model} overlap"
            )
            said.append(f"{_task_name(other)}: {how}; the medians differ by {gap:+.1f} points.")
    return said


def _dot_panel(group: Sequence[Evaluation], series: dict[str, int]) -> Markup:
    ordered = sorted(group, key=lambda e: e.is_random)
    rows = [plots.Row(e.model, list(e.scores.values()), e.median, series[e.model]) for e in ordered]
    known = {name: score for e in ordered for name, score in e.baselines.items()}
    rows += [plots.Row(name, [score], None) for name, score in known.items()]
    title = _task_name(group[0])
    words = [f"{e.model} median {_score(e.median)} of {len(e.scores)}" for e in ordered]
    drawing = plots.dots(rows, x_label=f"{_metric(group[0])} × 100", describes=f"{title}: {', '.join(words)}")
    return figure(drawing, "A dot a seed, a bar at the median; diamonds are baselines.", title=title)


def _seed_table(evaluations: Sequence[Evaluation]) -> Markup:
    columns = list(dict.fromkeys(name for e in evaluations for name in e.protocol))
    rows = []
    for e in evaluations:
        scores = [100 * score for score in e.scores.values()]
        deviation = f"{statistics.stdev(scores):.1f}" if len(scores) > 1 else "–"
        rows.append(
            [
                _task_name(e),
                e.model,
                ", ".join(f"{score:.1f}" for score in sorted(scores)),
                f"{statistics.fmean(scores):.1f}",
                deviation,
                *(e.protocol.get(name, "–") for name in columns),
            ]
        )
    headers = ["task", "model", "every seed's score", "mean", "st. dev.", *columns]
    return join(tag("h3", "Every seed, and the protocol"), table(headers, rows, text_columns=3))


def _learning(evaluations: Sequence[Evaluation], series: dict[str, int]) -> Markup:
    panels = []
    for task in dict.fromkeys(e.task for e in evaluations):
        group = [e for e in evaluations if e.task == task and e.curves]
        if not group:
            continue
        lines = [plots.Line(points, series[e.model]) for e in group for points in e.curves.values()]
        keys = [key(e.model, _colour(series[e.model]), "line") for e in group]
        name = f"{_task_name(group[0])}: {_metric(group[0])} × 100"
        drawing = plots.curves(lines, percent=True, describes=f"{name} on the development set over steps")
        panels.append(figure(drawing, *keys, title=name))
    if not panels:
        return Markup("")
    return join(
        tag("p", "The score on the development set while fine-tuning, a line a seed; the best point is kept."),
        tag("div", *panels, class_="grid"),
    )


def _colour(series: int) -> int:
    return (series - 1) % plots.SERIES + 1


def _task_name(evaluation: Evaluation) -> str:
    return str(evaluation.record.get("title") or evaluation.task)


def _metric(evaluation: Evaluation) -> str:
    return METRICS.get(evaluation.metric, evaluation.metric.replace("_", " "))


def _score(value: float) -> str:
    return f"{100 * value:.1f}"


# ---------------------------------------------------------------- examples and provenance


def _examples(examples: Examples) -> Markup:
    rows = [row if isinstance(row, dict | list) else [row] for row in examples.rows]
    columns = list(dict.fromkeys(str(name) for row in rows if isinstance(row, dict) for name in row))
    columns = columns or examples.columns
    width = max([len(columns), *(len(row) for row in rows if isinstance(row, list))], default=0)
    headers = columns + [""] * (width - len(columns))
    cells = [
        [_plain(row.get(name, "")) for name in columns]
        if isinstance(row, dict)
        else [_plain(value) for value in [*row, *[""] * (width - len(row))]]
        for row in rows
    ]
    body = [tag("div", table(headers, cells, text_columns=width), class_="prose")] if cells and width else []
    return join(*([tag("p", examples.text)] if examples.text else []), *body)


def _plain(value: object) -> str:
    if isinstance(value, float):
        return f"{value:.3g}"
    if isinstance(value, dict):
        return ", ".join(f"{name}: {_plain(item)}" for name, item in value.items())
    if isinstance(value, list):
        return ", ".join(" ".join(map(_plain, item)) if isinstance(item, list) else _plain(item) for item in value)
    return "" if value is None else str(value)


def _provenance(results: Results) -> Markup:
    versions: dict[str, list[str]] = {}
    for e in results.evaluations:
        given = e.record.get("versions")
        for name, version in given.items() if isinstance(given, dict) else ():
            versions.setdefault(str(name), []).append(str(version))
    said = [f"{name} {' / '.join(dict.fromkeys(values))}" for name, values in versions.items()]
    rows = [["pretraining", run.name, *_marks(run.checkpoints), "–", "–"] for run in results.pretraining]
    rows += [
        [_task_name(e), e.model, *(tag("code", str(e.record.get(k, "–"))[:16]) for k in ("checkpoint", "recipe", "data"))]
        for e in results.evaluations
    ]
    made = [tag("p", f"Made by albert {__version__}" + (f" from runs with {', '.join(said)}." if said else "."), class_="small")]
    marks = table(["what", "model", "checkpoint", "recipe", "data"], rows, text_columns=5) if rows else Markup("")
    return join(*made, marks)


def _marks(checkpoints: Any) -> list[Markup]:
    return [tag("code", list(checkpoints)[-1]) if checkpoints else Markup("–")]


def _tolerated() -> Any:
    """A recipe of another version is no reason to leave a run out of the report."""
    from contextlib import suppress

    return suppress(AlbertError, TypeError, AttributeError)
