from __future__ import annotations

from albert_cli.bench.batches import measure, text
from albert_cli.data.batches import PairSettings
from tests.data.synthetic import FakeVocabulary, text_like_corpus


def test_the_rates_of_drawing_are_measured_for_every_length() -> None:
    corpus = text_like_corpus(400)
    found = measure(corpus, FakeVocabulary(), (32, 64), PairSettings(sentence_loss="nsp"), seconds=0.05)["lengths"]
    assert list(found) == ["32", "64"]
    for length, rates in found.items():
        assert rates["sequences"] * int(length) == 131_072
        # Far below what any machine draws, far above what drawing one example at a time would reach.
        assert rates["tokens_per_cpu_second"] > 2e5
        assert rates["prefetched_tokens_per_second"] > 2e4
        assert 12 < rates["bytes_per_token"] < 15  # three int32 a position, two for each of 15 % of them
    assert "tokens/s a core" in text({"lengths": found})
