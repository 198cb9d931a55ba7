from __future__ import annotations

import json
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from albert_cli import store
from albert_cli.errors import BusyError, CheckpointError, ConfigError, InputError
from albert_cli.inspection import inspect_directory
from albert_cli.store.temporaries import temporary_sibling
from albert_cli.text.build_vocabulary import VocabularySettings, build_vocabulary, format_summary
from albert_cli.text.clean import Cleaning
from albert_cli.text.read_settings import FileFormat, ReadSettings
from albert_cli.text.vocabulary import Vocabulary
from tests.helpers.processes import albert, start
from tests.helpers.text_files import write_numbered_sentences


def test_build_writes_a_report(vocabulary_dir: Path) -> None:
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
        "transformers_rules": False,
    }
    assert report["sentences"]["training"] + report["sentences"]["held_out"] == 12_000
    assert report["sentences"]["held_out"] == 120
    assert report["sentences"]["read"] > 12_000
    assert 0.999 < report["tokens"]["character_coverage"] <= 1
    assert 1 < report["tokens"]["pieces_per_word"] < 3
    assert 0 <= report["tokens"]["unknown_rate"] < 0.01
    assert len(report["tokens"]["longest_pieces"]) == 10


def test_build_again_is_up_to_date(tmp_path: Path) -> None:
    source = str(write_numbered_sentences(tmp_path))
    out = tmp_path / "out"
    first = build_vocabulary([source], out, VocabularySettings(120))
    before = {p.name: p.stat().st_mtime_ns for p in out.iterdir()}
    again = build_vocabulary([source], out, VocabularySettings(120))
    assert (first.up_to_date, again.up_to_date) == (False, True)
    assert replace(first, up_to_date=True) == again
    assert {p.name: p.stat().st_mtime_ns for p in out.iterdir()} == before
    assert first.report.tokens.pruned[1].size == 60
    format_summary(first)


def test_build_with_other_settings_is_rejected(tmp_path: Path) -> None:
    source = str(write_numbered_sentences(tmp_path))
    out = tmp_path / "out"
    build_vocabulary([source], out, VocabularySettings(120))
    with pytest.raises(BusyError, match=r"other settings \(size\)"):
        build_vocabulary([source], out, VocabularySettings(121))
    with pytest.raises(BusyError, match=r"other settings \(cleaning\)"):
        build_vocabulary([source], out, VocabularySettings(120, Cleaning(lowercase=False)))
    write_numbered_sentences(tmp_path, 599)
    with pytest.raises(BusyError, match=r"other settings \(sources\)"):
        build_vocabulary([source], out, VocabularySettings(120))


@pytest.mark.parametrize(
    ("file_format", "name", "is_same_text"),
    [("auto", "moved.txt", True), ("auto", "numbers.jsonl", False), ("text", "numbers.jsonl", True)],
)
def test_build_of_renamed_file_compares_its_format(
    tmp_path: Path, file_format: FileFormat, name: str, is_same_text: bool
) -> None:
    source = write_numbered_sentences(tmp_path)
    settings = VocabularySettings(120, read=ReadSettings(format=file_format))
    build_vocabulary([str(source)], tmp_path / "out", settings)
    renamed = str(source.rename(tmp_path / name))
    if is_same_text:
        assert build_vocabulary([renamed], tmp_path / "out", settings).up_to_date
    else:
        with pytest.raises(BusyError, match=r"other settings \(sources\)"):
            build_vocabulary([renamed], tmp_path / "out", settings)


def test_build_of_equal_text_gives_equal_bytes(tmp_path: Path) -> None:
    source = str(write_numbered_sentences(tmp_path))
    for name in ("a", "b"):
        build_vocabulary([source], tmp_path / name, VocabularySettings(120, sample_size=300))
    assert (tmp_path / "a" / "spiece.model").read_bytes() == (tmp_path / "b" / "spiece.model").read_bytes()
    build_vocabulary([source], tmp_path / "c", VocabularySettings(120, sample_size=300, seed=1))
    assert (tmp_path / "a" / "spiece.model").read_bytes() != (tmp_path / "c" / "spiece.model").read_bytes()


ODD_TEXTS = {
    "one sentence": "This is one sentence.",
    "one sentence again and again": "The same sentence again.\n" * 500,
    "digits": "\n".join(str(i**5) for i in range(300)),
    "digits and commas": "1,000,000, 2,\n" * 3000,
    "one letter": "a\n" * 3000,
    "nothing visible": "\u200b\u200c\u200d\ufeff\n" * 100,
    "many characters": "\n".join(chr(0x20000 + i) for i in range(1000)),
    "noncharacters": "\ufdd0\ufdd1\uffff a b\n" * 300,
    "special tokens": "[CLS] and [MASK] <pad> <unk> [SEP] ( ) £\n" * 300,
}


