"""The `tokenizers` backend of vocabularies: any `tokenizer.json` (Unigram, WordPiece, BPE) or `vocab.txt`.

Text never becomes a token with one of the five roles, even if it contains the token's name. The only exception is the
unknown token, which replaces text without a piece. The names of other special tokens, such as "[E1]" before an entity,
become these tokens, as in transformers.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from albert_cli import store
from albert_cli.errors import CheckpointError
from albert_cli.text.pieces import has_word_mark, is_byte_level, marks_words, pieces_as_text, word_suffix
from albert_cli.text.special_tokens import REQUIRED_ROLES, USUAL_NAMES, find_marker_names, find_special_names
from albert_cli.text.unigram import BYTE_TOKEN
from albert_cli.text.vocabulary import (
    CONFIG_FILE,
    TOKENIZER_FILE,
    WORDPIECE_FILE,
    SpecialIds,
    Vocabulary,
    iter_text_batches,
)
from albert_cli.text.wordpiece import DEFAULT_OPTIONS, build_wordpiece, use_configured_normalizer
from albert_cli.text.words import WordBoundaries, WordRule

if TYPE_CHECKING:
    from tokenizers import Tokenizer

TokenizerJson: TypeAlias = dict[str, Any]  # JSON of Hugging Face's libraries, which publish no schema
_SPECIAL_TOKENS_FILE: Final = "special_tokens_map.json"
# Tokens that are not text, although the tokenizer may not mark them as special.
_RESERVED_TOKEN: Final = re.compile(r"\[unused\d+\]|<unused\d+>|<extra_id_\d+>|<0x[0-9A-F]{2}>")
_HIDDEN_PREFIX: Final = "\uffff"  # not a character in Unicode, so no text contains a name that begins with it
# Memory holds an entry for each id up to the largest. Removed tokens leave ids unused, but not nearly all ids.
_MAX_USUAL_ID: Final = 100_000
_MAX_ID_PER_TOKEN: Final = 10

# Rayon's threads would compete with the worker processes; encoding stays on the calling thread.
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")


class TokenizersVocabulary(Vocabulary):
    """A tokenizer of the `tokenizers` library, which normalizes text itself.

    marker_ids: the ids of the special tokens without a role, such as markers of entities, which users write into texts.
    """

    def __init__(self, tokenizer: Tokenizer, config: TokenizerJson, source: Path) -> None:
        """Configure the tokenizer in place.

        Raises `CheckpointError` if it lacks a special token that models need, or has an id far above their number.

        config: the content of `tokenizer_config.json`, with the names of special tokens where they are not the usual
        ones; source: the tokenizer's file, for errors.
        """
        ids = tokenizer.get_vocab(with_added_tokens=True)
        _check_largest_id(ids, source)
        self._names_by_role, special = _find_special_tokens(ids, config, source)
        # transformers adds the listed tokens, too, if the tokenizer's file has their names only as pieces. Adding a
        # special token again would reset its options, such as `lstrip`.
        added = {token.content for token in tokenizer.get_added_tokens_decoder().values() if token.special}
        tokenizer.add_special_tokens([name for name in find_marker_names(ids, config) if name not in added])
        tokenizer.no_padding()
        tokenizer.no_truncation()
        if not _adds_special_tokens(tokenizer, special):
            tokenizer.post_processor = _build_post_processor(tokenizer, self._names_by_role, special)
        self._json = tokenizer.to_str(pretty=False)
        self._config = dict(config)
        pieces_by_id = {index: piece for piece, index in ids.items()}
        pieces = [pieces_by_id.get(index, "") for index in range(max(pieces_by_id) + 1)]
        added_tokens = tokenizer.get_added_tokens_decoder()
        special_ids = {index for index, token in added_tokens.items() if token.special} | set(special)
        byte_ids = {index for index in special_ids if BYTE_TOKEN.fullmatch(pieces[index])}
        self.marker_ids = {i for i in special_ids - set(special) if not _RESERVED_TOKEN.fullmatch(pieces[i])}
        tokenizer.encode_special_tokens = True  # names of special tokens in a text are text
        self._tokenizer = self._build_encoder(set()) if self.marker_ids else tokenizer
        # No text may get the id of a special token that is not a marker, except those of bytes and of the unknown
        # token.
        self._forbidden_ids = special_ids - self.marker_ids - byte_ids
        if "unk" in self._names_by_role:  # else `special.unk` is [SEP]'s id, which no text may get
            self._forbidden_ids.discard(special.unk)
        content = json.loads(self._json)
        has_mark = has_word_mark(tokenizer)
        self.marks_words = marks_words(content, has_mark)
        text_pieces = pieces_as_text(pieces, content, has_mark)
        for index, piece in enumerate(pieces):
            if not piece or index in special_ids or _RESERVED_TOKEN.fullmatch(piece):
                text_pieces[index] = ""
        super().__init__(pieces, text_pieces, special, cleaning=None)
        self.word_suffix = word_suffix(content)
        # The next token begins a word, although it may have no word mark: the first word of a text follows [CLS] or
        # [SEP]. A byte-level tokenizer puts the word mark only where the text has a space, so not before that word.
        self._separators: list[int] = []
        if self.word_suffix or is_byte_level(content):
            self._separators = [special.cls, special.sep]
        if self.word_suffix:  # added tokens and unknown text have no suffix
            self._separators += [special.unk, *added_tokens]
            self._separators += [index for index, piece in enumerate(pieces) if piece.endswith(self.word_suffix)]
        self._separators += self.marker_ids  # text directly after a marker has no word mark either
        self._whole_words = list(self.marker_ids)
        # The unknown token replaces a whole word, or is one of the tokens that are words.
        replaces_words = content["model"]["type"] in ("WordPiece", "WordLevel") or not self.marks_words
        if replaces_words and "unk" in self._names_by_role:
            self._whole_words.append(special.unk)

    @cached_property
    def fingerprint(self) -> str:
        """16 hexadecimal digits that change with the tokenizer or the roles of its special tokens."""
        content = f"{self._json}\n{sorted(self._names_by_role.items())}"
        return hashlib.sha256(content.encode()).hexdigest()[:16]

    def encode_batch(self, texts: Sequence[str]) -> list[list[int]]:
        """Return the token ids of each text, without special tokens; runs on the calling thread."""
        ids: list[list[int]] = []
        for batch in iter_text_batches(texts):
            encodings = self._tokenizer.encode_batch_fast(batch, add_special_tokens=False)
            ids += [encoding.ids for encoding in self._without_special_tokens(batch, encodings)]
        return ids

    def encode_continuation(self, text: str) -> list[int]:
        """Return the token ids of a text as if it followed directly after the mask token."""
        mask_name = self._names_by_role["mask"]
        ids = _encode_after(mask_name, self.mask_id, text, self._tokenizer)
        if self._forbidden_ids.isdisjoint(ids):
            return ids
        # The text contains the name of a special token, which only `_nameless_tokenizer` encodes as text.
        return _encode_after(_HIDDEN_PREFIX + mask_name, self.mask_id, text, self._nameless_tokenizer)

    def _encode_by_tokenizers(self, texts: list[str]) -> list[Any]:
        """Return an `Encoding` with offsets for each text, which takes longer than `encode_batch`."""
        return self._without_special_tokens(texts, self._tokenizer.encode_batch(texts, add_special_tokens=False))

    def _without_special_tokens(self, texts: list[str], encodings: list[Any]) -> list[Any]:
        """Return the encodings; a text in which a special token's name became that token is encoded again as text."""
        corrected = []
        for text, encoding in zip(texts, encodings, strict=True):
            if not self._forbidden_ids.isdisjoint(encoding.ids):
                encoding = self._nameless_tokenizer.encode(text, add_special_tokens=False)
            corrected.append(encoding)
        return corrected

    @cached_property
    def _nameless_tokenizer(self) -> Tokenizer:
        """The tokenizer with the special tokens renamed, so that no text contains their names.

        It is necessary if the names are also pieces of the model. With `encode_special_tokens` alone, text that
        contains a name would still be encoded as this piece.
        """
        return self._build_encoder({self.pieces[index] for index in self._forbidden_ids})

    def _build_encoder(self, hidden_names: set[str]) -> Tokenizer:
        """Return the tokenizer with markers that are found in texts, and with these names of special tokens hidden."""
        from tokenizers import Tokenizer

        content = json.loads(self._json)
        _hide_names(content, hidden_names)
        for token in content["added_tokens"]:
            if token["id"] in self.marker_ids:
                token["special"] = False  # else `encode_special_tokens` would split the marker into pieces
        tokenizer = Tokenizer.from_str(json.dumps(content))
        tokenizer.encode_special_tokens = True
        return tokenizer

    def word_boundaries(self, rule: WordRule = "script") -> WordBoundaries:
        """Return the flags of the tokens that begin a word (see `words`)."""
        boundaries = super().word_boundaries(rule)
        # The flags are set in the boundaries that the base class caches, so calling this again changes nothing.
        boundaries.separates[self._separators] = True
        boundaries.starts[self._whole_words] = True
        return boundaries

    def decode(self, ids: Iterable[int]) -> str:
        """Return the text of token ids; special tokens appear by name, padding is left out."""
        padding = {self.pad_id} if "pad" in self._names_by_role else set()  # without it, `pad_id` is [SEP]'s id
        visible = [index for index in ids if index not in padding]
        return " ".join(str(self._tokenizer.decode(visible, skip_special_tokens=False)).split())

    def copy_to(self, directory: Path, model_max_length: int = 512) -> None:
        """Write `tokenizer.json` and `tokenizer_config.json`.

        model_max_length: tokens to which other programs truncate a text.
        """
        store.write_text(directory / TOKENIZER_FILE, self._json + "\n")
        config = {key: value for key, value in self._config.items() if key in DEFAULT_OPTIONS}
        config |= {
            "tokenizer_class": "PreTrainedTokenizerFast",
            "model_input_names": ["input_ids", "token_type_ids", "attention_mask"],
            "model_max_length": model_max_length,
            "clean_up_tokenization_spaces": False,
            **{f"{role}_token": name for role, name in self._names_by_role.items()},
        }
        store.write_json(directory / CONFIG_FILE, config)


