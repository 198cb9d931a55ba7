"""Evaluate one task: fine-tune a checkpoint with several seeds and report the median (§4.2).

`evaluate_task` takes a prepared task with its inputs, and writes a directory for each seed and an `EvaluationResult` to
`results.json`. A checkpoint that is already fine-tuned for the task is only scored (`scoring`).
"""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from albert_cli import console
from albert_cli.errors import DivergedError
from albert_cli.evaluation.baselines import BaselineOutcome, train_baselines
from albert_cli.evaluation.differences import compare_predictions, read_predictions_by_seed
from albert_cli.evaluation.output import run_directory
from albert_cli.evaluation.scoring import score_checkpoint
from albert_cli.results import (
    CLASSICAL,
    RESULTS,
    CheckpointResult,
    EvaluationResult,
    RunResult,
    ScoredResult,
)
from albert_cli.score_summary import standard_error
from albert_cli.tasks.features import PairFeatures
from albert_cli.tasks.label_names import match_labels
from albert_cli.training.finetune import finetune
from albert_cli.training.task_inputs import Inputs
from albert_cli.training.task_setup import PreparedTask

Metrics = dict[str, float]
Baselines = Mapping[str, BaselineOutcome]  # by name of the linear model
BaselineCache = dict[str, Baselines]  # by fingerprint of the inputs, so that a command trains each linear model once


class AllSeedsDiverged(DivergedError):  # noqa: N818  (as its base class)
    """Every seed of a task diverged; `reasons` has the reason by seed."""

    def __init__(self, title: str, reasons: Mapping[str, str]) -> None:
        first_seed, reason = next(iter(reasons.items()))
        seeds = "its only seed" if len(reasons) == 1 else f"all {len(reasons)} seeds"
        super().__init__(
            f"{title}: {seeds} diverged; seed {first_seed}: {reason}",
            "lower optimizer.lr or lengthen the warmup, and choose another --out",
        )
        self.reasons = dict(reasons)


@dataclass(frozen=True)
class DivergedSeed:
    """A seed whose run diverged and has no score, and the reason."""

    seed: int
    reason: str


def seeds_of(prepared: PreparedTask) -> range:
    """Return the consecutive seeds of the requested runs; the first one is the recipe's `train.seed`."""
    first = prepared.recipe.train.seed
    return range(first, first + prepared.request.runs)


def evaluate_task(
    prepared: PreparedTask, inputs: Inputs, out: Path, baseline_cache: BaselineCache
) -> ScoredResult | EvaluationResult:
    """Score a checkpoint, or fine-tune every seed and summarize the scores; write the result to `out`.

    inputs: those of the first seed. With `data.train_examples` in the recipe, every other seed samples its own training
    examples. Runs that finished earlier are read and not repeated. If the request has baselines, linear models are
    trained, or taken from `baseline_cache`. Raises `AllSeedsDiverged` if no seed has a score.
    """
    if not prepared.needs_training:
        return score_checkpoint(prepared, inputs, out)
    _print_dropped_head(prepared)
    task = prepared.task
    outcomes: list[RunResult | DivergedSeed] = []
    baselines_by_seed: dict[int, Baselines] = {}
    seed_inputs = inputs
    for seed in seeds_of(prepared):
        if seed_inputs.settings != prepared.input_settings(seed):  # another subset (`data.train_examples`)
            seed_inputs = prepared.load_inputs(seed)
        directory = run_directory(out, seed)
        try:
            outcomes.append(finetune(prepared, seed_inputs, directory, seed, retry_diverged=False))
        except DivergedError as error:
            outcomes.append(DivergedSeed(seed, error.message))
            console.warn(
                f"{task.title} seed {seed} diverged and does not count: {error.message}; "
                f"remove {directory} to repeat it"
            )
        if prepared.request.baselines:
            key = seed_inputs.fingerprint
            if key not in baseline_cache:
                baseline_cache[key] = train_baselines(task, seed_inputs.train_examples, seed_inputs.dev_examples)
            baselines_by_seed[seed] = baseline_cache[key]
    result = summarize_runs(task.title, outcomes, _median_baselines(list(baselines_by_seed.values())))
    result = _add_baseline_difference(result, prepared, inputs, out, baselines_by_seed)
    result.write(out / RESULTS)
    return result


