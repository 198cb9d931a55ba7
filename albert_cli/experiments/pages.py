"""The report of an experiment: verdicts, the paper's table beside ours, drawings, and the command of every number.

One self-contained page; the scale stands at its head and in its title. Everything on it is read from result files.
"""

from __future__ import annotations

import shlex
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

from typing_extensions import TypedDict

from albert_cli import __version__, console, store
from albert_cli.errors import InputError
from albert_cli.experiments.budget import describe_matched_time
from albert_cli.experiments.claims import CONFIDENCE, FAILS, HOLDS, NOISY, Finding, Verdict
from albert_cli.experiments.outcome import Outcome
from albert_cli.experiments.recipe import EXACT, METRICS
from albert_cli.report import page, plots
from albert_cli.report.page import Block, Fact, Figure, Grid, Group, Heading, Key, Paragraph, Section, Span, Table, Text
from albert_cli.results import RESULTS

_MARKS: Final[dict[Verdict, Span]] = {HOLDS: Span("● ", "s3"), FAILS: Span("■ ", "s6"), NOISY: Span("◆ ", "s5")}
_CURVES = {
    "mlm_loss": ("Masked-word loss", "Nats a masked token, on held-out text while training.", False),
    "mlm_accuracy": ("Masked words right", "Per cent, on held-out text while training.", True),
    "order_accuracy": ("Sentence loss: pairs right", "Per cent, of the pairs that each run trains on, held out.", True),
}
_LAYERS = {
    "l2": ("Distance from a layer’s input to its output", "Euclidean, mean over tokens of held-out text."),
    "degrees": ("Angle between a layer’s input and its output", "Degrees, mean over tokens of held-out text."),
}
_ABOUT_CLAIMS = (
    f"A condition is met when the mean over seeds and its one-sided {CONFIDENCE:.0%} bound lie on the right side of "
    "the limit. The bound holds the spread of the seeds (Student’s t), the sampling error of the examples, which are "
    "the same for all variants (a jackknife), and of seconds the spread within a run. One seed alone decides nothing. "
    "Counts are exact. Where a claim is about what is learnt, its first condition is that a model has learnt: 3 points "
    "above the majority class; of masked words 0.75 nats below the unigram entropy, where frequencies and copying give "
    "half a nat; of two sentences 3.5 points above chance."
)


def write_report(found: Outcome) -> Path:
    """Write `report.html`, `report.md` and `results.json`; the same results give the same bytes."""
    plan, made = found.plan, _page(found)
    for name, text in (("report.html", page.html(made)), ("report.md", page.markdown(made))):
        store.write_text(plan.report / name, text)
    store.write_json(plan.report / RESULTS, found.to_json())
    return plan.report / "report.html"


class _Claim(TypedDict):
    says: str
    verdict: str


class _Reported(TypedDict):
    experiment: str
    scale: str
    claims: list[_Claim]


def list_verdicts(out: Path) -> tuple[dict[str, dict[str, str]], str]:
    """The verdict of every claim of the experiments that stand in a directory, as data and as text."""
    found: dict[str, dict[str, str]] = {}
    for path in sorted(out.glob(f"*/{RESULTS}")):
        of = store.read_record(path, _Reported)
        found[f"{of['experiment']}-{of['scale']}"] = {claim["says"]: claim["verdict"] for claim in of["claims"]}
    if not found:
        raise InputError(f"{out}: no finished experiment", "albert reproduce NAME --out DIR makes one")
    lines = []
    for name, claims in found.items():
        lines += [name, *(f"  {verdict}: {says}" for says, verdict in claims.items())]
    counts = Counter(verdict for claims in found.values() for verdict in claims.values())
    lines += ["", ", ".join(f"{count} {verdict}" for verdict, count in counts.most_common())]
    return found, "\n".join(lines)


def _page(found: Outcome) -> page.Page:
    plan, scale = found.plan, found.plan.request.scale
    sections = [
        Section("claims", "Claims", _claims(found)),
        Section("table", "The paper’s table and ours", _tables(found)),
        Section("drawings", "Drawings", _drawings(found)),
        Section("commands", "Every number again", _commands(found)),
    ]
    counts = {verdict: sum(j.verdict == verdict for j in found.claims) for verdict in _MARKS}
    return page.Page(
        title=f"{plan.experiment.title}: scale {scale}",
        heading=plan.experiment.title,
        sections=[section for section in sections if section.blocks],
        footer=Section("", "", [Paragraph(f"Scale {scale}. Page made by albert {__version__}.", small=True)]),
        lead=(f"{plan.experiment.source} of ALBERT (arXiv 1909.11942), at the scale ", Span(scale, "strong"),
              f" ({plan.scale.about})"),
        facts=[Fact((_MARKS[verdict], verdict), str(n), "of the claims below") for verdict, n in counts.items()]
        if found.claims
        else (),
    )  # fmt: skip


