"""What a plan would take, printed before anything is run: runs, tokens, FLOPs, hours, disk."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any, Final, NamedTuple

from albert_cli import config, console
from albert_cli.counting.costs import format_bytes, format_three_digits
from albert_cli.errors import ConfigError
from albert_cli.experiments.plan import Cost, ExperimentPlan, VariantRun
from albert_cli.experiments.recipe import EXACT, PaperClaim

# How many devices the hours are printed for, beside one.
_DEVICES: Final[dict[str, tuple[int, ...]]] = {"smoke": (2,), "mini": (2,), "h200": (), "paper": (8, 64)}


@dataclass(frozen=True)
class _Row:
    """A run or a task of one, what it takes, and its hours on one device."""

    variant: str
    seed: int
    stage: str
    cost: Cost | None
    hours: float
    task: str | None = None

    def to_json(self) -> dict[str, object]:
        """For `--json`."""
        found = {"variant": self.variant, "seed": self.seed, "task": self.task, "stage": self.stage}
        cost = {**asdict(self.cost), "device_hours": self.hours} if self.cost else {}
        return {key: value for key, value in (found | cost).items() if value is not None}


def describe_plan(plan: ExperimentPlan) -> tuple[dict[str, Any], str]:
    """The plan as data, and as tables: a row a variant, its seeds together."""
    experiment, scale, devices = plan.experiment, plan.scale, _DEVICES[plan.request.scale]
    for name in plan.request.tflops:
        if name and name not in experiment.variants:
            hint = config.suggest(name, experiment.variants) or f"variants: {', '.join(experiment.variants)}"
            raise ConfigError(f"--tflops {name}=…: {experiment.name} has no such variant", hint)
    runs = [_row(plan, run, run.pretrain) for run in (*plan.prefixes, *plan.runs) if run.pretrain]
    tasks = [_row(plan, run, stage, task) for run in plan.runs for task, stage in run.tasks.items()]
    claims = [_claim(plan, claim) for claim in plan.claims]
    tokens, flops, hours, disk = _sums([*runs, *tasks])
    data: dict[str, Any] = {
        "experiment": experiment.name,
        "scale": plan.request.scale,
        "about": scale.about,
        "runs": [row.to_json() for row in runs],
        "fine_tunings": [row.to_json() for row in tasks],
        "claims": [found for found, _ in claims],
        "equal_time": {name: equal.to_json() for name, equal in plan.equal_time.items()},
        "left_out": plan.left_out,
        "commands": [stage.command for stage in plan.stages.values()],
        "total": {
            "tokens": tokens, "flops": flops, "device_hours": hours, "disk_bytes": disk,
            "hours": {str(n): hours / n for n in devices},
        },
    }  # fmt: skip
    parts = [f"{experiment.title} ({experiment.source}), scale {plan.request.scale}: {scale.about}"]
    parts += [_table(plan, runs, tasks, devices), _notes(plan), *(text for _, text in claims)]
    return data, "\n\n".join(parts)


def _row(plan: ExperimentPlan, run: VariantRun, stage: str, task: str | None = None) -> _Row:
    cost, given = plan.stages[stage].cost, plan.request.tflops
    measured = given.get(run.variant, given.get("", 0.0))
    speed = measured * 1e12 if measured else plan.scale.peak * plan.scale.share  # FLOP/s of a device
    return _Row(run.variant, run.seed, stage, cost, cost.flops / speed / 3600 if cost else 0.0, task)


# ---------------------------------------------------------------- claims


class Decidability(NamedTuple):
    """Whether a claim can be decided by what is planned: why not ("" where it can), and what deciding it takes.

    `device_hours` are of the runs that the claim compares, with what they start from and their tasks, two seeds each.
    """

    why: str
    device_hours: float


def judge_decidability(plan: ExperimentPlan, claim: PaperClaim) -> Decidability:
    """What is known of a claim before anything is run."""
    references = [name.partition(".") for condition in claim.all_conditions for name in condition.references]
    names, metrics = {name for name, _, _ in references}, {metric for _, _, metric in references}
    if metrics <= EXACT:
        return Decidability("", 0.0)
    if "speedup" in metrics and plan.experiment.speed_against:
        names.add(plan.experiment.speed_against)
    rests_on = {name: {v.after, v.teacher, *v.members} for name, v in plan.experiment.variants.items()}
    while more := {other for name in names for other in rests_on[name] if other} - names:
        names |= more  # with all that they start from
    tasks = {metric.removeprefix("task_") for metric in metrics if metric.startswith("task")}
    runs = [run for run in (*plan.prefixes, *plan.runs) if run.variant in names]
    seeds = max(1, len({run.seed for run in plan.runs}))
    stages = [(run, stage) for run in runs for stage in (run.pretrain, *(run.tasks.values() if tasks else ())) if stage]
    hours = sum(_row(plan, run, stage).hours for run, stage in stages)
    why = ""
    # A metric is a task's own or named after it, as squad1_f1 is of squad1.
    are_left_out = any(f"{metric}_".startswith(f"{left}_") for metric in tasks for left in plan.left_out)
    if are_left_out or (tasks and not any(run.tasks for run in plan.runs)):
        why = "its tasks have no files here; --tasks names their folder"
    elif seeds < 2:
        why = "one seed gives no spread; --seeds 2 or more"
    return Decidability(why, hours / seeds * 2)


def _claim(plan: ExperimentPlan, claim: PaperClaim) -> tuple[dict[str, object], str]:
    """A claim, and whether it can be decided, as data and in words."""
    why, hours = judge_decidability(plan, claim)
    conditions = [str(condition) for condition in claim.all_conditions]
    cost = f"two seeds, the fewest, of what it compares take {_hours(hours)} {_kind(plan)}-hours"
    known = f"cannot be decided: {why} ({cost})" if why else f"can be decided; {cost}"
    if not hours:
        known = why or "decided by counting"
    data = {
        "says": claim.says,
        "conditions": conditions,
        "margin": claim.margin,
        "can_be_decided": not why,
        "why_not": why,
        "device_hours_to_decide": hours,
    }
    return data, "\n    ".join([f"Claim: {claim.says}", *conditions, known])


# ---------------------------------------------------------------- in words


def _table(plan: ExperimentPlan, runs: Sequence[_Row], tasks: Sequence[_Row], devices: Sequence[int]) -> str:
    """A row a variant with all its seeds, one for fine-tuning, one for everything."""
    if plan.experiment.is_counted:
        return "Counted by arithmetic; nothing is trained."

    def shown(rows: Sequence[_Row]) -> list[str]:
        tokens, flops, hours, disk = _sums(rows)
        counts = [f"{value:.2e}".replace("e+", "e") for value in (tokens, flops)]
        return [*counts, *(_hours(hours / n) for n in (1, *devices)), format_bytes(disk)]

    rows = []
    for name in dict.fromkeys(row.variant for row in runs):
        own = [row for row in runs if row.variant == name]
        first = own[0].cost
        counts = (str(len(own)), f"{first.parameters:,}", f"{first.steps:,}") if first else ("", "", "")
        rows.append((plan.experiment.variants[name].title, *counts, *shown(own)))
    if priced := [row for row in tasks if row.cost]:
        names, times = len({row.task for row in priced}), len(priced) * plan.scale.task_runs
        rows.append((f"fine-tuning, {names} tasks, {times} runs", "", "", "", *shown(priced)))
    rows.append(("all", "", "", "", *shown([*runs, *priced])))
    hours = (f"{_kind(plan)}-hours", *(f"hours on {n}" for n in devices))
    return console.format_table(("", "seeds", "parameters", "steps", "tokens", "FLOPs", *hours, "disk"), rows)


def _sums(rows: Sequence[_Row]) -> tuple[int, float, float, int]:
    """Tokens, FLOPs, device-hours, and bytes of disk."""
    costs = [row.cost for row in rows if row.cost]
    hours = sum(row.hours for row in rows if row.cost)
    return sum(c.tokens for c in costs), sum(c.flops for c in costs), hours, sum(c.disk_bytes for c in costs)


def _kind(plan: ExperimentPlan) -> str:
    return "core" if plan.request.scale in ("smoke", "mini") else "H200"


def _hours(hours: float) -> str:
    return f"{hours:,.0f}" if hours >= 100 else format_three_digits(hours) if hours >= 0.001 else "<0.001"


def _notes(plan: ExperimentPlan) -> str:
    scale, given = plan.scale, plan.request.tflops
    speeds = ", ".join(f"{name + ' ' if name else ''}{value:g} TFLOP/s a device" for name, value in given.items())
    assumed = (
        f"Hours assume {scale.share:.0%} of {scale.peak / 1e12:g} TFLOP/s a device, which is no measurement of this "
        "machine; --tflops takes one"
    )
    hours = f"Hours at the measured speed given: {speeds}" if given else assumed
    notes = [
        f"{hours}. Devices are taken to add up without loss.",
        "Tokens and FLOPs count every sequence at its full length, and the whole model. Vocabulary, data and intrinsic "
        "scores are not counted.",
        *(describe_matched_time(plan, name) for name in plan.equal_time),
    ]
    notes += [f"Left out: {task} ({why})." for task, why in plan.left_out.items()]
    notes.append(f"{len(plan.stages)} stages; --commands prints them, --jobs N runs N at once.")
    return console.wrap_notes(notes)


def describe_matched_time(plan: ExperimentPlan, variant: str) -> str:
    """How a variant's steps follow from another's, by time and by FLOPs."""
    equal, title = plan.equal_time[variant], plan.experiment.variants[variant].title
    other = f"{plan.experiment.variants[equal.of].title}'s {equal.other_steps:,}"
    if equal.seconds is None:
        return (
            f"{title}: {equal.steps:,} steps have the FLOPs of {other}; a run measures seconds a step first, and takes "
            "the steps that last as long."
        )
    own, theirs = equal.seconds
    return (
        f"{title}: {equal.steps:,} steps of {own:.4g} s take as long as {other} of {theirs:.4g} s, as measured here "
        f"before; {equal.steps_by_flops:,} would have as many FLOPs."
    )
