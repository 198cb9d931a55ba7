"""The `tokenizers` backend: any `tokenizer.json` (Unigram, WordPiece, BPE, byte level, byte fallback) or `vocab.txt`.

Special tokens are identified by their roles in `tokenizer_config.json` or `special_tokens_map.json`, else by their
usual names. Text never becomes a special token, even if it contains a special token's name. The unknown token is the
exception: the model needs it for text without pieces.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeAlias

import numpy as np

from albert_cli import store
from albert_cli.errors import CheckpointError
from albert_cli.text.vocabulary import (
    CONFIG_FILE,
    TOKENIZER_FILE,
    WORDPIECE_FILE,
    SpecialIds,
    TokenOffsets,
    Vocabulary,
    trim_offsets,
)
from albert_cli.text.words import WORD_MARK, WordBoundaries, WordRule

if TYPE_CHECKING:
    from tokenizers import Tokenizer

TokenizerJson: TypeAlias = dict[str, Any]  # of the `tokenizers` library, which publishes no schema
_SPECIAL_TOKENS_FILE: Final = "special_tokens_map.json"
# The usual names of each role; the first that the tokenizer has is taken if no file names another.
_USUAL_NAMES: Final = {
    "pad": ("[PAD]", "<pad>"),
    "unk": ("[UNK]", "<unk>"),
    "cls": ("[CLS]", "<s>", "<cls>", "<bos>"),
    "sep": ("[SEP]", "</s>", "<sep>", "<eos>"),
    "mask": ("[MASK]", "<mask>"),
}
_REQUIRED_ROLES: Final = ("cls", "sep", "mask")
_RESERVED_TOKEN: Final = re.compile(r"\[unused\d+\]|<unused\d+>|<extra_id_\d+>|<0x[0-9A-F]{2}>")
_BYTE_TOKEN: Final = re.compile(r"<0x[0-9A-F]{2}>")  # byte fallback writes text with these
_LONE_SURROGATE: Final = re.compile("[\ud800-\udfff]")
_HIDDEN: Final = "\uffff"  # a code point that is no character: no text contains a name that begins with it
_BATCH: Final = 1024  # texts; an encoding takes some 100 bytes per token
_DEFAULT_WORDPIECE_OPTIONS: Final = {"do_lower_case": True, "strip_accents": None, "tokenize_chinese_chars": True}

# Rayon's threads would compete with the worker processes; encoding stays on the calling thread.
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")


class TokenizersVocabulary(Vocabulary):
    """A tokenizer of the `tokenizers` library, which normalizes text itself."""

    def __init__(self, tokenizer: Tokenizer, config: TokenizerJson, source: Path) -> None:
        """Take over the tokenizer; raise `CheckpointError` if it lacks a special token that models need.

        config: the content of `tokenizer_config.json`, with at least the roles of special tokens. source: the file that
        errors name.
        """
        self._roles, special = _find_special_tokens(tokenizer, config, source)
        tokenizer.no_padding()
        tokenizer.no_truncation()
        if not _adds_special_tokens(tokenizer, special):
            tokenizer.post_processor = _build_post_processor(tokenizer, self._roles, special)
        self._json = tokenizer.to_str(pretty=False)
        self._config = dict(config)
        tokenizer.encode_special_tokens = True  # names of special tokens in a text are text
        self._tokenizer = tokenizer
        pieces_by_id = {index: piece for piece, index in tokenizer.get_vocab(with_added_tokens=True).items()}
        size = max(pieces_by_id) + 1
        pieces = [pieces_by_id.get(index, "") for index in range(size)]
        added = tokenizer.get_added_tokens_decoder()
        not_text = {index for index, token in added.items() if token.special} | set(special)
        # Ids that no text may get: all special ones but the unknown token's. Without an unknown token `special.unk` is
        # [SEP]'s id, which stays forbidden.
        self._forbidden = frozenset(
            index
            for index in not_text - ({special.unk} if "unk" in self._roles else set())
            if not _BYTE_TOKEN.fullmatch(pieces[index])
        )
        content = json.loads(self._json)
        super().__init__(
            pieces,
            [
                "" if index in not_text or _RESERVED_TOKEN.fullmatch(piece) else text
                for index, (piece, text) in enumerate(zip(pieces, _text_pieces(pieces, content), strict=True))
            ],
            special,
        )
        self._first_word_is_unmarked = _first_word_is_unmarked(content)

    @property
    def cleaning(self) -> None:
        """None: the tokenizer normalizes text itself."""
        return

    @cached_property
    def fingerprint(self) -> str:
        """16 hexadecimal digits that change with the tokenizer or the roles of its special tokens."""
        return hashlib.sha256(f"{self._json}\n{sorted(self._roles.items())}".encode()).hexdigest()[:16]

    def encode_batch(self, texts: Sequence[str]) -> list[list[int]]:
        """Return the token ids of texts, on the calling thread; no special tokens."""
        ids: list[list[int]] = []
        for start in range(0, len(texts), _BATCH):
            batch = [_LONE_SURROGATE.sub("\ufffd", text) for text in texts[start : start + _BATCH]]
            encodings = self._tokenizer.encode_batch_fast(batch, add_special_tokens=False)
            ids += [
                self._without_special_tokens(text, encoding).ids
                for text, encoding in zip(batch, encodings, strict=True)
            ]
        return ids

    def encode_sentences(self, sentences: Sequence[str]) -> list[list[int]]:
        """Encode sentences that have only single spaces, and none at their ends."""
        return self.encode_batch(sentences)

    def encode_continuation(self, text: str) -> list[int]:
        """Encode text that continues right after a special token, as the tokenizer does after its mask token."""
        ids = _encode_after(self._roles["mask"], self.mask_id, text, self._tokenizer)
        if self._forbidden.isdisjoint(ids):
            return ids
        return _encode_after(_HIDDEN + self._roles["mask"], self.mask_id, text, self._nameless_tokenizer)

    def encode_with_offsets(self, texts: Sequence[str]) -> Iterator[TokenOffsets]:
        """Yield the token ids of each text with the characters that each token comes from."""
        is_word_mark = np.array([piece == WORD_MARK for piece in self.text_pieces], dtype=np.bool_)
        for start in range(0, len(texts), _BATCH):
            batch = [_LONE_SURROGATE.sub("\ufffd", text) for text in texts[start : start + _BATCH]]
            encodings = self._tokenizer.encode_batch(batch, add_special_tokens=False)
            for text, encoding in zip(batch, encodings, strict=True):
                encoding = self._without_special_tokens(text, encoding)
                ids = np.array(encoding.ids, dtype=np.int32)
                offsets = np.array(encoding.offsets, dtype=np.int32).reshape(-1, 2)
                yield trim_offsets(text, ids, offsets, is_word_mark[ids])

    def _without_special_tokens(self, text: str, encoding: Any) -> Any:
        """Return the encoding, or one of ordinary pieces if a special token's name in the text became that token."""
        if self._forbidden.isdisjoint(encoding.ids):
            return encoding
        return self._nameless_tokenizer.encode(text, add_special_tokens=False)

    @cached_property
    def _nameless_tokenizer(self) -> Tokenizer:
        """The tokenizer with special tokens renamed to what no text contains.

        `encode_special_tokens` is not enough where the model has the names among its own pieces.
        """
        from tokenizers import Tokenizer

        content = json.loads(self._json)
        _hide_names(content, {self.pieces[index] for index in self._forbidden})
        tokenizer = Tokenizer.from_str(json.dumps(content))
        tokenizer.encode_special_tokens = True
        return tokenizer

    def word_boundaries(self, rule: WordRule = "script") -> WordBoundaries:
        """Return the tokens that begin a word; where the first word has no mark, special tokens separate words."""
        boundaries = super().word_boundaries(rule)
        if self._first_word_is_unmarked:
            boundaries.separates[[self.cls_id, self.sep_id]] = True
        return boundaries

    def decode(self, ids: Iterable[int]) -> str:
        """Return the text of token ids; special tokens appear by name, padding is left out."""
        visible = [index for index in ids if index != self.pad_id]
        return " ".join(str(self._tokenizer.decode(visible, skip_special_tokens=False)).split())

    def copy_to(self, directory: Path, model_max_length: int = 512) -> None:
        """Write `tokenizer.json` and `tokenizer_config.json`; model_max_length: where other programs truncate."""
        store.write_text(directory / TOKENIZER_FILE, self._json + "\n")
        config = {key: value for key, value in self._config.items() if key in _DEFAULT_WORDPIECE_OPTIONS}
        config |= {
            "tokenizer_class": "PreTrainedTokenizerFast",
            "model_input_names": ["input_ids", "token_type_ids", "attention_mask"],
            "model_max_length": model_max_length,
            "clean_up_tokenization_spaces": False,
            **{f"{role}_token": token for role, token in self._roles.items()},
        }
        store.write_json(directory / CONFIG_FILE, config)


