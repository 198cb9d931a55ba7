"""Published scores of ALBERT and of the models that the paper compares it with (`published.toml`)."""

from __future__ import annotations

import tomllib
from functools import cache
from pathlib import Path

from albert_cli.tasks.registry import paper_metric_names

PublishedScores = dict[str, dict[str, float]]  # task -> metric -> score in percent


@cache
def load_published_scores() -> dict[str, PublishedScores]:
    """Return each model's scores on the development sets, in the metrics of the paper's tables."""
    text = Path(__file__).with_name("published.toml").read_text(encoding="utf-8")
    models: dict[str, dict[str, list[float]]] = tomllib.loads(text)
    return {
        model: {task: dict(zip(paper_metric_names(task), scores, strict=True)) for task, scores in tasks.items()}
        for model, tasks in models.items()
    }