def _encode_after(special_name: str, special_id: int, text: str, tokenizer: Tokenizer) -> list[int]:
    """Return the token ids of a text as if it followed a special token, without the id of the special token."""
    tokenizer.encode_special_tokens = False  # the name before the text must become the special token
    try:
        ids: list[int] = tokenizer.encode(special_name + text, add_special_tokens=False).ids
    finally:
        tokenizer.encode_special_tokens = True
    return ids[ids.index(special_id) + 1 :]


# ---------------------------------------------------------------- reading


def read_tokenizer_files(directory: Path) -> TokenizersVocabulary:
    """Read `tokenizer.json`, else `vocab.txt`; raise `CheckpointError` if neither can be used."""
    path = directory / TOKENIZER_FILE
    if not store.exists_or_is_listed(path):
        return read_wordpiece(directory / WORDPIECE_FILE)
    config = _read_config(directory)
    tokenizer = _parse_tokenizer(path)
    use_configured_normalizer(tokenizer, directory, config)
    return TokenizersVocabulary(tokenizer, config, path)


def read_wordpiece(path: Path, defaults: Mapping[str, object] | None = None) -> TokenizersVocabulary:
    """Read a `vocab.txt` of any name; raise `CheckpointError` if it cannot be used.

    defaults: values for keys that the `tokenizer_config.json` next to it lacks.
    """
    config = {**(defaults or {}), **_read_config(path.parent)}
    return TokenizersVocabulary(build_wordpiece(path, config), config, path)


