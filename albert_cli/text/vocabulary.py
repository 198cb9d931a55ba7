"""The SentencePiece vocabulary: loading one, encoding with it, and training one as the paper did."""

from __future__ import annotations

import hashlib
import string
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from albert_cli import console, store
from albert_cli.errors import BusyError, CheckpointError, ConfigError, InputError
from albert_cli.text import statistics
from albert_cli.text.clean import Cleaning, clean, clean_batch
from albert_cli.text.corpus import OnBadBytes, OnLongLine, ReadSettings, describe_sources, read_documents
from albert_cli.text.sampling import clean_in_place, draw, losses, warn_of_losses
from albert_cli.text.tokenizer_json import (
    SPECIAL_TOKENS,
    penalise_digit_comma,
    read_model,
    tokenizer_config,
    tokenizer_json,
)
from albert_cli.text.unigram import CONTROL_SYMBOLS, USER_DEFINED_SYMBOLS, announce, cut, is_too_long, train

if TYPE_CHECKING:
    import numpy as np

    from albert_cli.text.corpus import Document

MODEL, TOKENIZER, CONFIG, REPORT = (
    "spiece.model",
    "tokenizer.json",
    "tokenizer_config.json",
    "vocabulary.json",
)

_PLAIN = frozenset(string.ascii_letters + string.punctuation)
_ENOUGH_TO_HOLD_BACK = 10_000  # sentences
_REQUEST = "request.json"  # in a directory that is being made: what was asked for


