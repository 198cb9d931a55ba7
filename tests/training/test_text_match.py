"""Tests of `training.text_match`: a warning if the text of a task differs from the pretraining text."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import save

from albert_cli import store
from albert_cli.errors import CheckpointError
from albert_cli.text.vocabulary import Vocabulary
from albert_cli.training.text_match import (
    measure_match,
    read_token_counts,
    warn_about_mismatch,
    write_token_counts,
)


@pytest.fixture
def vocabulary(tiny_vocabulary: Path) -> Vocabulary:
    return Vocabulary.load(tiny_vocabulary)


def zipf_counts(vocabulary: Vocabulary) -> np.ndarray:
    """Return counts in proportion to 1 / (i + 1) for token i."""
    return (1_000_000 / (1 + np.arange(vocabulary.size))).astype(np.int64)


def sample_ids(counts: np.ndarray, size: int) -> np.ndarray:
    return np.random.default_rng(0).choice(len(counts), size=size, p=counts / counts.sum()).astype(np.int32)


def test_text_with_the_same_token_frequencies_matches(
    vocabulary: Vocabulary, capsys: pytest.CaptureFixture[str]
) -> None:
    counts = zipf_counts(vocabulary)
    counts[vocabulary.unk_id] = 0
    ids = sample_ids(counts, 4000)
    match = measure_match(vocabulary, ids, counts)
    assert match.relative_length == pytest.approx(1, abs=0.1)
    assert match.relative_cost == pytest.approx(1, abs=0.1)
    assert match.describe_mismatch() is None
    warn_about_mismatch("table", vocabulary, ids, counts)
    assert capsys.readouterr().err == ""


def test_text_of_rare_tokens_is_reported_as_far(vocabulary: Vocabulary, capsys: pytest.CaptureFixture[str]) -> None:
    counts = zipf_counts(vocabulary)
    ids = (vocabulary.size - 1 - sample_ids(counts, 4000)).astype(np.int32)
    assert "unigram cross-entropy" in str(measure_match(vocabulary, ids, counts).describe_mismatch())
    warn_about_mismatch("table", vocabulary, ids, counts)
    assert "table: the text is far from the pretraining text" in capsys.readouterr().err


def test_unknown_tokens_are_reported_without_token_counts(vocabulary: Vocabulary) -> None:
    ids = np.full(1000, 10, np.int32)
    assert measure_match(vocabulary, ids, None).describe_mismatch() is None
    ids[:100] = vocabulary.unk_id
    assert measure_match(vocabulary, ids, None).describe_mismatch() == "10.0% of its tokens are unknown"


def test_token_counts_are_read_as_written(vocabulary: Vocabulary, tmp_path: Path) -> None:
    assert read_token_counts(tmp_path) is None
    counts = zipf_counts(vocabulary)
    write_token_counts(tmp_path, counts)
    loaded = read_token_counts(tmp_path)
    assert loaded is not None and loaded.tolist() == counts.tolist()


@pytest.mark.parametrize("damage", ["shape", "dtype", "key", "header"])
def test_damaged_token_counts_are_rejected(damage: str, vocabulary: Vocabulary, tmp_path: Path) -> None:
    counts = zipf_counts(vocabulary)
    write_token_counts(tmp_path, counts)
    path = tmp_path / "token_counts.safetensors"
    damaged = {"shape": {"counts": counts[None]}, "dtype": {"counts": counts.astype(np.float32)}, "key": {"c": counts}}
    content = save(damaged[damage]) if damage in damaged else path.read_bytes().replace(b"I64", b"I99")
    path.write_bytes(content)
    with pytest.raises(CheckpointError, match=r"token_counts\.safetensors"):
        read_token_counts(tmp_path)


def test_missing_token_counts_of_a_manifest_are_an_error(vocabulary: Vocabulary, tmp_path: Path) -> None:
    write_token_counts(tmp_path, zipf_counts(vocabulary))
    store.seal(tmp_path, "checkpoint")
    (tmp_path / "token_counts.safetensors").unlink()
    with pytest.raises(CheckpointError, match=r"token_counts\.safetensors: cannot be read"):
        read_token_counts(tmp_path)
