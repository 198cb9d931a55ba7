"""Tests of `training.objectives`: scores of pretraining, and how batches are split."""

from __future__ import annotations

import dataclasses
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from albert_cli import store
from albert_cli.data.batches import sample_lengths
from albert_cli.errors import CheckpointError, ConfigError
from albert_cli.ranks import RankGroup
from albert_cli.training.objectives import count_correct, group_by_tokens
from albert_cli.training.pretrain import pretrain
from tests.helpers.jobs import MakeJob
from tests.helpers.ordered_text import ordered_documents


def test_count_correct_is_exact_in_both_precisions() -> None:
    rng = torch.Generator().manual_seed(0)
    logits = torch.randn(64, 30, generator=rng)
    labels = torch.where(torch.rand(64, generator=rng) < 0.5, logits.argmax(-1), 3)
    labels[:5] = -1
    expected = int((logits.argmax(-1) == labels).sum())
    assert 20 < expected < 60
    assert int(count_correct(logits, labels)) == expected
    rounded = logits.bfloat16()
    assert int(count_correct(rounded, labels)) == int((rounded.argmax(-1) == labels).sum())


@pytest.mark.parametrize("loss", ["nsp", "sop"])
def test_evaluate_single_document_has_no_nsp_score(
    loss: str, recipe: Path, tiny_data: Path, tiny_vocabulary: Path, tmp_path: Path
) -> None:
    """One document gives no pairs of different documents, so its NSP accuracy would mean nothing."""
    from albert_cli.data import build
    from albert_cli.data.records import BuildSettings

    (tmp_path / "text.txt").write_text("Kra bade wi. Luma figo ste. Nepi roro. Suta vewi. Zo gofi.")
    build.build_data(
        [str(tmp_path / "text.txt")], tiny_vocabulary, tmp_path / "one", BuildSettings(holdout=0.0), workers=1
    )
    overrides = [f'evaluation=["{tmp_path / "one"}"]', f"data.sentence_loss={loss}"]
    overrides += ["schedule.total_steps=2", "schedule.warmup_steps=1"]
    result = pretrain(str(recipe), tiny_data, tmp_path / "run", overrides, device="cpu")
    assert ("one/order_accuracy" in result.metrics) == (loss == "sop")
    assert "one/nsp_accuracy" not in result.metrics
    assert "order_accuracy" in result.metrics


def test_training_learns_the_order_of_two_segments(tmp_path: Path) -> None:
    """The first sentence of each document has other words than the second, so every order can be told."""
    from albert_cli.data import build
    from albert_cli.data.records import BuildSettings
    from albert_cli.text import build_vocabulary
    from albert_cli.text.build_vocabulary import VocabularySettings

    text = tmp_path / "text.txt"
    text.write_text(ordered_documents(1000))
    build_vocabulary.build_vocabulary([str(text)], tmp_path / "vocabulary", VocabularySettings(size=45))
    build.build_data([str(text)], tmp_path / "vocabulary", tmp_path / "data", BuildSettings(holdout=0.1), workers=1)
    overrides = ["model.num_hidden_layers=1", "optimizer.lr=4e-3", "schedule.total_steps=120", "train.eval_every=120"]
    overrides += ["train.batch_size=32", "train.micro_batch_size=32", "train.precision=fp32"]
    result = pretrain("mini/experiment", tmp_path / "data", tmp_path / "run", overrides, device="cpu")
    assert result.metrics["order_accuracy"] > 0.7


def test_evaluate_reports_other_corpora_by_name(
    recipe: Path, tiny_data: Path, finished: Path, tiny_vocabulary: Path, tmp_path: Path
) -> None:
    from albert_cli.data import build
    from albert_cli.data.records import BuildSettings

    (tmp_path / "text.txt").write_text("Kra bade wi. Luma figo ste. Nepi roro.\n\nSuta vewi. Zo gofi.\n" * 9)
    squad_dev = tmp_path / "squad-dev"
    build.build_data([str(tmp_path / "text.txt")], tiny_vocabulary, squad_dev, BuildSettings(holdout=0.0), workers=1)
    overrides = [f'evaluation=["{squad_dev}"]']
    result = pretrain(str(recipe), tiny_data, tmp_path / "run", overrides, device="cpu")
    scores = ("mlm_loss", "mlm_accuracy", "order_accuracy", "nsp_accuracy")
    assert {f"squad-dev/{name}" for name in scores} <= result.metrics.keys()
    assert result.metrics["squad-dev/mlm_loss"] != result.metrics["mlm_loss"]
    assert "squad-dev: mlm loss" in result.to_text()
    assert "| squad-dev mlm loss |" in (tmp_path / "run" / "step-00000030" / "README.md").read_text()
    assert store.sha256_file(tmp_path / "run/step-00000030/model.safetensors") == store.sha256_file(
        finished / "step-00000030/model.safetensors"
    )
    with pytest.raises(ConfigError, match="two directories with the same name"):
        pretrain(str(recipe), tiny_data, tmp_path / "no", [f'evaluation=["{squad_dev}", "{squad_dev}"]'], device="cpu")
    assert not (tmp_path / "no").exists()
    with pytest.raises(CheckpointError, match=rf"{recipe}: evaluation: nowhere: no such directory"):
        pretrain(str(recipe), tiny_data, tmp_path / "no", ['evaluation=["nowhere"]'], device="cpu")
    damaged = next(squad_dev.rglob("train-*.ids"))
    damaged.write_bytes(damaged.read_bytes()[::-1])
    with pytest.raises(CheckpointError, match=r"squad-dev/.*: damaged"):
        pretrain(str(recipe), tiny_data, tmp_path / "no", overrides, device="cpu")


