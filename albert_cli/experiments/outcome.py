"""The outcome of an experiment: values by variant, metric and seed, the paper's values, and verdicts on its claims.

`read_outcome` computes the outcome from the result files of a plan's finished stages, so an unfinished experiment has
an outcome, too. The functions of this module compute with estimates. An estimate is an array: a value, and then the
same value without each jackknife group (`uncertainty`). The claims compute errors from it. `Outcome` has only the
values.
"""

from __future__ import annotations

import itertools
import re
import statistics
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
from pydantic import BaseModel

from albert_cli.counting.activations import activation_bytes
from albert_cli.counting.costs import GPU_SETUP
from albert_cli.experiments.claims import CheckedClaim, Values, check_claim
from albert_cli.experiments.experiment import PaperTable
from albert_cli.experiments.inputs import MINIMAL_PAIRS_TASK
from albert_cli.experiments.metrics import list_tasks
from albert_cli.experiments.plan import ExperimentPlan, Stage, VariantRun
from albert_cli.experiments.records import (
    CountResult,
    PretrainOutput,
    ProbeResult,
    StageRecord,
    read_record,
    read_result,
)
from albert_cli.experiments.uncertainty import (
    JACKKNIFE_GROUPS,
    JackknifeEstimate,
    exact_value,
    jackknife_task,
    jackknife_time,
    value_of_unknown_error,
)
from albert_cli.report.collect import Curve, read_curves
from albert_cli.results import TaskScoreRecord
from albert_cli.tasks.registry import TASKS, paper_metric_names

Estimates = Mapping[str, JackknifeEstimate]  # by metric
_CHANCE_OF_PAIRS = 0.5  # the accuracy of guessing the acceptable sentence of two


@dataclass(frozen=True)
class Outcome:
    """An experiment's values by variant, metric and seed, and the verdicts on its claims."""

    plan: ExperimentPlan
    values: Mapping[str, Mapping[str, Mapping[int, float]]]
    layer_distances: Mapping[str, Mapping[str, list[list[float]]]] = field(default_factory=dict)
    """Figure 1: variant -> measure, such as l2 -> for each seed, the distance between each layer's input and output."""
    curves: Mapping[str, Mapping[str, list[Curve]]] = field(default_factory=dict)
    """Variant -> mlm_loss, mlm_accuracy, … on held-out text -> for each seed, the curve."""
    task_titles: Mapping[str, str] = field(default_factory=dict)
    """Name of a task or of one of its scores, such as squad1 or squad1_f1 -> column header."""
    diverged: Mapping[str, int] = field(default_factory=dict)
    """Variant -> number of diverged seeds; only variants with such seeds."""
    left_out: Mapping[str, str] = field(default_factory=dict)
    """Kind of measurement -> the reason why it is not compared."""
    claims: list[CheckedClaim] = field(default_factory=list)

    @property
    def skipped(self) -> Mapping[str, str]:
        """The reason for everything that is left out: tasks and texts of the plan, and measurements."""
        return {**self.plan.skipped, **self.left_out}

    def by_seed(self, variant: str, metric: str) -> Mapping[int, float]:
        """Return the values of a metric by seed; empty if it was not measured."""
        return self.values.get(variant, {}).get(metric, {})

    def median(self, variant: str, metric: str) -> float | None:
        """Return the median over seeds; None if the metric was not measured."""
        values = self.by_seed(variant, metric).values()
        return statistics.median(values) if values else None

    def compare_with_paper(self, table: PaperTable) -> dict[str, dict[str, list[tuple[float, float]]]]:
        """Return row -> column -> [(our value, the paper's value)] in the paper's units.

        Cells that we have not measured are left out. A cell of SQuAD has two pairs, of F1 and of exact match. A row
        whose model is not a variant is compared with the variant `table.compare_with`, and left out if that is None.
        """
        comparison: dict[str, dict[str, list[tuple[float, float]]]] = {}
        for row, cells in table.rows.items():
            variant = row if row in self.plan.experiment.variants else table.compare_with
            if variant is None:
                continue
            for column, cell in zip(table.columns, cells, strict=True):
                if column == "speedup" and table.version == "version 1":
                    continue  # version 1 relates speeds to BERT-xlarge, which is no variant here
                paper_values = [float(number) for number in re.findall(r"\d+\.\d+", cell)]
                our_values = self._measure_column(variant, table, column)
                if paper_values and len(our_values) == len(paper_values):
                    comparison.setdefault(row, {})[column] = list(zip(our_values, paper_values, strict=True))
        return comparison

    def to_json(self) -> dict[str, object]:
        """Return the content of `results.json`, which `--json` prints too."""
        return {
            "kind": "experiment",
            "experiment": self.plan.experiment.name,
            "scale": self.plan.request.scale,
            "values": self.values,
            "diverged": dict(self.diverged),
            "matched_times": {name: matched.to_json() for name, matched in self.plan.matched_times.items()},
            "skipped": dict(self.skipped),
            "comparison_with_paper": {
                f"{table.title}, {table.version}": self.compare_with_paper(table)
                for table in self.plan.experiment.tables
            },
            "claims": [checked.to_json() for checked in self.claims],
        }

    def _measure_column(self, variant: str, table: PaperTable, column: str) -> list[float]:
        """Return our values for a column, without those that we have not measured, in the paper's units.

        An average is comparable only if it is over the same tasks, so the list is empty for an average over other tasks
        than the table's.
        """
        metrics = table.column_metrics(column)
        measured_tasks = list_tasks(self.values.get(variant, {}))
        if "tasks_mean" in metrics and measured_tasks != table.tasks:
            return []
        medians = [self.median(variant, metric) for metric in metrics]
        factor = 1 if column == "speedup" else 100  # scores are percentages in the paper
        return [factor * median for median in medians if median is not None]


