"""Build a SentencePiece vocabulary (`albert vocab`), trained as in the paper.

A uniform sample of the sources' sentences is cleaned, and 1 % of it is held out. The rest trains the unigram model. The
output directory contains `spiece.model`, `tokenizer.json` and `tokenizer_config.json` for other programs, and a report,
`vocabulary.json`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path

from albert_cli import console, store
from albert_cli.errors import BusyError, ConfigError, InputError
from albert_cli.formatting import hide_secrets
from albert_cli.text import token_statistics
from albert_cli.text.clean import Cleaning
from albert_cli.text.line_counts import LineCounts
from albert_cli.text.lines import text_lines
from albert_cli.text.normalization_report import AccentReport, measure_accent_stripping, warn_about_normalization
from albert_cli.text.parallel_reading import hash_work_units, sample_work_units
from albert_cli.text.read_settings import FileFormat, ReadSettings
from albert_cli.text.sampling import SentenceSample, clean_in_place
from albert_cli.text.sentencepiece_vocabulary import SentencePieceVocabulary
from albert_cli.text.source_parts import ReadCounter, SourcePart
from albert_cli.text.sources import TextSource, describe_format
from albert_cli.text.token_statistics import TokenStatistics
from albert_cli.text.unigram import (
    CONTROL_SYMBOLS,
    USER_DEFINED_SYMBOLS,
    log_training_estimate,
    normalize_symbols,
    total_utf8_size,
    train_unigram,
)
from albert_cli.text.vocabulary import CONFIG_FILE, MODEL_FILE, REQUEST_FILE, TOKENIZER_FILE, Vocabulary
from albert_cli.text.work_units import SourcePartRecord, WorkUnit, WorkUnitRecord, split_sources

REPORT_FILE = "vocabulary.json"
_MIN_SENTENCES_TO_HOLD_OUT = 10_000  # all of a smaller sample is trained on
_BYTES_PER_SENTENCE = 120  # for an estimate; the English Wikipedia has 112
_BYTE_TOKENS = 256  # of byte fallback: one for each value of a byte
_REQUIRED_TOKENS = 2 + len(CONTROL_SYMBOLS) + len(USER_DEFINED_SYMBOLS)  # 2: <pad> and <unk>


@dataclass(frozen=True)
class VocabularySettings:
    """The options of a vocabulary.

    * `size`: number of tokens.
    * `cleaning`: how every text is cleaned before it is encoded.
    * `sample_size`: maximum number of sentences to train on.
    * `character_coverage`: fraction of the text's characters that get a token.
    * `seed`: of the sample and of the training.
    * `language`: ISO 639 code for splitting into sentences.
    * `keep_zwnj`: keep the zero-width non-joiner (U+200C).
    * `symbols`: texts that become one token each; they are split only if pieces that overlap them score better.
    * `byte_fallback`: encode characters without a token as bytes.
    * `read`: how the sources are read.

    Raises `ConfigError` for impossible values.
    """

    size: int = 30_000
    cleaning: Cleaning = field(default_factory=Cleaning)
    sample_size: int = 2_000_000
    character_coverage: float = 0.99995
    seed: int = 0
    language: str = "en"
    keep_zwnj: bool = False
    symbols: tuple[str, ...] = ()
    byte_fallback: bool = False
    read: ReadSettings = field(default_factory=ReadSettings)

    def __post_init__(self) -> None:
        required = _REQUIRED_TOKENS + len(set(self.symbols))
        if self.byte_fallback:
            required += _BYTE_TOKENS
        if self.size <= required:
            raise ConfigError(f"--size {self.size}: too small", f"the special tokens and symbols alone take {required}")
        if self.byte_fallback and not self.cleaning.normal_form.startswith("NFK"):
            # With NFC, `tokenizers` and SentencePiece compose a few rare sequences differently. Without bytes both
            # results are one unknown token; with bytes the ids would differ.
            message = f"--byte-fallback: not possible with --normal-form {self.cleaning.normal_form}"
            raise ConfigError(message, "use --normal-form NFKC; SentencePiece replaces compatibility forms in any case")
        if self.size >= 2**31:
            raise ConfigError(f"--size {self.size}: too large", "the paper uses 30000")
        if not 0 <= self.seed < 2**32:
            raise ConfigError(f"--seed {self.seed}: must be between 0 and 4294967295")
        if self.sample_size < 1:
            raise ConfigError(f"--sample-size {self.sample_size}: must be positive")
        if not 0.9 <= self.character_coverage <= 1:
            raise ConfigError(f"--character-coverage {self.character_coverage}: must be between 0.9 and 1")

    def normalized_symbols(self) -> tuple[str, ...]:
        """Return the symbols as they occur in normalized text; raise `ConfigError` for one that cannot be a token."""
        return normalize_symbols(
            self.symbols, self.cleaning, keep_zwnj=self.keep_zwnj, byte_fallback=self.byte_fallback
        )


@dataclass(frozen=True)
class VocabularyRequest:
    """The settings and sources of a vocabulary, as its report records them."""

    settings: VocabularySettings
    sources: list[WorkUnitRecord]


@dataclass(frozen=True)
class SentenceCounts:
    """Numbers of sentences.

    read: in the sources; training, empty (after cleaning) and held_out: the parts of the sample.
    """

    read: int
    training: int
    empty: int
    held_out: int


@dataclass(frozen=True)
class VocabularyReport:
    """The content of `vocabulary.json`: the request, the amount of text, and measurements of the vocabulary."""

    request: VocabularyRequest
    documents: int
    sentences: SentenceCounts
    characters: int
    lines: LineCounts
    accent_stripping: AccentReport | None
    tokens: TokenStatistics


@dataclass(frozen=True)
class BuiltVocabulary:
    """A vocabulary's directory with its report.

    fingerprint: the hash of the directory's files; up_to_date: True if an earlier command with the same request had
    built the directory.
    """

    directory: str
    fingerprint: str
    up_to_date: bool
    report: VocabularyReport


def read_symbols(path: Path, settings: ReadSettings) -> tuple[str, ...]:
    """Return the symbols of a file with one symbol per line; blank lines are skipped.

    settings: those of the text, of which the rules for bad bytes and long lines apply.
    """
    part = SourcePart(TextSource(str(path), "text"))
    lines = text_lines(part, settings, ReadCounter())
    return tuple(line.strip() for _, line in lines if line.strip())


def build_vocabulary(
    sources: Sequence[str], out: Path | str, settings: VocabularySettings | None = None, workers: int = 0
) -> BuiltVocabulary:
    """Train a vocabulary on the sources' text and write it to `out`; leave a finished directory unchanged.

    workers: processes that read; 0 means one per core. The vocabulary does not depend on their number. Raises
    `InputError` for unreadable or empty sources and for a size that the text does not allow, and `BusyError` if `out`
    contains other files, or a vocabulary that was built with other settings or sources.
    """
    out = Path(out)
    settings = settings or VocabularySettings()
    settings.normalized_symbols()  # raises an error before the text is read, not after
    units = split_sources(sources, settings.read)
    request = VocabularyRequest(settings, [unit.record for unit in units])
    manifest = store.read_finished_manifest(out, "vocabulary", REQUEST_FILE)
    if manifest is not None:
        report = _read_finished(out, request, units, workers)
        console.info(f"{out}: up to date")
        return BuiltVocabulary(str(out), manifest.fingerprint(), up_to_date=True, report=report)
    with _mark_unfinished(out, request):
        _log_early_estimate(units, settings)
        sample, hashes = sample_work_units(
            units, settings.read, settings.language, settings.sample_size, settings.seed, workers
        )
        records = _add_hashes(units, hashes)
        vocabulary, report = _train(sample, VocabularyRequest(settings, records), sources)
        with store.publish(out, "vocabulary") as staging:
            vocabulary.copy_to(staging)
            store.write_json(staging / REPORT_FILE, asdict(report))
    return BuiltVocabulary(str(out), store.fingerprint(out), up_to_date=False, report=report)


def _log_early_estimate(units: Sequence[WorkUnit], settings: VocabularySettings) -> None:
    """Print an estimate of the training's memory and time from the sizes of the files, before their text is read."""
    units_of_known_size = [unit for unit in units if unit.size > 0]
    if len(units_of_known_size) <= 1:  # read within seconds, and then `_train` prints a better estimate
        return
    text_bytes = sum(unit.text_size * unit.weight for unit in units)
    sentences = min(settings.sample_size, int(text_bytes / _BYTES_PER_SENTENCE))
    log_training_estimate(sentences, sentences * _BYTES_PER_SENTENCE, "about ")


