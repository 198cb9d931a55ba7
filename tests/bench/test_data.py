from __future__ import annotations

from pathlib import Path

from albert_cli.bench.data import measure, measure_sampling, text
from albert_cli.data.tokenization import BuildSettings
from tests.helpers.corpora import FakeVocabulary, text_like_corpus


def test_every_stage_is_measured(documents_file: Path, tiny_vocabulary: Path) -> None:
    settings = BuildSettings(split_bytes=30_000)
    before = sorted(documents_file.parent.iterdir())
    measured = measure([str(documents_file)], tiny_vocabulary, settings, megabytes=1, seconds=0.05)
    rates = measured["mb_per_cpu_second"]
    assert measured["documents"] == 600
    assert abs(measured["bytes"] - documents_file.stat().st_size) < 2 * 600
    assert all(rate > 0 for rate in rates.values())
    ratio = rates["the whole"] / rates["sentencepiece alone"]
    assert abs(measured["whole_to_sentencepiece"] - ratio) < 0.05
    assert f"{measured['whole_to_sentencepiece']:.0%} of the speed" in text(measured)
    assert "tokens/s a core" in text(measured)
    assert sorted(documents_file.parent.iterdir()) == before


def test_the_rates_of_drawing_are_measured_for_every_length() -> None:
    corpus, vocabulary = text_like_corpus(400), FakeVocabulary()
    found = measure_sampling(corpus, vocabulary, (32, 64), seconds=0.05)["lengths"]
    assert list(found) == ["32", "64"]
    for length, rates in found.items():
        assert rates["sequences"] * int(length) == 131_072
        assert rates["tokens_per_cpu_second"] > 0 and rates["prefetched_tokens_per_second"] > 0
        assert 12 < rates["bytes_per_token"] < 15  # three int32 a position, two for each of 15 % of them
