"""Evaluate one task: the median of several seeded fine-tuning runs (§4.2), or the scores of a task checkpoint."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from albert_cli import console
from albert_cli.errors import DivergedError
from albert_cli.evaluation.baselines import BaselineOutcome, train_baselines
from albert_cli.evaluation.differences import compare_predictions, read_predictions
from albert_cli.evaluation.output import EVALUATION_FILES, require_own_output, run_directory
from albert_cli.evaluation.scoring import score_checkpoint
from albert_cli.results import CLASSICAL, RESULTS, EvaluationResult, RunResult, ScoredResult, standard_error
from albert_cli.tasks.features import PairFeatures
from albert_cli.training.finetune import finetune
from albert_cli.training.task_inputs import Inputs
from albert_cli.training.task_setup import PreparedTask

Metrics = dict[str, float]
Baselines = Mapping[str, BaselineOutcome]  # by linear model
KnownBaselines = dict[str, Baselines]  # by fingerprint of the inputs: a command trains each model once


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
    """A seed without a score, and the reason."""

    seed: int
    reason: str


def seeds_of(prepared: PreparedTask) -> range:
    """Return the seeds of the requested runs, which begin with the recipe's."""
    first = prepared.recipe.train.seed
    return range(first, first + prepared.request.runs)


def evaluate_task(
    prepared: PreparedTask, inputs: Inputs, out: Path, known_baselines: KnownBaselines | None = None
) -> ScoredResult | EvaluationResult:
    """Score a checkpoint or fine-tune every seed, below `out`; finished runs are not repeated.

    Raises `AllSeedsDiverged` if no seed has a score.
    """
    if prepared.for_scoring:
        return score_checkpoint(prepared, inputs, out)
    require_own_output(out, *EVALUATION_FILES, prepared.recipe.intermediate_task)
    _note_encoder_only(prepared)
    known_baselines = {} if known_baselines is None else known_baselines
    outcomes: list[RunResult | DivergedSeed] = []
    baselines: dict[int, Baselines] = {}
    for seed in seeds_of(prepared):
        if inputs.settings != prepared.input_settings(seed):  # each seed has its own training subset
            inputs = prepared.load_inputs(seed)
        directory = run_directory(out, seed)
        try:
            outcomes.append(finetune(prepared, inputs, directory, seed, retry_diverged=False))
        except DivergedError as error:
            outcomes.append(DivergedSeed(seed, error.message))
            console.warn(
                f"{prepared.task.title} seed {seed} diverged and does not count: {error.message}; "
                f"remove {directory} to repeat it"
            )
        if prepared.request.baselines:
            if inputs.fingerprint not in known_baselines:
                known_baselines[inputs.fingerprint] = train_baselines(
                    prepared.task, inputs.train_examples, inputs.dev_examples
                )
            baselines[seed] = known_baselines[inputs.fingerprint]
    result = summarize_runs(prepared.task.title, outcomes, median_baselines(list(baselines.values())))
    result = _add_classical_difference(result, prepared, inputs, out, baselines)
    result.write(out / RESULTS)
    return result


def _add_classical_difference(
    result: EvaluationResult, prepared: PreparedTask, inputs: Inputs, out: Path, baselines: Mapping[int, Baselines]
) -> EvaluationResult:
    """Add the difference to the best linear model, if there is one."""
    if result.best_baseline is None or not isinstance(inputs.dev, PairFeatures):
        return result
    name, _ = result.best_baseline
    predictions = read_predictions(prepared.task, out, list(result.scores_by_seed))
    classical = {seed: by_model[name].predictions for seed, by_model in baselines.items()}
    difference = compare_predictions(result.metric, inputs.dev.gold, predictions, classical)
    return result if difference is None else result.model_copy(update={"differences": {CLASSICAL: difference}})


def _note_encoder_only(prepared: PreparedTask) -> None:
    """Print that a model fine-tuned for another task is trained from its encoder alone."""
    checkpoint = prepared.checkpoint
    finetuned = checkpoint.finetuned_task
    if prepared.intermediate is not None or (finetuned is None and not checkpoint.labels):
        return
    task = finetuned.task if finetuned is not None else "another task"
    labels = f" ({', '.join(checkpoint.labels)})" if checkpoint.labels else ""
    console.info(
        f"{checkpoint.directory}: was fine-tuned for {task}{labels}; {prepared.task.title} is trained from its encoder"
    )


def median_baselines(seeds: Sequence[Baselines]) -> dict[str, Metrics]:
    """Return the median over seeds of every metric of every linear model."""
    if not seeds:
        return {}
    return {
        name: {metric: statistics.median(seed[name].scores[metric] for seed in seeds) for metric in outcome.scores}
        for name, outcome in seeds[0].items()
    }


def summarize_runs(
    title: str, outcomes: Sequence[RunResult | DivergedSeed], baselines: Mapping[str, Metrics] | None = None
) -> EvaluationResult:
    """Compute the median, the spread and the standard error of runs that differ only in their seed.

    Diverged seeds do not count. Collapsed seeds count, and `median_without_collapsed` is the median of the others.
    Raises `AllSeedsDiverged` if no seed has a score.
    """
    diverged = {str(outcome.seed): outcome.reason for outcome in outcomes if isinstance(outcome, DivergedSeed)}
    runs = [outcome for outcome in outcomes if isinstance(outcome, RunResult)]
    if not runs:
        raise AllSeedsDiverged(title, diverged)
    first = runs[0]
    scores = [run.score for run in runs]
    sound_scores = [run.score for run in runs if run.collapsed is None]
    return EvaluationResult(
        task=first.task,
        title=first.title,
        metric=first.metric,
        labels=first.labels,
        median=statistics.median(scores),
        spread=max(scores) - min(scores),
        mean=statistics.fmean(scores),
        stdev=statistics.stdev(scores) if len(scores) > 1 else 0.0,
        standard_error=standard_error(scores),
        median_without_collapsed=statistics.median(sound_scores) if sound_scores else None,
        scores_by_seed={str(run.seed): run.score for run in runs},
        all_scores={name: [run.scores[name] for run in runs] for name in first.scores},
        seeds=[outcome.seed for outcome in outcomes],
        diverged=diverged,
        collapsed={str(run.seed): run.collapsed for run in runs if run.collapsed is not None},
        majority=first.majority,
        baselines=dict(baselines or {}),
        checkpoint=first.checkpoint,
        intermediate=first.intermediate,
        recipe=first.recipe,
        data=first.data,
        examples=first.examples,
        protocol=first.protocol,
        device=first.device,
        precision=first.precision,
        versions=first.versions,
        seconds=round(sum(run.seconds for run in runs), 2),
    )
