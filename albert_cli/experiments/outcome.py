"""What the finished stages of a plan say, read from their result files and from nowhere else."""

from __future__ import annotations

import itertools
import re
import statistics
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from albert_cli.experiments.claims import CheckedClaim, check
from albert_cli.experiments.plan import Plan, Run, is_of_task
from albert_cli.experiments.recipe import PRINTED, PaperTable
from albert_cli.report.found import Points, curves
from albert_cli.results import standard_error
from albert_cli.tasks.spec import as_published, average

_CLOCK = 0.1  # seconds, to which a run's are rounded
# What the probe counts the examples of each accuracy under.
_EXAMPLES = {"mlm": "masked_words", "sop": "sequences", "nsp": "sequences"}


@dataclass(frozen=True)
class Outcome:
    """An experiment's numbers: variant -> metric -> seed -> value, and what the claims make of them."""

    plan: Plan
    values: Mapping[str, Mapping[str, Mapping[int, float]]]
    layer_steps: Mapping[str, Mapping[str, list[list[float]]]]  # variant -> l2, degrees, cosine -> a list a seed
    curves: Mapping[str, Mapping[str, list[Points]]]  # variant -> mlm_loss, mlm_accuracy, … -> a curve a seed
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
                metrics = PRINTED.get(column, ())
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


def read(plan: Plan) -> Outcome:
    """Gather the results of all stages that are done, and hold the claims against them."""
    values: dict[str, dict[str, dict[int, float]]] = {name: {} for name in plan.variants}
    steps: dict[str, dict[str, list[list[float]]]] = {}
    drawn: dict[str, dict[str, list[Points]]] = {}
    titles: dict[str, str] = {}
    diverged: dict[str, int] = {}
    for run in plan.runs:
        if plan.record(run.pretrain).diverged:
            diverged[run.variant] = diverged.get(run.variant, 0) + 1
        for metric, value in _numbers(plan, run, titles).items():
            values[run.variant].setdefault(metric, {})[run.seed] = value
        for name, layers in plan.record(run.probe).printed.layer_steps.items():
            steps.setdefault(run.variant, {}).setdefault(name, []).append(layers)
        for name, points in curves(plan.directory(run.pretrain))[1].items():
            drawn.setdefault(run.variant, {}).setdefault(name, []).append(points)
    sampling = {name: _sampling(plan, name, values[name]) for name in plan.variants}
    if (against := plan.experiment.speed_against) is not None:
        _add_speedups(values, sampling, against)
    claims = [check(claim, values, sampling) for claim in plan.claims]
    return Outcome(plan, values, steps, drawn, titles, diverged, claims)


def _add_speedups(
    values: Mapping[str, dict[str, dict[int, float]]], sampling: Mapping[str, dict[str, float]], against: str
) -> None:
    """How many times as fast as one variant each makes a step, as Table 2 has it; and its variance within the runs."""

    def step(name: str) -> dict[int, float]:
        seconds, steps = values[name].get("seconds", {}), values[name].get("steps", {})
        return {seed: seconds[seed] / steps[seed] for seed in seconds if seconds[seed] > 0 and steps.get(seed)}

    def relative(name: str) -> float:
        return sampling[name].get("seconds", 0.0) / statistics.fmean(values[name]["seconds"].values()) ** 2

    slow = step(against)
    for name, metrics in values.items():
        if found := {seed: slow[seed] / one for seed, one in step(name).items() if seed in slow}:
            metrics["speedup"] = found
            variance = relative(name) + relative(against) if name != against else 0.0
            sampling[name]["speedup"] = statistics.fmean(found.values()) ** 2 * variance


def _sampling(plan: Plan, variant: str, metrics: Mapping[str, Mapping[int, float]]) -> dict[str, float]:
    """The variance of one measurement: of shares of right answers among n examples p (1 - p) / n, and of seconds."""
    found: dict[str, float] = {}
    tasks: dict[str, list[float]] = {}
    for run in plan.runs:
        if run.variant != variant:
            continue
        found["seconds"] = max(found.get("seconds", 0.0), _seconds_variance(plan.directory(run.pretrain)))
        probed = plan.record(run.probe).numbers
        examples = {f"{kind}_accuracy": probed.get(count) for kind, count in _EXAMPLES.items()}
        results = {f"task_{name}": plan.record(stage).task for name, stage in run.tasks.items()}
        for name, result in results.items():
            scored = next((n for split, n in result.examples.items() if split != "train"), None)
            examples |= {metric: scored for metric in metrics if is_of_task(metric, name)}  # F1 too
        for metric, count in examples.items():
            if count and run.seed in metrics.get(metric, {}):
                share = min(1.0, max(0.0, metrics[metric][run.seed]))
                found[metric] = max(found.get(metric, 0.0), share * (1 - share) / count)
        tasks = {
            "tasks_mean": [found[name] for name in results if name in found],
            "tasks_above_majority": [found[n] for n, r in results.items() if n in found and r.majority is not None],
        }
    return found | {metric: sum(each) / len(each) ** 2 for metric, each in tasks.items() if each}


def _seconds_variance(directory: Path) -> float:
    """The variance of a run's seconds: of the clock as written, and of the pace between lines of the journal."""
    training, _ = curves(directory)
    steps = {step for step, _ in training.get("loss", [])}
    points = [(step, at) for step, at in training.get("seconds", []) if step in steps and step and at]
    paces = [(b - a) / (n - m) for (m, a), (n, b) in itertools.pairwise(points) if n > m and b > a]
    last = points[-1][0] if points else 0.0
    of_paces = statistics.variance(paces) / len(paces) if len(paces) > 1 else 0.0
    return _CLOCK**2 / 12 + last**2 * of_paces


def _numbers(plan: Plan, run: Run, titles: dict[str, str]) -> dict[str, float]:
    """Every number of a run: of pretraining its length, of the probe all, of each task what the paper has."""
    trained = plan.record(run.pretrain)
    if models := trained.printed.models:  # `albert params`
        shape = {"layers": models[0].config["num_hidden_layers"], "hidden": models[0].config["hidden_size"]}
        return {"parameters": models[0].total, "paper_count": models[0].paper_count, **shape}
    # The accuracy of training is under the masks that the run trains with.
    names = {"steps": "steps", "seconds": "seconds", "mlm_accuracy": "own_mlm_accuracy"}
    found = {name: trained.numbers[key] for key, name in names.items() if key in trained.numbers}
    found |= plan.record(run.probe).numbers
    scores: dict[str, dict[str, float]] = {}
    above = []
    for name, stage in run.tasks.items():
        if not (record := plan.record(stage)).numbers:
            continue
        result, title = record.task, record.task.title or name
        scores[name] = as_published(name, result)
        if len(scores[name]) > 1:  # F1 and exact match
            titles |= {f"{name}_{metric}": f"{title} {metric.replace('_', ' ')}" for metric in scores[name]}
            found |= {f"task_{name}_{metric}": score for metric, score in scores[name].items()}
        titles[name] = title
        found[f"task_{name}"] = score = average({name: scores[name]})
        above += [score - result.majority] if result.majority is not None else []
    if scores and len(scores) == len(run.tasks):
        found["tasks_mean"] = average(scores)
        if above:
            found["tasks_above_majority"] = statistics.fmean(above)
    return found
