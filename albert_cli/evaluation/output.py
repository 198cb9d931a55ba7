"""The layout of an evaluation's output directory."""

from __future__ import annotations

from fnmatch import fnmatch
from pathlib import Path

from albert_cli.errors import BusyError
from albert_cli.results import RESULTS, EvaluationResult

CONTROLS_FOLDER = "controls"  # the evaluations of the controls, one folder for each
TEST_PREDICTIONS = "predictions.test.*"  # predictions for a table's test file, in the file's format
EVALUATION_FILES = (RESULTS, TEST_PREDICTIONS, "run-*", CONTROLS_FOLDER)


def run_directory(out: Path, seed: int) -> Path:
    """Return the directory of a seed's run."""
    return out / f"run-{seed}"


def best_run(out: Path, result: EvaluationResult) -> Path:
    """Return the directory of the run that is best on dev; of equal scores, the one with the lowest seed."""
    scores = result.scores_by_seed
    return run_directory(out, min(map(int, scores), key=lambda seed: (-scores[str(seed)], seed)))


def require_own_output(out: Path, *patterns: str) -> None:
    """Raise `BusyError` if `out` holds a visible file that matches none of the patterns."""
    foreign = [p.name for p in out.glob("[!.]*") if not any(fnmatch(p.name, pattern) for pattern in patterns)]
    if foreign:
        raise BusyError(f"{out}: holds other files ({foreign[0]}, …)", "choose another --out")
