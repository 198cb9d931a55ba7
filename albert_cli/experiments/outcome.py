"""What the finished stages of a plan say, read from their result files and from nowhere else."""

from __future__ import annotations

import re
import statistics
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from albert_cli.experiments.claims import CheckedClaim, check_claim
from albert_cli.experiments.plan import ExperimentPlan, VariantRun
from albert_cli.experiments.recipe import COLUMN_METRICS, PaperTable
from albert_cli.experiments.uncertainty import (
    JACKKNIFE_GROUPS,
    JackknifeEstimate,
    exact_value,
    jackknife_task,
    jackknife_time,
    value_without_error,
)
from albert_cli.report.collect import Curve, read_curves
from albert_cli.results import standard_error


@dataclass(frozen=True)
class Outcome:
    """An experiment's numbers: variant -> metric -> seed -> value, and what the claims make of them."""

    plan: ExperimentPlan
    values: Mapping[str, Mapping[str, Mapping[int, float]]]
    layer_steps: Mapping[str, Mapping[str, list[list[float]]]]  # variant -> l2, degrees, cosine -> a list a seed
    curves: Mapping[str, Mapping[str, list[Curve]]]  # variant -> mlm_loss, mlm_accuracy, … -> a curve a seed
    task_titles: Mapping[str, str]
    diverged: Mapping[str, int]  # variant -> how many of its seeds did
    claims: list[CheckedClaim]

    def by_seed(self, variant: str, metric: str) -> Mapping[int, float]:
        """The values of a metric, one a seed; empty where it was not measured."""
        return self.values.get(variant, {}).get(metric, {})

    def middle(self, variant: str, metric: str) -> float | None:
        """The median over seeds."""
        found = self.by_seed(variant, metric)
        return statistics.median(found.values()) if found else None

    def standard_error(self, variant: str, metric: str) -> float | None:
        """Of the mean over seeds; None for fewer than two."""
        return standard_error(self.by_seed(variant, metric).values())

    def beside(self, printed: PaperTable) -> dict[str, dict[str, list[tuple[float, float]]]]:
        """Of one of the paper's tables what is measured: row -> column -> (ours, theirs), as the table prints them.

        A row that is no variant here is compared with the one that the table names. SQuAD has two numbers in a cell.
        """
        found: dict[str, dict[str, list[tuple[float, float]]]] = {}
        for row, cells in printed.rows.items():
            variant = row if row in self.plan.experiment.variants else str(printed.ours)
            for column, cell in zip(printed.columns, cells, strict=True):
                theirs = [float(number) for number in re.findall(r"\d+\.\d+", cell)]
                metrics = COLUMN_METRICS.get(column, ())
                medians = [self.middle(variant, metric) for metric in metrics]
                ours = [value * (1 if column == "speedup" else 100) for value in medians if value is not None]
                # Version 1 is relative to another model in speed.
                if theirs and len(ours) == len(theirs) and (column, printed.version) != ("speedup", "version 1"):
                    found.setdefault(row, {})[column] = list(zip(ours, theirs, strict=True))
        return found

    def to_json(self) -> dict[str, Any]:
        """For `results.json` and `--json`."""
        request = self.plan.request
        return {
            "experiment": self.plan.experiment.name,
            "scale": request.scale,
            "values": {
                variant: {metric: {str(s): v for s, v in by_seed.items()} for metric, by_seed in metrics.items()}
                for variant, metrics in self.values.items()
            },
            "diverged": dict(self.diverged),
            "equal_time": {name: equal.to_json() for name, equal in self.plan.equal_time.items()},
            "left_out": self.plan.left_out,
            "ours_and_the_paper_s": {
                f"{printed.title}, {printed.version}": self.beside(printed) for printed in self.plan.experiment.tables
            },
            "claims": [checked.to_json() for checked in self.claims],
        }


