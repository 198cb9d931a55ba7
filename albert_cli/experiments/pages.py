"""The report of an experiment: verdicts, the paper's table beside ours, drawings, and the command of every number.

One self-contained page; the scale stands at its head and in its title. Everything on it is read from result files.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from albert_cli import __version__, console, store
from albert_cli.evaluation.page import Markup, document, join, table, tag
from albert_cli.evaluation.results import number
from albert_cli.experiments import drawings
from albert_cli.experiments.budget import in_words
from albert_cli.experiments.claims import CONFIDENCE, FAILS, HOLDS, NOISY, Finding, Judgement, Verdict
from albert_cli.experiments.outcome import Outcome
from albert_cli.experiments.recipe import EXACT, METRICS

_MARKS: Final[dict[Verdict, tuple[str, str]]] = {HOLDS: ("s3", "●"), FAILS: ("s6", "■"), NOISY: ("s5", "◆")}


def write(found: Outcome) -> Path:
    """Write `report.html` and `results.json` of an experiment; the same results give the same bytes."""
    plan = found.plan
    folder = plan.request.out / f"{plan.experiment.name}-{plan.request.scale}"
    with store.text_writer(folder / "report.html") as stream:  # makes the folder too
        stream.write(page(found))
    store.write_json(folder / "results.json", found.to_json())
    return folder / "report.html"


def page(found: Outcome) -> str:
    """The whole page as HTML."""
    plan = found.plan
    title = f"{plan.experiment.title}: scale {plan.request.scale}"
    sections: list[tuple[str, str, Markup]] = []
    if found.judgements:
        sections.append(("claims", "Claims", _claims(found)))
    sections.append(("table", "The paper’s table and ours", _tables(found)))
    if drawn := drawings.section(found):
        sections.append(("drawings", "Drawings", drawn))
    sections.append(("commands", "Every number again", _commands(found)))
    header = tag(
        "header",
        tag("h1", plan.experiment.title),
        tag("p", f"{plan.experiment.source} of ALBERT (arXiv 1909.11942), at the scale ", tag("b", plan.request.scale),
            f": {plan.scale.about}", class_="lead"),
        _tally(found),
    )  # fmt: skip
    parts = [tag("section", tag("h2", name), body, id=anchor) for anchor, name, body in sections]
    footer = tag("footer", tag("p", f"Scale {plan.request.scale}. Page made by albert {__version__}.", class_="small"))
    return document(title, [(anchor, name) for anchor, name, _ in sections], header, *parts, footer)


def _tally(found: Outcome) -> Markup:
    """How many claims have which verdict, as tiles."""
    tiles = []
    verdict: Verdict
    for verdict in (HOLDS, FAILS, NOISY):
        count = sum(j.verdict == verdict for j in found.judgements)
        names = tag("dd", "of the claims below", class_="beside")
        tiles.append(tag("div", tag("dt", _verdict(verdict)), tag("dd", str(count), class_="value"), names))
    return tag("dl", *tiles, class_="facts") if found.judgements else Markup("")


def _verdict(verdict: Verdict) -> Markup:
    series, mark = _MARKS[verdict]
    return tag("span", tag("span", f"{mark} ", class_=series, aria_hidden="true"), verdict)


# ---------------------------------------------------------------- claims


def _claims(found: Outcome) -> Markup:
    level = f"{CONFIDENCE:.0%}"
    said = (
        f"A condition is met when the mean over seeds and its one-sided {level} bound lie on the right side of the "
        "limit. The bound holds the spread of the seeds (Student’s t), of accuracies the sampling error of the "
        "examples scored, and of seconds the spread within a run. One seed alone decides nothing. Counts are exact. "
        "Where a claim is about what is learnt, its first condition is that a model has learnt: 3 points above the "
        "majority class; of masked words 0.75 nats below the unigram entropy, where frequencies and copying give half "
        "a nat; of two sentences 3.5 points above chance."
    )
    return join(tag("p", said), *(_claim(judgement) for judgement in found.judgements))


def _claim(judgement: Judgement) -> Markup:
    claim = judgement.claim
    rows = [
        [str(f.condition), _number(f, f.mean), _bounds(f), _seeds(f), _verdict(f.verdict)] for f in judgement.findings
    ]
    head = ["condition", "mean", "bounds", "by seed", "verdict"]
    return tag(
        "div",
        tag("h3", _verdict(judgement.verdict)),
        tag("p", claim.says),
        table(head, rows),
        tag("p", f"{claim.source}. Limit: {claim.margin}", class_="small"),
        class_="claim",
    )


def finding_in_words(finding: Finding) -> str:
    """A finding as one line for a terminal."""
    return (
        f"{finding.condition}: {_number(finding, finding.mean)}"
        f"{f' [{_bounds(finding)}]' if finding.low is not None else ''}, seeds {_seeds(finding)}: {finding.verdict}"
    )


def _number(finding: Finding, value: float | None) -> str:
    if value is None:
        return "not measured"
    is_count = all(name.partition(".")[2] in EXACT for name in finding.condition.references)
    return f"{value:,.0f}" if is_count and finding.condition.over is None else f"{value:.4g}"


def _bounds(finding: Finding) -> str:
    if finding.low is None or finding.high is None:
        return "one seed has none" if finding.by_seed else ""
    return "exact" if finding.low == finding.high else f"{finding.low:.4g} … {finding.high:.4g}"


def _seeds(finding: Finding) -> str:
    return "  ".join(_number(finding, value) for value in finding.by_seed.values()) or "none"


# ---------------------------------------------------------------- tables


def columns(found: Outcome) -> dict[str, str]:
    """The metrics that were measured of what the experiment shows, and of every task, with their headings."""
    wanted = {metric: METRICS[metric] for metric in found.plan.experiment.metrics}
    wanted |= {f"task_{name}": title for name, title in found.task_titles.items()}
    if len(found.task_titles) > 1:
        wanted["tasks_mean"] = METRICS["tasks_mean"]
    return {m: label for m, label in wanted.items() if any(found.by_seed(v, m) for v in found.plan.variants)}


def cell(found: Outcome, variant: str, metric: str) -> str:
    """The median over seeds as one reads it; a dash where it was not measured."""
    value = found.middle(variant, metric)
    return "–" if value is None else formatted(metric, value)


def formatted(metric: str, value: float) -> str:
    """A value as its metric is written: shares in per cent, times in words."""
    if metric in EXACT:
        return f"{value:,.0f}"
    if metric == "seconds":
        return console.duration(value)
    if metric.endswith("_accuracy") or metric.startswith("task"):
        return f"{100 * value:.1f}"
    if metric == "speedup":
        return f"{value:.1f}x"
    return f"{value:.3f}"


def _tables(found: Outcome) -> Markup:
    """Ours with every seed, and the paper's in each version that is kept."""
    plan, heads = found.plan, columns(found)
    rows = []
    for name in plan.variants:
        cells = [join(cell(found, name, m), _beside(found, name, m)) for m in heads]
        seeds = len(found.by_seed(name, next(iter(heads), "")))
        title = plan.experiment.variants[name].title
        if name in found.diverged:
            title += f" ({found.diverged[name]} diverged)"
        beside = "" if plan.experiment.is_counted else f"{seeds}\N{NO-BREAK SPACE}seed{'s' * (seeds != 1)}"
        rows.append([join(title, tag("span", beside, class_="beside")), *cells])
    said = "The median over seeds, each below it. Accuracies in per cent, on text or rows that training did not see."
    if plan.experiment.is_counted:
        said = "Counted by arithmetic; nothing is trained."
    parts = [table(["ours", *heads.values()], rows, caption=f"Ours, scale {plan.request.scale}. {said}")]
    if plan.left_out:
        left = "; ".join(f"{task}: {why}" for task, why in plan.left_out.items())
        parts.append(tag("p", f"Tasks left out: {left}.", class_="small"))
    parts += [tag("p", in_words(plan, name)) for name in plan.equal_time]
    for printed in plan.experiment.tables:
        titles = {n: v.title for n, v in plan.experiment.variants.items()}
        lines = [[titles.get(row, row), *values] for row, values in printed.rows.items()]
        caption = f"The paper, {printed.title}, {printed.version}." + (f" {printed.note}" if printed.note else "")
        parts.append(table(["the paper", *printed.columns], lines, caption=caption))
    return join(*parts)


