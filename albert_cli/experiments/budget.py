"""Describe a plan before it runs: its runs, tokens, FLOPs, hours and disk space, and the claims that it can decide.

An `ExperimentPlan` comes in; `describe_plan` returns what `albert reproduce --dry-run` prints. Costs are upper bounds.
Hours follow from the FLOPs and the speed of a device, which is measured (`--tflops`) or assumed for the scale.
"""

from __future__ import annotations

from collections.abc import Sequence, Set
from dataclasses import asdict, dataclass
from typing import Final

from albert_cli import console
from albert_cli.counting.costs import format_bytes, format_three_digits
from albert_cli.errors import ConfigError
from albert_cli.experiments.experiment import PaperClaim, ScaleName, split_reference
from albert_cli.experiments.inputs import MINIMAL_PAIRS_TASK
from albert_cli.experiments.metrics import EXACT, list_tasks
from albert_cli.experiments.plan import Cost, ExperimentPlan, Stage, VariantRun, add_dependencies
from albert_cli.formatting import count_of, suggest

# The plan's hours are printed for one device, and also for these numbers of devices.
_DEVICE_COUNTS: Final[dict[ScaleName, tuple[int, ...]]] = {"smoke": (2,), "mini": (2,), "h200": (), "paper": (8, 64)}
_SEEDS_TO_DECIDE: Final = 2  # a verdict needs the spread over seeds, which one seed does not have


@dataclass(frozen=True)
class PlannedStage:
    """The pretraining of a run, or its fine-tuning on a task, with the cost and the hours on one device."""

    variant: str
    seed: int
    stage: str  # the stage's id
    cost: Cost | None  # None if it is unknown
    device_hours: float  # 0 if the cost is unknown
    task: str | None = None  # None for pretraining

    def to_json(self) -> dict[str, object]:
        """Return the fields for `--json`."""
        fields = {"variant": self.variant, "seed": self.seed, "task": self.task, "stage": self.stage}
        cost = {**asdict(self.cost), "device_hours": self.device_hours} if self.cost else {}
        return {key: value for key, value in (fields | cost).items() if value is not None}


@dataclass(frozen=True)
class Totals:
    """The sums of the costs of stages; stages of unknown cost add nothing."""

    tokens: int
    flops: float
    device_hours: float
    disk_bytes: int


@dataclass(frozen=True)
class Decidability:
    """The reason, if any, why the planned runs cannot decide a claim, and the device-hours that a decision takes."""

    reason: str  # "" if the planned runs can decide the claim
    device_hours: float  # for two seeds of the claim's variants, including the runs that these start from


@dataclass(frozen=True)
class PlanDescription:
    """The runs of a plan with their costs, and the claims with their decidability."""

    plan: ExperimentPlan
    pretrainings: Sequence[PlannedStage]
    fine_tunings: Sequence[PlannedStage]
    claims: Sequence[tuple[PaperClaim, Decidability]]

    @property
    def totals(self) -> Totals:
        """The sums over pretraining and fine-tuning."""
        return _sum_costs([*self.pretrainings, *self.fine_tunings])

    @property
    def commands(self) -> list[str]:
        """The commands of all stages in order."""
        return [stage.command for stage in self.plan.stages.values()]

    def to_json(self) -> dict[str, object]:
        """Return the fields for `--json`."""
        plan = self.plan
        hours = {str(count): self.totals.device_hours / count for count in _DEVICE_COUNTS[plan.request.scale]}
        return {
            "experiment": plan.experiment.name,
            "scale": plan.request.scale,
            "about": plan.scale.about,
            "runs": [row.to_json() for row in self.pretrainings],
            "fine_tunings": [row.to_json() for row in self.fine_tunings],
            "claims": [_claim_to_json(claim, decidability) for claim, decidability in self.claims],
            "matched_times": {name: matched.to_json() for name, matched in plan.matched_times.items()},
            "skipped": dict(plan.skipped),
            "commands": self.commands,
            "total": {**asdict(self.totals), "hours": hours},
        }

    def to_text(self) -> str:
        """Return the costs as a table with a row for each variant, then notes, then the claims."""
        plan = self.plan
        experiment = plan.experiment
        title = f"{experiment.title} ({experiment.source}), scale {plan.request.scale}: {plan.scale.about}"
        costs = _format_costs(plan, self.pretrainings, self.fine_tunings)
        claims = [_format_claim(plan, claim, decidability) for claim, decidability in self.claims]
        return "\n\n".join([title, costs, _format_notes(plan), *claims])