def read_outcome(plan: ExperimentPlan) -> Outcome:
    """Gather the results of all stages that are done, and hold the claims against them."""
    values: dict[str, dict[str, dict[int, JackknifeEstimate]]] = {name: {} for name in plan.variants}
    steps: dict[str, dict[str, list[list[float]]]] = {}
    drawn: dict[str, dict[str, list[Curve]]] = {}
    titles: dict[str, str] = {}
    diverged: dict[str, int] = {}
    for run in plan.runs:
        if plan.record(run.pretrain).diverged:
            diverged[run.variant] = diverged.get(run.variant, 0) + 1
        for metric, value in _numbers(plan, run, titles).items():
            values[run.variant].setdefault(metric, {})[run.seed] = value
        for name, layers in plan.record(run.probe).layer_steps.items():
            steps.setdefault(run.variant, {}).setdefault(name, []).append(layers)
        for name, points in read_curves(plan.directory(run.pretrain))[1].items():
            drawn.setdefault(run.variant, {}).setdefault(name, []).append(points)
    if (against := plan.experiment.speed_against) is not None:  # how many times as fast each makes a step (Table 2)
        step = {name: _seconds_a_step(metrics) for name, metrics in values.items()}
        for name, of in step.items():
            if found := {seed: step[against][seed] / one for seed, one in of.items() if seed in step[against]}:
                values[name]["speedup"] = found
    claims = [check_claim(claim, values) for claim in plan.claims]
    shown = {
        variant: {metric: {seed: float(value[0]) for seed, value in of.items()} for metric, of in metrics.items()}
        for variant, metrics in values.items()
    }
    return Outcome(plan, shown, steps, drawn, titles, diverged, claims)


def _seconds_a_step(metrics: Mapping[str, Mapping[int, JackknifeEstimate]]) -> dict[int, JackknifeEstimate]:
    seconds, steps = metrics.get("seconds", {}), metrics.get("steps", {})
    return {seed: seconds[seed] / steps[seed] for seed in seconds if seconds[seed][0] > 0 and seed in steps}


def _numbers(plan: ExperimentPlan, run: VariantRun, titles: dict[str, str]) -> dict[str, JackknifeEstimate]:
    """Every number of a run: of pretraining its length, of the probe all, of each task what the paper has."""
    trained = plan.record(run.pretrain)
    if models := trained.models:  # `albert params`
        shape = {"layers": models[0].config["num_hidden_layers"], "hidden": models[0].config["hidden_size"]}
        counts = {"parameters": models[0].total, "paper_count": models[0].paper_count, **shape}
        return {name: exact_value(count) for name, count in counts.items()}
    found = {}
    if (taken := trained.numbers.get("steps")) is not None:
        found["steps"] = exact_value(taken)
    if (seconds := trained.numbers.get("seconds")) is not None:
        found["seconds"] = jackknife_time(seconds, plan.directory(run.pretrain))
    probed = plan.record(run.probe)
    for name, value in probed.numbers.items():
        found[name] = exact_value(value)
        if name.endswith("_accuracy") or name in ("mlm_loss", "below_unigram_entropy"):
            each = probed.without_parts.get(name, [])
            found[name] = np.array([value, *each]) if len(each) == JACKKNIFE_GROUPS else value_without_error(value)
    tasks: list[JackknifeEstimate] = []
    above: list[JackknifeEstimate] = []
    for name, stage in run.tasks.items():
        if not (record := plan.record(stage)).numbers:
            continue
        result, title = record.task, record.task.title or name
        scores = jackknife_task(name, result, plan.directory(stage))
        if len(scores) > 1:  # F1 and exact match
            titles |= {f"{name}_{metric}": f"{title} {metric.replace('_', ' ')}" for metric in scores}
            found |= {f"task_{name}_{metric}": score for metric, score in scores.items()}
        titles[name] = title
        found[f"task_{name}"] = score = np.mean(list(scores.values()), axis=0)  # as the paper's Avg takes them
        tasks.append(score)
        above += [score - result.majority] if result.majority is not None else []
    if tasks and len(tasks) == len(run.tasks):
        found["tasks_mean"] = np.mean(tasks, axis=0)
        if above:
            found["tasks_above_majority"] = np.mean(above, axis=0)
    return found