@pytest.mark.parametrize("text", ODD_TEXTS.values(), ids=ODD_TEXTS)
def test_build_of_odd_text_names_a_size_that_works(tmp_path: Path, text: str) -> None:
    source = tmp_path / "a.txt"
    out = tmp_path / "out"
    source.write_text(text, encoding="utf-8")
    with pytest.raises(InputError, match=r"at most .* tokens, not 30,000") as raised:
        build_vocabulary([str(source)], out)
    assert not out.exists()
    match = re.search(r"--size (\d+)", raised.value.hint or "")
    assert match
    size = int(match[1])
    assert build_vocabulary([str(source)], out, VocabularySettings(size)).report.request.settings.size == size
    assert Vocabulary.load(out).size == size


IMPOSSIBLE: dict[str, tuple[str, int, type[Exception], str]] = {  # text, size, error, message
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
    "a sentence without end": ("a" * 10_000, 100, InputError, "the text allows at most"),
    "less than the symbols": ("Some text.", 13, ConfigError, "too small"),
    "no size": ("Some text.", -1, ConfigError, "too small"),
    "more than can be numbered": ("Some text.", 2**31, ConfigError, "too large"),
}


@pytest.mark.parametrize(("text", "size", "error", "message"), IMPOSSIBLE.values(), ids=IMPOSSIBLE)
def test_build_impossible_request_is_rejected(
    tmp_path: Path, text: str, size: int, error: type[Exception], message: str
) -> None:
    source = tmp_path / "a.txt"
    source.write_text(text, encoding="utf-8")
    with pytest.raises(error, match=message) as raised:
        build_vocabulary([str(source)], tmp_path / "out", VocabularySettings(size))
    assert error is ConfigError or str(source) in str(raised.value)
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
def test_build_impossible_option_is_rejected(tmp_path: Path, options: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        build_vocabulary(
            [str(write_numbered_sentences(tmp_path))], tmp_path / "out", VocabularySettings(100, **options)
        )
    assert not (tmp_path / "out").exists()


def test_build_after_kill_resumes_to_the_same_vocabulary(tmp_path: Path) -> None:
    source = write_numbered_sentences(tmp_path)
    out = tmp_path / "out"
    whole = tmp_path / "whole"
    build_vocabulary([str(source)], whole, VocabularySettings(200))
    conditions: list[Callable[[], bool]] = [
        lambda: (out / "request.json").exists(),
        lambda: bool(list(out.glob(".publish.*.tmp/*"))),
        lambda: any((out / name).exists() for name in ("spiece.model", "tokenizer.json", "vocabulary.json")),
    ]
    codes = []
    for number, condition in enumerate(conditions):
        run = start(tmp_path / f"log-{number}", "vocab", source, "--out", out, "--size", 200)
        run.reaches(condition)
        codes.append(run.kill())
        assert codes[-1] in (0, -9), run.printed_text()
        if not (out / "manifest.json").exists():
            with pytest.raises(CheckpointError):
                Vocabulary.load(out)
            assert "unfinished vocabulary" in inspect_directory(out).format()
    assert -9 in codes, "every run ended before it was killed"
    result = build_vocabulary([str(source)], out, VocabularySettings(200))
    assert result.fingerprint == store.fingerprint(whole)
    assert {p.name for p in out.iterdir()} == {p.name for p in whole.iterdir()}


def test_build_killed_between_files_is_repaired(tmp_path: Path) -> None:
    """Build again after two kills: before the request file is removed, and before the manifest is written."""
    source = str(write_numbered_sentences(tmp_path))
    out = tmp_path / "out"
    first = build_vocabulary([source], out, VocabularySettings(120))
    request = store.read_json(out / "vocabulary.json")["request"]
    store.write_json(out / "request.json", request)
    leftover = temporary_sibling(out / "publish")
    leftover.mkdir()
    again = build_vocabulary([source], out, VocabularySettings(120))
    assert again.up_to_date
    assert not (out / "request.json").exists() and not leftover.exists()
    store.write_json(out / "request.json", request)
    (out / "manifest.json").unlink()
    (out / "tokenizer.json").unlink()
    again = build_vocabulary([source], out, VocabularySettings(120))
    assert not again.up_to_date
    assert again.fingerprint == first.fingerprint


def test_vocab_prints_the_estimate_and_no_other_log(tmp_path: Path) -> None:
    """Run in another process, because SentencePiece's trainer prints its log past `sys.stderr`."""
    out = tmp_path / "out"
    code, printed = albert(tmp_path / "log", "vocab", write_numbered_sentences(tmp_path), "--out", out, "--size", 120)
    assert code == 0, printed
    assert f"\n{out}: 120 tokens" in printed
    assert re.search(r"training on 600 sentences, 0.0 MB: takes about 0.1 GB of memory and \d+ s", printed)
    assert "trainer_interface" not in printed
    json.loads((tmp_path / "out" / "tokenizer.json").read_text())
