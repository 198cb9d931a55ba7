"""The report's section on what pretraining is for: scores by how many labelled examples a model learnt from."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence

from albert_cli.evaluation import plots
from albert_cli.evaluation.page import Markup, figure, join, table, tag
from albert_cli.evaluation.report_scores import listed, metric, score, task_name
from albert_cli.evaluation.results import CLASSICAL, MAJORITY, Evaluation

Scores = dict[float, list[float]]  # every seed's, by the number of labelled examples


def section(evaluations: Sequence[Evaluation], series: Mapping[str, int]) -> Markup | None:
    """A drawing and a table for each task that was learnt from several numbers of examples; None where none was."""
    known = sorted((e for e in evaluations if e.labelled), key=lambda e: e.control)
    groups = [[e for e in known if e.task == task] for task in dict.fromkeys(e.task for e in known)]
    groups = [g for g in groups if any(e.part for e in g) and len({e.labelled for e in g}) > 1]
    if not groups:
        return None
    said = "A dot is a seed, each with its own part of the training examples; a line joins the medians."
    return join(*(_of_task(group, series) for group in groups), tag("p", said, class_="small"))


def _of_task(group: Sequence[Evaluation], series: Mapping[str, int]) -> Markup:
    found: dict[str, Scores] = {}
    for e in group:
        found.setdefault(e.model, {})[e.labelled] = sorted(e.scores.values())
    for e in group:
        for name, value in e.baselines.items():
            found.setdefault(name, {})[e.labelled] = [value]
    trends = [plots.Trend(name, scores, series.get(name), name == CLASSICAL) for name, scores in found.items()]
    title = f"{task_name(group[0])}, {metric(group[0])} × 100"
    words = "; ".join(f"{name}: {_in_words(scores)}" for name, scores in found.items())
    described = f"{title}, by number of labelled examples. {words}"
    drawing = plots.trends(trends, describes=described, x_label="labelled examples")
    pretrained = dict.fromkeys(e.model for e in group if not e.control and not e.is_ensemble)
    verdicts = [tag("p", said) for name in pretrained if (said := _verdict(name, found))]
    return join(figure(drawing, title=title), *verdicts, _table(found))


def _in_words(scores: Scores) -> str:
    return ", ".join(f"{score(statistics.median(seeds))} with {count:,.0f}" for count, seeds in sorted(scores.items()))


def _verdict(model: str, found: Mapping[str, Scores]) -> str:
    """What every seed of a model is above, with how many examples; "" for none. The majority class goes unsaid."""
    above: dict[str, list[str]] = {}  # what that is, by the counts
    own = found[model]
    for name, scores in found.items():
        clear = [f"{n:,.0f}" for n in sorted(own) if n in scores and min(own[n]) > max(scores[n])]
        if name not in (model, MAJORITY) and clear:
            above.setdefault(listed(clear), []).append(name)
    said = listed([f"{listed(names)} with {counts} examples" for counts, names in above.items()])
    return f"Every seed of {model} is above {said}." if said else ""


def _table(found: Mapping[str, Scores]) -> Markup:
    """The medians with every seed below, the best of a count in bold."""
    counts = sorted({count for scores in found.values() for count in scores})
    best = {n: max(statistics.median(scores[n]) for scores in found.values() if n in scores) for n in counts}
    rows = [[name, *(_cell(scores.get(n), best[n]) for n in counts)] for name, scores in found.items()]
    return table(["labelled examples", *(f"{n:,.0f}" for n in counts)], rows)


def _cell(seeds: Sequence[float] | None, best: float) -> Markup:
    if not seeds:
        return Markup("–")
    median = statistics.median(seeds)
    each = [tag("span", ", ".join(map(score, seeds)), class_="beside")] if len(seeds) > 1 else []
    return join(tag("span", score(median), class_="best" if median == best else "score"), *each)