class Vocabulary:
    """A SentencePiece unigram model with its cleaning: ids of text, and what masking must know of them."""

    def __init__(self, model: bytes, cleaning: Cleaning, source: Path | None = None) -> None:
        """Take the bytes of a `spiece.model`; `source` is the directory that they came from.

        Raises `CheckpointError` when it is no SentencePiece model or lacks ALBERT's special pieces.
        """
        from google.protobuf.message import DecodeError
        from sentencepiece import SentencePieceProcessor

        where = source / MODEL if source else MODEL
        try:
            self._proto = read_model(model)
            is_adapted = penalise_digit_comma(self._proto)
            self._processor = SentencePieceProcessor(
                model_proto=self._proto.SerializeToString() if is_adapted else model
            )
        except (DecodeError, RuntimeError) as error:
            raise CheckpointError(f"{where}: not a SentencePiece model") from error
        self._model, self._source, self.cleaning = model, source, cleaning
        self.pieces: list[str] = [p.piece for p in self._proto.pieces]
        self.size = len(self.pieces)
        ids = {piece: index for index, piece in enumerate(self.pieces)}
        missing = [token for token in SPECIAL_TOKENS.values() if token not in ids]
        if missing:
            raise CheckpointError(
                f"{where}: not an ALBERT vocabulary, it has no piece {', '.join(missing)}",
                "make one with `albert vocab`; SentencePiece's default ids do not fit",
            )
        self.pad_id, self.unk_id, self.cls_id, self.sep_id, self.mask_id = (
            ids[token] for token in SPECIAL_TOKENS.values()
        )

    @classmethod
    def load(cls, directory: Path | str) -> Vocabulary:
        """Read a vocabulary directory, the `vocabulary/` of a data directory, or any ALBERT model directory.

        Raises `CheckpointError` where there is no `spiece.model` of ALBERT's kind.
        """
        directory = Path(directory)
        if not (directory / MODEL).is_file() and (directory / "vocabulary" / MODEL).is_file():
            directory = directory / "vocabulary"
        if not (directory / MODEL).is_file():
            reason = f"no {MODEL} in it" if directory.is_dir() else "no such directory"
            raise CheckpointError(f"{directory}: {reason}", "give a directory made by `albert vocab`, or a model's")
        config = store.read_json(directory / CONFIG) if (directory / CONFIG).is_file() else {}
        return cls((directory / MODEL).read_bytes(), Cleaning.from_json(config), directory)

    @cached_property
    def fingerprint(self) -> str:
        """16 hexadecimal digits that change with the pieces or with the cleaning."""
        return hashlib.sha256(self._model + repr(self.cleaning).encode()).hexdigest()[:16]

    def encode(self, text: str) -> list[int]:
        """The piece ids of `text`, cleaned first; no special tokens."""
        ids: list[int] = self._processor.encode(clean(text, self.cleaning))
        return ids

    def encode_continued(self, text: str) -> list[int]:
        """`encode` for text that goes on right after a special piece: no word begins at its first character."""
        ids: list[int] = self._continuing.encode(clean(text, self.cleaning))
        return ids

    @cached_property
    def _continuing(self) -> Any:
        from sentencepiece import SentencePieceProcessor

        proto = type(self._proto)()
        proto.CopyFrom(self._proto)
        proto.normalizer_spec.add_dummy_prefix = False
        return SentencePieceProcessor(model_proto=proto.SerializeToString())

    def encode_batch(self, texts: Sequence[str]) -> list[list[int]]:
        """`encode` for many texts at once, on the calling thread."""
        return self.encode_cleaned(clean_batch(texts, self.cleaning))

    def encode_cleaned(self, texts: Sequence[str]) -> list[list[int]]:
        """The piece ids of texts that need no cleaning any more, on the calling thread."""
        ids: list[list[int]] = self._processor.encode(list(texts), num_threads=1)
        return ids

    def spans_of_cleaned(self, text: str) -> list[tuple[int, int, int]]:
        """(id, begin, end) of each piece of a cleaned text, where `text[begin:end]` has the space before a word too."""
        from sentencepiece.sentencepiece_pb2 import SentencePieceText

        # Of the forms that tell places this is the one that every release of SentencePiece 0.2 has.
        found = SentencePieceText.FromString(self._processor.encode(text, out_type="serialized_proto"))
        if text.isascii():
            return [(p.id, p.begin, p.end) for p in found.pieces]
        place = [0]  # of each byte's character
        for number, character in enumerate(text, start=1):
            place += [number] * len(character.encode())
        return [(p.id, place[p.begin], place[p.end]) for p in found.pieces]

    def decode(self, ids: Iterable[int]) -> str:
        """The text of piece ids; special tokens are shown by name, padding is left out."""
        parts: list[str] = []
        for index in ids:
            if index != self.pad_id:
                is_special = index < self.first_ordinary_id
                parts.append(f" {self.pieces[index]} " if is_special else self.pieces[index].replace("▁", " "))
        return " ".join("".join(parts).split())

    def cut(self, size: int) -> Vocabulary:
        """The `size` pieces of this vocabulary that its unigram model gives the highest scores, as one of its own.

        Special pieces, symbols and single characters stay, so that it may hold more than `size`.
        """
        return Vocabulary(cut(self._proto, size), self.cleaning)

    @cached_property
    def first_ordinary_id(self) -> int:
        """Ids below are padding, unknown and control pieces; at it and above are pieces of text."""
        special = {self.pad_id, self.unk_id, self.cls_id, self.sep_id, self.mask_id}
        of_text = (p.type in (p.NORMAL, p.USER_DEFINED) and i not in special for i, p in enumerate(self._proto.pieces))
        return next((index for index, is_text in enumerate(of_text) if is_text), self.size)

    @cached_property
    def is_word_start(self) -> np.ndarray[Any, np.dtype[np.bool_]]:
        """bool [V]: whether a piece begins a word for whole-word and n-gram masking.

        The rule of the reference's data creation: a piece with the word mark or of the form "<…>", a single
        ASCII punctuation character, or one with any character beyond ASCII letters and punctuation (so that
        digits and letters of other scripts are words of their own). Special pieces never continue a word.
        """
        import numpy as np

        starts = [
            index < self.first_ordinary_id
            or piece.startswith(("▁", "<"))
            or (len(piece) == 1 and piece in string.punctuation)
            or not _PLAIN.issuperset(piece)
            for index, piece in enumerate(self.pieces)
        ]
        return np.array(starts, dtype=np.bool_)

    @cached_property
    def _tokenizer_json(self) -> str:
        return tokenizer_json(self._proto, self.cleaning)

    def copy_to(self, directory: Path, model_max_length: int = 512) -> None:
        """Write `spiece.model`, `tokenizer.json` and `tokenizer_config.json` into an existing directory.

        model_max_length: the positions of the model beside it, to which other programs cut what they encode.
        """
        store.write_bytes(directory / MODEL, self._model)
        store.write_text(directory / TOKENIZER, self._tokenizer_json + "\n")
        store.write_text(directory / CONFIG, tokenizer_config(self.cleaning, model_max_length) + "\n")


