import json
import re
import shutil
import subprocess
import sys
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from albert_cli import store
from albert_cli.errors import BusyError, CheckpointError, ConfigError, InputError
from albert_cli.text import vocabulary
from albert_cli.text.clean import Cleaning
from albert_cli.text.unigram import USER_DEFINED_SYMBOLS
from albert_cli.text.vocabulary import Vocabulary


def write_text(folder: Path, sentences: int = 3000) -> Path:
    """Sentences with many numbers before commas, which tempt the trainer to join them."""
    path = folder / "numbers.txt"
    lines = [f"In {1900 + i % 50}, {i},{i:03}, ships left the harbour of town {i % 7}." for i in range(sentences)]
    path.write_text("\n".join(lines))
    return path


def test_the_layout_of_the_published_vocabularies(small_vocabulary: Vocabulary) -> None:
    v = small_vocabulary
    assert v.size == len(v.pieces) == 2000
    assert v.pieces[:5] == ["<pad>", "<unk>", "[CLS]", "[SEP]", "[MASK]"]
    assert v.pieces[5:13] == USER_DEFINED_SYMBOLS == ["(", ")", '"', "-", ".", "–", "£", "€"]
    assert (v.pad_id, v.unk_id, v.cls_id, v.sep_id, v.mask_id) == (0, 1, 2, 3, 4)
    assert v.first_ordinary_id == 5
    assert len(set(v.pieces)) == v.size


def test_the_directory_describes_itself(vocabulary_dir: Path) -> None:
    manifest = store.verify(vocabulary_dir, "vocabulary")
    assert set(manifest.files) == {
        "spiece.model",
        "tokenizer.json",
        "tokenizer_config.json",
        "vocabulary.json",
    }
    report = store.read_json(vocabulary_dir / "vocabulary.json")
    assert report["request"]["cleaning"] == {"lowercase": True, "strip_accents": True, "normal_form": "NFKD"}
    assert report["sentences"]["training"] + report["sentences"]["held_back"] == 12_000
    assert report["sentences"]["held_back"] == 120
    assert report["sentences"]["read"] > 12_000
    assert 0.999 < report["character_coverage_achieved"] <= 1
    assert 1 < report["pieces_per_word"] < 3
    assert 0 <= report["unknown_rate"] < 0.01
    assert len(report["longest_pieces"]) == 10


def test_the_same_call_again_is_up_to_date_and_another_is_refused(tmp_path: Path) -> None:
    source, out = str(write_text(tmp_path)), tmp_path / "out"
    first = vocabulary.build([source], out, 120)
    before = {p.name: p.stat().st_mtime_ns for p in out.iterdir()}
    again = vocabulary.build([source], out, 120)
    assert (first["up_to_date"], again["up_to_date"]) == (False, True)
    assert {**first, "up_to_date": True} == again
    assert {p.name: p.stat().st_mtime_ns for p in out.iterdir()} == before
    assert store.read_json(out / "vocabulary.json")["fewer_pieces"][1]["size"] == 60
    with pytest.raises(BusyError, match="another size"):
        vocabulary.build([source], out, 121)
    with pytest.raises(BusyError, match="another cleaning"):
        vocabulary.build([source], out, 120, Cleaning(lowercase=False))
    write_text(tmp_path, 2999)
    with pytest.raises(BusyError, match="another sources"):
        vocabulary.build([source], out, 120)
    vocabulary.summary(first)


def test_the_same_text_gives_the_same_bytes(tmp_path: Path) -> None:
    source = str(write_text(tmp_path))
    for name in ("a", "b"):
        vocabulary.build([source], tmp_path / name, 120, sample_size=1000)
    assert (tmp_path / "a" / "spiece.model").read_bytes() == (tmp_path / "b" / "spiece.model").read_bytes()
    vocabulary.build([source], tmp_path / "c", 120, sample_size=1000, seed=1)
    assert (tmp_path / "a" / "spiece.model").read_bytes() != (tmp_path / "c" / "spiece.model").read_bytes()