def _encode_after(name: str, index: int, text: str, tokenizer: Tokenizer) -> list[int]:
    """Return the token ids of a text after the added token `name`, whose id is `index`."""
    tokenizer.encode_special_tokens = False
    try:
        ids: list[int] = tokenizer.encode(name + text, add_special_tokens=False).ids
    finally:
        tokenizer.encode_special_tokens = True
    return ids[ids.index(index) + 1 :]


# ---------------------------------------------------------------- reading


def read_tokenizer_files(directory: Path) -> TokenizersVocabulary:
    """Read `tokenizer.json`, else `vocab.txt`; raise `CheckpointError` if neither can be used."""
    config = _read_config(directory)
    path = directory / TOKENIZER_FILE
    if path.is_file():
        return TokenizersVocabulary(_parse_tokenizer(path), config, path)
    path = directory / WORDPIECE_FILE
    return TokenizersVocabulary(_build_wordpiece(path, config), config, path)


def _parse_tokenizer(path: Path) -> Tokenizer:
    from tokenizers import Tokenizer

    content = store.read_bytes(path)
    try:
        return Tokenizer.from_str(content.decode())
    except Exception as error:  # the library raises plain exceptions
        raise CheckpointError(f"{path}: not a tokenizer of the `tokenizers` library ({error})") from None