def _parse_tokenizer(path: Path) -> Tokenizer:
    """Read a `tokenizer.json`; raise `CheckpointError` if the file contains no tokenizer."""
    from tokenizers import Tokenizer

    content = store.read_bytes(path)
    try:
        return Tokenizer.from_str(content.decode())
    except Exception as error:  # the library raises plain exceptions
        raise CheckpointError(f"{path}: not a tokenizer of the `tokenizers` library ({error})") from None


def _read_config(directory: Path) -> TokenizerJson:
    """Return the content of `special_tokens_map.json`, overridden by that of `tokenizer_config.json`."""
    config: TokenizerJson = {}
    for name in (_SPECIAL_TOKENS_FILE, CONFIG_FILE):
        if store.exists_or_is_listed(directory / name):
            config |= store.read_json(directory / name)
    return config


# ---------------------------------------------------------------- special tokens


def _check_largest_id(ids: Mapping[str, int], source: Path) -> None:
    """Raise `CheckpointError` if an id is far above the number of tokens; ids: by token."""
    largest_id = max(ids.values(), default=0)
    if largest_id > _MAX_ID_PER_TOKEN * len(ids) + _MAX_USUAL_ID:
        message = f"{source}: has only {len(ids):,} tokens, but the id {largest_id:,}"
        raise CheckpointError(message, "number the tokens from 0 without holes")


