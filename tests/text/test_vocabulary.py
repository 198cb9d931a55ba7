import json
import re
import shutil
import subprocess
import sys
import time
from dataclasses import replace
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from albert_cli import store
from albert_cli.errors import BusyError, CheckpointError, ConfigError, InputError
from albert_cli.inspection import inspect_directory
from albert_cli.text.build_vocabulary import VocabularySettings, build, format_summary
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
    assert report["request"]["settings"]["cleaning"] == {
        "lowercase": True,
        "strip_accents": True,
        "normal_form": "NFKD",
    }
    assert report["sentences"]["training"] + report["sentences"]["held_out"] == 12_000
    assert report["sentences"]["held_out"] == 120
    assert report["sentences"]["read"] > 12_000
    assert 0.999 < report["tokens"]["character_coverage"] <= 1
    assert 1 < report["tokens"]["pieces_per_word"] < 3
    assert 0 <= report["tokens"]["unknown_rate"] < 0.01
    assert len(report["tokens"]["longest_pieces"]) == 10


def test_the_same_call_again_is_up_to_date_and_another_is_refused(tmp_path: Path) -> None:
    source, out = str(write_text(tmp_path)), tmp_path / "out"
    first = build([source], out, VocabularySettings(120))
    before = {p.name: p.stat().st_mtime_ns for p in out.iterdir()}
    again = build([source], out, VocabularySettings(120))
    assert (first.up_to_date, again.up_to_date) == (False, True)
    assert replace(first, up_to_date=True) == again
    assert {p.name: p.stat().st_mtime_ns for p in out.iterdir()} == before
    assert first.report.tokens.pruned[1].size == 60
    with pytest.raises(BusyError, match=r"other settings \(size\)"):
        build([source], out, VocabularySettings(121))
    with pytest.raises(BusyError, match=r"other settings \(cleaning\)"):
        build([source], out, VocabularySettings(120, Cleaning(lowercase=False)))
    write_text(tmp_path, 2999)
    with pytest.raises(BusyError, match=r"other settings \(sources\)"):
        build([source], out, VocabularySettings(120))
    format_summary(first)


def test_the_same_text_gives_the_same_bytes(tmp_path: Path) -> None:
    source = str(write_text(tmp_path))
    for name in ("a", "b"):
        build([source], tmp_path / name, VocabularySettings(120, sample_size=1000))
    assert (tmp_path / "a" / "spiece.model").read_bytes() == (tmp_path / "b" / "spiece.model").read_bytes()
    build([source], tmp_path / "c", VocabularySettings(120, sample_size=1000, seed=1))
    assert (tmp_path / "a" / "spiece.model").read_bytes() != (tmp_path / "c" / "spiece.model").read_bytes()


ODD = {
    "one sentence": "This is one sentence.",
    "one sentence again and again": "The same sentence again.\n" * 5000,
    "digits": "\n".join(str(i**5) for i in range(3000)),
    "digits and commas": "1,000,000, 2,\n" * 3000,
    "one letter": "a\n" * 3000,
    "nothing visible": "\u200b\u200c\u200d\ufeff\n" * 100,
    "many characters": "\n".join(chr(0x20000 + i) for i in range(3000)),
    "no characters at all": "\ufdd0\ufdd1\uffff a b\n" * 300,
    "special tokens": "[CLS] and [MASK] <pad> <unk> [SEP] ( ) £\n" * 300,
}


@pytest.mark.parametrize("text", ODD.values(), ids=ODD)
def test_odd_text_is_refused_with_the_largest_size_and_that_works(tmp_path: Path, text: str) -> None:
    source, out = tmp_path / "a.txt", tmp_path / "out"
    source.write_text(text, encoding="utf-8")
    with pytest.raises(InputError, match=r"at most .* tokens, not 30,000") as refused:
        build([str(source)], out)
    assert not out.exists()
    size = re.search(r"--size (\d+)", refused.value.hint or "")
    assert size
    assert build([str(source)], out, VocabularySettings(int(size[1]))).report.request.settings.size == int(size[1])
    assert Vocabulary.load(out).size == int(size[1])


IMPOSSIBLE: dict[str, tuple[str, int, type[Exception], str]] = {
    "blank lines": ("\n \n", 100, InputError, "no text in"),
    "white space": ("\u3000\u00a0\u2028\n" * 99, 100, InputError, "no text in"),
    "control codes": ("\x01\x02\x7f\n" * 99, 100, InputError, "only control codes"),
    "accents alone": ("\u0301\n" * 99, 100, InputError, "no text in"),
    "a hundred pieces for 2,000 characters": (
        "\n".join(chr(0x4E00 + i) * 3 for i in range(2000)),
        100,
        InputError,
        "too few for the text's characters",
    ),
    "a sentence without end": ("a" * 10_000, 100, InputError, "no sentence is short enough"),
    "less than the symbols": ("Some text.", 13, ConfigError, "too small"),
    "no size": ("Some text.", -1, ConfigError, "too small"),
    "more than can be numbered": ("Some text.", 2**31, ConfigError, "too large"),
}


