"""Write the report of an experiment: verdicts, the paper's tables next to ours, figures and commands.

The input is the `Outcome` of an experiment. The report is one self-contained page, in HTML and in Markdown; the same
results as JSON are in `results.json`, from which `list_verdicts` reads the verdicts of all experiments.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from typing_extensions import TypedDict

from albert_cli import __version__, console, store
from albert_cli.counting.costs import format_bytes
from albert_cli.errors import InputError
from albert_cli.experiments.budget import describe_matched_time
from albert_cli.experiments.claims import (
    CONFIDENCE,
    FAILS,
    HOLDS,
    NOISY,
    NOT_LEARNED,
    NOT_MEASURED,
    CheckedClaim,
    Finding,
    Verdict,
)
from albert_cli.experiments.experiment import PaperTable
from albert_cli.experiments.metrics import EXACT, METRICS, is_score
from albert_cli.experiments.outcome import Outcome
from albert_cli.experiments.page_figures import choose_colors, make_figures
from albert_cli.experiments.plan import ExperimentPlan, Stage
from albert_cli.experiments.records import StageRecord, TimedResult, read_record
from albert_cli.formatting import format_command
from albert_cli.report.figures import Figure, LegendEntry
from albert_cli.report.render import Cell, Table, render_html, render_markdown
from albert_cli.report.scores import Fact
from albert_cli.results import RESULTS
from albert_cli.score_summary import standard_error

_MARKERS: Final[dict[Verdict, str]] = {HOLDS: "●", FAILS: "■", NOISY: "◆", NOT_LEARNED: "○", NOT_MEASURED: "–"}


@dataclass(frozen=True)
class ClaimSection:
    """A claim with its verdict and a row for each condition."""

    verdict: str
    statement: str
    source: str
    margin: str
    table: Table


@dataclass(frozen=True)
class ExperimentPage:
    """The content of the report, which `experiment.html.jinja` and `experiment.md.jinja` show."""

    title: str
    scale: str
    source: str
    about: str
    version: str
    confidence: str
    facts: Sequence[Fact]
    claims: Sequence[ClaimSection]
    is_counted: bool  # True if nothing is trained and only parameters are counted
    ours: Table
    skipped: Sequence[str]
    matched_times: Sequence[str]  # a sentence for each variant that trains as long as another one
    paper: Sequence[tuple[str, Table]]  # the caption of each of the paper's tables, and the table with our values in it
    legend: Sequence[LegendEntry]
    figures: Sequence[Figure]
    command: str
    stages: Table


class _ReportedClaim(TypedDict):
    """The keys of a claim in `results.json` that `list_verdicts` reads."""

    statement: str
    verdict: str


class _ReportedExperiment(TypedDict):
    """The keys of an experiment's `results.json` that `list_verdicts` reads."""

    claims: list[_ReportedClaim]


def write_report(outcome: Outcome) -> Path:
    """Write `report.html`, `report.md` and `results.json`, and return the path of `report.html`.

    Equal outcomes give files with equal bytes.
    """
    folder = outcome.plan.report_folder
    page = _make_page(outcome)
    store.write_text(folder / "report.html", render_html("experiment", page))
    store.write_text(folder / "report.md", render_markdown("experiment", page))
    store.write_json(folder / RESULTS, outcome.to_json())
    return folder / "report.html"


def list_verdicts(out: Path) -> tuple[dict[str, dict[str, str]], str]:
    """Return the verdicts on the claims of all experiments in an output directory, as a dict and as text.

    The dict, for `--json`, has the name of an experiment's folder as key, such as "sharing-mini", and its verdict on
    each statement as value. Raises `InputError` if no experiment is finished.
    """
    verdicts: dict[str, dict[str, str]] = {}
    for path in sorted(out.glob(f"*/{RESULTS}")):
        if "experiment" in store.read_json(path):  # not the result of `albert eval`, for example
            report = store.read_record(path, _ReportedExperiment)
            verdicts[path.parent.name] = {claim["statement"]: claim["verdict"] for claim in report["claims"]}
    if not verdicts:
        hint = f"albert reproduce NAME --out {out} runs or continues one, and albert status {out} shows its stages"
        raise InputError(f"{out}: no finished experiment", hint)
    lines = []
    for name, claims in verdicts.items():
        lines += [name, *(f"  {verdict}: {statement}" for statement, verdict in claims.items())]
    counts = Counter(verdict for claims in verdicts.values() for verdict in claims.values())
    lines += ["", ", ".join(f"{count} {verdict}" for verdict, count in counts.most_common())]
    return verdicts, "\n".join(lines)


