"""The report's sections on tasks: a table beside the baselines, every seed as a dot, learning curves."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from contextlib import suppress

from albert_cli.evaluation import plots, tables
from albert_cli.evaluation.average import medians, published_metrics
from albert_cli.evaluation.page import Markup, figure, join, key, table, tag
from albert_cli.evaluation.published import PUBLISHED, Published
from albert_cli.evaluation.results import CLASSICAL, Evaluation
from albert_cli.tasks.spec import TASKS

METRICS = {
    "mcc": "Matthews correlation",
    "f1": "F1",
    "best_f1": "F1 at the best threshold",
    "macro_f1": "macro F1",
    "pearson": "Pearson correlation",
    "spearman": "Spearman correlation",
}


def models(evaluations: Sequence[Evaluation]) -> list[str]:
    """Names of the models, controls last."""
    return list(dict.fromkeys(e.model for e in sorted(evaluations, key=lambda e: e.control)))


def by_task(evaluations: Sequence[Evaluation]) -> list[list[Evaluation]]:
    """The evaluations of each task, controls last; of parts of its training examples only those of the largest."""
    groups = []
    for task in dict.fromkeys(e.task for e in evaluations):
        group = sorted((e for e in evaluations if e.task == task), key=lambda e: (-(e.part or math.inf), e.control))
        groups.append([e for e in group if e.part == group[0].part])
    return groups


def facts(evaluations: Sequence[Evaluation], most: int) -> list[tuple[str, str, str]]:
    """The best median of up to `most` tasks with what it stands beside; widest above the next lower first."""

    def gap(group: Sequence[Evaluation]) -> float:
        below = [e.median for e in group if e.control] + list(_baselines(group).values())
        return max(e.median for e in group) - max(below, default=0.0)

    found = []
    for group in sorted(by_task(evaluations), key=gap, reverse=True)[:most]:
        best = max(group, key=lambda e: e.median)
        beside = [f"{e.model} {score(e.median)}" for e in group if e is not best]
        beside += [f"{name} {score(value)}" for name, value in _baselines(group).items()]
        n = len(best.scores)
        protocol = f"median of {n}" if n > 1 else _single(best)
        found.append((f"{task_name(best)}, {metric(best)}, {protocol}", score(best.median), ", ".join(beside)))
    return found


def section(evaluations: Sequence[Evaluation], series: Mapping[str, int]) -> Markup:
    """Tasks by models with the median, whether the seeds are apart, every seed as a dot, and the protocol."""
    groups = by_task(evaluations)
    panels = [_dot_panel(group, series) for group in groups]
    rings = " A ring is a seed that collapsed." if any(map(_collapsed, evaluations)) else ""
    tasks = [group[0].task for group in groups]
    everything = sorted(evaluations, key=lambda e: (tasks.index(e.task), -(e.part or math.inf), e.control))
    return join(
        _task_table(groups, models(evaluations)),
        *_published(groups),
        *(tag("p", said) for said in _verdicts(groups)),
        tag("p", f"A dot is a seed, a bar the median, a diamond a baseline.{rings}", class_="small"),
        tag("div", *panels, class_="grid"),
        tag("h3", "Every seed, and the protocol"),
        _seed_table(everything),
        *(tag("p", said, class_="small") for said in _protocols(everything)),
    )


def learning(evaluations: Sequence[Evaluation], series: Mapping[str, int]) -> Markup | None:
    """Development scores while fine-tuning; None where no run kept them."""
    panels = []
    for group in by_task([e for e in evaluations if e.curves]):
        lines = [plots.Line(points, series[e.model], "thin") for e in group for points in e.curves.values()]
        keys = [key(e.model, (series[e.model] - 1) % plots.SERIES + 1, "line") for e in group]
        title = f"{task_name(group[0])}, {metric(group[0])} × 100"
        drawing = plots.curves(lines, percent=True, describes=f"{title}, on the development set over steps")
        panels.append(figure(drawing, *keys, title=title))
    if not panels:
        return None
    said = "The score on the development set while fine-tuning, a line for each seed. The best point counts."
    return join(tag("p", said), tag("div", *panels, class_="grid"))


def task_name(evaluation: Evaluation) -> str:
    """The task as people write it: what the result says, or the title of a task known by name."""
    known = TASKS.get(evaluation.task)
    return str(evaluation.record.get("title") or (known.title if known else evaluation.task))


def score(value: float) -> str:
    """A score of 0..1 as the field writes it, times 100."""
    return f"{100 * value:.1f}"


def metric(evaluation: Evaluation) -> str:
    """The main metric in words."""
    return METRICS.get(evaluation.metric, evaluation.metric.replace("_", " "))


def _baselines(group: Sequence[Evaluation]) -> dict[str, float]:
    return {name: value for e in group for name, value in e.baselines.items()}


# ---------------------------------------------------------------- tables


def _task_table(groups: Sequence[Sequence[Evaluation]], columns: Sequence[str]) -> Markup:
    baselines = list(dict.fromkeys(name for group in groups for name in _baselines(group)))
    rows = []
    for group in groups:
        best = max(e.median for e in group)
        found, known = {e.model: e for e in group}, _baselines(group)
        cells = [_score_cell(found.get(model), best) for model in columns]
        cells += [_baseline_cell(group, name, known.get(name)) for name in baselines]
        name = join(task_name(group[0]), tag("span", metric(group[0]), class_="beside"))
        rows.append([name, *cells])
    caption = "Median over the seeds on the development set, times 100."
    return table(["task", *columns, *baselines], rows, caption=caption)


def _baseline_cell(group: Sequence[Evaluation], name: str, value: float | None) -> Markup:
    if value is None:
        return Markup("–")
    which = next((e.classical for e in group if e.classical), "") if name == CLASSICAL else ""
    return join(score(value), *([tag("span", which, class_="beside")] if which else []))


def _published(groups: Sequence[Sequence[Evaluation]]) -> list[Markup]:
    """The best median here beside published scores; empty where no task has one."""
    columns = [p for p in PUBLISHED if any(group[0].task in p.scores for group in groups)]
    rows = []
    for group in groups:
        task, best = group[0].task, max(_alone(group), key=lambda e: e.median)
        beside = [_published_cell(p, task) for p in columns]
        if any(task in p.scores for p in columns):
            here, names = _as_published(best)
            rows.append([join(task_name(best), tag("span", names, class_="beside")), here, *beside])
    if not rows:
        return []
    said = (
        "Published scores on the development sets, times 100: models of 12 to 334 million parameters, pretrained on "
        "16 GB of text and more. They say what that scale brings, not what to expect of a smaller one. SQuAD: F1, "
        "with exact match beside it, of 2.0 at the threshold that is best on the development set."
    )
    headers = ["task", "here, best median", *(p.model for p in columns)]
    return [
        tag("h3", "Beside published models, at another scale"),
        tag("p", said, class_="small"),
        table(headers, rows),
    ]


def _alone(group: Sequence[Evaluation]) -> Sequence[Evaluation]:
    """Those of single models, as published rows are; ensembles only where there is nothing else."""
    return [e for e in group if not e.is_ensemble] or group


def _as_published(evaluation: Evaluation) -> tuple[Markup, str]:
    """Our medians of what was published, and what that is called; the main metric where a result lacks them."""
    names = published_metrics(evaluation.task)
    try:
        found = [medians(evaluation.record)[name] for name in names]
    except (KeyError, TypeError, AttributeError, ValueError):  # a result from elsewhere
        names, found = (evaluation.metric,), [evaluation.median]
    beside = [tag("span", score(value), class_="beside") for value in found[1:]]
    said = METRICS.get(names[0], names[0].replace("_", " "))
    return join(tag("span", score(found[0]), class_="best"), *beside), said


def _published_cell(published: Published, task: str) -> Markup:
    first, *others = published.scores.get(task, {}).values() or [None]
    if first is None:
        return Markup("–")
    return join(f"{first:.1f}", *(tag("span", f"{value:.1f}", class_="beside") for value in others))


def _score_cell(evaluation: Evaluation | None, best: float) -> Markup:
    if evaluation is None:
        return Markup("–")
    kind = "best" if evaluation.median == best else "score"
    n = len(evaluation.scores)
    beside = f"{n} seeds, spread {100 * evaluation.spread:.1f}" if n > 1 else _single(evaluation)
    diverged = evaluation.record.get("diverged")
    if isinstance(diverged, dict) and diverged:
        beside += f", {len(diverged)} diverged"
    if collapsed := _collapsed(evaluation):
        beside += f", {len(collapsed)} collapsed"
    return join(tag("span", score(evaluation.median), class_=kind), tag("span", beside, class_="beside"))


def _collapsed(evaluation: Evaluation) -> set[str]:
    """The seeds whose runs learnt nothing; they count in the median all the same."""
    found = evaluation.record.get("collapsed")
    if isinstance(found, dict):
        return set(found) & set(evaluation.scores)
    return set(evaluation.scores) if isinstance(found, str) else set()


def _single(evaluation: Evaluation) -> str:
    if evaluation.is_ensemble:
        return "chosen on dev"
    return "as it is" if evaluation.record.get("initial") == "task checkpoint" else "1 seed"


def _verdicts(groups: Sequence[Sequence[Evaluation]]) -> list[str]:
    """How each pretrained model stands to its controls, seed by seed, a sentence for each."""
    apart: dict[tuple[str, str], dict[bool, list[str]]] = {}
    for group in groups:
        for random in (e for e in group if e.control):
            for other in (e for e in _alone(group) if not e.control):
                clear = min(other.scores.values()) > max(random.scores.values())
                said = f"{task_name(other)} ({100 * (other.median - random.median):+.1f})"
                apart.setdefault((other.model, random.model), {True: [], False: []})[clear].append(said)
    verdicts = []
    for (model, random_name), tasks in apart.items():
        above = f"Every seed of {model} is above every seed of {random_name} on {listed(tasks[True])}."
        mixed = f"On {listed(tasks[False])} not every seed of {model} is above {random_name}."
        shown = [sentence for clear, sentence in ((True, above), (False, mixed)) if tasks[clear]]
        verdicts.append(" ".join([*shown, "In brackets: the difference of the medians, in points."]))
    return verdicts


def listed(words: Sequence[str]) -> str:
    """Words after each other: "a, b and c"."""
    return f"{', '.join(words[:-1])} and {words[-1]}" if len(words) > 1 else "".join(words)


def _seed_table(evaluations: Sequence[Evaluation]) -> Markup:
    columns = list(dict.fromkeys(name for e in evaluations for name in e.protocol))
    rows = []
    for e in evaluations:
        scores = sorted(100 * value for value in e.scores.values())
        each = ", ".join(f"{value:.1f}" for value in scores)
        deviation = statistics.stdev(scores) if len(scores) > 1 else None
        spread = ["–", "–"] if deviation is None else [f"{deviation:.1f}", f"{deviation / math.sqrt(len(scores)):.1f}"]
        settings = [e.protocol.get(name, "–") for name in columns]
        rows.append([task_name(e), e.model, each, f"{statistics.fmean(scores):.1f}", *spread, *settings])
    return table(["task", "model", "scores", "mean", "st. dev.", "s.e.", *columns], rows, text_columns=3)


def _protocols(evaluations: Sequence[Evaluation]) -> list[str]:
    """How the scores came about, a sentence for all results that share it, and where a start was left out."""
    by_text: dict[tuple[str, str], list[str]] = {}
    for e in evaluations:
        with suppress(KeyError, TypeError, ValueError, IndexError):  # of a result from elsewhere nothing is said
            if said := tables.protocol(e.record):
                by_text.setdefault((e.model, said), []).append(task_name(e))
    sentences = [f"{model} on {listed(names)}: {said}." for (model, said), names in by_text.items()]
    notes = {task_name(e): e.record["start_note"] for e in evaluations if e.record.get("start_note")}
    return [*sentences, *(f"{name}: {note}." for name, note in notes.items())]


def _row(evaluation: Evaluation, series: int) -> plots.Row:
    collapsed = _collapsed(evaluation)
    seeds = sorted(evaluation.scores, key=lambda seed: evaluation.scores[seed])
    scores = [evaluation.scores[seed] for seed in seeds]
    return plots.Row(evaluation.model, scores, evaluation.median, series, [seed in collapsed for seed in seeds])


def _dot_panel(group: Sequence[Evaluation], series: Mapping[str, int]) -> Markup:
    rows = [_row(e, series[e.model]) for e in group]
    rows += [plots.Row(name, [value], None) for name, value in _baselines(group).items()]
    title = f"{task_name(group[0])}, {metric(group[0])} × 100"
    words = ", ".join(f"{e.model}: median {score(e.median)} of {len(e.scores)}" for e in group)
    return figure(plots.dots(rows, describes=f"{title}. {words}"), title=title)
