"""`albert vocab`: a SentencePiece vocabulary from any text, trained as the paper's was."""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from albert_cli import console, store
from albert_cli.errors import BusyError, ConfigError, InputError
from albert_cli.text import parallel_reading, token_statistics
from albert_cli.text.clean import Cleaning
from albert_cli.text.lines import ReadSettings
from albert_cli.text.sampling import SentenceSample, clean_in_place, measure_accent_stripping, warn_about_normalization
from albert_cli.text.unigram import (
    CONTROL_SYMBOLS,
    USER_DEFINED_SYMBOLS,
    exceeds_training_length,
    log_training_estimate,
    train_unigram,
    utf8_size,
)
from albert_cli.text.vocabulary import CONFIG_FILE, MODEL_FILE, TOKENIZER_FILE, Vocabulary
from albert_cli.text.work_units import ArrayJob, WorkUnit, split_sources

REPORT_FILE = "vocabulary.json"
_MIN_SENTENCES_TO_HOLD_OUT = 10_000  # sentences
_BYTES_PER_SENTENCE = 120  # about; 112 in the English Wikipedia
_MIN_SIZE = 2 + len(CONTROL_SYMBOLS) + len(USER_DEFINED_SYMBOLS)


class VocabularyReport(token_statistics.TokenStatistics):
    """`vocabulary.json`: what was asked for, how much text that was, and what the vocabulary is worth."""

    request: parallel_reading.VocabularyRequest
    documents: int
    characters: int


@dataclass(frozen=True)
class VocabularySettings:
    """What is asked for: `size` tokens, `sample_size` sentences at most; raises `ConfigError` for what cannot be."""

    size: int = 30_000
    cleaning: Cleaning = field(default_factory=Cleaning)
    sample_size: int = 2_000_000
    character_coverage: float = 0.99995
    seed: int = 0
    language: str = "en"
    read: ReadSettings = field(default_factory=ReadSettings)

    def __post_init__(self) -> None:
        if self.size <= _MIN_SIZE:
            raise ConfigError(f"a vocabulary of {self.size} tokens is too small", f"the symbols alone take {_MIN_SIZE}")
        if self.size >= 2**31:
            raise ConfigError(f"a vocabulary of {self.size} tokens is too large", "the paper's has 30000")
        if not 0 <= self.seed < 2**32:
            raise ConfigError(f"the seed must lie between 0 and 4294967295, not {self.seed}")
        if self.sample_size < 1:
            raise ConfigError(f"the sample size must be positive, not {self.sample_size}")
        if not 0.9 <= self.character_coverage <= 1:
            raise ConfigError(f"the character coverage must lie between 0.9 and 1, not {self.character_coverage}")


def build(
    sources: Sequence[str],
    out: Path | str,
    settings: VocabularySettings | None = None,
    workers: int = 0,
    share: ArrayJob = None,
) -> dict[str, Any]:
    """Train a vocabulary on the sources' text and write its directory; returns the report.

    workers: processes that read; 0 means one per core. share: (i, n) draws the sentences of the i-th of n shares of the
    text for a call without, which draws the rest itself. The vocabulary does not depend on either. What the same call
    has finished is left as it is. Raises `InputError` for unreadable or empty sources and for text that does not allow
    the size, `BusyError` when `out` holds something else.
    """
    out, settings = Path(out), settings or VocabularySettings()
    portions = split_sources(sources)
    request = asdict(settings)
    request |= {**request.pop("read"), "sources": [portion.sources for portion in portions]}
    manifest = store.read_finished_manifest(out, "vocabulary", parallel_reading.REQUEST, parallel_reading.FOLDER)
    if manifest is not None:
        report = _check_finished(out, request, portions, workers)
        console.info(f"{out}: up to date")
        return {"directory": str(out), "fingerprint": manifest.fingerprint(), "up_to_date": True, **report}
    if share:
        return parallel_reading.do_share(out, portions, settings, request, workers, share)
    with _mark_unfinished(out, request):
        if sum(portion.size > 0 for portion in portions) > 1:  # otherwise there is little to wait for
            whole = sum(portion.text_size * portion.weight for portion in portions)
            number = min(settings.sample_size, int(whole / _BYTES_PER_SENTENCE))
            log_training_estimate(number, number * _BYTES_PER_SENTENCE, "about ")
        sample, hashes = parallel_reading.draw_all(out, portions, settings, request, workers)
        sample.finish()
        for source, digest in zip(request["sources"], hashes, strict=True):
            source["sha256"] = digest
        vocabulary, report = _train(sample, settings, request, sources)
        with store.publish(out, "vocabulary") as staging:
            vocabulary.copy_to(staging)
            store.write_json(staging / REPORT_FILE, report)
    shutil.rmtree(out / parallel_reading.FOLDER, ignore_errors=True)
    return {"directory": str(out), "fingerprint": store.fingerprint(out), "up_to_date": False, **report}


