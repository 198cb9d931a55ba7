"""Round trips through other libraries, in short; `python -m tests.campaigns.round_trips` has all of them."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.campaigns import round_trips
from tests.helpers.tokenizers import mixed_lines


@pytest.fixture(scope="module")
def ours(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return round_trips.train_ours(tmp_path_factory.mktemp("ours") / "it")


def check(result: round_trips.RoundTrip) -> None:
    assert result.other_ids == 0
    assert result.difference <= 1e-5


def test_trainer_round_trip_keeps_ids_and_logits(ours: Path, tmp_path: Path) -> None:
    pytest.importorskip("accelerate")
    check(round_trips.through_trainer(ours, tmp_path, mixed_lines(200)))


def test_sentence_transformers_round_trip_keeps_vectors(ours: Path, tmp_path: Path) -> None:
    pytest.importorskip("sentence_transformers")
    check(round_trips.through_sentence_transformers(ours, tmp_path, mixed_lines(200)))


def test_transformers_reads_a_model_with_byte_fallback(tmp_path: Path) -> None:
    check(round_trips.through_albert("byte fallback", tmp_path, mixed_lines(200), steps=2))
