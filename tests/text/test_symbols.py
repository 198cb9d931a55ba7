"""User-defined symbols and byte fallback, with equal ids in `tokenizer.json`."""

from __future__ import annotations

import itertools
import random
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer

from albert_cli.errors import ConfigError, InputError
from albert_cli.text.build_vocabulary import VocabularySettings, build_vocabulary, read_symbols
from albert_cli.text.clean import Cleaning, NormalForm, clean
from albert_cli.text.corpus import read_documents
from albert_cli.text.read_settings import ReadSettings
from albert_cli.text.sentencepiece_vocabulary import SentencePieceVocabulary
from albert_cli.text.sentences import split_sentences
from albert_cli.text.unigram import normalize_symbols, train_unigram
from tests.helpers.command import albert
from tests.helpers.text_files import build_largest_vocabulary
from tests.helpers.vocabularies import load_sentencepiece

KEEP_ALL = Cleaning(lowercase=False, strip_accents=False, normal_form="NFKC")
SYMBOLS = ["<br>", "C++", "##", "#", "kg/m²", "ab", "bc", "abc", "é", "ＡＢＸ", "的人"]
WORDS = [
    "The",
    "ship",
    "C++",
    "<br>",
    "ab",
    "abc",
    "bcd",
    "abcd",
    "##",
    "#",
    "x##",
    "12",
    "kg/m²",
    "sss",
    "café",
    "的人",
    "在的人",
    "ABX",
    "ＡＢＸ",
    "1,234",
    "(a)",
    "port",
]


