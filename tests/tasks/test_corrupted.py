"""Corrupted sentences: one change each, a function of split and number; and CoLA from a model that has learnt them."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from albert_cli.errors import InputError
from albert_cli.tasks import corrupted
from albert_cli.tasks.corrupted import CORRUPTED, WORDS
from albert_cli.text.sentences import split_sentences
from tests.command import QUICK, albert

SENTENCES = st.lists(st.lists(st.sampled_from("abcd"), min_size=WORDS[0], max_size=9), min_size=2, max_size=20)


def change(before: list[str], after: list[str]) -> str:
    """What one corruption made of a sentence; "none" or "several" where it was not one."""
    if before == after:
        return "none"
    if len(before) == len(after):
        if sum(a != b for a, b in zip(before, after, strict=True)) == 1:
            return "replace"
        return "move" if shortened(before) & shortened(after) and Counter(before) == Counter(after) else "several"
    longer, shorter = sorted((before, after), key=len, reverse=True)
    if tuple(shorter) not in shortened(longer):
        return "several"
    return "leave out" if longer is before else "add"


def shortened(words: list[str]) -> set[tuple[str, ...]]:
    """What is left of a sentence without one of its words, whichever it is."""
    return {(*words[:at], *words[at + 1 :]) for at in range(len(words))}


@given(SENTENCES, st.integers(0, 10**6))
def test_a_corrupted_sentence_differs_by_one_change_and_never_in_its_last_word(
    sentences: list[list[str]], name: int
) -> None:
    written = [list(words) for words in sentences]
    for number, words in enumerate(written):
        found = corrupted._corrupt(sentences, number, str(name))
        assert change(words, found) in ("move", "replace", "leave out", "add")
        assert found[-1] == words[-1] and sentences == written


def test_half_of_the_sentences_are_as_they_were_written_and_all_kinds_of_change_occur(
    documents_file: Path, documents: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(corrupted, "_MOST", {"train": 1000, "dev": 200})
    written = {" ".join(s.split()) for document in documents for s in split_sentences(document)}
    splits = {split: CORRUPTED.read(split, str(documents_file)) for split in ("train", "dev")}
    assert splits == {split: CORRUPTED.read(split, str(documents_file)) for split in ("train", "dev")}
    for examples in splits.values():
        originals = {e.text_a for e in examples if e.label == 1}
        assert 0.4 < sum(int(e.label or 0) for e in examples) / len(examples) < 0.6
        assert originals <= written and not {e.text_a for e in examples if e.label == 0} & written
    assert not {e.text_a for e in splits["train"]} & {e.text_a for e in splits["dev"]}
    train = [words for document in documents for s in split_sentences(document) if (words := s.split())]
    kinds = Counter(
        next((found for words in train if (found := change(words, example.text_a.split())) != "several"), "several")
        for example in splits["train"][:60]
        if example.label == 0
    )
    assert set(kinds) == {"move", "replace", "leave out", "add"}


def test_text_without_sentences_of_some_words_is_named(tmp_path: Path) -> None:
    (tmp_path / "short.txt").write_text("Two words.\n\nThree short words.\n", encoding="utf-8")
    with pytest.raises(InputError, match=r"short\.txt: too little text for train"):
        CORRUPTED.read("train", str(tmp_path / "short.txt"))


def test_cola_starts_from_a_model_of_corrupted_sentences(
    finished: Path, documents_file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(corrupted, "_MOST", {"train": 16, "dev": 8})
    out = tmp_path / "corrupted"
    call = ("finetune", "mini/corrupted", "--checkpoint", finished, "--data", documents_file, "--out", out)
    assert "Corrupted dev accuracy" in albert(*call, *QUICK).out
    rows = [f"x\t{i % 2}\t\t{text}" for i, text in enumerate(["Ba de fi.", "Fi de ba ku."] * 8)]
    (tmp_path / "CoLA").mkdir()
    for split in ("train", "dev"):
        (tmp_path / "CoLA" / f"{split}.tsv").write_text("\n".join(rows) + "\n", encoding="utf-8")
    scored = ("eval", "cola", "--recipes", "mini", "--checkpoint", out, "--data", tmp_path, "--out", tmp_path / "cola")
    ended = albert(*scored, "--runs", 2, *QUICK)
    assert "was fine-tuned for corrupted (corrupted, original); CoLA is trained from its encoder" in ended.err
    assert "from a model fine-tuned on Corrupted" in " ".join(ended.out.split())
