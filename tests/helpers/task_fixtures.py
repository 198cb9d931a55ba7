"""Fixtures: small data sets in GLUE's layout, a pretraining checkpoint, and models fine-tuned from it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from albert_cli.tasks.registry import find_task
from tests.helpers.checkpoints import untrained
from tests.helpers.task_runs import PAIR, QUICK, SHAPE, finetune, mnli, pairs, prepare, sentence, write


@pytest.fixture(scope="session")
def glue(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """CoLA, SST-2 and MNLI with a dozen rows each."""
    rows = range(12)
    single = "sentence\tlabel\n" + "".join(f"{sentence(i)}\t{i % 2}\n" for i in rows)
    files = {
        "CoLA/train": "".join(f"x\t{i % 2}\t\t{sentence(i)}\n" for i in rows),
        "CoLA/dev": "".join(f"x\t{(i + 1) % 2}\t\t{sentence(i)}\n" for i in rows),
        "SST-2/train": single,
        "SST-2/dev": single,
        "MNLI/train": mnli(range(24)),
        "MNLI/dev_matched": mnli(range(9)),
        "MNLI/dev_mismatched": mnli(range(9, 24)),
    }
    return write(tmp_path_factory.mktemp("glue"), files)


@pytest.fixture(scope="session")
def inference(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """MNLI, RTE and WNLI with few rows; the test sets of WNLI and AX have as many rows as in GLUE."""
    entailment = pairs(find_task("rte").labels, range(12))
    coreference = pairs(("0", "1"), range(12))
    files = {
        "MNLI/train": mnli(range(24)),
        "MNLI/dev_matched": mnli(range(9)),
        "MNLI/dev_mismatched": mnli(range(9, 24)),
        "RTE/train": f"{PAIR}\tlabel\n{entailment}",
        "RTE/dev": f"{PAIR}\tlabel\n{entailment}",
        "WNLI/train": f"{PAIR}\tlabel\n{coreference}",
        "WNLI/dev": f"{PAIR}\tlabel\n{coreference}",
        "WNLI/test": f"{PAIR}\n{pairs((), range(146))}",
        "diagnostic/diagnostic": f"{PAIR}\n{pairs((), range(1104))}",
    }
    return write(tmp_path_factory.mktemp("inference"), files)


@pytest.fixture(scope="session")
def encoder(tmp_path_factory: pytest.TempPathFactory, tiny_vocabulary: Path) -> Path:
    """A pretraining checkpoint with random weights."""
    return untrained(tmp_path_factory.mktemp("encoder") / "checkpoint", SHAPE, tiny_vocabulary)


@pytest.fixture(scope="session")
def tuned(tmp_path_factory: pytest.TempPathFactory, encoder: Path, glue: Path) -> Callable[[str], Path]:
    """A function that returns a task's fine-tuned checkpoint; it trains each task once."""
    folder = tmp_path_factory.mktemp("tuned")

    def finetune_once(task: str) -> Path:
        if not (folder / task).exists():
            finetune(prepare(task, str(encoder), str(glue), QUICK, "cpu"), folder / task, 0)
        return folder / task

    return finetune_once