@pytest.fixture(scope="module", params=[Cleaning(), KEEP_ALL], ids=["paper", "keep all"])
def vocabulary(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> SentencePieceVocabulary:
    folder = tmp_path_factory.mktemp("symbols")
    generator = random.Random(1)
    text = "\n".join(" ".join(generator.choices(WORDS, k=8)) for _ in range(2000))
    (folder / "a.txt").write_text(text, encoding="utf-8")
    options = VocabularySettings(
        size=304, cleaning=request.param, symbols=tuple(SYMBOLS), byte_fallback=True, character_coverage=1.0
    )
    build_vocabulary([str(folder / "a.txt")], folder / "out", options)
    return load_sentencepiece(folder / "out")


@pytest.fixture(scope="module")
def tokenizer(vocabulary: SentencePieceVocabulary, tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    folder = tmp_path_factory.mktemp("json")
    vocabulary.copy_to(folder)
    return Tokenizer.from_file(str(folder / "tokenizer.json"))


def test_symbols_are_one_token_wherever_they_occur(vocabulary: SentencePieceVocabulary) -> None:
    for symbol in normalize_symbols(SYMBOLS, vocabulary.cleaning):
        assert vocabulary.pieces.count(symbol) == 1
        if symbol not in ("ab", "bc", "#", "é"):  # parts of others
            assert symbol in [vocabulary.pieces[i] for i in vocabulary.encode(f"x{symbol}y {symbol}")]


@pytest.fixture(scope="module")
def docs_sentences() -> list[str]:
    documents = read_documents(["docs:stdlib"])
    sentences = itertools.chain.from_iterable(split_sentences(document.text) for document in documents)
    cleaned = (clean(sentence, Cleaning()) for sentence in sentences)
    return list(itertools.islice(filter(None, cleaned), 3000))


@pytest.mark.parametrize(("symbol", "size"), [("the", 1000), ("int", 2000)])
def test_symbol_in_other_words_has_equal_ids(symbol: str, size: int, docs_sentences: list[str], tmp_path: Path) -> None:
    model = train_unigram(docs_sentences, size, 0.9995, seed=0, symbols=[symbol])
    vocabulary = SentencePieceVocabulary(model, Cleaning())
    (tmp_path / "out").mkdir()
    vocabulary.copy_to(tmp_path / "out")
    tokenizer = Tokenizer.from_file(str(tmp_path / "out" / "tokenizer.json"))
    ids = vocabulary.encode_batch(docs_sentences)
    encodings = tokenizer.encode_batch(docs_sentences, add_special_tokens=False)
    assert [encoding.ids for encoding in encodings] == ids
    assert [offsets.ids.tolist() for offsets in vocabulary.encode_with_offsets(docs_sentences)] == ids
    # transformers saves the vocabulary without its `spiece.model`.
    (tmp_path / "out" / "spiece.model").unlink()
    saved = load_sentencepiece(tmp_path / "out")
    assert saved.encode_batch(docs_sentences) == ids
    assert saved.fingerprint == vocabulary.fingerprint


def test_bytes_replace_unknown_tokens_and_decode(vocabulary: SentencePieceVocabulary, tokenizer: Tokenizer) -> None:
    text = "the ж ship 🙂 ж"
    ids = vocabulary.encode(text)
    assert vocabulary.unk_id not in ids
    assert vocabulary.decode(ids) == text
    assert tokenizer.decode(ids) == text
    assert [vocabulary.pieces[i] for i in vocabulary.encode("ж")][-2:] == ["<0xD0>", "<0xB6>"]


TEXTS = st.lists(st.sampled_from([*WORDS, *SYMBOLS, " ", "ж", "🙂", "a", "b", "c", "s", "今"]), max_size=12)


@settings(deadline=None)
@given(TEXTS.map("".join))
def test_symbols_and_bytes_have_equal_ids(vocabulary: SentencePieceVocabulary, tokenizer: Tokenizer, text: str) -> None:
    assert tokenizer.encode(text, add_special_tokens=False).ids == vocabulary.encode(text)


@pytest.mark.parametrize("symbol", ["New York", "[MASK]", "\u0301", "a\u200bb"])
def test_impossible_symbol_is_rejected(symbol: str) -> None:
    cleaning = Cleaning() if symbol == "\u0301" else KEEP_ALL
    with pytest.raises(ConfigError, match="--symbols"):
        normalize_symbols([symbol], cleaning)


@pytest.mark.parametrize("cleaning", [Cleaning(), KEEP_ALL], ids=["paper", "keep all"])
def test_symbol_keeps_zwnj_on_request_with_equal_ids(tmp_path: Path, cleaning: Cleaning) -> None:
    symbol = "می\u200cشود"
    (tmp_path / "fa.txt").write_text(f"این {symbol} و آن {symbol}. می شود نمی\u200cشود\n" * 300, encoding="utf-8")
    built = build_largest_vocabulary(
        tmp_path / "fa.txt", tmp_path / "out", cleaning=cleaning, symbols=(symbol,), keep_zwnj=True
    )
    vocabulary = load_sentencepiece(tmp_path / "out")
    tokenizer = Tokenizer.from_file(str(tmp_path / "out" / "tokenizer.json"))
    text = f"این {symbol} نمی\u200cشود"
    ids = vocabulary.encode(text)
    assert normalize_symbols(built.report.request.settings.symbols, cleaning, keep_zwnj=True) == (symbol,)
    assert symbol in [vocabulary.pieces[i] for i in ids]
    assert vocabulary.decode(ids) == text
    assert tokenizer.encode(text, add_special_tokens=False).ids == ids


def test_symbol_that_is_a_byte_token_is_rejected() -> None:
    with pytest.raises(ConfigError, match="special token"):
        normalize_symbols(["<0x41>"], KEEP_ALL, byte_fallback=True)
    assert normalize_symbols(["<0x41>"], KEEP_ALL) == ("<0x41>",)


@pytest.mark.parametrize("form", ["NFC", "none"])
def test_byte_fallback_needs_a_compatibility_form(form: NormalForm) -> None:
    with pytest.raises(ConfigError, match=f"not possible with --normal-form {form}"):
        VocabularySettings(cleaning=Cleaning(normal_form=form), byte_fallback=True)


def test_vocab_reads_symbols_from_a_file(tmp_path: Path, documents_file: Path) -> None:
    (tmp_path / "symbols.txt").write_text("<br>\n\nC++\n<BR>\n")
    assert read_symbols(tmp_path / "symbols.txt", ReadSettings()) == ("<br>", "C++", "<BR>")
    call = ["vocab", documents_file, "--size", 300, "--out", tmp_path / "out"]
    albert(*call, "--symbols", tmp_path / "symbols.txt")
    pieces = load_sentencepiece(tmp_path / "out").pieces
    assert pieces.count("<br>") == pieces.count("c++") == 1
    with pytest.raises(InputError, match="no such file"):
        read_symbols(tmp_path / "absent.txt", ReadSettings())
    assert "too small" in albert(*call[:2], "--size", 260, "--out", tmp_path / "o", "--byte-fallback", expect=2).err


def test_vocab_replaces_bad_bytes_of_symbols_as_well(tmp_path: Path, documents_file: Path) -> None:
    (tmp_path / "symbols.txt").write_bytes(b"caf\xe9\n")
    call = ["vocab", documents_file, "--size", 300, "--symbols", tmp_path / "symbols.txt", "--out", tmp_path / "out"]
    assert "symbols.txt:1: invalid UTF-8" in albert(*call, expect=3).err
    albert(*call, "--on-bad-bytes", "replace")
    assert "caf" in load_sentencepiece(tmp_path / "out").pieces  # cleaning drops the U+FFFD