# ---------------------------------------------------------------- training


def build(
    sources: Sequence[str],
    out: Path | str,
    size: int = 30_000,
    cleaning: Cleaning | None = None,
    *,
    sample_size: int = 2_000_000,
    character_coverage: float = 0.99995,
    seed: int = 0,
    language: str = "en",
    on_bad_bytes: OnBadBytes = "refuse",
    text_field: str = "text",
    max_line: int = ReadSettings.max_line,
    on_long_line: OnLongLine = "refuse",
) -> dict[str, Any]:
    """Train a vocabulary of `size` pieces on the sources' text and write its directory; returns the report.

    Training sees at most `sample_size` sentences, drawn uniformly from all sources. When `out` holds the
    result of the same call already, its report is returned with `"up_to_date": True`.

    Raises `InputError` for unreadable or empty sources and for text that does not allow `size` pieces,
    `ConfigError` for an impossible option, `BusyError` when `out` holds something else.
    """
    out, cleaning = Path(out), cleaning or Cleaning()
    _check_options(size, sample_size, character_coverage, seed)
    request: dict[str, Any] = {
        "size": size,
        "cleaning": asdict(cleaning),
        "sample_size": sample_size,
        "character_coverage": character_coverage,
        "seed": seed,
        "language": language,
        "on_bad_bytes": on_bad_bytes,
        "text_field": text_field,
        "max_line": ReadSettings(max_line=max_line).max_line,
        "on_long_line": on_long_line,
    }
    _refuse_foreign(out)
    request["sources"] = describe_sources(sources)
    if (finished := _finished(out, request)) is not None:
        console.note(f"{out}: up to date")
        return finished
    with _making(out, request):
        documents = read_documents(sources, on_bad_bytes, text_field, max_line, on_long_line)
        vocabulary, report = _train(documents, request, cleaning)
        with store.publish(out, "vocabulary") as staging:
            vocabulary.copy_to(staging)
            store.write_json(staging / REPORT, report)
    return {"directory": str(out), "fingerprint": store.fingerprint(out), "up_to_date": False, **report}


def _train(
    documents: Iterable[Document], request: Mapping[str, Any], cleaning: Cleaning
) -> tuple[Vocabulary, dict[str, Any]]:
    """A vocabulary as requested, and its report."""
    sample = draw(documents, request["sample_size"], request["seed"], request["language"], announce)
    sentences = sample.sentences
    lost = losses(sentences, cleaning)
    warn_of_losses(lost, sentences)
    clean_in_place(sentences, cleaning)
    if not sentences:
        named = ", ".join(str(source["source"]) for source in request["sources"])
        raise InputError(f"no text in {named}", "a vocabulary needs at least some thousand sentences")
    held_back = sentences[99::100] if len(sentences) >= _ENOUGH_TO_HOLD_BACK else []
    if held_back:
        del sentences[99::100]
    model = train(sentences, request["size"], request["character_coverage"], request["seed"])
    vocabulary = Vocabulary(model, cleaning)
    report = {
        "request": request,
        "documents": sample.documents,
        "sentences": {
            "read": sample.read,
            "training": len(sentences),
            "too_long": sum(map(is_too_long, sentences)),
            "held_back": len(held_back),
        },
        "characters": sum(map(len, sentences)),
        "losses": {switch: asdict(loss) for switch, loss in lost.items()},
        **statistics.measure(vocabulary, held_back or sentences),
    }
    return vocabulary, report