def parse_speeds(options: Sequence[str]) -> dict[str, float]:
    """Parse the values `N` and `VARIANT=N` of `--tflops`; return TFLOP/s by variant, with the key "" for an `N` alone.

    Raises `ConfigError` if N is not a number or is out of range.
    """
    speeds = {}
    for option in options:
        name, _, value = option.rpartition("=")
        try:
            speed = float(value)
        except ValueError:
            hint = "use a number, such as --tflops 410 or --tflops base=380"
            raise ConfigError(f"--tflops {option}: not a number", hint) from None
        if not 0 < speed < 1e6:  # a larger number is probably in FLOP/s
            raise ConfigError(f"--tflops {option}: out of range", "use the TFLOP/s of one device, such as --tflops 410")
        speeds[name] = speed
    return speeds


def describe_plan(plan: ExperimentPlan) -> PlanDescription:
    """Return the runs and claims of a plan; raise `ConfigError` if `--tflops` names an unknown variant."""
    variants = plan.experiment.variants
    for name in plan.request.tflops:
        if name and name not in variants:
            hint = suggest(name, variants) or f"variants: {', '.join(variants)}"
            raise ConfigError(f"--tflops {name}=…: {plan.experiment.name} has no such variant", hint)
    all_runs = (*plan.unmeasured, *plan.runs)
    pretrainings = [_plan_stage(plan, run, run.pretrain) for run in all_runs if run.pretrain is not None]
    fine_tunings = [_plan_stage(plan, run, stage, task) for run in plan.runs for task, stage in run.tasks.items()]
    claims = [(claim, judge_decidability(plan, claim)) for claim in plan.claims]
    return PlanDescription(plan, pretrainings, fine_tunings, claims)


def judge_decidability(plan: ExperimentPlan, claim: PaperClaim) -> Decidability:
    """Judge if the planned runs can decide a claim, and sum the device-hours of two seeds of its variants."""
    compared = set(claim.variants)
    if "speedup" in claim.metrics and plan.experiment.speed_against:
        compared.add(plan.experiment.speed_against)
    num_seeds = max(1, len({run.seed for run in plan.runs}))
    obstacle = _find_obstacle(plan, claim, compared, num_seeds)
    if claim.metrics <= EXACT:  # counting these metrics takes no training
        return Decidability(obstacle, 0.0)
    variants = add_dependencies(plan.experiment, compared)
    has_task_scores = any(metric.startswith("task") for metric in claim.metrics)
    hours = 0.0
    for run in (*plan.unmeasured, *plan.runs):
        if run.variant in variants:
            stages = [run.pretrain] if run.pretrain else []
            if has_task_scores:
                stages += run.tasks.values()
            hours += sum(_plan_stage(plan, run, stage).device_hours for stage in stages)
    return Decidability(obstacle, hours / num_seeds * _SEEDS_TO_DECIDE)


def describe_matched_time(plan: ExperimentPlan, variant: str) -> str:
    """Return a sentence about the steps of a variant that trains for as long as another one (`match_time_of`)."""
    matched = plan.matched_times[variant]
    title = plan.title(variant)
    other = f"{plan.title(matched.other)}'s {matched.other_steps:,}"
    if matched.seconds is None:
        return (
            f"{title}: {matched.steps:,} steps have the FLOPs of {other}. A run first measures the seconds per step "
            "and then trains for the same time."
        )
    seconds, other_seconds = matched.seconds
    basis = "as measured before the run" if matched.is_measured else "on one device at the given speeds"
    return (
        f"{title}: {matched.steps:,} steps of {seconds:.4g} s take as long as {other} of {other_seconds:.4g} s, "
        f"{basis}; {matched.steps_by_flops:,} steps would have the same FLOPs."
    )


