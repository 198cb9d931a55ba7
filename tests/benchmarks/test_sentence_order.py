"""Tests of `benchmarks.sentence_order`."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from albert_cli.data import build
from albert_cli.data.records import BuildSettings
from albert_cli.text import build_vocabulary
from albert_cli.text.build_vocabulary import VocabularySettings
from benchmarks.sentence_order import app, length_features, measure_baselines, token_features
from tests.helpers.benchmarks import run_benchmark
from tests.helpers.ordered_text import ordered_documents


def test_tokens_tell_the_order_and_lengths_do_not(tmp_path: Path) -> None:
    (tmp_path / "text.txt").write_text(ordered_documents(4000))
    vocabulary = tmp_path / "vocabulary"
    build_vocabulary.build_vocabulary([str(tmp_path / "text.txt")], vocabulary, VocabularySettings(size=45))
    settings = BuildSettings(holdout=0.2)
    build.build_data([str(tmp_path / "text.txt")], vocabulary, tmp_path / "data", settings, workers=1)
    result = measure_baselines(tmp_path / "data", length=32, examples=3000)
    assert result.train_pairs > 2000 and result.test_pairs > 500
    assert result.by_tokens > 0.9 and 0.42 < result.by_lengths < 0.58


def test_length_features_count_tokens_and_sentences() -> None:
    ends = np.array([False, True])
    a, b = np.array([0, 0, 1, 0, 1, 0, 0]), np.array([0, 0])
    features = length_features((a, b), ends)
    # Of each segment: its tokens, the tokens of its first sentence, the tokens after its last sentence end, the tokens
    # of its last complete sentence, and its sentence ends. Without an end, the whole segment counts as a sentence.
    assert features[:5] == [7, 3, 2, 2, 2]
    assert features[5:] == [2, 2, 2, 2, 0]


def test_token_features_separate_the_parts() -> None:
    matrix = token_features([(np.array([2, 2, 0]), np.array([1]))], 3).toarray()
    assert matrix.shape == (1, 18)
    a = [1, 0, 1]
    b = [0, 1, 0]
    assert matrix.reshape(6, 3).tolist() == [a, b, a, a, b, b]  # whole segments, then their first and last tokens


def test_data_without_heldout_pairs_is_rejected(documents_file: Path, tiny_vocabulary: Path, tmp_path: Path) -> None:
    data = tmp_path / "data"
    build.build_data([str(documents_file)], tiny_vocabulary, data, BuildSettings(holdout=0.0), workers=1)
    assert "gives 0 pairs" in run_benchmark(app, data, expect=3).err