def _add_hashes(units: Sequence[WorkUnit], hashes: Sequence[str | None]) -> list[WorkUnitRecord]:
    """Return the units' records with their SHA-256."""
    return [{**unit.record, "sha256": digest} for unit, digest in zip(units, hashes, strict=True)]


def _train(
    sample: SentenceSample, request: VocabularyRequest, sources: Sequence[str]
) -> tuple[SentencePieceVocabulary, VocabularyReport]:
    """Clean the sampled sentences, train on them, and measure the vocabulary.

    It is measured on the held-out sentences or, if the sample is too small to hold any out, on the training sentences.
    """
    settings = request.settings
    sentences = sample.sentences
    if sentences:
        log_training_estimate(len(sentences), total_utf8_size(sentences))
    accents = measure_accent_stripping(sentences, settings.cleaning)
    warn_about_normalization(accents, sentences, settings.cleaning, settings.keep_zwnj)
    n_sampled = len(sentences)
    clean_in_place(sentences, settings.cleaning)
    n_empty = n_sampled - len(sentences)
    names = ", ".join(map(hide_secrets, sources))
    if not sentences:
        raise InputError(f"no text in {names}", "a vocabulary needs at least some thousand sentences")
    held_out: list[str] = []
    if len(sentences) >= _MIN_SENTENCES_TO_HOLD_OUT:
        held_out = sentences[99::100]  # every hundredth
        del sentences[99::100]
    try:
        model = train_unigram(
            sentences,
            settings.size,
            settings.character_coverage,
            settings.seed,
            keep_zwnj=settings.keep_zwnj,
            symbols=settings.normalized_symbols(),
            byte_fallback=settings.byte_fallback,
        )
    except InputError as error:
        raise InputError(f"{names}: {error.message}", error.hint) from None
    vocabulary = SentencePieceVocabulary(model, settings.cleaning)
    measured_sentences = held_out if held_out else sentences
    counts = SentenceCounts(read=sample.sentences_read, training=len(sentences), empty=n_empty, held_out=len(held_out))
    report = VocabularyReport(
        request=request,
        documents=sample.documents,
        sentences=counts,
        characters=sum(map(len, sentences)),
        lines=sample.lines,
        accent_stripping=accents,
        tokens=token_statistics.measure_tokens(vocabulary, measured_sentences),
    )
    return vocabulary, report