def _find_special_tokens(
    ids: Mapping[str, int], config: TokenizerJson, source: Path
) -> tuple[dict[str, str], SpecialIds]:
    """Return the names of the special tokens by role, without roles that the tokenizer lacks, and an id for each role.

    ids: by token. Raises `CheckpointError` if a required token is missing.
    """
    names_by_role = find_special_names(ids, config)
    for role in REQUIRED_ROLES:
        if role not in names_by_role:
            hint = f"add {role}_token to {CONFIG_FILE} and the token to the tokenizer"
            raise CheckpointError(f"{source}: has no {role} token", hint)
    # A tokenizer without a padding or unknown token never produces one, so [SEP]'s id can fill the role.
    sep_name = names_by_role["sep"]
    return names_by_role, SpecialIds(**{role: ids[names_by_role.get(role, sep_name)] for role in USUAL_NAMES})


def _adds_special_tokens(tokenizer: Tokenizer, special: SpecialIds) -> bool:
    """Return True if the tokenizer adds special tokens and segment ids to a text and to a pair as this program does.

    A text becomes `[CLS] A [SEP]` in segment 0. A pair becomes `[CLS] A [SEP]` in segment 0 and `B [SEP]` in segment 1.
    """
    ids = tokenizer.encode("a", add_special_tokens=False).ids
    single = tokenizer.encode("a")
    pair = tokenizer.encode("a", "a")
    return (
        single.ids == [special.cls, *ids, special.sep]
        and pair.ids == [special.cls, *ids, special.sep, *ids, special.sep]
        and pair.type_ids == [0] * (len(ids) + 2) + [1] * (len(ids) + 1)
    )


def _build_post_processor(tokenizer: Tokenizer, names_by_role: Mapping[str, str], special: SpecialIds) -> Any:
    """Return the step with which a tokenizer in other programs adds [CLS], [SEP] and segment ids."""
    from tokenizers import processors

    cls = names_by_role["cls"]
    sep = names_by_role["sep"]
    template = processors.TemplateProcessing(
        single=f"{cls}:0 $A:0 {sep}:0",
        pair=f"{cls}:0 $A:0 {sep}:0 $B:1 {sep}:1",
        special_tokens=[(cls, special.cls), (sep, special.sep)],
    )
    if not is_byte_level(json.loads(tokenizer.to_str())):
        return template
    # With `trim_offsets`, the offsets of a byte-level token exclude the space before the word, as in other tokenizers.
    return processors.Sequence([processors.ByteLevel(trim_offsets=True), template])


def _hide_names(content: TokenizerJson, names: set[str]) -> None:
    """Rename tokens in the content of a `tokenizer.json`, in place, so that no text matches them; ids stay equal."""
    model = content["model"]
    names = names - {model.get("unk_token")}  # the model refers to the unknown token by its name

    def hide(piece: str) -> str:
        return _HIDDEN_PREFIX + piece if piece in names else piece

    if isinstance(model["vocab"], dict):
        model["vocab"] = {hide(piece): index for piece, index in model["vocab"].items()}
    else:  # Unigram: (piece, score) by id
        model["vocab"] = [[hide(piece), score] for piece, score in model["vocab"]]
    if "merges" in model:  # BPE
        pairs = [merge.split(" ") if isinstance(merge, str) else merge for merge in model["merges"]]
        # Pairs that contain a name, or merge to one, refer to pieces that no longer exist.
        model["merges"] = [pair for pair in pairs if names.isdisjoint({*pair, "".join(pair)})]
    for token in content["added_tokens"]:
        token["content"] = hide(token["content"])