def test_evaluate_corpus_without_masked_tokens_has_no_mlm_loss(
    recipe: Path, tiny_data: Path, tiny_vocabulary: Path, tmp_path: Path
) -> None:
    """A word that is longer than the number of tokens to predict is never masked."""
    from albert_cli.data import build
    from albert_cli.data.records import BuildSettings

    (tmp_path / "text.txt").write_text("\n".join([f"{'krabadewiluma' * 20}."] * 9))
    build.build_data(
        [str(tmp_path / "text.txt")], tiny_vocabulary, tmp_path / "long", BuildSettings(holdout=0.0), workers=1
    )
    overrides = [f'evaluation=["{tmp_path / "long"}"]', "schedule.total_steps=2", "schedule.warmup_steps=1"]
    result = pretrain(str(recipe), tiny_data, tmp_path / "run", overrides, device="cpu")
    assert "long/mlm_loss" not in result.metrics
    assert "mlm_loss" in result.metrics


@pytest.mark.parametrize(("working_directory", "directory"), [("data", "."), ("data/below", "..")])
def test_evaluate_dots_are_not_the_name_of_a_corpus(
    working_directory: str,
    directory: str,
    recipe: Path,
    tiny_data: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    shutil.copytree(tiny_data, tmp_path / "data")
    (tmp_path / working_directory).mkdir(exist_ok=True)
    monkeypatch.chdir(tmp_path / working_directory)
    overrides = [f'evaluation=["{directory}"]', "schedule.total_steps=2", "schedule.warmup_steps=1"]
    result = pretrain(str(recipe), tiny_data, tmp_path / "run", overrides, device="cpu")
    assert result.metrics["data/mlm_loss"] == result.metrics["mlm_loss"]


@pytest.mark.parametrize("world_size", [1, 2, 3, 4, 9])
@pytest.mark.parametrize(
    "changes",
    [{"train__micro_batch_size": 3}, {"batch__warmup_steps": 9, "batch__warmup_from": 3, "batch__micro_tokens": 70}],
)
def test_sample_step_is_same_for_any_ranks(changes: dict[str, int], world_size: int, make_job: MakeJob) -> None:
    job = make_job(**changes)
    for step in (0, 5, 20):
        expected = {part.number: part.data.packed for part in job.sample_step(step, RankGroup())}
        actual = {}
        for rank in range(world_size):
            for part in job.sample_step(step, RankGroup(rank, world_size)):
                assert part.number not in actual
                actual[part.number] = part.data.packed
        assert actual.keys() == expected.keys() == set(range(len(expected)))
        for number, data in expected.items():
            for field in dataclasses.fields(data):
                assert np.array_equal(getattr(data, field.name), getattr(actual[number], field.name))


def test_evaluate_repeats_its_scores(make_job: MakeJob) -> None:
    job = make_job()
    job.model.eval()
    with torch.inference_mode():
        first = job.evaluate(RankGroup())
        torch.rand(7)
        assert job.evaluate(RankGroup()) == first
    assert 5 < first["mlm_loss"] < 6.5 and 0 <= first["mlm_accuracy"] < 0.2 and 0 <= first["order_accuracy"] <= 1


@given(st.lists(st.integers(3, 64), min_size=1, max_size=60), st.integers(64, 500))
def test_group_by_tokens_fills_groups_up_to_the_budget(sizes: list[int], budget: int) -> None:
    lengths = np.array(sizes, np.int64)
    groups = group_by_tokens(lengths, budget)
    assert sorted(np.concatenate(groups).tolist()) == list(range(len(sizes)))
    totals = [int(lengths[group].sum()) for group in groups]
    assert max(totals) <= budget
    longest = [int(lengths[group].max()) for group in groups]
    assert longest == sorted(longest, reverse=True)
    for total, following in zip(totals, groups[1:], strict=False):  # no group has room for the next sequence
        assert total + lengths[following[0]] > budget


def test_sample_lengths_equal_sampled_batch(make_job: MakeJob) -> None:
    for loss in ("sop", "nsp", "none"):
        job = make_job(data__sentence_loss=loss)
        index = job.settings.batch_index(5)
        (part,) = make_job(data__sentence_loss=loss, train__micro_batch_size=100).sample_step(5, RankGroup())
        lengths = sample_lengths(job.corpora.train, job.settings.data, job.settings.train.seed, index)
        assert lengths.tolist() == np.diff(part.data.packed.offsets).tolist()


def test_loss_sums_without_sentence_loss_leave_its_head(make_job: MakeJob) -> None:
    """Otherwise compiled code gives the head gradients of zeros."""
    job = make_job(data__sentence_loss="none")
    sums = job.loss_sums(job.sample_step(0, RankGroup())[0].data)
    assert sums["mlm_loss"].requires_grad and not sums["order_loss"].requires_grad
