"""CoNLL columns: the columns of tokens and tags, comments, blanks within tokens, and WikiANN's prefixes."""

from __future__ import annotations

from pathlib import Path

import pytest

from albert_cli.errors import InputError
from albert_cli.tasks.conll import has_tagged_words, read_conll
from albert_cli.tasks.token_data import read_conll_words, read_token_file

GERMEVAL = (
    "#\thttp://de.wikipedia.org/wiki/Troja [2009-10-17]\n1\tin\tO\tO\n2\tTroja\tB-LOC\tO\n\n"
    "#\tn-tv.de [2007-02-16]\n1\tDeutschen\tB-ORG\tB-LOCderiv\n2\tBahn\tI-ORG\tO\n3\t#\tO\tO\n"
)


def test_read_token_file_germeval_has_the_outer_tags(tmp_path: Path) -> None:
    (tmp_path / "train.tsv").write_text(GERMEVAL)
    examples = read_token_file(tmp_path / "train.tsv")
    assert [(example.text, example.tags) for example in examples] == [
        ("in Troja", ("O", "B-LOC")),
        ("Deutschen Bahn #", ("B-ORG", "I-ORG", "O")),
    ]
    examples, notes = read_conll_words(tmp_path / "train.tsv")
    assert [example.text for example in examples] == ["in Troja", "Deutschen Bahn #"]
    (note,) = notes
    assert "tokens are in column 2, the tags in column 3" in note


def test_read_token_file_conll_u_has_tags_of_a_later_column(tmp_path: Path) -> None:
    lines = (
        "# id = 1\n1-2\tIm\t_\t_\t_\n1\tIn\tADP\tO\t_\n2\tdem\tX\tO\t_\n2.1\tx\t_\t_\t_\n3\tRom\tPROPN\tS-LOC\tx=y\n"
    )
    (tmp_path / "a.conll").write_text(lines)
    (example,) = read_token_file(tmp_path / "a.conll")
    assert (example.text, example.tags) == ("In dem Rom", ("O", "O", "B-LOC"))


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        ("1\tAda\tNNP\tB-NP\tB-PER\n2\tsat\tVB\tB-VP\tO\n", r"several columns have tags \(4, 5\)"),
        ("1\tAda\tB-PER\tO\n2\tsat\tO\tO\n3\tup\tX\tO\n", r"a\.conll:3: the tag 'X' is not O"),
        ("1\tAda\tB-PER\tO\n2\tsat\tO\tO\n3\tup\n", r"a\.conll:3: 2 columns, but the tags are in column 3"),
    ],
)
def test_read_token_file_counted_words_bad_tags_are_named(tmp_path: Path, lines: str, message: str) -> None:
    (tmp_path / "a.conll").write_text(lines)
    with pytest.raises(InputError, match=message):
        read_token_file(tmp_path / "a.conll")


@pytest.mark.parametrize(
    "lines",
    [
        "1 O\n\n1 O\n2 B-X\n",
        "1 CD B-X\nday NN O\n",
        "EU NNP B-NP B-ORG\n1 CD B-NP O\n",
        "1 O\n\n1 O\n\na O\n",
        "1 CD O\n\na DT O\n\n1 CD O\n\nb DT O\n",
    ],
)
def test_read_conll_numbers_that_count_nothing_are_tokens(tmp_path: Path, lines: str) -> None:
    (tmp_path / "a.conll").write_text(lines)
    tokens = " ".join(line.split()[0] for line in lines.splitlines() if line)
    assert " ".join(example.text for example in read_token_file(tmp_path / "a.conll")) == tokens
    assert read_conll(tmp_path / "a.conll").notes == []


SENTENCE = "1\tDer\tO\tO\n2\tZug\tO\tO\n3\tnach\tO\tO\n4\tUlm\tB-LOC\tO\n\n"


@pytest.mark.parametrize(
    ("sentence", "message"),
    [
        (SENTENCE.replace("3\t", "\n3\t"), r"a\.tsv:14: column 1 is '3', but this is word 1 of its text"),
        (SENTENCE.replace("2\tZug\tO\tO\n", ""), r"a\.tsv:12: column 1 is '3', but this is word 2"),
        (SENTENCE.replace("1\tDer", "5\tDer"), r"a\.tsv:11: column 1 is '5', but this is word 1"),
        (SENTENCE.rstrip("\n") + "\n" + SENTENCE, r"a\.tsv:15: column 1 is '1', but this is word 5"),
        (SENTENCE.replace("\tnach\tO\tO", ""), r"a\.tsv:13: one column"),
        ("1-2\tIm\t_\t_\n\n", r"a\.tsv:11: column 1 is '1-2', but this is word 1"),
    ],
)
def test_read_conll_text_that_does_not_count_is_named(tmp_path: Path, sentence: str, message: str) -> None:
    (tmp_path / "a.tsv").write_text(SENTENCE * 2 + sentence + SENTENCE)
    for read in (read_token_file, read_conll_words):
        with pytest.raises(InputError, match=message):
            read(tmp_path / "a.tsv")