def format_summary(built: BuiltVocabulary) -> str:
    """Return the summary that `albert vocab` prints: a few lines of the report."""
    report = built.report
    sentences = report.sentences
    details = [f"{report.characters / 1e6:.1f} M characters"]
    if sentences.held_out:
        details.append(f"{sentences.held_out:,} held out")
    if sentences.empty:
        details.append(f"{sentences.empty:,} empty after cleaning left out")
    head = (
        f"{built.directory}: {report.request.settings.size:,} tokens"
        f" from {sentences.training:,} of {sentences.read:,} sentences ({', '.join(details)})"
    )
    return "\n".join([head, *report.lines.format(), *_format_tokens(report)])


def _format_tokens(report: VocabularyReport) -> list[str]:
    """Return the lines about the vocabulary's tokens."""
    measured_text = "held-out" if report.sentences.held_out else "training"
    return token_statistics.format_statistics(report.tokens, measured_text)


def describe_vocabulary(directory: Path) -> tuple[dict[str, object], list[str]]:
    """Describe a vocabulary directory for `albert inspect`: return JSON values and the lines to print."""
    vocabulary = Vocabulary.load(directory)
    ordinary = [vocabulary.pieces[index] for index in vocabulary.ordinary_ids]
    printable = [token_statistics.replace_unprintable(piece.replace("▁", " ")) for piece in ordinary]
    lengths = [len(piece.removeprefix("▁")) for piece in ordinary]
    facts: dict[str, object] = {
        "size": vocabulary.size,
        "ordinary_tokens": len(ordinary),
        "word_starts": int(vocabulary.word_boundaries().starts.sum()),
        "mean_length": round(sum(lengths) / max(len(lengths), 1), 2),
        "longest": sorted(printable, key=lambda text: (-len(text), text))[:5],
        "first": printable[:20],
        "cleaning": asdict(vocabulary.cleaning) if vocabulary.cleaning else None,
    }
    lines = console.format_named_values(facts)
    if store.exists_or_is_listed(directory / REPORT_FILE):
        report = store.read_record(directory / REPORT_FILE, VocabularyReport)
        facts["report"] = asdict(report)
        lines += _format_tokens(report)
    return facts, lines