def list_columns(outcome: Outcome) -> dict[str, str]:
    """Return the column headers of our table by metric: the experiment's metrics and the scores of all tasks.

    Metrics that no variant has are left out.
    """
    headers = {metric: METRICS[metric] for metric in outcome.plan.experiment.metrics}
    headers |= {f"task_{name}": title for name, title in outcome.task_titles.items()}
    if len(outcome.task_titles) > 1:
        headers["tasks_mean"] = METRICS["tasks_mean"]
    measured = {metric for metrics in outcome.values.values() for metric, by_seed in metrics.items() if by_seed}
    return {metric: header for metric, header in headers.items() if metric in measured}


def format_gap(pairs: Sequence[tuple[float, float]]) -> str:
    """Format pairs (our value, the paper's value) as our values, and their differences from the paper's: `89.2 (+2.6)`.

    Two pairs are separated by a slash, as the paper prints F1 and exact match: `90.1/83.2 (+0.5/+0.4)`.
    """
    values = "/".join(f"{ours:.1f}" for ours, _ in pairs)
    differences = "/".join(f"{ours - paper:+.1f}" for ours, paper in pairs)
    return f"{values} ({differences})"


def _make_page(outcome: Outcome) -> ExperimentPage:
    plan = outcome.plan
    counts = Counter(checked.verdict for checked in outcome.claims)
    facts = [Fact(_mark(verdict), str(counts[verdict]), "of the claims below") for verdict in _MARKERS]
    colors = choose_colors(plan)
    return ExperimentPage(
        title=plan.experiment.title,
        scale=plan.request.scale,
        source=plan.experiment.source,
        about=plan.scale.about,
        version=__version__,
        confidence=f"{CONFIDENCE:.0%}",
        facts=facts if outcome.claims else [],
        claims=[_make_claim_section(checked) for checked in outcome.claims],
        is_counted=plan.experiment.is_counted,
        ours=_tabulate_values(outcome),
        skipped=[f"{name}: {reason}" for name, reason in outcome.skipped.items()],
        matched_times=[describe_matched_time(plan, name) for name in plan.matched_times],
        paper=[_tabulate_paper(outcome, table) for table in plan.experiment.tables],
        legend=[LegendEntry(plan.title(name), color) for name, color in colors.items() if outcome.values.get(name)],
        figures=make_figures(outcome),
        command=_format_command(plan),
        stages=_tabulate_stages(plan),
    )


# ---------------------------------------------------------------- claims


def _mark(verdict: Verdict) -> str:
    """Return the verdict with its symbol in front."""
    return f"{_MARKERS[verdict]} {verdict}"


def _make_claim_section(checked: CheckedClaim) -> ClaimSection:
    claim = checked.claim
    rows = []
    for finding in checked.findings:
        mean = _format_value(finding, finding.mean)
        seeds = "  ".join(_format_value(finding, value) for value in finding.by_seed.values()) or "none"
        rows.append([str(finding.condition), mean, _format_limits(finding), seeds, _mark(finding.verdict)])
    table = Table(["condition", "mean", "confidence limits", "by seed", "verdict"], rows)
    return ClaimSection(_mark(checked.verdict), claim.statement, claim.source, claim.margin, table)


def _format_value(finding: Finding, value: float | None) -> str:
    if value is None:
        return "unknown" if finding.by_seed else "not measured"
    # A condition on counts is exact. With `over`, its values are ratios of counts, which need decimals.
    is_count = finding.condition.is_exact and finding.condition.over is None
    return f"{value:,.0f}" if is_count else f"{value:.4g}"


def _format_limits(finding: Finding) -> str:
    if finding.low is None or finding.high is None:
        if len(finding.by_seed) > 1:
            return "unknown"
        return "none from a single seed" if finding.by_seed else ""  # "" if nothing was measured
    return "exact" if finding.condition.is_exact else f"{finding.low:.4g} … {finding.high:.4g}"


# ---------------------------------------------------------------- tables