def _claims(found: Outcome) -> list[Block]:
    blocks: list[Block] = [Paragraph(_ABOUT_CLAIMS)] if found.claims else []
    for checked in found.claims:
        claim = checked.claim
        rows: list[list[Text]] = [
            [
                str(f.condition),
                _number(f, f.mean),
                _bounds(f),
                "  ".join(_number(f, value) for value in f.by_seed.values()) or "none",
                (_MARKS[f.verdict], f.verdict),
            ]
            for f in checked.findings
        ]
        parts: list[Block] = [
            Heading((_MARKS[checked.verdict], checked.verdict)),
            Paragraph(claim.says),
            Table(["condition", "mean", "bounds", "by seed", "verdict"], rows),
            Paragraph(f"{claim.source}. Limit: {claim.margin}", small=True),
        ]
        blocks.append(Group("claim", parts))
    return blocks


def _number(finding: Finding, value: float | None) -> str:
    if value is None:
        return "not measured"
    is_count = all(name.partition(".")[2] in EXACT for name in finding.condition.references)
    return f"{value:,.0f}" if is_count and finding.condition.over is None else f"{value:.4g}"


def _bounds(finding: Finding) -> str:
    if finding.low is None or finding.high is None:
        return "one seed has none" if finding.by_seed else ""
    return "exact" if finding.low == finding.high else f"{finding.low:.4g} … {finding.high:.4g}"


# ---------------------------------------------------------------- tables


def columns(found: Outcome) -> dict[str, str]:
    """The metrics that were measured of what the experiment shows, and of every task, with their headings."""
    wanted = {metric: METRICS[metric] for metric in found.plan.experiment.metrics}
    wanted |= {f"task_{name}": title for name, title in found.task_titles.items()}
    if len(found.task_titles) > 1:
        wanted["tasks_mean"] = METRICS["tasks_mean"]
    return {m: label for m, label in wanted.items() if any(found.by_seed(v, m) for v in found.plan.variants)}


def _formatted(metric: str, value: float) -> str:
    """A value as its metric is written: shares in per cent, times in words."""
    if metric in EXACT:
        return f"{value:,.0f}"
    if metric == "seconds":
        return console.format_duration(value)
    if metric.endswith("_accuracy") or metric.startswith("task"):
        return f"{100 * value:.1f}"
    return f"{value:.1f}x" if metric == "speedup" else f"{value:.3f}"


def format_gap(pairs: Sequence[tuple[float, float]] | None) -> str:
    """Ours as the paper's column prints it, and how far it is from theirs; nothing where it was not measured."""
    ours = "/".join(f"{own:.1f}" for own, _ in pairs or ())
    return ours and f"{ours} ({'/'.join(f'{own - theirs:+.1f}' for own, theirs in pairs or ())})"


def _tables(found: Outcome) -> list[Block]:
    """Ours with every seed, and the paper's in each version that is kept."""
    plan, heads, counted = found.plan, columns(found), found.plan.experiment.is_counted
    rows: list[list[Text]] = []
    for name in plan.variants:
        seeds = max((len(found.by_seed(name, metric)) for metric in heads), default=0)  # an ensemble has tasks alone
        title = plan.title(name) + (f" ({found.diverged[name]} diverged)" if name in found.diverged else "")
        count = "" if counted else f"{seeds}\N{NO-BREAK SPACE}seed{'s' * (seeds != 1)}"
        row: list[Text] = [(title, Span(count))]
        for metric in heads:
            each = [_formatted(metric, value) for value in found.by_seed(name, metric).values()]
            middle, error = found.middle(name, metric), found.standard_error(name, metric)
            beside = [] if error is None or metric in EXACT else ["  ".join(each), f"s.e. {_formatted(metric, error)}"]
            row.append(("–" if middle is None else _formatted(metric, middle), *map(Span, beside)))
        rows.append(row)
    about = (
        "The median over seeds; below it each seed, and the standard error of their mean. Accuracies in per cent, on "
        "text or rows that training did not see."
    )
    about = "Counted by arithmetic; nothing is trained." if counted else about
    blocks: list[Block] = [Table(["ours", *heads.values()], rows, caption=f"Ours, scale {plan.request.scale}. {about}")]
    if plan.left_out:
        left = "; ".join(f"{task}: {why}" for task, why in plan.left_out.items())
        blocks.append(Paragraph(f"Tasks left out: {left}.", small=True))
    blocks += [Paragraph(describe_matched_time(plan, name)) for name in plan.equal_time]
    for printed in plan.experiment.tables:
        known = found.beside(printed)
        lines: list[list[Text]] = []
        for name, cells in printed.rows.items():
            pairs = [known.get(name, {}).get(column) for column in printed.columns]
            shown = [(cell, Span(format_gap(own))) if own else cell for cell, own in zip(cells, pairs, strict=True)]
            lines.append([plan.title(name), *shown])
        caption = f"The paper, {printed.title}, {printed.version}." + (f" {printed.note}" if printed.note else "")
        if known:
            caption += " Below a figure: ours, and by how much it is above or below."
            caption += f" Of other models' rows ours is {plan.title(printed.ours)}." if printed.ours else ""
        blocks.append(Table(["the paper", *printed.columns], lines, caption=caption))
    return blocks


