"""Helpers for tests of training runs: their steps, curves and bytes."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

from albert_cli import journal, store
from albert_cli.model import hub
from albert_cli.model.config import ModelConfig
from albert_cli.model.heads import PretrainingModel
from albert_cli.text.vocabulary import Vocabulary
from albert_cli.training.checkpoint import OPTIMIZER_FILE
from albert_cli.training.objectives import PretrainingJob
from tests.helpers.shapes import TINY, shake

LAST = "step-00000030"


def weights_hash(run: Path) -> str:
    return store.sha256_file(run / LAST / hub.WEIGHTS_FILE)


def read_status(run: Path) -> dict[str, Any]:
    return store.read_json(run / "status.json")


def list_steps(run: Path) -> list[int]:
    return [int(p.name.removeprefix("step-")) for p in sorted(run.glob("step-*"))]


def read_curve(run: Path) -> list[dict[str, Any]]:
    """Return the logged records without times."""
    records = journal.read_journal(run / "metrics.jsonl")
    return [{k: v for k, v in r.items() if k not in ("seconds", "tokens_per_second", "mfu")} for r in records]


def copy_run(finished: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(finished, tmp_path / "run"))


def poison_loss(step: int, rank: int = 0) -> None:
    """Make a loss NaN at a step on a rank."""
    import os

    plain, draw = PretrainingJob.loss_sums, PretrainingJob.sample_step
    drawn: list[Any] = []

    def marked(self: PretrainingJob, number: int, group: Any) -> Any:
        parts = draw(self, number, group)
        drawn.extend(id(p.data) for p in parts if number == step)
        return parts

    def loss_sums(self: PretrainingJob, data: Any) -> Any:
        sums = plain(self, data)
        if id(data) in drawn and int(os.environ.get("RANK", "0")) == rank:
            sums["mlm_loss"] = sums["mlm_loss"] * float("nan")
        return sums

    for name, replacement in (("sample_step", marked), ("loss_sums", loss_sums)):
        setattr(PretrainingJob, name, replacement)


SHAPE = replace(TINY, vocab_size=300)


def create_checkpoint(directory: Path, vocabulary: Path, config: ModelConfig = SHAPE) -> Path:
    """A checkpoint of random weights with a vocabulary beside it."""
    model = PretrainingModel(config)
    shake(model)
    with store.commit_directory(directory, "checkpoint") as staging:
        hub.write_checkpoint(model, staging, "ForPreTraining")
        Vocabulary.load(vocabulary).copy_to(staging, config.max_position_embeddings)
    return directory


def checkpoint_hashes(run: Path, step: str = LAST) -> list[str]:
    return [store.sha256_file(run / step / name) for name in (hub.WEIGHTS_FILE, OPTIMIZER_FILE)]