def _tabulate_values(outcome: Outcome) -> Table:
    """Return our table: a row for each variant with a cell for each metric."""
    plan = outcome.plan
    headers = list_columns(outcome)
    rows = []
    for name in plan.variants:
        title = plan.title(name)
        if name in outcome.diverged:
            title += f" ({outcome.diverged[name]} diverged)"
        num_seeds = max((len(outcome.by_seed(name, metric)) for metric in headers), default=0)
        seeds = f"{num_seeds}\N{NO-BREAK SPACE}seed{'s' if num_seeds != 1 else ''}"
        notes = [] if plan.experiment.is_counted else [seeds]
        rows.append([Cell(title, notes), *(_value_cell(outcome, name, metric) for metric in headers)])
    return Table(["ours", *headers.values()], rows)


def _value_cell(outcome: Outcome, variant: str, metric: str) -> Cell:
    """Return the median over seeds, with each seed's value and the standard error of the mean below it.

    A count, and the value of a single seed, have nothing below them.
    """
    median = outcome.median(variant, metric)
    if median is None:
        return Cell("–")
    values = outcome.by_seed(variant, metric).values()
    error = standard_error(values)
    if error is None or metric in EXACT:
        return Cell(_format_metric(metric, median))
    seeds = "  ".join(_format_metric(metric, value) for value in values)
    return Cell(_format_metric(metric, median), [seeds, f"s.e. {_format_metric(metric, error)}"])


def _format_metric(metric: str, value: float) -> str:
    """Format a value: bytes, a count, a duration, a score in percent, a factor, or a loss or distance."""
    if metric == "activation_bytes":
        return format_bytes(round(value))
    if metric in EXACT:
        return f"{value:,.0f}"
    if metric in ("seconds", "total_seconds"):
        return console.format_duration(value)
    if is_score(metric):
        return f"{100 * value:.1f}"
    return f"{value:.1f}x" if metric == "speedup" else f"{value:.3f}"


def _tabulate_paper(outcome: Outcome, table: PaperTable) -> tuple[str, Table]:
    """Return a caption, and the paper's table with our values and their differences from the paper in its cells."""
    plan = outcome.plan
    comparison = outcome.compare_with_paper(table)
    rows = []
    for name, cells in table.rows.items():
        row = [Cell(plan.title(name))]
        for cell, column in zip(cells, table.columns, strict=True):
            pairs = comparison.get(name, {}).get(column)
            row.append(Cell(cell, [format_gap(pairs)]) if pairs else Cell(cell))
        rows.append(row)
    sentences = [f"The paper, {table.title}, {table.version}.", table.note]
    if comparison:
        sentences.append("Below each of the paper's values: ours and the difference.")
    if comparison and table.compare_with:
        ours = plan.title(table.compare_with)
        sentences.append(f"The paper's rows for models that we did not train are compared with our {ours}.")
    caption = " ".join(sentence for sentence in sentences if sentence)
    return caption, Table(["the paper", *table.columns], rows)


# ---------------------------------------------------------------- commands


def _format_command(plan: ExperimentPlan) -> str:
    """Return the command that repeats the experiment, without options such as `--jobs` that change no result."""
    request = plan.request
    words = ["albert", "reproduce", plan.experiment.argument, "--scale", request.scale, "--out", str(request.out)]
    options = [("--text", source) for source in request.text]
    options += [("--extra-text", source) for source in request.extra_text]
    options += [("-s", change) for change in request.changes]
    single_values = {
        "--data": request.data,
        "--tasks": request.tasks,
        "--minimal-pairs": request.minimal_pairs,
        "--seeds": request.seeds,
        "--nproc": request.nproc if plan.speeds else None,  # measured speeds determine steps, which change results
    }
    options += [(option, str(value)) for option, value in single_values.items() if value is not None]
    return format_command([*words, *itertools.chain.from_iterable(options)])


def _tabulate_stages(plan: ExperimentPlan) -> Table:
    rows = [[stage.title, stage.command, _format_time(plan, stage)] for stage in plan.stages.values()]
    return Table(["stage", "command", "time"], rows)


def _format_time(plan: ExperimentPlan, stage: Stage) -> str:
    """Return the time of a stage; "" if it is not finished."""
    record = read_record(plan.request, stage, StageRecord[TimedResult])
    if record is None:
        return ""
    seconds = record.seconds
    if record.result is not None and record.result.seconds is not None:
        seconds = max(seconds, record.result.seconds)  # a command that was resumed counts its earlier attempts too
    return console.format_duration(seconds)