def _build_wordpiece(path: Path, config: TokenizerJson) -> Tokenizer:
    """Build BERT's tokenizer from its `vocab.txt`: one piece per line."""
    from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors

    lines = store.read_bytes(path).decode("utf-8", "replace").split("\n")
    pieces = [line.rstrip("\r") for line in lines]
    while pieces and not pieces[-1]:
        pieces.pop()
    ids = {piece: index for index, piece in enumerate(pieces)}
    names: dict[str, str] = {}
    for role in _USUAL_NAMES:
        name = _token_of_role(role, ids, config)
        if name is not None:
            names[role] = name
        elif role != "pad":
            raise CheckpointError(f"{path}: not a WordPiece vocabulary, it has no {role} token")
    options: TokenizerJson = {key: config.get(key, default) for key, default in _DEFAULT_WORDPIECE_OPTIONS.items()}
    tokenizer = Tokenizer(models.WordPiece(ids, unk_token=names["unk"], max_input_chars_per_word=100))
    tokenizer.normalizer = normalizers.BertNormalizer(
        lowercase=options["do_lower_case"],
        strip_accents=options["strip_accents"],
        handle_chinese_chars=options["tokenize_chinese_chars"],
    )
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.decoder = decoders.WordPiece()
    tokenizer.post_processor = processors.BertProcessing(
        (names["sep"], ids[names["sep"]]), (names["cls"], ids[names["cls"]])
    )
    tokenizer.add_special_tokens([AddedToken(name, special=True, normalized=False) for name in names.values()])
    return tokenizer


def _read_config(directory: Path) -> TokenizerJson:
    """Return `tokenizer_config.json`, with the roles of `special_tokens_map.json` where it names none."""
    config: TokenizerJson = {}
    for name in (_SPECIAL_TOKENS_FILE, CONFIG_FILE):
        if (directory / name).is_file():
            config |= store.read_json(directory / name)
    return config


# ---------------------------------------------------------------- special tokens


def _find_special_tokens(
    tokenizer: Tokenizer, config: TokenizerJson, source: Path
) -> tuple[dict[str, str], SpecialIds]:
    """Return the special tokens' names and ids by role."""
    ids = tokenizer.get_vocab(with_added_tokens=True)
    names = {role: _token_of_role(role, ids, config) for role in _USUAL_NAMES}
    for role in _REQUIRED_ROLES:
        if names[role] is None:
            raise CheckpointError(
                f"{source}: has no {role} token", f"add {role}_token to {CONFIG_FILE} and the token to the tokenizer"
            )
    roles = {role: name for role, name in names.items() if name is not None}
    # A tokenizer without a padding or unknown token never produces one; their ids are set to [SEP]'s.
    return roles, SpecialIds(**{role: ids[roles.get(role, roles["sep"])] for role in _USUAL_NAMES})


