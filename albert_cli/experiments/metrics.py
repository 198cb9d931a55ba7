"""The metrics that experiments measure: their column headers, the values that show learning, and the paper's columns.

Recipes, claims and reports refer to a metric by its name here. In addition to the metrics in `METRICS`, each task has
the metric `task_NAME`. A task with several scores also has `task_NAME_SCORE` for each score.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from albert_cli.tasks.registry import TASKS

# Column headers by metric, except those of tasks.
METRICS: Final = {
    "parameters": "parameters",
    "paper_count": "parameters, counted as in the paper",
    "block_parameters": "block parameters",
    "activation_bytes": "activations per sequence",
    "layers": "layers",
    "hidden": "hidden size",
    "steps": "steps",
    "total_seconds": "pretraining time",
    # The number of steps times the seconds per step after the first line of the journal. The first line's time contains
    # the compilation, so claims compare this metric.
    "seconds": "pretraining time without compilation",
    "speedup": "speedup",
    "mlm_accuracy": "MLM accuracy",
    # `mlm_accuracy` is computed with the same masks for all variants, `own_mlm_accuracy` with masks as in the variant's
    # recipe.
    "own_mlm_accuracy": "MLM accuracy, masks of its recipe",
    "mlm_loss": "MLM loss",
    "below_unigram_entropy": "below unigram entropy",
    "nsp_accuracy": "NSP accuracy",
    "sop_accuracy": "SOP accuracy",
    "minimal_pairs_accuracy": "minimal pairs",
    # Figure 1: the distance between a layer's input and output, as L2 distance and as angle, averaged over layers. The
    # variation is the mean absolute difference between the distances of consecutive layers.
    "l2_mean": "L2",
    "l2_variation": "L2 variation",
    "l2_last": "L2, last layer",
    "degrees_mean": "angle",
    "degrees_variation": "angle variation",
    "degrees_last": "angle, last layer",
    "tasks_mean": "mean of tasks",
    "tasks_above_majority": "above majority",
}

# A model above these values has learned; models below them may differ by chance alone. The values are fractions, except
# `below_unigram_entropy`, which is in nats. The bounds are higher than scores without learning: a model that only knows
# token frequencies and copies unmasked tokens is half a nat below the unigram entropy, and the paper regards 53.3 % on
# sentence pairs as chance (Table 5).
LEARNED_ABOVE: Final = {
    "tasks_above_majority": 0.03,
    "below_unigram_entropy": 0.75,
    "nsp_accuracy": 0.535,
    "sop_accuracy": 0.535,
    "minimal_pairs_accuracy": 0.535,
}
# An uncertain difference of two scores counts as none if its upper confidence limit is at most this value. So the claim
# that a score is higher than another holds if the whole confidence interval of their difference is above 0. It fails if
# the interval is not, and ends at or below this value. In all other cases it is undecided (`claims._decide`). The
# paper's own tables differ by 0.4 and 0.5 points for the same model (MNLI in Tables 3 and 4: 81.6 and 82.0 all-shared,
# 83.7 and 83.2 not shared).
SMALLEST_DIFFERENCE: Final = 0.005
# Counts, which are equal for all seeds and have no error.
EXACT: Final = frozenset(
    {"parameters", "block_parameters", "paper_count", "activation_bytes", "steps", "layers", "hidden"}
)
# A claim about these metrics alone also holds for models that have learned nothing.
INDEPENDENT_OF_LEARNING: Final = EXACT | {"seconds", "speedup", "total_seconds"}
# The metrics that each column of the paper's tables shows. Scores are percentages in the paper and fractions here.
COLUMN_METRICS: Final = {
    "SQuAD1.1": ("task_squad1_f1", "task_squad1_em"),
    "SQuAD2.0": ("task_squad2_best_f1", "task_squad2_best_em"),
    "RACE": ("task_race",),
    "Avg": ("tasks_mean",),
    "speedup": ("speedup",),
    "MLM": ("mlm_accuracy",),
    "NSP": ("nsp_accuracy",),
    "SOP": ("sop_accuracy",),
    "MNLI": ("task_mnli",),
    "QNLI": ("task_qnli",),
    "QQP": ("task_qqp",),
    "RTE": ("task_rte",),
    "SST-2": ("task_sst2",),
    "MRPC": ("task_mrpc",),
    "CoLA": ("task_cola",),
    "STS-B": ("task_stsb",),
}


def is_score(metric: str) -> bool:
    """Return True for an accuracy and for a task's score, whose values are fractions and are shown as percentages."""
    return metric.endswith("_accuracy") or metric.startswith("task")


def list_tasks(metrics: Iterable[str]) -> frozenset[str]:
    """Return the names of the tasks among metrics: `squad1` for `task_squad1` and for `task_squad1_f1`."""
    return frozenset(_task_of_score(metric.removeprefix("task_")) for metric in metrics if metric.startswith("task_"))


def _task_of_score(name: str) -> str:
    """Return the task in `NAME` or `NAME_SCORE`; both may contain underscores, as `race_middle` and `best_f1` do."""
    for task in sorted(TASKS, key=len):  # `race` before `race_middle`, so `race_middle_accuracy` is a score of `race`
        if name == task or name in {f"{task}_{score}" for score in TASKS[task].metrics}:
            return task
    return name.partition("_")[0]  # a table or minimal pairs, which are not in the registry
