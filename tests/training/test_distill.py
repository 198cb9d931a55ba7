"""Tests of distillation: the loss, runs that resume to the same bytes, and teachers that are rejected."""

from __future__ import annotations

import dataclasses
import shutil
from pathlib import Path

import pytest
import torch

from albert_cli import journal, store
from albert_cli.errors import ConfigError
from albert_cli.model.heads import MaskedLanguageModel
from albert_cli.model.packing import pack
from albert_cli.ranks import RankGroup
from albert_cli.text.vocabulary import Vocabulary
from albert_cli.training.distill import DistillSettings, Teacher
from albert_cli.training.loop import evaluate_job
from albert_cli.training.pretrain import pretrain
from tests.helpers.jobs import MakeJob, gradients
from tests.helpers.runs import LAST, checkpoint_hashes, create_checkpoint
from tests.helpers.shapes import TINY, random_batch

CPU = torch.device("cpu")


@pytest.mark.parametrize("temperature", [1.0, 3.0])
def test_teacher_loss_is_the_kl_divergence(temperature: float) -> None:
    teacher, student = MaskedLanguageModel(TINY).eval(), MaskedLanguageModel(TINY).eval()
    distillation = Teacher(teacher, DistillSettings(teacher="unused", weight=0.5, temperature=temperature))
    batch = random_batch((20, 3, 11))
    tokens = pack(batch, CPU, batch.masked_index)
    teacher_logits, student_logits = teacher(tokens).detach(), student(tokens)
    assert float(distillation.loss(teacher_logits, tokens)) == pytest.approx(0, abs=1e-5)
    p, q = (torch.softmax(x / temperature, -1) for x in (teacher_logits, student_logits))
    expected = 0.5 * temperature**2 * (p * (p / q).log()).sum().detach()
    assert float(distillation.loss(student_logits, tokens).detach()) == pytest.approx(float(expected), rel=1e-4)
    distillation.loss(student_logits, tokens).backward()
    assert all(p.grad is None for p in teacher.parameters())
    assert any(p.grad is not None for p in student.parameters())


def test_evaluate_does_not_run_the_teacher(make_job: MakeJob) -> None:
    job = make_job()
    teacher = MaskedLanguageModel(job.model.config).eval()
    taught = dataclasses.replace(job, teacher=Teacher(teacher, DistillSettings(teacher="unused")))
    calls: list[object] = []
    teacher.register_forward_hook(lambda *_: calls.append(None))
    assert evaluate_job(taught, RankGroup()) == evaluate_job(job, RankGroup())
    assert not calls
    losses, _ = gradients(taught)
    assert calls and losses["distill_loss"] > 0


def test_distill_with_groups_resumes_to_same_bytes(
    recipe: Path, tiny_data: Path, finished: Path, tmp_path: Path
) -> None:
    """The run has groups of different sizes, three order labels and a teacher."""
    last = "step-00000010"
    settings = ["model.num_hidden_layers=3", "model.group_sizes=[2, 1]", "data.sentence_loss=three-way"]
    settings.append("schedule.total_steps=10")
    call = (str(recipe), tiny_data, tmp_path / "run", [*settings, f"distill.teacher={finished}"])
    result = pretrain(*call, device="cpu")
    assert {"order_accuracy", "sop_accuracy", "nsp_accuracy"} < result.metrics.keys()
    run = tmp_path / "run"
    expected = checkpoint_hashes(run, last)
    losses = [r["distill_loss"] for r in journal.read_journal(run / "metrics.jsonl") if "distill_loss" in r]
    assert len(losses) == 2
    assert losses[-1] > 0
    assert store.verify(run / last, "checkpoint").parents["teacher"] == store.fingerprint(finished / LAST)
    shutil.rmtree(run / last)
    pretrain(*call, device="cpu")
    assert checkpoint_hashes(run, last) == expected
    without_teacher = pretrain(str(recipe), tiny_data, tmp_path / "alone", settings, device="cpu")
    assert without_teacher.model_sha256 != result.model_sha256, "the teacher changes the weights"


def test_teacher_that_does_not_fit_raises(
    recipe: Path, tiny_data: Path, tiny_vocabulary: Path, finished: Path, tmp_path: Path
) -> None:
    run, teacher = tmp_path / "run", tmp_path / "teacher"
    shutil.copytree(finished / LAST, teacher)
    overrides = ["schedule.total_steps=5", "schedule.warmup_steps=1", f"distill.teacher={teacher}"]
    call = (str(recipe), tiny_data, run, overrides)
    pretrain(*call, device="cpu")
    shutil.rmtree(teacher)
    shutil.copytree(finished / "step-00000025", teacher)
    with pytest.raises(ConfigError, match=r"distill\.fingerprint"):
        pretrain(*call, device="cpu")
    short = create_checkpoint(tmp_path / "short", tiny_vocabulary)
    with pytest.raises(ConfigError, match="has only 20 positions, but sequences have up to 32 tokens"):
        Teacher.load(DistillSettings(str(short)), Vocabulary.load(tiny_vocabulary), 32, CPU)
    other_vocabulary = Vocabulary.load(tiny_vocabulary)
    object.__setattr__(other_vocabulary, "fingerprint", "another")
    with pytest.raises(ConfigError, match=f"{tiny_data}: has another vocabulary than {teacher}"):
        Teacher.load(DistillSettings(str(teacher)), other_vocabulary, 32, CPU, tiny_data)


def test_resumed_run_finds_the_teacher_in_another_directory(
    recipe: Path, tiny_data: Path, finished: Path, tmp_path: Path
) -> None:
    overrides = ["schedule.total_steps=5", "schedule.warmup_steps=1"]
    teacher = Path(shutil.copytree(finished / LAST, tmp_path / "teacher"))
    call = (str(recipe), tiny_data, tmp_path / "run")
    first = pretrain(*call, [*overrides, f"distill.teacher={teacher}"], device="cpu")
    moved = teacher.rename(tmp_path / "moved")
    assert pretrain(*call, [*overrides, f"distill.teacher={moved}"], device="cpu") == first


def test_teacher_with_newer_step_than_recorded_raises(finished: Path, tiny_vocabulary: Path) -> None:
    """The teacher's run may save a step between the first reading of its fingerprint and the loading of its weights."""
    settings = DistillSettings(str(finished), fingerprint=store.fingerprint(finished / "step-00000025"))
    with pytest.raises(ConfigError, match=r"another teacher .* than distill\.fingerprint"):
        Teacher.load(settings, Vocabulary.load(tiny_vocabulary), 32, CPU)