@dataclass(frozen=True)
class _TaskMeasurement:
    """The scores of one pretrained model on one task."""

    title: str
    metrics: Estimates  # of the task's usual metrics, such as F1 and exact match
    extra: Estimates  # of metrics that a table shows instead of the usual ones; they are not part of the mean
    mean: JackknifeEstimate  # of `metrics`; the paper's Avg is a mean of such means
    above_majority: JackknifeEstimate | None  # `mean` minus the majority class's score, if any


def read_outcome(plan: ExperimentPlan) -> Outcome:
    """Read the results of all finished stages and test the claims against them."""
    values: dict[str, dict[str, dict[int, JackknifeEstimate]]] = {name: {} for name in plan.variants}
    layer_distances: dict[str, dict[str, list[list[float]]]] = {}
    curves: dict[str, dict[str, list[Curve]]] = {}
    task_titles: dict[str, str] = {}
    diverged: Counter[str] = Counter()
    for run in plan.runs:
        tasks = _measure_tasks(plan, run)
        for task, measured in tasks.items():
            task_titles |= _task_titles(task, measured)
        for metric, estimate in (_measure_run(plan, run) | _summarize_tasks(run, tasks)).items():
            values[run.variant].setdefault(metric, {})[run.seed] = estimate
        probe = read_result(plan.request, run.probe, StageRecord[ProbeResult])
        if probe is not None:
            for measure, distances in probe.layer_steps.items():
                layer_distances.setdefault(run.variant, {}).setdefault(measure, []).append(distances)
        if run.pretrain is not None:
            _, heldout_curves = read_curves(plan.directory(run.pretrain))
            for name, curve in heldout_curves.items():
                curves.setdefault(run.variant, {}).setdefault(name, []).append(curve)
        # The record shows if the run diverged; its result, of any type, is not needed.
        record = read_record(plan.request, run.pretrain, StageRecord[BaseModel])
        if record is not None and record.diverged:
            diverged[run.variant] += 1
    compared = {metric for claim in plan.claims for metric in claim.metrics}
    compares_times = plan.experiment.speed_against is not None or "seconds" in compared
    left_out = _check_times(plan) if compares_times else {}
    if left_out:
        for metrics in values.values():
            metrics.pop("seconds", None)
    if plan.experiment.speed_against is not None:
        for variant, speedups in _compute_speedups(values, plan.experiment.speed_against).items():
            values[variant]["speedup"] = speedups
    return Outcome(
        plan,
        values={variant: _without_errors(metrics) for variant, metrics in values.items()},
        layer_distances=layer_distances,
        curves=curves,
        task_titles=task_titles,
        diverged=diverged,
        left_out=left_out,
        claims=[check_claim(claim, values) for claim in plan.claims],
    )


