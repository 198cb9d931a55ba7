"""Load `published.toml`: the published scores of ALBERT, and of the models with which the paper compares ALBERT."""

from __future__ import annotations

import tomllib
from functools import cache
from pathlib import Path

from albert_cli.tasks.registry import paper_metric_names

PublishedScores = dict[str, dict[str, float]]  # task -> metric -> score in percent


@cache
def load_published_scores() -> dict[str, PublishedScores]:
    """Return the scores on the development sets, in percent, by model, task and metric."""
    text = Path(__file__).with_name("published.toml").read_text(encoding="utf-8")
    published: dict[str, PublishedScores] = {}
    for model, scores_by_task in tomllib.loads(text).items():
        published[model] = {
            task: dict(zip(paper_metric_names(task), scores, strict=True)) for task, scores in scores_by_task.items()
        }
    return published
