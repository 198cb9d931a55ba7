from __future__ import annotations

from itertools import islice
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from albert_cli.text.corpus import document_hash, hash_words, read_documents
from albert_cli.text.sentences import paragraphs, split_sentences
from albert_cli.text.vocabulary import Vocabulary
from albert_cli.text.words import WordEncoder


def rows(encoder: WordEncoder, sentences: list[str]) -> list[list[int]]:
    ids, lengths = encoder.encode(sentences)
    assert lengths.size == len(sentences)
    return [part.tolist() for part in np.split(ids, np.cumsum(lengths)[:-1])] if sentences else []


def test_words_give_the_pieces_of_their_line(small_vocabulary: Vocabulary) -> None:
    documents = islice(read_documents(["docs:stdlib"]), 0, None, 9)
    sentences = [s for d in documents for s in split_sentences(d.text)]
    assert len(sentences) > 1000
    encoder = WordEncoder(small_vocabulary)
    expected = small_vocabulary.encode_batch(sentences)
    for _ in range(2):  # every word is new, then known
        assert rows(encoder, sentences) == expected


def test_words_of_real_text(shared_data: Path, small_vocabulary: Vocabulary) -> None:
    documents = islice(read_documents([str(shared_data / "corpus" / "enwiki-small.jsonl")]), 150)
    sentences = [s for d in documents for s in split_sentences(d.text)]
    found, expected = rows(WordEncoder(small_vocabulary), sentences), small_vocabulary.encode_batch(sentences)
    different = [pair for pair in zip(found, expected, strict=True) if pair[0] != pair[1]]
    assert len(different) < len(sentences) / 200
    for pair in different:  # two segmentations with one score: a tie, which rounding decides in a line
        assert score(small_vocabulary, pair[0]) == pytest.approx(score(small_vocabulary, pair[1]), abs=1e-4)
        assert small_vocabulary.decode(pair[0]) == small_vocabulary.decode(pair[1])


def score(vocabulary: Vocabulary, ids: list[int]) -> float:
    return float(sum(vocabulary._proto.pieces[i].score for i in ids))


@given(lines=st.lists(st.text(max_size=40)))
def test_any_text(small_vocabulary: Vocabulary, lines: list[str]) -> None:
    sentences = [s for line in lines for s in split_sentences(line)]
    assert rows(WordEncoder(small_vocabulary), sentences) == small_vocabulary.encode_batch(sentences)


def test_a_full_cache_begins_again(small_vocabulary: Vocabulary, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("albert_cli.text.words._MOST_WORDS", 3)
    encoder = WordEncoder(small_vocabulary)
    for sentence in ("one two three", "four five", "one six", "seven"):
        assert rows(encoder, [sentence]) == small_vocabulary.encode_batch([sentence])
        assert len(encoder._numbers) <= 3 + 3


def test_a_vocabulary_whose_pieces_cross_words_is_used_line_by_line(small_vocabulary: Vocabulary) -> None:
    assert small_vocabulary.encodes_word_by_word
    proto = type(small_vocabulary._proto)()
    proto.CopyFrom(small_vocabulary._proto)
    proto.pieces[-1].piece, proto.pieces[-1].score = "▁of▁the", 0.0
    crossing = Vocabulary(proto.SerializeToString(), small_vocabulary.cleaning)
    assert not crossing.encodes_word_by_word
    assert rows(WordEncoder(crossing), ["one of the few"]) == crossing.encode_batch(["one of the few"])


@given(text=st.text())
def test_the_hash_of_a_document_is_that_of_its_paragraphs(text: str) -> None:
    assert hash_words(" ".join(paragraphs(text))) == document_hash(text)
    assert paragraphs(text) == [p for line in text.split("\n") if (p := " ".join(line.split()))]