def _check_times(plan: ExperimentPlan) -> dict[str, str]:
    """Return the reason why training times are not compared; empty if all were measured on the same device."""
    # The measured speeds determine the steps of runs that match the time of another run.
    timed = [*plan.speeds, *(run.pretrain for run in plan.runs if run.recipe is not None)]
    records = [read_record(plan.request, stage, StageRecord[BaseModel]) for stage in timed]
    devices = {record.device or "an unknown device" for record in records if record is not None and not record.diverged}
    if len(devices) < 2:
        return {}
    names = " and ".join(sorted(devices))
    reason = f"the runs were trained or measured on {names}; repeat them on one device in another --out"
    return {"comparisons of training times": reason}


def _without_errors(metrics: Mapping[str, Mapping[int, JackknifeEstimate]]) -> dict[str, dict[int, float]]:
    """Return only the value of each estimate, which is its first element, by metric and seed."""
    return {
        metric: {seed: float(estimate[0]) for seed, estimate in by_seed.items()} for metric, by_seed in metrics.items()
    }


def _measure_run(plan: ExperimentPlan, run: VariantRun) -> dict[str, JackknifeEstimate]:
    """Return the counts, the pretraining time and the intrinsic scores of a run, by metric; empty for an ensemble."""
    if run.pretrain is None:
        return {}
    if run.pretrain.kind == "count":
        counted = read_result(plan.request, run.pretrain, StageRecord[CountResult])
        if counted is None:
            return {}
        model = counted.models[0]
        counts = {
            "parameters": model.total,
            "paper_count": model.paper_count,
            "layers": model.config.num_hidden_layers,
            "hidden": model.config.hidden_size,
        }
        return {name: exact_value(count) for name, count in counts.items()}
    metrics = {}
    if run.recipe is not None:
        # Counted, not measured: the bytes that a GPU saves for the backward pass of one sequence.
        length = run.recipe.data.max_seq_length
        metrics["activation_bytes"] = exact_value(activation_bytes(run.recipe.model, length, GPU_SETUP))
    trained = read_result(plan.request, run.pretrain, StageRecord[PretrainOutput])
    if trained is not None:
        metrics["steps"] = exact_value(trained.steps)
        metrics["total_seconds"] = exact_value(trained.seconds)
        metrics["seconds"] = jackknife_time(trained.seconds, trained.steps, plan.directory(run.pretrain))
    probe = read_result(plan.request, run.probe, StageRecord[ProbeResult])
    return metrics | (_measure_probe(probe) if probe else {})


def _measure_probe(probe: ProbeResult) -> dict[str, JackknifeEstimate]:
    """Return the estimate of each metric of a probe.

    A score without jackknife values has an unknown error. All numbers other than scores are treated as exact: counts,
    and the distances of layers.
    """
    estimates: dict[str, JackknifeEstimate] = {}
    for name, value in probe.metrics.items():
        is_fraction = name.endswith(("_accuracy", "_preference"))
        has_sampling_error = is_fraction or name in ("mlm_loss", "below_unigram_entropy")
        jackknife_values = probe.without_parts.get(name, [])
        if not has_sampling_error:
            estimates[name] = exact_value(value)
        elif len(jackknife_values) == JACKKNIFE_GROUPS:
            estimates[name] = np.array([value, *jackknife_values])
        else:
            estimates[name] = value_of_unknown_error(value)
    return estimates


def _measure_tasks(plan: ExperimentPlan, run: VariantRun) -> dict[str, _TaskMeasurement]:
    """Return the measurements of the finished tasks of a run, by task."""
    measurements = {}
    for task, stage in run.tasks.items():
        measure = _measure_minimal_pairs if task == MINIMAL_PAIRS_TASK else _measure_task
        measured = measure(plan, task, stage)
        if measured is not None:
            measurements[task] = measured
    return measurements


def _measure_minimal_pairs(plan: ExperimentPlan, task: str, stage: Stage) -> _TaskMeasurement | None:
    """Return the preference for acceptable sentences, which a probe measured; None without a result."""
    probe = read_result(plan.request, stage, StageRecord[ProbeResult])
    if probe is None:
        return None
    preference = _measure_probe(probe)["minimal_pairs_preference"]
    title = "word order" if plan.request.minimal_pairs is None else "minimal pairs"
    return _TaskMeasurement(title, {"preference": preference}, {}, preference, preference - _CHANCE_OF_PAIRS)