KLUE = (
    "## klue-ner-v1_train_00000-nsmc\t<이 산:PS>은 <서울:LC>에.\n"
    "이\tB-PS\n \tI-PS\n산\tI-PS\n은\tO\n \tO\n서\tB-LC\n울\tI-LC\n에\tO\n.\tO\n"
)


def test_read_token_file_of_klue_has_its_blanks(tmp_path: Path) -> None:
    (tmp_path / "train.txt").write_text(f"{KLUE}\n## 2\t이\n이\tO\n산\tB-LC\n")
    first, second = read_token_file(tmp_path / "train.txt")
    assert (first.text, second.text) == ("이 산은 서울에.", "이산")
    assert first.tags == ("B-PS", "I-PS", "O", "B-LC", "I-LC", "O", "O")
    assert [first.text[start:end] for start, end in first.words] == list("이산은서울에.")
    assert has_tagged_words(tmp_path / "train.txt")


def test_read_token_file_blank_that_begins_an_entity(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text(KLUE.replace(" \tO", " \tB-LC"))
    with pytest.raises(InputError, match=r"a\.txt:2: a blank begins an entity"):
        read_token_file(tmp_path / "a.txt")


def test_read_token_file_blank_among_words_is_rejected(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("Ada\tB-PER\n\u00a0\tO\nmet\tO\n")
    with pytest.raises(InputError, match=r"a\.txt:2: an empty token"):
        read_token_file(tmp_path / "a.txt")


def test_read_token_file_blank_tag_line_numbers_are_right(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text(KLUE)
    with pytest.raises(InputError, match=r"a\.txt:7: the tag 'B-LC'"):
        read_token_file(tmp_path / "a.txt", tags=("O", "B-PS", "I-PS"))


@pytest.mark.parametrize("tag", ["PER_B", "-"])
def test_read_token_file_suffixes_of_tags_are_explained(tmp_path: Path, tag: str) -> None:
    (tmp_path / "a.txt").write_text(f"1\tAda\t{tag}\n2\tsat\t-\n")
    with pytest.raises(InputError) as error:
        read_token_file(tmp_path / "a.txt")
    assert "B-PER, not PER_B" in str(error.value.hint)


@pytest.mark.parametrize("blank", ["\u00a0", "\u202f", "\u3000"])
def test_read_token_file_no_break_space_is_part_of_a_token(tmp_path: Path, blank: str) -> None:
    (tmp_path / "a.txt").write_text(f"10{blank}000 B-NUM\n# O\n\n# B-NUM\n")
    examples = read_token_file(tmp_path / "a.txt")
    assert [example.text for example in examples] == [f"10{blank}000 #", "#"]


def test_read_token_file_prefix_of_wikiann_is_left_out(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("en:Peter\tB-PER\nen:lives\tO\nen::\tO\n\nen:Paris\tB-LOC\n")
    assert [example.text for example in read_token_file(tmp_path / "a.txt")] == ["Peter lives :", "Paris"]
    assert "begins with 'en:'" in read_conll(tmp_path / "a.txt").notes[0]
    (tmp_path / "a.txt").write_text("en:Peter\tB-PER\nlives\tO\n")
    assert read_token_file(tmp_path / "a.txt")[0].text == "en:Peter lives"


@pytest.mark.parametrize("code", ["zh-yue", "zh-min-nan", "zh-classical", "be-x-old", "simple"])
def test_read_token_file_prefix_may_be_a_longer_code(tmp_path: Path, code: str) -> None:
    (tmp_path / "a.txt").write_text(f"{code}:香\tB-LOC\n{code}:港\tI-LOC\n\n{code}:係\tO\n")
    assert [example.text for example in read_token_file(tmp_path / "a.txt")] == ["香港", "係"]


@pytest.mark.parametrize(
    ("text", "is_conll"),
    [
        ("-DOCSTART- -X- O\n\nAda NNP B-PER\nsat VBD O\n", True),
        (GERMEVAL, True),
        ("I drive a B-52\nMy blood is O\nIt rained.\n", False),
        ("My blood is O\n", False),
        ("text\ttype\nMy blood\tO\n", False),
        ("Ada\nsat\n", False),
        ("", False),
    ],
)
def test_has_tagged_words_is_true_only_for_columns(tmp_path: Path, text: str, is_conll: bool) -> None:
    (tmp_path / "a.txt").write_text(text)
    assert has_tagged_words(tmp_path / "a.txt") == is_conll


def test_read_token_file_of_decimals_has_no_counted_words(tmp_path: Path) -> None:
    (tmp_path / "train.conll").write_text("3.14 CD O\n2.72 CD B-NUM\n")
    (example,) = read_token_file(tmp_path / "train.conll")
    assert (example.text, example.tags) == ("3.14 2.72", ("O", "B-NUM"))