def _train(
    sample: SentenceSample, settings: VocabularySettings, request: Mapping[str, Any], sources: Sequence[str]
) -> tuple[Vocabulary, dict[str, Any]]:
    sentences = sample.sentences
    if sentences:
        log_training_estimate(len(sentences), utf8_size(sentences))
    lost = measure_accent_stripping(sentences, settings.cleaning)
    warn_about_normalization(lost, sentences, settings.cleaning)
    clean_in_place(sentences, settings.cleaning)
    if not sentences:
        raise InputError(f"no text in {', '.join(sources)}", "a vocabulary needs at least some thousand sentences")
    held_back = sentences[99::100] if len(sentences) >= _MIN_SENTENCES_TO_HOLD_OUT else []
    if held_back:
        del sentences[99::100]
    model = train_unigram(sentences, settings.size, settings.character_coverage, settings.seed)
    vocabulary = Vocabulary(model, settings.cleaning)
    report = {
        "request": request,
        "documents": sample.documents,
        "sentences": {
            "read": sample.read,
            "training": len(sentences),
            "too_long": sum(map(exceeds_training_length, sentences)),
            "held_back": len(held_back),
        },
        "characters": sum(map(len, sentences)),
        "losses": {"strip_accents": asdict(lost)} if lost else {},
        **token_statistics.measure_tokens(vocabulary, held_back or sentences),
    }
    return vocabulary, report


def format_summary(report: Mapping[str, Any]) -> str:
    """A report of `build` in a few lines for a person."""
    if "job" in report:
        done = f"{report['jobs_finished']} of them are finished"
        return f"{report['directory']}: job {report['job']}, {report['sentences_read']:,} sentences read; {done}"
    size, counts = report["request"]["size"], report["sentences"]
    head = (
        f"{report['directory']}: {size:,} tokens from {counts['training']:,} of {counts['read']:,} sentences"
        f" ({report['characters'] / 1e6:.1f} M characters)"
    )
    return "\n".join([head, *token_statistics.format_statistics(report)])


def describe_vocabulary(directory: Path) -> tuple[dict[str, Any], list[str]]:
    """What a vocabulary's directory holds, as a mapping and as lines."""
    vocabulary = Vocabulary.load(directory)
    ordinary = vocabulary.pieces[vocabulary.first_ordinary_id :]
    shown = [token_statistics.replace_unprintable(piece.replace("▁", " ")) for piece in ordinary]
    facts: dict[str, Any] = {
        "size": vocabulary.size,
        "ordinary_tokens": len(ordinary),
        "word_starts": int(vocabulary.is_word_start[vocabulary.first_ordinary_id :].sum()),
        "mean_length": round(sum(len(piece.removeprefix("▁")) for piece in ordinary) / max(len(ordinary), 1), 2),
        "longest": sorted(shown, key=lambda text: (-len(text), text))[:5],
        "first": shown[:20],
        "cleaning": asdict(vocabulary.cleaning),
    }
    lines = console.format_named_values(facts)
    if store.is_listed(directory / REPORT_FILE):
        facts["report"] = report = store.read_record(directory / REPORT_FILE, VocabularyReport)
        lines += token_statistics.format_statistics(report)
    return facts, lines


@contextmanager
def _mark_unfinished(out: Path, request: Mapping[str, Any]) -> Iterator[None]:
    """Hold `out`, marked as unfinished, while the block runs; after a failure only what jobs have drawn is left."""
    with store.lock(out):
        store.write_json(out / parallel_reading.REQUEST, request)
        try:
            yield
        except BaseException:
            for name in (
                store.MANIFEST,
                MODEL_FILE,
                TOKENIZER_FILE,
                CONFIG_FILE,
                REPORT_FILE,
                parallel_reading.REQUEST,
            ):
                (out / name).unlink(missing_ok=True)
            raise
        (out / parallel_reading.REQUEST).unlink()


def _source_identity(source: Mapping[str, Any]) -> dict[str, Any]:
    """A file may have moved: its text counts, and what of it was read. What has no hash is known by its name."""
    parts = source.get("parts", [])
    if source.get("sha256") is not None:
        parts = [{key: value for key, value in part.items() if key != "source"} for part in parts]
    return {**source, "parts": parts}


def _check_finished(
    out: Path, request: Mapping[str, Any], portions: Sequence[WorkUnit], workers: int
) -> dict[str, Any]:
    """The report of a finished directory when the same request made it; `BusyError` when another one did."""
    (out / parallel_reading.REQUEST).unlink(
        missing_ok=True
    )  # there only if the process was killed after its last write
    shutil.rmtree(out / parallel_reading.FOLDER, ignore_errors=True)
    store.verify(out, "vocabulary")
    report = store.read_record(out / REPORT_FILE, VocabularyReport)
    made = report["request"]
    different = [key for key in request if key != "sources" and request[key] != made.get(key)]
    hashes = parallel_reading.hash_work_units(portions, workers)
    now = [portion.sources | {"sha256": digest} for portion, digest in zip(portions, hashes, strict=True)]
    if [_source_identity(source) for source in now] != [_source_identity(source) for source in made["sources"]]:
        different.append("sources")
    if different:
        what = f"holds a vocabulary made with another {', '.join(different)}"
        raise BusyError(f"{out}: {what}", "choose another --out or remove it")
    return dict(report)
