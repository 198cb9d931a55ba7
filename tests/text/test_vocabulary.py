from __future__ import annotations

import re
import shutil
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from albert_cli import store
from albert_cli.errors import CheckpointError
from albert_cli.text.clean import Cleaning
from albert_cli.text.sentencepiece_vocabulary import SentencePieceVocabulary
from albert_cli.text.unigram import USER_DEFINED_SYMBOLS
from albert_cli.text.vocabulary import Vocabulary
from tests.helpers.vocabularies import ALBERT_OPTIONS, train_elsewhere


def test_pieces_begin_as_in_published_vocabularies(small_vocabulary: SentencePieceVocabulary) -> None:
    v = small_vocabulary
    assert v.size == len(v.pieces) == 2000
    assert v.pieces[:5] == ["<pad>", "<unk>", "[CLS]", "[SEP]", "[MASK]"]
    assert v.pieces[5:13] == USER_DEFINED_SYMBOLS == ["(", ")", '"', "-", ".", "–", "£", "€"]
    assert (v.pad_id, v.unk_id, v.cls_id, v.sep_id, v.mask_id) == (0, 1, 2, 3, 4)
    assert v.first_ordinary_id == 5
    assert len(set(v.pieces)) == v.size


@given(st.lists(st.sampled_from(["0", "00", "000", "aa", "aaa", "ss", "sss", "the", ",", "2011,"]), min_size=1))
def test_encode_word_is_independent_of_its_position(
    small_vocabulary: SentencePieceVocabulary, parts: list[str]
) -> None:
    """Sums are exact, so the text before a word does not decide between its segmentations."""
    v = small_vocabulary
    word = "".join(parts)
    before = v.encode("an unquestionably long beginning of the line, of 1,234 parts")
    assert v.encode(f"an unquestionably long beginning of the line, of 1,234 parts {word}") == before + v.encode(word)


def test_load_published_model_without_config(tmp_path: Path) -> None:
    """Never choose its digit-comma pieces, as in ALBERT's tokenizer, and keep its bytes in copies."""
    train_elsewhere(tmp_path, **ALBERT_OPTIONS)
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
    """Load a model of another program with pieces such as "▁1911," with `Vocabulary`, SentencePiece and tokenizers."""
    from sentencepiece import SentencePieceProcessor
    from tokenizers import Tokenizer

    directory = train_elsewhere(tmp_path_factory.mktemp("published"), **ALBERT_OPTIONS)
    v = Vocabulary.load(directory)
    v.copy_to(directory)
    bare = SentencePieceProcessor(model_file=str(directory / "spiece.model"))
    return v, bare, Tokenizer.from_file(str(directory / "tokenizer.json"))


def encode_like_the_reference(bare: Any, text: str) -> list[str]:
    """Encode by the reference's rule: a piece that ends in digit and comma is encoded again without the comma."""
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
def test_encode_digits_and_commas_follow_the_reference(published: tuple[Vocabulary, Any, Any], text: str) -> None:
    v, bare, fast = published
    text = " ".join(text.split())
    expected = encode_like_the_reference(bare, text)
    ours = v.encode(text)
    assert [v.pieces[i] if i != v.unk_id else expected[n] for n, i in enumerate(ours)] == expected
    assert fast.encode(text, add_special_tokens=False).ids == ours


def test_load_reads_the_cleaning_of_the_directory(tmp_path: Path) -> None:
    train_elsewhere(tmp_path, **ALBERT_OPTIONS)
    (tmp_path / "tokenizer_config.json").write_text('{"do_lower_case": false, "keep_accents": true}')
    assert Vocabulary.load(tmp_path).cleaning == Cleaning(False, False, "NFKD")
    store.seal(tmp_path, "vocabulary")
    (tmp_path / "tokenizer_config.json").unlink()  # another cleaning must not take its place
    with pytest.raises(CheckpointError, match=r"tokenizer_config\.json: no such file"):
        Vocabulary.load(tmp_path)


def test_load_of_other_directories_is_rejected(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="no such directory"):
        Vocabulary.load(tmp_path / "absent")
    with pytest.raises(CheckpointError, match=r"no spiece.model"):
        Vocabulary.load(tmp_path)
    train_elsewhere(tmp_path)  # SentencePiece's default ids
    with pytest.raises(CheckpointError, match=r"no piece <pad>, \[CLS\], \[SEP\], \[MASK\]"):
        Vocabulary.load(tmp_path)
    train_elsewhere(tmp_path, **ALBERT_OPTIONS)
    model = (tmp_path / "spiece.model").read_bytes()
    for content in (b"", b"not a model", b"\x0a\xff\xff\xff\xff", model.replace("▁".encode(), b"\xe2\x96\xff")):
        (tmp_path / "spiece.model").write_bytes(content)
        with pytest.raises(CheckpointError):
            Vocabulary.load(tmp_path)


def test_load_from_a_data_directory(tmp_path: Path, vocabulary_dir: Path) -> None:
    shutil.copytree(vocabulary_dir, tmp_path / "vocabulary")
    assert Vocabulary.load(tmp_path).pieces == Vocabulary.load(vocabulary_dir).pieces


def test_encode_literal_special_token_is_ordinary_text(small_vocabulary: SentencePieceVocabulary) -> None:
    ids = small_vocabulary.encode("the [MASK] and <pad> here")
    assert all(i == small_vocabulary.unk_id or i >= small_vocabulary.first_ordinary_id for i in ids)


@given(st.text(), st.text())
def test_encode_batch_equals_encoding_each(small_vocabulary: SentencePieceVocabulary, a: str, b: str) -> None:
    a, b = (text.encode(errors="replace").decode() for text in (a, b))
    v = small_vocabulary
    assert v.encode_batch([a, b]) == [v.encode(a), v.encode(b)]
    assert all(0 <= i < v.size for i in v.encode(a))


def test_decode_returns_the_cleaned_text(small_vocabulary: SentencePieceVocabulary) -> None:
    v = small_vocabulary
    assert v.decode(v.encode("The Café, (2011).")) == "the cafe, (2011)."
    ids = [v.cls_id, *v.encode("one"), v.sep_id, *v.encode("two"), v.sep_id, v.pad_id]
    assert v.decode(ids) == "[CLS] one [SEP] two [SEP]"


def test_user_defined_special_tokens_are_never_text(tmp_path: Path) -> None:
    options = {**ALBERT_OPTIONS, "control_symbols": [], "user_defined_symbols": ["a", "[CLS]", "[SEP]", "[MASK]"]}
    train_elsewhere(tmp_path, **options)
    (tmp_path / "tokenizer_config.json").write_text('{"do_lower_case": false}')
    original = Vocabulary.load(tmp_path)
    original.copy_to(tmp_path)
    special_ids = {original.pad_id, original.cls_id, original.sep_id, original.mask_id}
    ids = original.encode("a [MASK] b[SEP]")
    for vocabulary in (original, Vocabulary.load(tmp_path)):
        assert vocabulary.fingerprint == original.fingerprint
        assert vocabulary.encode("a [MASK] b[SEP]") == ids and special_ids.isdisjoint(ids)
        (tokens,) = vocabulary.encode_with_offsets(["a [MASK] b[SEP]"])
        assert tokens.ids.tolist() == ids
        assert {vocabulary.unk_id, *special_ids}.isdisjoint(vocabulary.ordinary_ids.tolist())
        assert vocabulary.pieces.index("a") in vocabulary.ordinary_ids
        assert vocabulary.decode([vocabulary.cls_id, *vocabulary.encode("a b")]) == "[CLS] a b"
