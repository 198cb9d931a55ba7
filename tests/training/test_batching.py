"""Batches that grow and micro-batches of tokens: every example once, and the same update."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from albert_cli.data.batches import sample_lengths
from albert_cli.data.pairs import PairSettings, examples_per_pass
from albert_cli.data.shards import TokenCorpus
from albert_cli.errors import ConfigError
from albert_cli.ranks import RankGroup
from albert_cli.training.objectives import group_by_tokens
from albert_cli.training.pretrain import plan_pretraining, pretrain
from albert_cli.training.pretrain_recipe import BatchSettings, PretrainRecipe
from albert_cli.training.settings import TrainSettings
from tests.processes import end, start_ranks
from tests.training.test_loop import MakeJob, gradients, make_job  # noqa: F401  (a fixture)
from tests.training.test_pretrain import curve, weights_of

GROWING = ("batch.warmup_steps=12", "batch.warmup_from=2")
BY_TOKENS = "batch.micro_tokens=70"


def growing(batch_size: int, steps: int, begin: int) -> PretrainRecipe:
    return PretrainRecipe(train=TrainSettings(batch_size=batch_size), batch=BatchSettings(steps, begin))


@given(st.integers(1, 5000), st.integers(0, 400), st.data())
def test_every_example_is_taken_once_and_in_order(batch_size: int, steps: int, data: st.DataObject) -> None:
    begin = data.draw(st.integers(1, batch_size))
    recipe = growing(batch_size, steps, begin)
    sizes = [len(recipe.examples_of(step)) for step in range(steps + 3)]
    assert sizes == sorted(sizes) and sizes[-3:] == [batch_size] * 3
    assert steps == 0 or sizes[0] == begin
    step = data.draw(st.integers(0, steps + 2))
    assert recipe.examples_before(step) == sum(sizes[:step])
    assert recipe.examples_of(step).tolist() == list(range(sum(sizes[:step]), sum(sizes[: step + 1])))


def test_it_grows_evenly() -> None:
    sizes = [len(growing(100, 4, 20).examples_of(step)) for step in range(6)]
    assert sizes == [20, 40, 60, 80, 100, 100]
    far = growing(4096, 10_000, 256)
    assert far.examples_before(125_000) == far.examples_before(10_000) + 115_000 * 4096


@given(st.lists(st.integers(3, 64), min_size=1, max_size=60), st.integers(64, 500))
def test_groups_hold_every_sequence_once_and_at_most_the_budget(sizes: list[int], budget: int) -> None:
    given_lengths = np.array(sizes, np.int64)
    groups = group_by_tokens(given_lengths, budget)
    assert sorted(np.concatenate(groups).tolist()) == list(range(len(sizes)))
    totals = [int(given_lengths[group].sum()) for group in groups]
    assert max(totals) <= budget
    longest = [int(given_lengths[group].max()) for group in groups]
    assert longest == sorted(longest, reverse=True)
    for total, following in zip(totals, groups[1:], strict=False):  # none ends before it must
        assert total + given_lengths[following[0]] > budget


def test_lengths_are_known_before_the_text_is_read(make_job: MakeJob) -> None:  # noqa: F811
    job = make_job()
    for loss in ("sop", "nsp", "none"):
        job = make_job(data__sentence_loss=loss)
        index = job.settings.examples_of(5)
        (part,) = make_job(data__sentence_loss=loss, train__micro_batch_size=100).sample_step(5, RankGroup())
        known = sample_lengths(job.corpora.train, job.settings.data, job.settings.train.seed, index)
        assert known.tolist() == np.diff(part.data.host.offsets).tolist()


def test_a_growing_batch_resumes_exactly_with_any_number_of_ranks(
    recipe: Path, tiny_data: Path, tmp_path: Path
) -> None:
    overrides = [*GROWING, BY_TOKENS, "train.log_every=1"]
    pretrain(str(recipe), tiny_data, tmp_path / "through", overrides, device="cpu")
    arguments: list[object] = ["pretrain", recipe, "--data", tiny_data, "--device", "cpu", "--out", tmp_path / "run"]
    arguments += [word for override in overrides for word in ("-s", override)]
    run = tmp_path / "run"
    ranks = start_ranks(tmp_path / "log", 1, *arguments)
    ranks[0].reaches(lambda: (run / "step-00000010").is_dir())
    ranks[0].kill()
    pretrain(str(recipe), tiny_data, run, overrides, device="cpu")
    assert weights_of(run) == weights_of(tmp_path / "through") and curve(run) == curve(tmp_path / "through")
    two = [tmp_path / "two" if word == run else word for word in arguments]
    assert end(start_ranks(tmp_path / "log", 2, *two)) == [0, 0]
    for one, other in zip(curve(tmp_path / "through"), curve(tmp_path / "two"), strict=True):
        assert one["step"] == other["step"] and one.get("loss", 0) == pytest.approx(other.get("loss", 0), abs=2e-5)


def test_the_plan_counts_the_growth(recipe: Path, tiny_data: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    plain = plan_pretraining(str(recipe), tiny_data, run, device="cpu").plan
    growing = plan_pretraining(str(recipe), tiny_data, run, GROWING, device="cpu").plan
    assert (growing.sequences_in_first_step, growing.batch_warmup_steps) == (2, 12)
    assert plain.batch_warmup_steps is None and "batch_warmup_steps" not in plain.as_json()
    taken = 18 * 8 + sum(2 + 6 * step // 12 for step in range(12))
    assert growing.passes_over_corpus == pytest.approx(plain.passes_over_corpus * taken / 240, abs=0.01)
    longer = plan_pretraining(str(recipe), tiny_data, run, ["schedule.total_steps=3000"], device="cpu").plan
    size = examples_per_pass(TokenCorpus.open(tiny_data), PairSettings(32))
    assert longer.passes_over_corpus == round(24_000 / size, 2)
    by_tokens = plan_pretraining(str(recipe), tiny_data, run, [BY_TOKENS], device="cpu").plan
    assert (plain.sequences_per_micro_batch, by_tokens.sequences_per_micro_batch) == (4, 2)
    assert by_tokens.activations_bytes == plain.activations_bytes / 2


@pytest.mark.parametrize(
    ("overrides", "said"),
    [
        (["batch.warmup_steps=5", "batch.warmup_from=9"], r"more than train.batch_size \(8\)"),
        (["batch.warmup_from=0"], "batch.warmup_from: Input should be greater"),
        (["batch.warmup_steps=-1"], "batch.warmup_steps: Input should be greater"),
        (["batch.micro_tokens=31"], "one sequence may have 32"),
        (["batch.micro_token=64"], "micro_tokens"),
    ],
)
def test_what_cannot_be_is_refused(
    overrides: list[str], said: str, recipe: Path, tiny_data: Path, tmp_path: Path
) -> None:
    with pytest.raises(ConfigError) as raised:
        pretrain(str(recipe), tiny_data, tmp_path / "run", overrides, device="cpu")
    assert re.search(said, f"{raised.value.message} {raised.value.hint}")
    assert not (tmp_path / "run").exists()