@pytest.mark.parametrize(("text", "size", "error", "message"), IMPOSSIBLE.values(), ids=IMPOSSIBLE)
def test_impossible_requests_are_refused(
    tmp_path: Path, text: str, size: int, error: type[Exception], message: str
) -> None:
    source = tmp_path / "a.txt"
    source.write_text(text, encoding="utf-8")
    with pytest.raises(error, match=message):
        build([str(source)], tmp_path / "out", VocabularySettings(size))
    assert list(tmp_path.iterdir()) == [source]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"sample_size": 0}, "--sample-size 0"),
        ({"character_coverage": 1.5}, "--character-coverage"),
        ({"character_coverage": float("nan")}, "--character-coverage"),
        ({"seed": -1}, "--seed"),
        ({"seed": 2**32}, "--seed"),
    ],
)
def test_impossible_options_are_refused(tmp_path: Path, options: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        build([str(write_text(tmp_path))], tmp_path / "out", VocabularySettings(100, **options))
    assert not (tmp_path / "out").exists()


def start(source: Path, out: Path) -> subprocess.Popen[str]:
    """`albert vocab` as a process of its own."""
    call = [sys.executable, "-m", "albert_cli", "vocab", str(source), "--out", str(out), "--size", "400"]
    return subprocess.Popen(call, stderr=subprocess.PIPE, text=True)


def wait_for(path: Path) -> None:
    while not path.exists():
        time.sleep(0.001)


def test_kill_9_leaves_nothing_that_a_reader_takes_and_the_same_command_goes_on(tmp_path: Path) -> None:
    source, out = write_text(tmp_path, 12_000), tmp_path / "out"
    whole = tmp_path / "whole"
    build([str(source)], whole, VocabularySettings(400))
    for delay in (0, 0.05, 0.1, 0.2):
        process = start(source, out)
        wait_for(out / "request.json")
        time.sleep(delay)
        process.kill()
        process.wait()
        if not (out / "manifest.json").exists():
            with pytest.raises(CheckpointError):
                Vocabulary.load(out)
            assert "unfinished vocabulary" in inspect_directory(out).format()
    result = build([str(source)], out, VocabularySettings(400))
    assert result.fingerprint == store.fingerprint(whole)
    assert {p.name for p in out.iterdir()} == {p.name for p in whole.iterdir()}


def test_a_kill_between_the_files_is_made_good(tmp_path: Path) -> None:
    """All files are there and the manifest is not, or the note of the request is still there beside it."""
    source, out = str(write_text(tmp_path)), tmp_path / "out"
    first = build([source], out, VocabularySettings(120))
    request = store.read_json(out / "vocabulary.json")["request"]
    store.write_json(out / "request.json", request)
    again = build([source], out, VocabularySettings(120))
    assert again.up_to_date
    assert not (out / "request.json").exists()
    store.write_json(out / "request.json", request)
    (out / "manifest.json").unlink()
    (out / "tokenizer.json").unlink()
    again = build([source], out, VocabularySettings(120))
    assert not again.up_to_date
    assert again.fingerprint == first.fingerprint


def test_too_little_memory_is_said_with_a_sample_that_fits(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from albert_cli.text import unigram

    monkeypatch.setattr(unigram, "memory_info", lambda: {"available": 1_000_000, "total": 2_000_000})
    unigram.log_training_estimate(1000, 100_000)
    said = capsys.readouterr().err
    assert "warning: only 0.0 GB of memory available" in said
    assert "--sample-size 391 would fit" in said  # 23 bytes for each of 100,000 are 2.3 MB
    monkeypatch.setattr(unigram, "memory_info", dict)  # unknown
    unigram.log_training_estimate(1000, 100_000)
    assert "warning" not in capsys.readouterr().err


def test_scores_are_multiples_of_a_power_of_two(small_vocabulary: Vocabulary) -> None:
    scores = np.array([p.score for p in small_vocabulary.model.pieces])
    assert np.array_equal(scores * 1024, np.round(scores * 1024))
    assert np.abs(scores).max() > 5


@given(st.lists(st.sampled_from(["0", "00", "000", "aa", "aaa", "ss", "sss", "the", ",", "2011,"]), min_size=1))
def test_a_word_is_cut_the_same_wherever_it_stands(small_vocabulary: Vocabulary, parts: list[str]) -> None:
    """Exact sums: what is before a word does not decide between its segmentations."""
    v, word = small_vocabulary, "".join(parts)
    before = v.encode("an unquestionably long beginning of the line, of 1,234 parts")
    assert v.encode(f"an unquestionably long beginning of the line, of 1,234 parts {word}") == before + v.encode(word)


def test_no_piece_ends_in_digit_and_comma(tmp_path: Path) -> None:
    build([str(write_text(tmp_path))], tmp_path / "out", VocabularySettings(120))
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


@pytest.fixture(scope="module")
def published(tmp_path_factory: pytest.TempPathFactory) -> tuple[Vocabulary, Any, Any]:
    """A model of another program with many pieces such as "▁1911,": as a vocabulary, bare, and for Hugging Face."""
    from sentencepiece import SentencePieceProcessor
    from tokenizers import Tokenizer

    directory = train_elsewhere(tmp_path_factory.mktemp("published"), **ALBERT_IDS)
    v = Vocabulary.load(directory)
    v.copy_to(directory)
    bare = SentencePieceProcessor(model_file=str(directory / "spiece.model"))
    return v, bare, Tokenizer.from_file(str(directory / "tokenizer.json"))


def by_the_reference(bare: Any, text: str) -> list[str]:
    """Pieces by the rule of the reference's tokenizer: what ends in digit and comma is encoded again without it."""
    pieces: list[str] = []
    for piece in bare.encode(text, out_type=str):
        if len(piece) > 1 and piece[-1] == "," and piece[-2].isdigit():
            again = bare.encode(piece[:-1].replace("▁", ""), out_type=str)
            if not piece.startswith("▁"):  # it has no word before it
                again[:1] = [again[0][1:]] if len(again[0]) > 1 else []
            pieces += [*again, ","]
        else:
            pieces.append(piece)
    return pieces


@given(st.lists(st.sampled_from(["19", "1", ",", "0", " ", "23,", "ships", "in ", "44", "000"])).map("".join))
@example("in 1911,1912, 44,000,ships,")
def test_digits_and_commas_follow_the_reference(published: tuple[Vocabulary, Any, Any], text: str) -> None:
    v, bare, fast = published
    text = " ".join(text.split())
    expected, ours = by_the_reference(bare, text), v.encode(text)
    assert [v.pieces[i] if i != v.unk_id else expected[n] for n, i in enumerate(ours)] == expected
    assert fast.encode(text, add_special_tokens=False).ids == ours


def test_the_cleaning_comes_from_the_directory(tmp_path: Path) -> None:
    train_elsewhere(tmp_path, **ALBERT_IDS)
    (tmp_path / "tokenizer_config.json").write_text('{"do_lower_case": false, "keep_accents": true}')
    assert Vocabulary.load(tmp_path).cleaning == Cleaning(False, False, "NFKD")
    store.seal(tmp_path, "vocabulary")
    (tmp_path / "tokenizer_config.json").unlink()  # another cleaning must not take its place
    with pytest.raises(CheckpointError, match=r"tokenizer_config\.json: no such file"):
        Vocabulary.load(tmp_path)


def test_other_directories_are_refused(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="no such directory"):
        Vocabulary.load(tmp_path / "absent")
    with pytest.raises(CheckpointError, match=r"no spiece.model"):
        Vocabulary.load(tmp_path)
    train_elsewhere(tmp_path)  # SentencePiece's default ids
    with pytest.raises(CheckpointError, match=r"no piece <pad>, \[CLS\], \[SEP\], \[MASK\]"):
        Vocabulary.load(tmp_path)
    train_elsewhere(tmp_path, **ALBERT_IDS)
    model = (tmp_path / "spiece.model").read_bytes()
    for content in (b"", b"not a model", b"\x0a\xff\xff\xff\xff", model.replace("▁".encode(), b"\xe2\x96\xff")):
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
    result = subprocess.run(
        [sys.executable, "-m", "albert_cli", "vocab", str(write_text(tmp_path)), "--out", "out", "--size", "120"],
        capture_output=True, text=True, check=True, cwd=tmp_path,
    )  # fmt: skip
    assert result.stdout.startswith("out: 120 tokens")
    assert re.search(r"training on 3,000 sentences, 0.2 MB: takes about 0.1 GB of memory and \d+ s", result.stderr)
    assert "trainer_interface" not in result.stderr
    json.loads((tmp_path / "out" / "tokenizer.json").read_text())
