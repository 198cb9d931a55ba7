"""Tests of `experiments.probe`: the sampling error of its scores is that of the text."""

from __future__ import annotations

import itertools
from pathlib import Path

import numpy as np
import pytest

from albert_cli.data.pairs import PairSettings, examples_per_pass, sample_pairs
from albert_cli.data.shards import TokenCorpus
from albert_cli.experiments.probe import group_by_position, probe
from albert_cli.experiments.probe_scores import ProbeScores
from albert_cli.experiments.uncertainty import JACKKNIFE_GROUPS, jackknife_error
from albert_cli.training.objectives import EVALUATION_SEED
from tests.helpers.corpora import text_like_corpus
from tests.helpers.runs import create_checkpoint


def loss_error(scores: ProbeScores) -> float:
    values = [scores.text.values["mlm_loss"], *scores.text.without_groups["mlm_loss"]]
    return jackknife_error(np.array(values))


def test_probe_more_sequences_than_text_keep_the_error(
    tiny_data: Path, tiny_vocabulary: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """A repeated text gives no information about other text, so the error must not shrink."""
    checkpoint = str(create_checkpoint(tmp_path / "checkpoint", tiny_vocabulary))
    heldout = TokenCorpus.open(tiny_data, "heldout")
    one_pass = examples_per_pass(heldout, PairSettings(max_seq_length=20))
    once = probe(checkpoint, tiny_data, one_pass, device="cpu")
    assert "sequences" not in capfd.readouterr().err
    repeated = probe(checkpoint, tiny_data, 64 * one_pass, device="cpu")
    assert loss_error(repeated) > loss_error(once) / 2
    assert repeated.sequences == one_pass
    assert f"has {one_pass:,} sequences" in capfd.readouterr().err


@pytest.mark.parametrize("count", [20, 64, 1000])
def test_group_by_position_groups_have_neighboring_text(count: int) -> None:
    corpus = text_like_corpus()
    pairs = PairSettings(max_seq_length=32, sentence_loss="none")
    groups = group_by_position(corpus, pairs, count)
    assert len(groups) == JACKKNIFE_GROUPS
    assert sorted(np.concatenate(groups)) == list(range(count))
    sizes = [len(group) for group in groups]
    assert max(sizes) - min(sizes) <= 1
    starts = sample_pairs(corpus, np.arange(count), pairs, EVALUATION_SEED).a.start
    filled = [starts[group] for group in groups if len(group)]
    assert all(before.max() <= after.min() for before, after in itertools.pairwise(filled))
