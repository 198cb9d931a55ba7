"""Corrupted sentences: one change each, a function of the text; and CoLA from a model that has learnt them."""

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

WORD_LISTS = st.lists(st.sampled_from("abcd"), min_size=WORDS[0], max_size=9)
KINDS = {"swap", "move", "replace", "leave out", "add"}


def change(before: list[str], after: list[str]) -> str:
    """What one corruption made of a sentence; "none" or "several" where it was not one."""
    if before == after:
        return "none"
    if len(before) == len(after):
        apart = [at for at, (a, b) in enumerate(zip(before, after, strict=True)) if a != b]
        if len(apart) == 1:
            return "replace"
        if Counter(before) != Counter(after) or not shortened(before) & shortened(after):
            return "several"
        return "swap" if len(apart) == 2 and apart[1] == apart[0] + 1 else "move"
    longer, shorter = sorted((before, after), key=len, reverse=True)
    if tuple(shorter) not in shortened(longer):
        return "several"
    return "leave out" if longer is before else "add"


def shortened(words: list[str]) -> set[tuple[str, ...]]:
    """What is left of a sentence without one of its words, whichever it is."""
    return {(*words[:at], *words[at + 1 :]) for at in range(len(words))}


@given(WORD_LISTS, WORD_LISTS)
def test_a_corrupted_sentence_differs_by_one_change_and_never_in_its_last_word(
    sentence: list[str], foreign: list[str]
) -> None:
    written = list(sentence)
    found = corrupted._corrupt(sentence, foreign)
    assert change(written, found) in KINDS
    assert found[-1] == written[-1] and sentence == written


def test_each_kind_of_change_has_its_share() -> None:
    sentences = [[f"{word}{number}" for word in "abcdefghijk"] for number in range(1000)]
    kinds = Counter(change(words, corrupted._corrupt(words, ["foreign"])) for words in sentences)
    assert set(kinds) == KINDS
    assert all(130 < count < 270 for count in kinds.values()), kinds  # a fifth each; a move by one place is a swap


def test_half_of_the_sentences_are_as_they_were_written(
    documents_file: Path, documents: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(corrupted, "_MOST", {"train": 1000, "dev": 200})
    written = {" ".join(s.split()) for document in documents for s in split_sentences(document)}
    splits = {split: CORRUPTED.read(split, str(documents_file)) for split in ("train", "dev")}
    assert {split: len(examples) for split, examples in splits.items()} == corrupted._MOST
    for examples in splits.values():
        originals = {e.text_a for e in examples if e.label == 1}
        assert 0.4 < sum(int(e.label or 0) for e in examples) / len(examples) < 0.6
        assert originals <= written and not {e.text_a for e in examples if e.label == 0} & written
        amid = [word for e in examples for word in e.text_a.split()[:-1]]
        assert not any(word.endswith(".") for word in amid)  # a full stop would give a foreign word away
    assert not {e.text_a for e in splits["train"]} & {e.text_a for e in splits["dev"]}


def test_what_a_sentence_becomes_hangs_on_its_text_and_one_of_two_documents_comes_once(tmp_path: Path) -> None:
    line = "The {} boat of the harbour lies in the yellow sun."
    documents = [[line.format(f"{at}th"), f"Number {at} has five words."] for at in range(40)]
    both = [*documents, *([text, f"Page {at} says it all again."] for at, (text, _) in enumerate(documents))]
    found = {}
    for name, content in (("once", documents), ("twice", both)):
        path = tmp_path / f"{name}.txt"
        path.write_text("\n\n".join("\n".join(sentences) for sentences in content), encoding="utf-8")
        found[name] = {e.text_a: e.label for e in CORRUPTED.read("train", str(path)) if e.label == 1}
    assert found["once"].items() <= found["twice"].items() and len(found["once"]) > 20
    text = "She saw the old boat in the harbour."
    assert " ".join(corrupted._corrupt(text.split(), ["and"])) == "saw the old boat in the harbour."


def test_sentences_have_five_to_twenty_words(tmp_path: Path) -> None:
    lines = [" ".join([f"w{number}", *["and"] * (size - 2), "so."]) for number in range(40) for size in (4, 5, 20, 21)]
    (tmp_path / "text.txt").write_text("\n\n".join(lines), encoding="utf-8")
    examples = CORRUPTED.read("train", str(tmp_path / "text.txt"))
    assert {len(e.text_a.split()) for e in examples if e.label == 1} == {5, 20}


def test_text_that_does_not_do_is_named(tmp_path: Path) -> None:
    (tmp_path / "short.txt").write_text("Two words.\n\nThree short words.\n", encoding="utf-8")
    with pytest.raises(InputError, match=r"short\.txt: too little text for train"):
        CORRUPTED.read("train", str(tmp_path / "short.txt"))
    with pytest.raises(InputError, match=r"^-: a task reads its text once for each split"):
        CORRUPTED.read("train", "-")


def test_cola_starts_from_a_model_of_corrupted_sentences(
    finished: Path, documents_file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(corrupted, "_MOST", {"train": 16, "dev": 8})
    out = tmp_path / "corrupted"
    call = ("finetune", "mini/corrupted", "--checkpoint", finished, "--data", documents_file, "--out", out)
    assert "Corrupted sentences dev accuracy" in albert(*call, *QUICK).out
    rows = [f"x\t{i % 2}\t\t{text}" for i, text in enumerate(["Ba de fi.", "Fi de ba ku."] * 8)]
    (tmp_path / "CoLA").mkdir()
    for split in ("train", "dev"):
        (tmp_path / "CoLA" / f"{split}.tsv").write_text("\n".join(rows) + "\n", encoding="utf-8")
    scored = ("eval", "cola", "--recipes", "mini", "--checkpoint", out, "--data", tmp_path, "--out", tmp_path / "cola")
    ended = albert(*scored, "--runs", 2, *QUICK)
    assert "was fine-tuned for corrupted (corrupted, original); CoLA is trained from its encoder" in ended.err
    assert "from a model fine-tuned on Corrupted sentences" in " ".join(ended.out.split())