def _add_baseline_difference(
    result: EvaluationResult,
    prepared: PreparedTask,
    inputs: Inputs,
    out: Path,
    baselines_by_seed: Mapping[int, Baselines],
) -> EvaluationResult:
    """Return the result with its difference to the best baseline, a linear model, under the key `CLASSICAL`.

    The result is unchanged if no linear model was trained, and for tasks that do not classify whole inputs.
    """
    if result.best_baseline is None or not isinstance(inputs.dev_features, PairFeatures):
        return result
    name, _ = result.best_baseline
    predictions = read_predictions_by_seed(prepared.task, out, result, len(inputs.dev_examples))
    baseline_predictions = {seed: baselines[name].predictions for seed, baselines in baselines_by_seed.items()}
    difference = compare_predictions(result.metric, inputs.dev_features.gold, predictions, baseline_predictions)
    if difference is None:
        return result
    return result.model_copy(update={"differences": {CLASSICAL: difference}})


def _print_dropped_head(prepared: PreparedTask) -> None:
    """Print a note if training drops the head of a fine-tuned checkpoint and uses only its encoder."""
    checkpoint = prepared.checkpoint
    settings = prepared.recipe.model
    if prepared.intermediate is not None:  # the encoder comes from the intermediate task's model, not from `checkpoint`
        return
    if settings.weights == "random" or settings.head == "checkpoint":  # training uses no weights, or the head as well
        return
    task = prepared.task
    # The head for multiple choice scores an option, so its output has no class.
    classes = () if checkpoint.architecture == "ForMultipleChoice" else checkpoint.output_names
    in_brackets = f" ({', '.join(classes)})" if classes else ""
    target = task.title
    if checkpoint.finetuned_task is not None:
        origin = f"was fine-tuned for {checkpoint.finetuned_task.task}{in_brackets}"
        may_be_same_task = checkpoint.finetuned_task.task == task.name
    elif checkpoint.output_names:
        origin = f"is a classifier of another program{in_brackets}"
        may_be_same_task = True  # only its classes are known
    else:  # a pretrained checkpoint
        return
    has_classes = bool(classes) and bool(task.output_names)
    # The task may be the same, but its classes differ: list both sets of classes, because they are the reason.
    if may_be_same_task and has_classes and match_labels(task.output_names, classes) is None:
        target += f" ({', '.join(task.output_names)})"
    console.info(f"{checkpoint.directory}: {origin}; {target} is trained from its encoder")


def _median_baselines(baselines_of_seeds: Sequence[Baselines]) -> dict[str, Metrics]:
    """Return the median over seeds of every metric of every linear model."""
    medians: dict[str, Metrics] = {}
    if not baselines_of_seeds:  # --no-baselines
        return medians
    for name, outcome in baselines_of_seeds[0].items():
        scores_of_seeds = [baselines[name].scores for baselines in baselines_of_seeds]
        medians[name] = {}
        for metric in outcome.scores:
            medians[name][metric] = statistics.median(scores[metric] for scores in scores_of_seeds)
    return medians


def summarize_runs(
    title: str, outcomes: Sequence[RunResult | DivergedSeed], baselines: Mapping[str, Metrics] | None = None
) -> EvaluationResult:
    """Return the median, the spread and the standard error of runs that differ only in their seed.

    Diverged seeds have no score. Collapsed seeds count; `median_without_collapsed` is the median of the other seeds.
    Raises `AllSeedsDiverged` if no seed has a score.
    """
    diverged = {str(outcome.seed): outcome.reason for outcome in outcomes if isinstance(outcome, DivergedSeed)}
    runs = [outcome for outcome in outcomes if isinstance(outcome, RunResult)]
    if not runs:
        raise AllSeedsDiverged(title, diverged)
    # Runs that differ only in their seed are equal in every field of a `CheckpointResult` except the time. With
    # `data.train_examples` their training data and thus `majority` differ too; `data` is that of the first seed.
    shared_fields = runs[0].model_dump(include=set(CheckpointResult.model_fields) - {"seconds", "majority"})
    majorities = [run.majority for run in runs if run.majority is not None]
    scores = [run.score for run in runs]
    scores_without_collapsed = [run.score for run in runs if run.collapsed is None]
    return EvaluationResult(
        **shared_fields,
        majority=statistics.median(majorities) if majorities else None,
        protocol=runs[0].protocol,
        median=statistics.median(scores),
        spread=max(scores) - min(scores),
        mean=statistics.fmean(scores),
        stdev=statistics.stdev(scores) if len(scores) > 1 else 0.0,
        standard_error=standard_error(scores),
        median_without_collapsed=statistics.median(scores_without_collapsed) if scores_without_collapsed else None,
        scores_by_seed={str(run.seed): run.score for run in runs},
        all_scores={name: [run.scores[name] for run in runs] for name in runs[0].scores},
        seeds=[outcome.seed for outcome in outcomes],
        diverged=diverged,
        collapsed={str(run.seed): run.collapsed for run in runs if run.collapsed is not None},
        baselines=dict(baselines or {}),
        seconds=round(sum(run.seconds for run in runs), 2),
    )
