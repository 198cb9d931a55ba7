"""Results in which every field has a plain value, for tests that set only the fields that they need."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from typing import Any, TypeVar

from pydantic import BaseModel

from albert_cli.results import EnsembleResult, EvaluationResult, Protocol, RunResult, ScoredResult

T = TypeVar("T", bound=BaseModel)
_TASK: dict[str, Any] = {
    "task": "rte",
    "title": "RTE",
    "metric": "accuracy",
    "data": "d" * 16,
    "examples": {"train": 2490, "dev": 277},
    "seconds": 1.0,
}
_CHECKPOINT: dict[str, Any] = _TASK | {
    "checkpoint": "a" * 16,
    "recipe": "e" * 16,
    "device": "cpu",
    "precision": "fp32",
}
_PROTOCOL: dict[str, Any] = {
    "steps": 800,
    "epochs": 10.3,
    "batch_size": 32,
    "lr": 3e-5,
    "warmup_steps": 200,
    "max_seq_length": 512,
    "dropout": 0.0,
    "eval_every": 100,
    "weights": "pretrained",
    "head": "auto",
}


def _merge(defaults: Mapping[str, Any], changes: Mapping[str, Any]) -> dict[str, Any]:
    """Return the defaults with the changes; a changed key of the protocol is changed in the protocol."""
    protocol = {key: value for key, value in changes.items() if key in Protocol.model_fields}
    outside = {key: value for key, value in changes.items() if key not in protocol}
    return {**defaults, "protocol": {**_PROTOCOL, **protocol}, **outside}


def _build(kind: type[T], values: Mapping[str, Any]) -> T:
    """Build a result; the protocol is left out if the kind has none."""
    fields = {key: value for key, value in values.items() if key != "protocol" or key in kind.model_fields}
    if "protocol" in fields:
        fields["protocol"] = Protocol(**fields["protocol"])
    return kind(**fields)


def run_result(score: float = 0.5, seed: int = 0, **changes: Any) -> RunResult:
    """Return one run's result."""
    metric = changes.get("metric", "accuracy")
    defaults = _CHECKPOINT | {"score": score, "scores": {metric: score}, "seed": seed, "best_step": 400}
    return _build(RunResult, _merge(defaults, changes))


def scored_result(score: float = 0.5, **changes: Any) -> ScoredResult:
    """Return the result of a checkpoint that is only scored."""
    metric = changes.get("metric", "accuracy")
    defaults = _CHECKPOINT | {"score": score, "scores": {metric: score}, "max_seq_length": 512}
    return _build(ScoredResult, {**defaults, **changes})


def evaluation_result(scores: Sequence[float] = (0.5,), **changes: Any) -> EvaluationResult:
    """Return the result of an evaluation whose runs, with seeds from 0, have these scores by the main metric."""
    metric = changes.get("metric", "accuracy")
    defaults = _CHECKPOINT | {
        "median": statistics.median(scores),
        "spread": max(scores) - min(scores),
        "mean": statistics.fmean(scores),
        "stdev": statistics.stdev(scores) if len(scores) > 1 else 0.0,
        "scores_by_seed": {str(seed): score for seed, score in enumerate(scores)},
        "all_scores": {metric: list(scores)},
        "seeds": list(range(len(scores))),
    }
    return _build(EvaluationResult, _merge(defaults, changes))


def ensemble_result(score: float = 0.5, **changes: Any) -> EnsembleResult:
    """Return the result of an ensemble of two checkpoints."""
    metric = changes.get("metric", "accuracy")
    defaults = _TASK | {
        "score": score,
        "scores": {metric: score},
        "scores_of_all": {metric: score},
        "members": [{"directory": name, "score": score} for name in "ab"],
        "chosen": ["a", "b"],
        "gain": {"all_over_median": 0.0, "all_over_best": 0.0, "chosen_over_best": 0.0},
    }
    return EnsembleResult.model_validate(defaults | changes)


def without_times(value: Any) -> Any:
    """Return a result's JSON without the seconds that its parts took."""
    if isinstance(value, dict):
        return {key: without_times(item) for key, item in value.items() if key != "seconds"}
    return value