def _find_obstacle(plan: ExperimentPlan, claim: PaperClaim, variants: Set[str], num_seeds: int) -> str:
    """Return the reason why the planned runs cannot decide a claim that compares `variants`; "" if they can."""
    if missing := sorted(variants - {run.variant for run in plan.runs}):
        return f"the plan leaves out the variants {', '.join(missing)}"
    # Scores of one task without the prefix `task_`, such as squad1_f1, and means over tasks, such as tasks_mean.
    task_scores = {metric.removeprefix("task_") for metric in claim.metrics if metric.startswith("task")}
    # A score has the name of its task, with or without a suffix: squad1, squad1_f1.
    is_skipped = any(f"{score}_".startswith(f"{name}_") for score in task_scores for name in plan.skipped)
    no_tasks = not any(run.tasks for run in plan.runs)
    if is_skipped or (task_scores and no_tasks):
        return "the files of its tasks are missing; use --tasks to name their folder"
    if unmeasured := _list_unmeasured(plan, claim):
        return f"the plan does not measure {', '.join(unmeasured)}"
    if num_seeds < _SEEDS_TO_DECIDE and not claim.metrics <= EXACT:
        return "one seed has no spread; use --seeds 2 or more"
    return ""


def _list_unmeasured(plan: ExperimentPlan, claim: PaperClaim) -> list[str]:
    """Return the values in a claim, `VARIANT.METRIC`, that the plan's run of the variant does not measure."""
    runs = {run.variant: run for run in plan.runs}
    unmeasured = set[str]()
    references = [name for condition in claim.all_conditions for name in condition.references]
    for reference in references:
        variant, metric = split_reference(reference)
        run = runs[variant]
        if metric.startswith("task_"):
            is_measured = list_tasks([metric]) <= run.tasks.keys()
        elif metric.startswith("task"):
            is_measured = bool(run.tasks)
        elif metric == "minimal_pairs_accuracy":
            has_pairs = MINIMAL_PAIRS_TASK in run.tasks or plan.request.minimal_pairs is not None
            is_measured = has_pairs and run.probe is not None
        else:
            is_measured = run.pretrain is not None  # an ensemble has only the scores of tasks
        if not is_measured:
            unmeasured.add(reference)
    return sorted(unmeasured)


def _plan_stage(plan: ExperimentPlan, run: VariantRun, stage: Stage, task: str | None = None) -> PlannedStage:
    """Return a stage with its hours on one device; task: the stage's task, None for pretraining."""
    hours = 0.0
    if stage.cost is not None:
        speed = plan.request.flops_per_second(run.variant)  # measured
        if speed is None:
            speed = plan.scale.peak * plan.scale.utilization  # assumed
        hours = stage.cost.flops / speed / 3600
    return PlannedStage(run.variant, run.seed, stage.id, stage.cost, hours, task)


def _sum_costs(rows: Sequence[PlannedStage]) -> Totals:
    costs = [row.cost for row in rows if row.cost]
    return Totals(
        tokens=sum(cost.tokens for cost in costs),
        flops=sum(cost.flops for cost in costs),
        device_hours=sum(row.device_hours for row in rows if row.cost),
        disk_bytes=sum(cost.disk_bytes for cost in costs),
    )


def _claim_to_json(claim: PaperClaim, decidability: Decidability) -> dict[str, object]:
    return {
        "statement": claim.statement,
        "conditions": [str(condition) for condition in claim.all_conditions],
        "margin": claim.margin,
        "can_be_decided": not decidability.reason,
        "why_not": decidability.reason,
        "device_hours_to_decide": decidability.device_hours,
    }


# ---------------------------------------------------------------- text