def test_a_directory_in_use_is_left_alone(tmp_path: Path) -> None:
    source, out = str(write_text(tmp_path)), tmp_path / "out"
    out.mkdir()
    (out / "notes.txt").write_text("mine")
    with pytest.raises(BusyError, match="not empty"):
        vocabulary.build([source], out, 120)
    with pytest.raises(BusyError, match="is a file"):
        vocabulary.build([source], out / "notes.txt", 120)
    assert [p.name for p in out.iterdir()] == ["notes.txt"]


def test_too_large_a_vocabulary_names_the_largest(tmp_path: Path) -> None:
    source, out = str(write_text(tmp_path)), tmp_path / "out"
    with pytest.raises(InputError, match="does not allow 30,000 pieces") as refused:
        vocabulary.build([source], out)
    assert not out.exists()
    size = re.search(r"--size (\d+)", refused.value.hint or "")
    assert size
    assert vocabulary.build([source], out, int(size[1]))["request"]["size"] == int(size[1])


def test_impossible_requests_are_refused(tmp_path: Path) -> None:
    source, out = str(write_text(tmp_path)), tmp_path / "out"
    (tmp_path / "empty.txt").write_text("\n \n")
    many = tmp_path / "many.txt"
    many.write_text("\n".join(chr(0x4E00 + i) * 3 for i in range(2000)))
    endless = tmp_path / "endless.txt"
    endless.write_text("a" * 10_000)
    for sources, size, error, message in (
        ([str(tmp_path / "empty.txt")], 100, InputError, "no text in"),
        ([str(tmp_path / "absent.txt")], 100, InputError, "no such file"),
        ([str(many)], 100, InputError, "do not hold the text's characters"),
        ([str(endless)], 100, InputError, "no sentence is short enough"),
        ([source], 13, ConfigError, "too small"),
    ):
        with pytest.raises(error, match=message):
            vocabulary.build(sources, out, size)
    with pytest.raises(ConfigError, match="sample size"):
        vocabulary.build([source], out, 100, sample_size=0)
    with pytest.raises(ConfigError, match="coverage"):
        vocabulary.build([source], out, 100, character_coverage=1.5)
    assert not [p for p in tmp_path.iterdir() if p.suffix != ".txt"]


def test_no_piece_ends_in_digit_and_comma(tmp_path: Path) -> None:
    vocabulary.build([str(write_text(tmp_path))], tmp_path / "out", 120)
    v = Vocabulary.load(tmp_path / "out")
    assert not [piece for piece in v.pieces if re.search(r"\d,$", piece)]
    pieces = [v.pieces[i] for i in v.encode("In 1911, ships")]
    assert "," in pieces
    assert "".join(pieces) == "▁in▁1911,▁ships"


def train_elsewhere(directory: Path, **options: Any) -> Path:
    """A `spiece.model` as other programs make one."""
    import sentencepiece

    model = BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(write_text(directory).read_text().lower().split("\n")),
        model_writer=model,
        vocab_size=150,
        minloglevel=2,
        **options,
    )
    (directory / "spiece.model").write_bytes(model.getvalue())
    return directory


ALBERT_IDS: dict[str, Any] = {
    "pad_id": 0,
    "unk_id": 1,
    "bos_id": -1,
    "eos_id": -1,
    "control_symbols": ["[CLS]", "[SEP]", "[MASK]"],
}


def test_a_published_directory_has_only_a_model(tmp_path: Path) -> None:
    """Its digit-comma pieces are never chosen, as ALBERT's own tokenizer does, and copies keep its bytes."""
    train_elsewhere(tmp_path, **ALBERT_IDS)
    v = Vocabulary.load(tmp_path)
    assert v.cleaning == Cleaning()
    assert any(re.search(r"\d,$", piece) for piece in v.pieces)
    ids = v.encode_batch([f"In {year}, 12, ships" for year in range(1900, 1950)])
    assert not [v.pieces[i] for row in ids for i in row if re.search(r".*\d,$", v.pieces[i])]
    copy = tmp_path / "copy"
    copy.mkdir()
    v.copy_to(copy)
    assert (copy / "spiece.model").read_bytes() == (tmp_path / "spiece.model").read_bytes()
    assert Vocabulary.load(copy).encode_batch(["In 1911, 12, ships"]) == v.encode_batch(["In 1911, 12, ships"])