# ---------------------------------------------------------------- drawings


def _drawings(found: Outcome) -> list[Block]:
    """Similarity by layer, curves of pretraining, scores against parameters; empty where there are no numbers."""
    colours = {name: i for i, name in enumerate(found.plan.variants, start=1)}
    figures = []
    for name, (title, caption) in _LAYERS.items() if "layers" in found.plan.experiment.plots else ():
        steps = [(colours[v], ys) for v in colours for ys in found.layer_steps.get(v, {}).get(name, [])]
        if lines := [plots.Line(list(enumerate(ys, start=1)), colour, "marked") for colour, ys in steps]:
            drawing = plots.curves(lines, describes=f"{title}, by layer", from_zero=True, x_label="layer")
            figures.append(Figure(drawing, title, [caption]))
    for name, (title, caption, percent) in _CURVES.items():
        curves = [(colours[v], points) for v in colours for points in found.curves.get(v, {}).get(name, [])]
        if lines := [plots.Line(points, colour, "thin") for colour, points in curves if len(points) > 1]:
            drawing = plots.curves(lines, percent=percent, describes=f"{title} over steps")
            figures.append(Figure(drawing, title, [caption]))
    figures += _against_parameters(found, colours)
    keys = [Key(found.plan.title(name), colour) for name, colour in colours.items() if found.values.get(name)]
    return [Paragraph(keys), Grid(figures)] if figures else []


def _against_parameters(found: Outcome, colours: Mapping[str, int]) -> list[Figure]:
    """Scores against parameters, medians over seeds; parameters alone where nothing was trained."""
    titles = {name: found.plan.title(name) for name in colours}
    counts = {name: count for name in colours if (count := found.middle(name, "parameters"))}
    if len(set(counts.values())) < 2:
        return []
    figures = []
    for metric, title in (("tasks_mean", "Mean of the tasks"), ("mlm_accuracy", "Masked words right")):
        scores = {name: score for name in counts if (score := found.middle(name, metric)) is not None}
        marks = [plots.Mark(counts[name], 100 * score, titles[name], colours[name]) for name, score in scores.items()]
        if len({mark.x for mark in marks}) > 1:
            drawing = plots.marked(marks, describes=f"{title} against parameters", x_label="parameters")
            figures.append(Figure(drawing, f"{title}, by parameters", ["Per cent, median over seeds."]))
    if not figures and found.plan.experiment.is_counted:
        rows = [plots.Row(titles[name], [n / 1e8], n / 1e8, colours[name]) for name, n in counts.items()]
        drawing = plots.dots(rows, describes="Parameters of every model, in millions")
        figures.append(Figure(drawing, "Parameters", ["Millions."]))
    return figures


# ---------------------------------------------------------------- commands


def _commands(found: Outcome) -> list[Block]:
    """What was run for each number, with the time that it took here."""
    plan, request = found.plan, found.plan.request
    words = ["albert", "reproduce", plan.experiment.asked, "--scale", request.scale, "--out", str(request.out)]
    for option, values in (("--text", request.text), ("--extra-text", request.extra_text), ("-s", request.changes)):
        words += [word for value in values for word in (option, value)]
    for option, given in (("--data", request.data), ("--tasks", request.tasks), ("--seeds", request.seeds)):
        words += [option, str(given)] if given is not None else []
    rows: list[list[Text]] = []
    for stage in plan.stages.values():
        record = plan.record(stage.id)
        # A command's own seconds are those of all attempts.
        known = [s for s in (record.numbers.get("seconds"), record.seconds) if s is not None]
        rows.append([stage.title, Span(stage.command, "code"), console.format_duration(max(known)) if known else ""])
    return [
        Paragraph("All of this page, or what of it is missing:"),
        Paragraph(Span(shlex.join(words), "code")),
        Paragraph("Each stage by itself:"),
        Table(["stage", "command", "time"], rows, text_columns=2, look="commands"),
    ]