def _token_of_role(role: str, ids: Mapping[str, int], config: TokenizerJson) -> str | None:
    """Return the name of a role's token, None if the tokenizer has none."""
    token = config.get(f"{role}_token")
    if isinstance(token, dict):
        token = token.get("content")
    candidates = (token, *_USUAL_NAMES[role])
    return next((name for name in candidates if isinstance(name, str) and name in ids), None)


def _adds_special_tokens(tokenizer: Tokenizer, special: SpecialIds) -> bool:
    """Return True if the tokenizer makes `[CLS] A [SEP]` and `[CLS] A [SEP] B [SEP]` with segments, as is done here."""
    ids = tokenizer.encode("a", add_special_tokens=False).ids
    single = tokenizer.encode("a")
    pair = tokenizer.encode("a", "a")
    return (
        single.ids == [special.cls, *ids, special.sep]
        and pair.ids == [special.cls, *ids, special.sep, *ids, special.sep]
        and pair.type_ids == [0] * (len(ids) + 2) + [1] * (len(ids) + 1)
    )


def _build_post_processor(tokenizer: Tokenizer, roles: Mapping[str, str], special: SpecialIds) -> Any:
    """Return the step that adds [CLS] and [SEP], with segment ids, for other programs."""
    from tokenizers import processors

    cls = roles["cls"]
    sep = roles["sep"]
    template = processors.TemplateProcessing(
        single=f"{cls}:0 $A:0 {sep}:0",
        pair=f"{cls}:0 $A:0 {sep}:0 $B:1 {sep}:1",
        special_tokens=[(cls, special.cls), (sep, special.sep)],
    )
    if not _has_step(json.loads(tokenizer.to_str()), "ByteLevel"):
        return template
    # With `trim_offsets` a token's offsets exclude the space before the word.
    return processors.Sequence([processors.ByteLevel(trim_offsets=True), template])


def _hide_names(content: TokenizerJson, names: set[str]) -> None:
    """Rename tokens in the content of a `tokenizer.json`, in place, so that no text matches them; ids stay equal."""
    model = content["model"]
    names = names - {model.get("unk_token")}
    if isinstance(model["vocab"], dict):
        model["vocab"] = {_HIDDEN + piece if piece in names else piece: i for piece, i in model["vocab"].items()}
    else:
        model["vocab"] = [[_HIDDEN + piece if piece in names else piece, score] for piece, score in model["vocab"]]
    if "merges" in model:
        pairs = [merge.split(" ") if isinstance(merge, str) else merge for merge in model["merges"]]
        # Merges that build a name, or build on one, are left out.
        model["merges"] = [pair for pair in pairs if names.isdisjoint({*pair, "".join(pair)})]
    for token in content["added_tokens"]:
        if token["content"] in names:
            token["content"] = _HIDDEN + token["content"]


# ---------------------------------------------------------------- pieces as text


def _text_pieces(pieces: Sequence[str], content: TokenizerJson) -> list[str]:
    """Return the pieces as text with the word mark before each word."""
    prefix = content["model"].get("continuing_subword_prefix")
    if content["model"]["type"] == "WordPiece":
        return [piece.removeprefix(prefix) if piece.startswith(prefix) else WORD_MARK + piece for piece in pieces]
    if _has_step(content, "ByteLevel"):
        to_byte = _byte_level_alphabet()
        return [_decode_byte_level(piece, to_byte) for piece in pieces]
    return list(pieces)


def _decode_byte_level(piece: str, to_byte: Mapping[str, int]) -> str:
    """Return the text of a byte-level piece; parts of a character become U+FFFD."""
    if not all(character in to_byte for character in piece):
        return piece
    text = bytes(to_byte[character] for character in piece).decode("utf-8", "replace")
    return WORD_MARK + text[1:] if text.startswith(" ") else text


def _byte_level_alphabet() -> dict[str, int]:
    """Return the byte of each character of GPT-2's alphabet: printable bytes stand for themselves."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    unprintable = [byte for byte in range(256) if byte not in printable]
    alphabet = {chr(byte): byte for byte in printable}
    return alphabet | {chr(256 + number): byte for number, byte in enumerate(unprintable)}


def _has_step(content: TokenizerJson, kind: str) -> bool:
    """Return True if the pre-tokenizer has a step of this kind."""
    step = content.get("pre_tokenizer") or {}
    steps = step.get("pretokenizers", [step])
    return any(part.get("type") == kind for part in steps)


def _first_word_is_unmarked(content: TokenizerJson) -> bool:
    """Return True if the first word of a text has no word mark, as in byte-level vocabularies."""
    return _has_step(content, "ByteLevel")