def _measure_task(plan: ExperimentPlan, task: str, stage: Stage) -> _TaskMeasurement | None:
    """Return the scores of the fine-tuned models; None without a result."""
    result = read_result(plan.request, stage, StageRecord[TaskScoreRecord])
    if result is None:
        return None
    score = result.root
    names = paper_metric_names(task) if task in TASKS else [score.metric]
    metrics = jackknife_task(names, score, plan.directory(stage))
    extra_names = [name for name in _extra_metric_names(plan, task) if name in score.medians]
    extra = jackknife_task(extra_names, score, plan.directory(stage))
    mean = np.mean(list(metrics.values()), axis=0)
    above_majority = mean - score.majority if score.majority is not None else None
    return _TaskMeasurement(score.title, metrics, extra, mean, above_majority)


def _extra_metric_names(plan: ExperimentPlan, task: str) -> list[str]:
    """Return the task's metrics that a table of the paper shows instead of the usual ones (`PaperTable.metrics`)."""
    prefix = f"task_{task}_"
    columns = [metrics for table in plan.experiment.tables for metrics in table.metrics.values()]
    names = dict.fromkeys(itertools.chain.from_iterable(columns))
    return [name.removeprefix(prefix) for name in names if name.startswith(prefix)]


def _task_titles(task: str, measured: _TaskMeasurement) -> dict[str, str]:
    """Return the entries of `Outcome.task_titles` for a task: its title and, if it has several metrics, theirs."""
    titles = {}
    if len(measured.metrics) > 1:
        titles = {f"{task}_{name}": f"{measured.title} {name.replace('_', ' ')}" for name in measured.metrics}
    return titles | {task: measured.title}


def _summarize_tasks(run: VariantRun, tasks: Mapping[str, _TaskMeasurement]) -> dict[str, JackknifeEstimate]:
    """Return the metrics of every task, and the means over tasks if all tasks of the run are finished."""
    estimates: dict[str, JackknifeEstimate] = {}
    for task, measured in tasks.items():
        scores: dict[str, JackknifeEstimate] = {}
        if len(measured.metrics) > 1:  # a single metric is the mean
            scores |= measured.metrics
        scores |= measured.extra
        estimates |= {f"task_{task}_{name}": estimate for name, estimate in scores.items()}
        estimates[f"task_{task}"] = measured.mean
    if tasks and len(tasks) == len(run.tasks):
        estimates["tasks_mean"] = np.mean([measured.mean for measured in tasks.values()], axis=0)
        above_majority = [m.above_majority for m in tasks.values() if m.above_majority is not None]
        if above_majority:
            estimates["tasks_above_majority"] = np.mean(above_majority, axis=0)
    return estimates


def _compute_speedups(values: Values, baseline: str) -> dict[str, dict[int, JackknifeEstimate]]:
    """Return the baseline's seconds per step divided by the variant's, by variant and seed (Table 2).

    Only seeds that were measured for both are compared.
    """
    seconds_per_step = {name: _compute_seconds_per_step(metrics) for name, metrics in values.items()}
    baseline_seconds = seconds_per_step.get(baseline, {})  # empty if the scale leaves the baseline out
    speedups = {}
    for variant, by_seed in seconds_per_step.items():
        ratios = {seed: baseline_seconds[seed] / by_seed[seed] for seed in by_seed if seed in baseline_seconds}
        if ratios:
            speedups[variant] = ratios
    return speedups


def _compute_seconds_per_step(
    metrics: Mapping[str, Mapping[int, JackknifeEstimate]],
) -> dict[int, JackknifeEstimate]:
    """Return a variant's seconds per step by seed, for the runs whose time was measured.

    metrics: by metric and seed.
    """
    seconds_by_seed = metrics.get("seconds", {})
    return {
        seed: seconds / metrics["steps"][seed]
        for seed, seconds in seconds_by_seed.items()
        if seconds[0] > 0  # the value; the other elements are the jackknife's
    }
