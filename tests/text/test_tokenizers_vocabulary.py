"""Vocabularies of the `tokenizers` backend give transformers' ids, and are written so that transformers reads them."""

from __future__ import annotations

import json
from pathlib import Path
from unicodedata import category

import numpy as np
import pytest
from transformers import AutoTokenizer, BertTokenizerFast

from albert_cli.errors import CheckpointError
from albert_cli.text.tokenizers_vocabulary import TokenizersVocabulary
from albert_cli.text.vocabulary import Vocabulary
from tests.helpers.tokenizers import BERT_ROLES, KINDS, lines_of_eight_languages, train_byte_level, train_wordpiece

AWKWARD_TEXTS = ["``quoted''  twice", "a\tb", " lead", "x" * 300, "2,011 don't!", "Cafe\u0301 👍🏽", "", "\ud800"]


@pytest.fixture(scope="module", params=KINDS)
def directory(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return KINDS[request.param](tmp_path_factory.mktemp("tokenizer") / "it")


def write_names_as_pieces(directory: Path, kind: str, special: bool) -> Path:
    """Write a tokenizer whose model can match the names of special tokens in a text."""
    from tokenizers import AddedToken, Tokenizer, models, pre_tokenizers

    names = list(BERT_ROLES.values())
    characters = sorted(set("".join(names)) | set("ab"))
    pieces = [*names, *characters, *(f"##{character}" for character in characters), "▁", "▁a", "▁b"]
    ids = {piece: index for index, piece in enumerate(pieces)}
    scores = [(piece, 0.0 if piece in names else -4.0) for piece in pieces]
    build_model = {
        "WordPiece": lambda: models.WordPiece(ids, unk_token="[UNK]"),
        "WordLevel": lambda: models.WordLevel(ids, unk_token="[UNK]"),
        "Unigram": lambda: models.Unigram(scores, unk_id=ids["[UNK]"]),
        "BPE": lambda: models.BPE(ids, [], unk_token="[UNK]", ignore_merges=True),
    }
    tokenizer = Tokenizer(build_model[kind]())
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace() if kind == "Unigram" else pre_tokenizers.WhitespaceSplit()
    added = [AddedToken(name, special=special, normalized=False) for name in names]
    if special:
        tokenizer.add_special_tokens(added)
    else:
        tokenizer.add_tokens(added)
    tokenizer.save(str(directory / "tokenizer.json"))
    return directory


def hugging_face_ids(directory: Path, texts: list[str]) -> list[list[int]]:
    load = AutoTokenizer if (directory / "tokenizer.json").is_file() else BertTokenizerFast
    ids: list[list[int]] = load.from_pretrained(directory)(texts, add_special_tokens=False)["input_ids"]
    return ids


def test_encode_equals_transformers_and_survives_copying(directory: Path, tmp_path: Path) -> None:
    lines = lines_of_eight_languages(8000)[::7]  # with every phrase
    vocabulary = Vocabulary.load(directory)
    assert isinstance(vocabulary, TokenizersVocabulary)
    ids = vocabulary.encode_batch(lines + AWKWARD_TEXTS)
    assert ids[: len(lines) + len(AWKWARD_TEXTS) - 1] == hugging_face_ids(directory, lines + AWKWARD_TEXTS[:-1])
    assert vocabulary.encode_sentences(lines) == ids[: len(lines)]
    vocabulary.copy_to(tmp_path, 128)
    copied = Vocabulary.load(tmp_path)
    assert copied.fingerprint == vocabulary.fingerprint
    assert copied.encode_batch(lines + AWKWARD_TEXTS) == ids
    fast = AutoTokenizer.from_pretrained(tmp_path)
    assert fast(lines, add_special_tokens=False)["input_ids"] == ids[: len(lines)]
    assert fast.model_max_length == 128
    assert fast.cls_token_id == vocabulary.cls_id
    assert fast.sep_token_id == vocabulary.sep_id
    assert fast.mask_token_id == vocabulary.mask_id


def test_written_tokenizer_adds_special_tokens_as_training_does(directory: Path, tmp_path: Path) -> None:
    """Write the step that adds [CLS] and [SEP], also for byte-level tokenizers, which have another one or none."""
    vocabulary = Vocabulary.load(directory)
    vocabulary.copy_to(tmp_path)
    cls = vocabulary.cls_id
    sep = vocabulary.sep_id
    first, second = vocabulary.encode_batch(["Die Brücke", "ein Fass"])
    pair = AutoTokenizer.from_pretrained(tmp_path)("Die Brücke", "ein Fass")
    assert pair["input_ids"] == [cls, *first, sep, *second, sep]
    assert pair["token_type_ids"] == [0] * (len(first) + 2) + [1] * (len(second) + 1)


def test_offsets_cover_the_text_and_ids_are_equal(directory: Path) -> None:
    lines = lines_of_eight_languages(800)
    vocabulary = Vocabulary.load(directory)
    for line, ids, encoded in zip(
        lines, vocabulary.encode_batch(lines), vocabulary.encode_with_offsets(lines), strict=True
    ):
        assert encoded.ids.tolist() == ids
        covered = np.zeros(len(line), bool)
        for start, end in zip(encoded.starts, encoded.ends, strict=True):
            covered[start:end] = True
        # BERT's normalizer drops accents, which no token covers then.
        assert all(covered[i] or c.isspace() or category(c).startswith("M") for i, c in enumerate(line))


def test_special_tokens_are_not_ordinary(directory: Path) -> None:
    vocabulary = Vocabulary.load(directory)
    special = {vocabulary.pad_id, vocabulary.unk_id, vocabulary.cls_id, vocabulary.sep_id, vocabulary.mask_id}
    assert not special & set(vocabulary.ordinary_ids.tolist())
    names = [vocabulary.pieces[index] for index in sorted(special)]
    texts = [f"a {name} b" for name in names]
    assert not any(special - {vocabulary.unk_id} & set(ids) for ids in vocabulary.encode_batch(texts))


@pytest.mark.parametrize("special", [True, False])
@pytest.mark.parametrize("model", ["WordPiece", "WordLevel", "Unigram", "BPE"])
@pytest.mark.parametrize("text", ["a [MASK] b [SEP]", "[MASK]", "a[MASK][PAD] b", "[CLS] [SEP]"])
def test_encode_name_among_pieces_never_gives_the_token(text: str, model: str, special: bool, tmp_path: Path) -> None:
    vocabulary = Vocabulary.load(write_names_as_pieces(tmp_path, model, special))
    assert isinstance(vocabulary, TokenizersVocabulary)
    forbidden = {vocabulary.pad_id, vocabulary.cls_id, vocabulary.sep_id, vocabulary.mask_id}
    assert forbidden.isdisjoint(vocabulary.encode(text))
    assert forbidden.isdisjoint(vocabulary.encode_continuation(text))
    (encoded,) = vocabulary.encode_with_offsets([text])
    assert encoded.ids.tolist() == vocabulary.encode(text)
    assert vocabulary.encode_batch(["a b", text, "a b"])[::2] == [vocabulary.encode("a b")] * 2
    assert vocabulary.decode([vocabulary.mask_id]) == "[MASK]"


@pytest.mark.parametrize("model", ["WordPiece", "Unigram"])
def test_encode_name_among_pieces_keeps_the_text(model: str, tmp_path: Path) -> None:
    vocabulary = Vocabulary.load(write_names_as_pieces(tmp_path, model, True))
    pieces = [vocabulary.pieces[index] for index in vocabulary.encode("a [MASK] b")]
    assert "".join(piece.removeprefix("##").replace("▁", "") for piece in pieces) == "a[MASK]b"


def test_word_starts_follow_spaces(directory: Path) -> None:
    vocabulary = Vocabulary.load(directory)
    line = "Die Köchin kaufte gestern zwölf Bücher"
    ids = np.array([vocabulary.cls_id, *vocabulary.encode(line)])
    starts = vocabulary.word_boundaries().find_starts(ids)[1:]
    if vocabulary.unk_id in ids:  # the Chinese vocabulary has no Latin letters
        pytest.skip("no pieces for this text")
    (encoded,) = vocabulary.encode_with_offsets([line])
    expected = [start == 0 or line[start - 1] == " " for start in encoded.starts]
    assert starts.tolist() == expected


def test_continuation_equals_text_after_the_mask(directory: Path, tmp_path: Path) -> None:
    vocabulary = Vocabulary.load(directory)
    vocabulary.copy_to(tmp_path)
    fast = AutoTokenizer.from_pretrained(tmp_path)
    for text in (", heute", "ing", " und"):
        ids = fast(f"{fast.mask_token}{text}", add_special_tokens=False)["input_ids"]
        assert vocabulary.encode_continuation(text) == ids[1:]


def test_special_tokens_are_found_by_role(tmp_path: Path) -> None:
    saved = train_wordpiece(tmp_path / "it")
    config = json.loads((saved / "tokenizer_config.json").read_text())
    vocabulary = Vocabulary.load(saved)
    piece = vocabulary.pieces[vocabulary.ordinary_ids[0]]
    (saved / "tokenizer_config.json").write_text(json.dumps(config | {"mask_token": {"content": piece}}))
    assert Vocabulary.load(saved).mask_id == vocabulary.ordinary_ids[0]


def test_decode_without_a_padding_token_has_sep(tmp_path: Path) -> None:
    from tokenizers import Tokenizer, models

    ids = {"<s>": 0, "</s>": 1, "<mask>": 2, "a": 3}
    Tokenizer(models.BPE(ids, [])).save(str(tmp_path / "tokenizer.json"))
    assert Vocabulary.load(tmp_path).decode([0, 3, 1, 3, 1]) == "<s> a </s> a </s>"


def test_missing_special_token_is_named(tmp_path: Path) -> None:
    (tmp_path / "vocab.txt").write_text("\n".join([name for name in BERT_ROLES.values() if name != "[MASK]"]))
    with pytest.raises(CheckpointError, match=r"vocab\.txt: .*it has no mask token"):
        Vocabulary.load(tmp_path)
    (tmp_path / "tokenizer.json").write_text("{}")
    with pytest.raises(CheckpointError, match=r"tokenizer\.json: not a tokenizer"):
        Vocabulary.load(tmp_path)


def test_text_directly_after_a_marker_begins_a_word(tmp_path: Path) -> None:
    train_byte_level(tmp_path)
    tokenizer = AutoTokenizer.from_pretrained(tmp_path)
    tokenizer.add_special_tokens({"additional_special_tokens": ["[E1]"]})
    tokenizer.save_pretrained(tmp_path)
    vocabulary = Vocabulary.load(tmp_path)
    ids = np.array(vocabulary.encode("[E1]Paris"))
    assert vocabulary.pieces[ids[0]] == "[E1]"
    assert vocabulary.word_boundaries().find_starts(ids)[:2].tolist() == [True, True]


@pytest.mark.parametrize(("largest_id", "is_loaded"), [(50_000, True), (5_000_000, False)])
def test_ids_may_have_holes_but_not_any_size(tmp_path: Path, largest_id: int, is_loaded: bool) -> None:
    path = write_names_as_pieces(tmp_path, "WordLevel", True) / "tokenizer.json"
    content = json.loads(path.read_text())
    content["model"]["vocab"]["a"] = largest_id
    path.write_text(json.dumps(content))
    if is_loaded:
        assert Vocabulary.load(tmp_path).encode("a") == [largest_id]
    else:
        with pytest.raises(CheckpointError, match=r"tokenizer\.json: has only \d+ tokens, but the id 5,000,000"):
            Vocabulary.load(tmp_path)
