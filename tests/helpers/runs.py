"""Read the steps, curves and hashes of training runs, and make a run diverge."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

from albert_cli import journal, store
from albert_cli.model import hub
from albert_cli.model.config import ModelConfig
from albert_cli.model.heads import PretrainingModel
from albert_cli.model.weight_files import WEIGHTS_FILE
from albert_cli.text.vocabulary import Vocabulary
from albert_cli.training.checkpoint import OPTIMIZER_FILE
from albert_cli.training.objectives import PretrainingJob
from tests.helpers.shapes import TINY, shake

LAST = "step-00000030"  # the last checkpoint of the recipe in `tiny_recipe`


def weights_hash(run: Path) -> str:
    """Return the SHA-256 of the last checkpoint's weights."""
    return store.sha256_file(run / LAST / WEIGHTS_FILE)


def read_status(run: Path) -> dict[str, Any]:
    return store.read_json(run / "status.json")


def assert_interrupted(run: Path) -> None:
    """Assert that the run was interrupted, and that the checkpoint of its last step is saved."""
    status = read_status(run)
    assert (status["state"], status["exit_code"]) == ("interrupted", 75)
    assert (run / f"step-{status['step']:08d}" / "manifest.json").is_file()


def list_steps(run: Path) -> list[int]:
    """Return the numbers of the saved steps, in ascending order."""
    return [store.step_number(p) for p in sorted(run.glob("step-*"))]


def read_curve(run: Path) -> list[dict[str, Any]]:
    """Return the records of `metrics.jsonl` without times and speeds."""
    records = journal.read_journal(run / "metrics.jsonl")
    timed = ("seconds", "tokens_per_second", "mfu")
    return [{key: value for key, value in record.items() if key not in timed} for record in records]


def copy_run(finished: Path, tmp_path: Path) -> Path:
    """Copy a finished run, so that a test can change it; return the copy."""
    return Path(shutil.copytree(finished, tmp_path / "run"))


def poison_loss(step: int, rank: int = 0) -> None:
    """Make the MLM loss of a step NaN on a rank, by replacing two methods of `PretrainingJob` in this process."""
    import os

    original_sample_step = PretrainingJob.sample_step
    original_loss_sums = PretrainingJob.loss_sums
    poisoned_ids: list[int] = []  # `id` of the micro-batches of the step

    def sample_step(self: PretrainingJob, number: int, group: Any) -> Any:
        micro_batches = original_sample_step(self, number, group)
        if number == step:
            poisoned_ids.extend(id(micro_batch.data) for micro_batch in micro_batches)
        return micro_batches

    def loss_sums(self: PretrainingJob, data: Any) -> Any:
        sums = original_loss_sums(self, data)
        if id(data) in poisoned_ids and int(os.environ.get("RANK", "0")) == rank:
            sums["mlm_loss"] = sums["mlm_loss"] * float("nan")
        return sums

    for name, replacement in (("sample_step", sample_step), ("loss_sums", loss_sums)):
        setattr(PretrainingJob, name, replacement)


SHAPE = replace(TINY, vocab_size=300)


def create_checkpoint(directory: Path, vocabulary: Path, config: ModelConfig = SHAPE) -> Path:
    """Write a pretraining checkpoint with random weights and a vocabulary; return its directory."""
    model = PretrainingModel(config)
    shake(model)
    with store.commit_directory(directory, "checkpoint") as staging:
        hub.write_checkpoint(model, staging, "ForPreTraining")
        Vocabulary.load(vocabulary).copy_to(staging, config.max_position_embeddings)
    return directory


def checkpoint_hashes(run: Path, step: str = LAST) -> list[str]:
    """Return the SHA-256 of a checkpoint's weights and of its optimizer state."""
    return [store.sha256_file(run / step / name) for name in (WEIGHTS_FILE, OPTIMIZER_FILE)]
