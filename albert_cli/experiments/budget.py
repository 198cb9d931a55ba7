"""What a plan would take, printed before anything is run: runs, tokens, FLOPs, hours, disk."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

from albert_cli import config, console
from albert_cli.counting.costs import size_in_words, three_digits
from albert_cli.errors import ConfigError
from albert_cli.experiments.plan import Cost, Plan, Run
from albert_cli.experiments.recipe import EXACT, Claim

# How many devices the hours are printed for, beside one.
_DEVICES: Final[dict[str, tuple[int, ...]]] = {"smoke": (2,), "mini": (2,), "h200": (), "paper": (8, 64)}


def describe(plan: Plan) -> tuple[dict[str, Any], str]:
    """The plan as data, and as tables: a row a variant, its seeds together."""
    experiment, scale, devices = plan.experiment, plan.scale, _DEVICES[plan.request.scale]
    for name in plan.request.tflops:
        if name and name not in experiment.variants:
            hint = config.suggestion(name, experiment.variants) or f"variants: {', '.join(experiment.variants)}"
            raise ConfigError(f"--tflops {name}=…: {experiment.name} has no such variant", hint)
    data: dict[str, Any] = {
        "experiment": experiment.name,
        "scale": plan.request.scale,
        "about": scale.about,
        "runs": [_run(plan, run) for run in (*plan.prefixes, *plan.runs)],
        "fine_tunings": [_task(plan, run, task, id_) for run in plan.runs for task, id_ in run.tasks.items()],
        "claims": [decision(plan, claim).to_json(claim) for claim in plan.claims],
        "equal_time": {name: equal.to_json() for name, equal in plan.equal_time.items()},
        "left_out": plan.left_out,
        "commands": [stage.command for stage in plan.stages.values()],
    }
    costs = [*data["runs"], *data["fine_tunings"]]
    data["total"] = {
        key: sum(c.get(key, 0) for c in costs) for key in ("tokens", "flops", "device_hours", "disk_bytes")
    }
    data["total"]["hours"] = {str(n): data["total"]["device_hours"] / n for n in devices}
    parts = [f"{experiment.title} ({experiment.source}), scale {plan.request.scale}: {scale.about}"]
    parts += [_table(plan, data, devices), _notes(plan)]
    for claim in plan.claims:
        lines = [f"Claim: {claim.says}", *(f"    {condition}" for condition in claim.all_conditions)]
        parts.append("\n".join([*lines, f"    {decision(plan, claim).in_words(plan)}"]))
    return data, "\n\n".join(parts)


@dataclass(frozen=True)
class Decision:
    """Whether a claim can be decided by what is planned: why not ("" where it can), and what deciding it takes.

    `device_hours` are of the runs that the claim compares, with what they start from and their tasks, two seeds each.
    """

    says: str
    why: str
    device_hours: float

    def to_json(self, claim: Claim) -> dict[str, Any]:
        """For `--json`."""
        conditions = [str(condition) for condition in claim.all_conditions]
        said = {"says": claim.says, "conditions": conditions, "margin": claim.margin}
        return said | {"can_be_decided": not self.why, "why_not": self.why, "device_hours_to_decide": self.device_hours}

    def in_words(self, plan: Plan) -> str:
        """A line below the claim."""
        if not self.device_hours:
            return self.why or "decided by counting"
        cost = f"two seeds, the fewest, of what it compares take {_hours(self.device_hours)} {_kind(plan)}-hours"
        return f"cannot be decided: {self.why} ({cost})" if self.why else f"can be decided; {cost}"


def decision(plan: Plan, claim: Claim) -> Decision:
    """What can be said of a claim before anything is run."""
    references = [name.partition(".") for condition in claim.all_conditions for name in condition.references]
    names, metrics = {name for name, _, _ in references}, {metric for _, _, metric in references}
    if metrics <= EXACT:
        return Decision(claim.says, "", 0.0)
    tasks = {metric for metric in metrics if metric.startswith("task")}
    missing = {metric.removeprefix("task_") for metric in tasks if metric.startswith("task_")} & plan.left_out.keys()
    runs = [run for run in (*plan.prefixes, *plan.runs) if run.variant in _with_ancestors(plan, names)]
    seeds = max(1, len({run.seed for run in plan.runs}))
    hours = sum(c.flops / speed(plan, run.variant) / 3600 for run in runs for c in _costs_of(plan, run, bool(tasks)))
    why = ""
    if missing or (tasks and not any(run.tasks for run in plan.runs)):
        why = "its tasks have no files here; --tasks names their folder"
    elif seeds < 2:
        why = "one seed has no spread to judge by; --seeds 2 or more"
    return Decision(claim.says, why, hours / seeds * 2)


def _costs_of(plan: Plan, run: Run, with_tasks: bool) -> list[Cost]:
    stages = [run.pretrain, *(run.tasks.values() if with_tasks else ())]
    return [cost for stage in stages if (cost := plan.stages[stage].cost) is not None]


def _with_ancestors(plan: Plan, names: set[str]) -> set[str]:
    """The variants with all that they start from."""
    found = set(names)
    while more := {str(plan.experiment.variants[name].after) for name in found} - found - {"None"}:
        found |= more
    return found


def speed(plan: Plan, variant: str) -> float:
    """FLOP/s of a device: as measured and given, or the assumed share of its peak."""
    given = plan.request.tflops
    measured = given.get(variant, given.get("", 0.0))
    return measured * 1e12 if measured else plan.scale.peak * plan.scale.share


def _costs(plan: Plan, variant: str, cost: Cost | None) -> dict[str, Any]:
    if cost is None:
        return {}
    return {
        "parameters": cost.parameters,
        "steps": cost.steps,
        "tokens": cost.tokens,
        "flops": cost.flops,
        "device_hours": cost.flops / speed(plan, variant) / 3600,
        "disk_bytes": cost.disk,
    }


def _run(plan: Plan, run: Run) -> dict[str, Any]:
    stage = plan.stages[run.pretrain]
    return {"variant": run.variant, "seed": run.seed, "stage": stage.id, **_costs(plan, run.variant, stage.cost)}


def _task(plan: Plan, run: Run, task: str, stage: str) -> dict[str, Any]:
    costs = _costs(plan, run.variant, plan.stages[stage].cost)
    return {"variant": run.variant, "seed": run.seed, "task": task, "stage": stage, **costs}


def _table(plan: Plan, data: dict[str, Any], devices: tuple[int, ...]) -> str:
    """A row a variant with all its seeds, one for fine-tuning, one for everything."""
    if plan.experiment.is_counted:
        return "Counted by arithmetic; nothing is trained."
    hours = (f"{_kind(plan)}-hours", *(f"hours on {n}" for n in devices))
    heads = ("", "seeds", "parameters", "steps", "tokens", "FLOPs", *hours, "disk")
    rows = []
    for name in dict.fromkeys(run["variant"] for run in data["runs"]):
        own = [run for run in data["runs"] if run["variant"] == name]
        first = own[0]
        counts = (str(len(own)), f"{first['parameters']:,}", f"{first['steps']:,}")
        rows.append((plan.experiment.variants[name].title, *counts, *_sums(own, devices)))
    tasks = [t for t in data["fine_tunings"] if "tokens" in t]
    if tasks:
        names = len({t["task"] for t in tasks})
        runs = len(tasks) * plan.scale.task_runs
        rows.append((f"fine-tuning, {names} tasks, {runs} runs", "", "", "", *_sums(tasks, devices)))
    rows.append(("all", "", "", "", *_sums([*data["runs"], *tasks], devices)))
    return console.table(heads, rows)


def _kind(plan: Plan) -> str:
    return "core" if plan.request.scale in ("smoke", "mini") else "H200"


def _sums(costs: list[dict[str, Any]], devices: tuple[int, ...]) -> tuple[str, ...]:
    tokens, flops, hours, disk = (
        sum(c[key] for c in costs) for key in ("tokens", "flops", "device_hours", "disk_bytes")
    )
    return (_scientific(tokens), _scientific(flops), *(_hours(hours / n) for n in (1, *devices)), size_in_words(disk))


def _scientific(value: float) -> str:
    return f"{value:.2e}".replace("e+", "e")


def _hours(hours: float) -> str:
    return f"{hours:,.0f}" if hours >= 100 else three_digits(hours) if hours >= 0.001 else "<0.001"


def _notes(plan: Plan) -> str:
    scale, given = plan.scale, plan.request.tflops
    if given:
        said = "Hours at the measured speed given: " + ", ".join(
            f"{name + ' ' if name else ''}{value:g} TFLOP/s a device" for name, value in given.items()
        )
    else:
        said = (
            f"Hours assume {scale.share:.0%} of {scale.peak / 1e12:g} TFLOP/s a device, which is no measurement of "
            "this machine; --tflops takes one"
        )
    notes = [
        f"{said}. Devices are taken to add up without loss.",
        "Tokens and FLOPs count every sequence at its full length, and the whole model. Vocabulary, data and intrinsic "
        "scores are not counted.",
    ]
    notes += [in_words(plan, name) for name in plan.equal_time]
    if plan.left_out:
        notes += [f"Left out: {task} ({why})." for task, why in plan.left_out.items()]
    notes.append(f"{len(plan.stages)} stages; --commands prints them, --jobs N runs N at once.")
    return console.wrapped(notes)


def in_words(plan: Plan, variant: str) -> str:
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