def _format_claim(plan: ExperimentPlan, claim: PaperClaim, decidability: Decidability) -> str:
    """Return a claim with its conditions and a line about deciding it, each on an indented line."""
    reason = decidability.reason
    cost = f"two seeds of its variants take {_format_hours(decidability.device_hours)} {_device_name(plan)}-hours"
    if decidability.device_hours == 0:  # no variant of the claim is trained
        summary = reason if reason else "decided by counting"
    elif reason:
        summary = f"cannot be decided: {reason} ({cost})"
    else:
        summary = f"can be decided; {cost}"
    lines = [f"Claim: {claim.statement}", *(str(condition) for condition in claim.all_conditions), summary]
    return "\n    ".join(lines)


def _format_costs(
    plan: ExperimentPlan, pretrainings: Sequence[PlannedStage], fine_tunings: Sequence[PlannedStage]
) -> str:
    """Return a table: for each variant a row with the sums over its seeds, a row for all fine-tuning, and the total."""
    if plan.experiment.is_counted:
        return "Parameters are counted; nothing is trained."
    device_counts = (1, *_DEVICE_COUNTS[plan.request.scale])
    rows = []
    for name in dict.fromkeys(row.variant for row in pretrainings):
        stages = [row for row in pretrainings if row.variant == name]
        cost = stages[0].cost
        shape = [f"{cost.parameters:,}", f"{cost.steps:,}"] if cost else ["", ""]
        rows.append([plan.title(name), str(len(stages)), *shape, *_format_totals(_sum_costs(stages), device_counts)])
    with_cost = [row for row in fine_tunings if row.cost]
    if with_cost:
        num_tasks = len({row.task for row in with_cost})
        title = f"fine-tuning, {count_of(num_tasks, 'task')}, {count_of(len(with_cost) * plan.scale.task_runs, 'run')}"
        rows.append([title, "", "", "", *_format_totals(_sum_costs(with_cost), device_counts)])
    rows.append(["total", "", "", "", *_format_totals(_sum_costs([*pretrainings, *with_cost]), device_counts)])
    hours = [f"{_device_name(plan)}-hours", *(f"hours on {count}" for count in device_counts[1:])]
    return console.format_table(("", "seeds", "parameters", "steps", "tokens", "FLOPs", *hours, "disk"), rows)


def _format_totals(totals: Totals, device_counts: Sequence[int]) -> list[str]:
    """Return the last cells of a row: tokens, FLOPs, the hours on each number of devices, and disk space."""
    sizes = [f"{number:.2e}".replace("e+", "e") for number in (totals.tokens, totals.flops)]
    hours = [_format_hours(totals.device_hours / count) for count in device_counts]
    return [*sizes, *hours, format_bytes(totals.disk_bytes)]


def _device_name(plan: ExperimentPlan) -> str:
    """Return the device whose hours are counted: the scales `smoke` and `mini` are made for a CPU."""
    return "core" if plan.request.scale in ("smoke", "mini") else "H200"


def _format_hours(hours: float) -> str:
    if hours < 0.001:
        return "<0.001"
    return f"{hours:,.0f}" if hours >= 100 else format_three_digits(hours)


def _format_notes(plan: ExperimentPlan) -> str:
    speeds = plan.request.tflops
    if speeds:
        listed = ", ".join(f"{name} {speed:g} TFLOP/s".strip() for name, speed in speeds.items())
        hours = f"Hours use the measured speed of a device: {listed}."
    else:
        assumed = f"{plan.scale.utilization:.0%} of {plan.scale.peak / 1e12:g} TFLOP/s"
        hours = f"Hours assume {assumed} on each device; use --tflops to pass a measured speed."
    notes = [
        f"{hours} Several devices are assumed to scale perfectly.",
        "Tokens and FLOPs are upper bounds: full-length sequences, the whole model, and a run of the intermediate task "
        "for each task that has one. Vocabulary, data and intrinsic scores are not included.",
        *(describe_matched_time(plan, name) for name in plan.matched_times),
        *(f"Skipped: {name} ({reason})." for name, reason in plan.skipped.items()),
        f"{len(plan.stages)} stages; use --commands to print them and --jobs N to run N at a time.",
    ]
    return console.wrap_notes(notes)