def _beside(found: Outcome, variant: str, metric: str) -> Markup:
    by_seed = found.by_seed(variant, metric)
    if len(by_seed) < 2 or metric in EXACT:
        return Markup("")
    return tag("span", "  ".join(formatted(metric, value) for value in by_seed.values()), class_="beside")


# ---------------------------------------------------------------- commands


def _commands(found: Outcome) -> Markup:
    """What was run for each number, with the time that it took here."""
    plan = found.plan
    whole = tag("p", tag("code", _whole(found)))
    parts = [tag("p", "All of this page, or what of it is missing:"), whole, tag("p", "Each stage by itself:")]
    rows = []
    for stage in plan.stages.values():
        record = store.read_json(plan.result(stage.id)) if plan.result(stage.id).is_file() else {}
        rows.append([stage.title, tag("code", stage.command), _time(record)])
    parts.append(tag("div", table(["stage", "command", "time"], rows, text_columns=2), class_="commands"))
    return join(*parts)


def _whole(found: Outcome) -> str:
    """The command that makes the page."""
    request = found.plan.request
    words = ["albert", "reproduce", found.plan.experiment.name, "--scale", request.scale, "--out", str(request.out)]
    for option, values in (("--text", request.text), ("--extra-text", request.extra_text), ("-s", request.changes)):
        words += [word for value in values for word in (option, value)]
    for option, given in (("--data", request.data), ("--tasks", request.tasks), ("--seeds", request.seeds)):
        words += [option, str(given)] if given is not None else []
    import shlex

    return shlex.join(words)


def _time(record: Mapping[str, Any]) -> str:
    """A stage's own seconds where it says them, since those of earlier attempts are among them."""
    said = [number(source.get("seconds")) for source in (record.get("result") or {}, record)]
    return console.duration(max(known)) if (known := [s for s in said if s is not None]) else ""