@contextmanager
def _mark_unfinished(out: Path, request: VocabularyRequest) -> Iterator[None]:
    """Lock `out` and mark it as unfinished while the block runs; remove its files if the block fails."""
    with store.lock(out):
        store.write_json(out / REQUEST_FILE, asdict(request))
        try:
            yield
        except BaseException:
            for name in (store.MANIFEST, MODEL_FILE, TOKENIZER_FILE, CONFIG_FILE, REPORT_FILE, REQUEST_FILE):
                (out / name).unlink(missing_ok=True)
            raise
        (out / REQUEST_FILE).unlink()


def _read_finished(out: Path, request: VocabularyRequest, units: Sequence[WorkUnit], workers: int) -> VocabularyReport:
    """Return a finished directory's report; raise `BusyError` if its request differs from this one."""
    # A process that was killed just before it removed the request and the staging files has left them.
    (out / REQUEST_FILE).unlink(missing_ok=True)
    store.remove_leftovers(out)
    store.verify(out, "vocabulary")
    report = store.read_record(out / REPORT_FILE, VocabularyReport)
    requested = asdict(request.settings)
    saved = asdict(report.request.settings)
    different = [name for name, value in requested.items() if saved[name] != value]
    records = _add_hashes(units, hash_work_units(units, workers))
    identities = [_content_identity(record, request.settings.read.format) for record in records]
    saved_format = report.request.settings.read.format
    if identities != [_content_identity(record, saved_format) for record in report.request.sources]:
        different.append("sources")
    if different:
        message = f"{out}: contains a vocabulary with other settings ({', '.join(different)})"
        raise BusyError(message, "choose another --out, or delete this directory")
    return report


def _content_identity(record: WorkUnitRecord, file_format: FileFormat) -> WorkUnitRecord:
    """Return a work unit's record without what may differ for the same text.

    With a hash, names do not count, because files may have moved. But a file's new name may change how the file is
    read, so its name is replaced by its format. Without a hash, the record is unchanged, because only the names
    identify the text. file_format: `--format` when the sources were resolved.
    """
    if record.get("sha256") is None:
        return record
    nameless_parts: list[SourcePartRecord] = []
    for part in record["parts"]:
        is_file = "bytes" in part
        nameless_parts.append({**part, "source": describe_format(part["source"], file_format) if is_file else ""})
    return {**record, "parts": nameless_parts}
