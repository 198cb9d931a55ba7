"""The metrics of an experiment's variants: column headers, thresholds of learning, and the paper's columns."""

from __future__ import annotations

from typing import Final

# The metrics of a variant with their column headers; in addition there is `task_NAME` for every task.
METRICS: Final = {
    "parameters": "parameters",
    "paper_count": "parameters, counted as in the paper",
    "block_parameters": "block parameters",
    "activation_bytes": "activations per sequence",
    "layers": "layers",
    "hidden": "hidden size",
    "steps": "steps",
    "seconds": "pretraining time",
    "speedup": "speedup",
    "mlm_accuracy": "MLM accuracy",
    "own_mlm_accuracy": "MLM accuracy, own masks",
    "mlm_loss": "MLM loss",
    "below_unigram_entropy": "below unigram entropy",
    "nsp_accuracy": "NSP accuracy",
    "sop_accuracy": "SOP accuracy",
    "minimal_pairs_accuracy": "minimal pairs",
    "l2_mean": "L2",
    "l2_variation": "L2 variation",
    "l2_last": "L2, last layer",
    "degrees_mean": "angle",
    "degrees_variation": "angle variation",
    "degrees_last": "angle, last layer",
    "tasks_mean": "mean of tasks",
    "tasks_above_majority": "above majority",
}

# Untrained models differ by chance, so a claim about learning requires a model that has learned: it must be above these
# values. Token frequencies and copying alone give half a nat; the paper calls 53.3 % on sentence pairs chance.
LEARNED_ABOVE: Final = {
    "tasks_above_majority": 0.03,
    "below_unigram_entropy": 0.75,
    "nsp_accuracy": 0.535,
    "sop_accuracy": 0.535,
    "minimal_pairs_accuracy": 0.535,
}
# These metrics are equal for all seeds by construction.
EXACT: Final = frozenset(
    {"parameters", "block_parameters", "paper_count", "activation_bytes", "steps", "layers", "hidden"}
)
INDEPENDENT_OF_LEARNING: Final = EXACT | {"seconds", "speedup"}
AVERAGE: Final = "tasks_mean"
# The metrics behind each column of the paper's tables; scores are in percent there.
COLUMN_METRICS: Final = {
    "SQuAD1.1": ("task_squad1_f1", "task_squad1_em"),
    "SQuAD2.0": ("task_squad2_best_f1", "task_squad2_best_em"),
    "RACE": ("task_race",),
    "Avg": (AVERAGE,),
    "speedup": ("speedup",),
    **{name: (f"{name.lower()}_accuracy",) for name in ("MLM", "NSP", "SOP")},
    **{name: (f"task_{name.lower().replace('-', '')}",) for name in (
        "MNLI", "QNLI", "QQP", "RTE", "SST-2", "MRPC", "CoLA", "STS-B",
    )},
}  # fmt: skip