def summary(report: Mapping[str, Any]) -> str:
    """A report of `build` in a few lines for a person."""
    size, counts = report["request"]["size"], report["sentences"]
    head = (
        f"{report['directory']}: {size:,} pieces from {counts['training']:,} of {counts['read']:,} sentences"
        f" ({report['characters'] / 1e6:.1f} M characters)"
    )
    return "\n".join([head, *statistics.lines(report)])


@contextmanager
def _making(out: Path, request: Mapping[str, Any]) -> Iterator[None]:
    """Hold `out`, marked as unfinished, while the block runs; after a failure nothing of it is left."""
    with store.lock(out):
        store.remove_leftovers(out)
        store.write_json(out / _REQUEST, request)
        try:
            yield
        except BaseException:
            for name in (MODEL, TOKENIZER, CONFIG, REPORT, _REQUEST):
                (out / name).unlink(missing_ok=True)
            raise
        (out / _REQUEST).unlink()


def _check_options(size: int, sample_size: int, character_coverage: float, seed: int) -> None:
    smallest = 2 + len(CONTROL_SYMBOLS) + len(USER_DEFINED_SYMBOLS)
    if size <= smallest:
        raise ConfigError(f"a vocabulary of {size} pieces is too small", f"the symbols alone take {smallest}")
    if size >= 2**31:
        raise ConfigError(f"a vocabulary of {size} pieces is too large", "the paper's has 30000")
    if not 0 <= seed < 2**32:
        raise ConfigError(f"the seed must lie between 0 and 4294967295, not {seed}")
    if sample_size < 1:
        raise ConfigError(f"the sample size must be positive, not {sample_size}")
    if not 0.9 <= character_coverage <= 1:
        raise ConfigError(f"the character coverage must lie between 0.9 and 1, not {character_coverage}")


def _refuse_foreign(out: Path) -> None:
    """Say at once, not after the training, that `out` holds something that is no vocabulary, finished or not."""
    if not out.exists() or (out.is_dir() and not any(p.name != ".lock" for p in out.iterdir())):
        return
    manifest = store.read_manifest(out) if out.is_dir() else None
    if manifest is None and (out / _REQUEST).is_file():
        return
    if manifest is None or manifest.kind != "vocabulary":
        what = "a file" if out.is_file() else "not empty" if manifest is None else f"a {manifest.kind} directory"
        raise BusyError(f"{out}: is {what}", "choose another --out or remove it")


def _finished(out: Path, request: Mapping[str, Any]) -> dict[str, Any] | None:
    """The report in `out` when the same request made it; `BusyError` when another one did."""
    if store.read_manifest(out) is None:
        return None
    (out / _REQUEST).unlink(missing_ok=True)  # there only if the process was killed after its last write
    manifest = store.verify(out, "vocabulary")
    report = store.read_json(out / REPORT)
    made = report["request"]
    different = [key for key in request if key != "sources" and request[key] != made.get(key)]
    if _identities(request["sources"]) != _identities(made["sources"]):
        different.append("sources")
    if different:
        raise BusyError(
            f"{out}: holds a vocabulary made with another {', '.join(different)}",
            "choose another --out or remove it",
        )
    return {"directory": str(out), "fingerprint": manifest.fingerprint(), "up_to_date": True, **report}


def _identities(described: Sequence[Mapping[str, Any]]) -> list[str]:
    return [str(source.get("sha256", source["source"])) for source in described]
