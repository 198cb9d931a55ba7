"""Scores on dev that were published for BERT and ALBERT, to stand beside one's own; all of far larger training.

ALBERT v1 and v2 are the rows of the README of google-research/albert; BERT-large and ALBERT-xxlarge at 1.5 M steps
are tables 9 and 10 of the paper (arXiv 1909.11942), BERT-large's RACE is table 2's.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

_COLUMNS = ("squad1", "squad2", "mnli", "sst2", "race")


@dataclass(frozen=True)
class Published:
    """A model's scores on dev, times 100, by task; of SQuAD `f1` (and exact match, `em`)."""

    model: str
    scores: Mapping[str, float]
    exact_match: Mapping[str, float]


def _of_readme(model: str, *values: str) -> Published:
    """A row of the reference's README: `F1/EM` for the two SQuADs, then MNLI, SST-2 and RACE."""
    pairs = {task: value.split("/") for task, value in zip(_COLUMNS, values, strict=True)}
    exact = {task: float(pair[1]) for task, pair in pairs.items() if len(pair) == 2}
    return Published(model, {task: float(pair[0]) for task, pair in pairs.items()}, exact)


_GLUE = ("mnli", "qnli", "qqp", "rte", "sst2", "mrpc", "cola", "stsb")
PUBLISHED = (
    Published(
        "BERT-large",
        dict(zip(_GLUE, (86.6, 92.3, 91.3, 70.4, 93.2, 88.0, 60.6, 90.0), strict=True))
        | {"squad1": 90.9, "squad2": 81.8, "race": 73.9},
        {"squad1": 84.1, "squad2": 79.0},
    ),
    _of_readme("ALBERT-base v1", "89.3/82.3", "80.0/77.1", "81.6", "90.3", "64.0"),
    _of_readme("ALBERT-base v2", "90.2/83.2", "82.1/79.3", "84.6", "92.9", "66.8"),
    _of_readme("ALBERT-large v2", "91.8/85.2", "84.9/81.8", "86.5", "94.9", "75.2"),
    _of_readme("ALBERT-xlarge v2", "92.9/86.4", "87.9/84.1", "87.9", "95.4", "80.7"),
    _of_readme("ALBERT-xxlarge v1", "94.8/89.3", "90.2/87.4", "90.8", "96.9", "86.5"),
    _of_readme("ALBERT-xxlarge v2", "94.6/89.1", "89.8/86.9", "90.6", "96.8", "86.8"),
    Published(
        "ALBERT-xxlarge, 1.5 M steps",
        dict(zip(_GLUE, (90.8, 95.3, 92.2, 89.2, 96.9, 90.9, 71.4, 93.0), strict=True))
        | {"squad1": 94.8, "squad2": 90.2},
        {"squad1": 89.3, "squad2": 87.4},
    ),
)
