"""The layout of an evaluation's output directory.

`results.json` has the scores, `run-SEED/` the model of a seed and its predictions on dev, and `controls/NAME/` the
evaluation of a control in the same layout. `predictions.test.*` has the predictions for a table's test file, in that
file's format.
"""

from __future__ import annotations

from fnmatch import fnmatch
from pathlib import Path
from typing import TypeVar

from albert_cli.errors import BusyError
from albert_cli.results import RESULTS, EnsembleResult, EvaluationResult, ScoredResult, read_result

CONTROLS_FOLDER = "controls"
TEST_PREDICTIONS = "predictions.test.*"  # a glob pattern
# Glob patterns of what `eval` writes for one task; a run on an intermediate task is in a folder of that task's name.
EVALUATION_FILES = (RESULTS, TEST_PREDICTIONS, "run-*", CONTROLS_FOLDER)

ResultT = TypeVar("ResultT", ScoredResult, EnsembleResult)


def run_directory(out: Path, seed: int) -> Path:
    """Return the directory of a seed's run."""
    return out / f"run-{seed}"


def best_run(out: Path, result: EvaluationResult) -> Path:
    """Return the directory of the run with the highest dev score; of equal scores, the one with the lowest seed."""
    highest = max(result.scores_by_seed.values())
    return run_directory(out, min(int(seed) for seed, score in result.scores_by_seed.items() if score == highest))


def require_own_output(out: Path, *patterns: str) -> None:
    """Raise `BusyError` if `out` contains a file that the command does not write: a file whose name matches no pattern.

    patterns: glob patterns of the command's files. Hidden files, such as locks, are ignored.
    """
    names = [path.name for path in out.glob("[!.]*")]
    foreign = [name for name in names if not any(fnmatch(name, pattern) for pattern in patterns)]
    if foreign:
        raise BusyError(f"{out}: holds other files ({foreign[0]}, …)", "choose another --out")


def read_earlier_result(out: Path, result_class: type[ResultT]) -> ResultT | None:
    """Return the result that an earlier call of the command wrote to `out`; None if `out` has no result.

    Raises `BusyError` if the result is of another command, whose results have another class.
    """
    path = out / RESULTS
    if not path.is_file():
        return None
    result = read_result(path)
    if not isinstance(result, result_class):
        raise BusyError(f"{out}: contains the result of another command ({result.kind})", "choose another --out")
    return result