def test_the_cleaning_comes_from_the_directory(tmp_path: Path) -> None:
    train_elsewhere(tmp_path, **ALBERT_IDS)
    (tmp_path / "tokenizer_config.json").write_text('{"do_lower_case": false, "keep_accents": true}')
    assert Vocabulary.load(tmp_path).cleaning == Cleaning(False, False, "NFKD")


def test_other_directories_are_refused(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="no such directory"):
        Vocabulary.load(tmp_path / "absent")
    with pytest.raises(CheckpointError, match=r"no spiece.model"):
        Vocabulary.load(tmp_path)
    train_elsewhere(tmp_path)  # SentencePiece's default ids
    with pytest.raises(CheckpointError, match=r"no piece <pad>, \[CLS\], \[SEP\], \[MASK\]"):
        Vocabulary.load(tmp_path)
    for content in (b"", b"not a model", b"\x0a\xff\xff\xff\xff"):
        (tmp_path / "spiece.model").write_bytes(content)
        with pytest.raises(CheckpointError):
            Vocabulary.load(tmp_path)


def test_a_data_directory_holds_its_vocabulary(tmp_path: Path, vocabulary_dir: Path) -> None:
    shutil.copytree(vocabulary_dir, tmp_path / "vocabulary")
    assert Vocabulary.load(tmp_path).pieces == Vocabulary.load(vocabulary_dir).pieces


def test_word_starts_follow_the_reference(small_vocabulary: Vocabulary) -> None:
    v = small_vocabulary
    starts = v.is_word_start
    assert starts.dtype == np.bool_
    assert starts.shape == (v.size,)
    for index, piece in enumerate(v.pieces):
        if index < v.first_ordinary_id or piece.startswith("▁") or any(c.isdigit() for c in piece):
            assert starts[index], piece
        elif re.fullmatch("[a-z]+", piece):
            assert not starts[index], piece
    assert starts[[v.pieces.index(symbol) for symbol in (*USER_DEFINED_SYMBOLS, ",")]].all()
    words = [v.pieces[i] for i in v.encode("unquestionably")]
    assert [starts[v.pieces.index(w)] for w in words] == [True] + [False] * (len(words) - 1)


def test_literal_special_tokens_are_ordinary_text(small_vocabulary: Vocabulary) -> None:
    ids = small_vocabulary.encode("the [MASK] and <pad> here")
    assert all(i == small_vocabulary.unk_id or i >= small_vocabulary.first_ordinary_id for i in ids)


@given(st.text(), st.text())
def test_a_batch_is_its_texts_one_by_one(small_vocabulary: Vocabulary, a: str, b: str) -> None:
    a, b = (text.encode(errors="replace").decode() for text in (a, b))
    v = small_vocabulary
    assert v.encode_batch([a, b]) == [v.encode(a), v.encode(b)]
    assert all(0 <= i < v.size for i in v.encode(a))


def test_decoding_gives_the_cleaned_text(small_vocabulary: Vocabulary) -> None:
    v = small_vocabulary
    assert v.decode(v.encode("The Café, (2011).")) == "the cafe, (2011)."
    ids = [v.cls_id, *v.encode("one"), v.sep_id, *v.encode("two"), v.sep_id, v.pad_id]
    assert v.decode(ids) == "[CLS] one [SEP] two [SEP]"


def test_training_says_what_it_needs_and_keeps_sentencepiece_quiet(tmp_path: Path) -> None:
    program = "import sys; from albert_cli.text.vocabulary import build; build(sys.argv[1:2], sys.argv[2], 120)"
    result = subprocess.run(
        [sys.executable, "-c", program, str(write_text(tmp_path)), str(tmp_path / "out")],
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert result.stdout == ""
    assert re.search(r"training on 3,000 sentences, 0.2 MB: takes about 0.1 GB of memory and \d+ s", result.stderr)
    assert "trainer_interface" not in result.stderr
    json.loads((tmp_path / "out" / "tokenizer.json").read_text())
