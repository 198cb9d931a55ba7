"""Time every stage of the data pipeline on one core, from text to masked sequences, and SentencePiece for comparison.

python -m benchmarks.data wiki.jsonl --vocab vocabulary
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Annotated, Final, TypeVar

import numpy as np
import typer
from sentencepiece import SentencePieceProcessor

from albert_cli import console
from albert_cli.cli.app import command
from albert_cli.cli.options import AsJson, Debug, Language, Quiet, Sources, TextField, VocabularyName, find_vocabulary
from albert_cli.data.batches import sample_batch, sample_lengths
from albert_cli.data.build import plan_units
from albert_cli.data.pairs import PairSettings
from albert_cli.data.records import BuildSettings
from albert_cli.data.run_ahead import run_ahead
from albert_cli.data.shards import Shard, TokenCorpus, id_type
from albert_cli.data.tokenization import tokenize_documents, tokenize_unit
from albert_cli.errors import ConfigError, InputError
from albert_cli.text.clean import clean_single_spaced
from albert_cli.text.corpus import Document, hash_single_spaced, read_part
from albert_cli.text.read_settings import ReadSettings
from albert_cli.text.sentencepiece_vocabulary import SentencePieceVocabulary
from albert_cli.text.sentences import segment_paragraphs, split_paragraphs
from albert_cli.text.source_parts import ReadCounter
from albert_cli.text.vocabulary import MODEL_FILE, Vocabulary

Result = TypeVar("Result")
_TOKENS: Final = 131_072  # per call of the sampler: a micro-batch of 256 sequences of 512 tokens
_SENTENCES: Final = 8192  # per call of SentencePiece; `albert data` encodes about as many at a time
_LENGTHS: Final = (128, 512)
_EXAMPLES: Final = 4096  # in a step of the paper's recipes
_SHARDS: Final = (20, 2000)
app = typer.Typer(pretty_exceptions_enable=False, add_completion=False)


@dataclass(frozen=True)
class SamplingSpeed:
    """Speed of the sampler at one sequence length."""

    sequences: int  # per call
    tokens_per_cpu_second: int  # sampled by one thread
    prefetched_tokens_per_second: int  # received by a consumer that only waits, in wall-clock time
    bytes_per_token: float  # of the sampled batches


@dataclass(frozen=True)
class DataSpeed:
    """Speeds of all stages in MB (1e6 bytes) of text per second of processor time, and of the sampler.

    "everything" is the whole work of `albert data`, from the file to the finished shards. "sentencepiece alone" encodes
    the same cleaned sentences to lists of ids, with many sentences per call; "sentencepiece, line by line" encodes one
    sentence per call.
    """

    bytes: int
    documents: int
    pieces: int
    mb_per_cpu_second: dict[str, float]
    fraction_of_sentencepiece: float
    sampling: dict[int, SamplingSpeed]
    length_milliseconds: dict[int, float]  # of a core, to sample the lengths of a step's examples, by number of shards


def measure_data(
    sources: Sequence[str], vocabulary_dir: Path, settings: BuildSettings, megabytes: int, seconds: float = 1.0
) -> DataSpeed:
    """Time each stage of `albert data` in this process, on work units of at most `megabytes` together.

    The first unit is measured whatever its size. seconds: the time to spend on each figure of the sampler.
    Raises `ConfigError` for a vocabulary that is not of SentencePiece, and `InputError` if the sources have no text.
    """
    vocabulary = Vocabulary.load(vocabulary_dir)
    if not isinstance(vocabulary, SentencePieceVocabulary):
        raise ConfigError(f"{vocabulary_dir}: not a SentencePiece vocabulary", "build one with `albert vocab`")
    text_bytes = 0

    def count_bytes(file_bytes: int, document_bytes: int) -> None:
        nonlocal text_bytes
        text_bytes += document_bytes

    with TemporaryDirectory(prefix="albert-bench-") as folder:
        planned = plan_units(sources, vocabulary_dir, Path(folder) / "data", settings)
        if any(unit.is_stream for unit in planned):
            raise ConfigError("a stream cannot be read twice", "name files or folders")
        # The first unit, and then each further unit that still fits into the requested size.
        units = planned[:1]
        total_size = sum(unit.size for unit in units)
        for unit in planned[1:]:
            if total_size + unit.size <= megabytes * 1_000_000:
                units.append(unit)
                total_size += unit.size
        _, total_seconds = _timed(lambda: [tokenize_unit(unit, count_bytes) for unit in units])
    if not text_bytes:
        raise InputError("no text in any source", "check the files, or choose others")
    parts = [part for unit in units for part in unit.parts]

    def read_documents() -> list[Document]:
        return [document for part in parts for document in read_part(part, settings.read, ReadCounter())]

    documents, reading_seconds = _timed(read_documents)
    stages = _time_stages(documents, vocabulary, vocabulary_dir, settings.language)
    seconds_by_stage = {"reading": reading_seconds, **stages, "everything": total_seconds}
    tokenized = tokenize_documents(documents, vocabulary, settings.language)
    ids = tokenized.ids.astype(id_type(vocabulary.size))
    sentence_offsets = np.append(0, np.cumsum(tokenized.sentence_lengths)).astype(np.uint32)
    document_offsets = np.append(0, np.cumsum(tokenized.document_sizes)).astype(np.uint32)
    shard = Shard(ids, sentence_offsets, document_offsets)
    return DataSpeed(
        bytes=text_bytes,
        documents=len(documents),
        pieces=int(ids.size),
        mb_per_cpu_second={
            stage: round(text_bytes / 1e6 / max(spent, 1e-9), 2) for stage, spent in seconds_by_stage.items()
        },
        fraction_of_sentencepiece=round(stages["sentencepiece alone"] / total_seconds, 3),
        sampling=measure_sampling(TokenCorpus([shard]), vocabulary, seconds=seconds),
        length_milliseconds=measure_lengths(shard),
    )


def _timed(work: Callable[[], Result]) -> tuple[Result, float]:
    """Do the work; return its result and the processor time that it took, in seconds."""
    begin = time.process_time()
    result = work()
    return result, time.process_time() - begin


def _time_stages(
    documents: Sequence[Document], vocabulary: SentencePieceVocabulary, vocabulary_dir: Path, language: str
) -> dict[str, float]:
    """Return the seconds of each stage between reading and writing, on all documents at once."""
    paragraphs, paragraph_seconds = _timed(lambda: [split_paragraphs(document.text) for document in documents])
    _, hashing_seconds = _timed(lambda: [hash_single_spaced(" ".join(lines)) for lines in paragraphs])
    sentences, sentence_seconds = _timed(lambda: [segment_paragraphs(lines, language) for lines in paragraphs])
    flat = list(itertools.chain.from_iterable(sentences))
    cleaned, cleaning_seconds = _timed(lambda: clean_single_spaced(flat, vocabulary.cleaning))
    encoding_seconds = 0.0
    for start in range(0, len(cleaned), _SENTENCES):  # a single call would be slow, because its result is so large
        lines = cleaned[start : start + _SENTENCES]
        encoding_seconds += _timed(partial(vocabulary.encode_cleaned, lines))[1]
    encode = SentencePieceProcessor(model_file=str(vocabulary_dir / MODEL_FILE)).encode
    _, single_seconds = _timed(lambda: [encode(line) for line in cleaned])
    return {
        "hashing": hashing_seconds,
        "segmentation": paragraph_seconds + sentence_seconds,
        "cleaning": cleaning_seconds,
        "sentencepiece alone": encoding_seconds,
        "sentencepiece, line by line": single_seconds,
    }


def measure_sampling(
    corpus: TokenCorpus, vocabulary: Vocabulary, lengths: Sequence[int] = _LENGTHS, seconds: float = 1.0
) -> dict[int, SamplingSpeed]:
    """Return the speed of sampling packed batches by maximum length; each figure takes about `seconds`."""
    return {length: _measure_sampling_at(corpus, vocabulary, length, seconds) for length in lengths}


def _measure_sampling_at(corpus: TokenCorpus, vocabulary: Vocabulary, length: int, seconds: float) -> SamplingSpeed:
    """Measure the sampler at one maximum length: first in this thread, then in the thread of `run_ahead`."""
    rules = PairSettings(max_seq_length=length)
    sequences = max(1, _TOKENS // length)

    def sample(step: int) -> tuple[int, int]:
        """Return the tokens and the bytes of a step's batch."""
        index = np.arange(step * sequences, (step + 1) * sequences)
        batch = sample_batch(corpus, vocabulary, rules, 0, index)
        return batch.ids.size, sum(array.nbytes for array in vars(batch).values())

    sample(0)  # warm up: load the vocabulary's tables and the pages of the shards' offsets
    tokens = 0
    sampled_bytes = 0
    begin = time.process_time()
    for step in itertools.count(1):
        batch_tokens, batch_bytes = sample(step)
        tokens += batch_tokens
        sampled_bytes += batch_bytes
        spent = time.process_time() - begin
        if spent >= seconds:
            break
    received = 0  # tokens
    started = time.monotonic()
    with closing(run_ahead(map(sample, itertools.count(1)))) as batches:
        for batch_tokens, _ in batches:
            received += batch_tokens
            waited = time.monotonic() - started
            if waited >= seconds:
                break
    return SamplingSpeed(
        sequences=sequences,
        tokens_per_cpu_second=round(tokens / spent),
        prefetched_tokens_per_second=round(received / waited),
        bytes_per_token=round(sampled_bytes / tokens, 2),
    )


def measure_lengths(shard: Shard, counts: Sequence[int] = _SHARDS) -> dict[int, float]:
    """Return the milliseconds in which a core samples the lengths of a step's examples, by the number of shards.

    The documents of `shard` are divided into these numbers of shards, or into fewer if there are not enough documents.
    """
    milliseconds: dict[int, float] = {}
    for count in counts:
        bounds = np.linspace(0, shard.n_documents, min(count, shard.n_documents) + 1).astype(np.int64).tolist()
        corpus = TokenCorpus([_slice_documents(shard, first, end) for first, end in itertools.pairwise(bounds)])
        steps = [np.arange(step * _EXAMPLES, (step + 1) * _EXAMPLES) for step in range(5)]
        times = [_timed(partial(sample_lengths, corpus, PairSettings(), 0, index))[1] for index in steps]
        milliseconds[len(corpus.shards)] = round(1000 * min(times), 1)
    return milliseconds


def _slice_documents(shard: Shard, first: int, end: int) -> Shard:
    """Return a shard of the documents [first, end)."""
    documents = shard.document_offsets[first : end + 1]
    sentences = shard.sentence_offsets[documents[0] : documents[-1] + 1]
    return Shard(shard.ids[sentences[0] : sentences[-1]], sentences - sentences[0], documents - documents[0])


def format_result(result: DataSpeed) -> str:
    """Return the result as tables."""
    rates = [(stage, f"{rate:,.1f}") for stage, rate in result.mb_per_cpu_second.items()]
    corpus = f"{result.bytes / 1e6:.1f} MB of text, {result.documents:,} documents"
    ratio = f"everything runs at {result.fraction_of_sentencepiece:.0%} of the speed of SentencePiece alone"
    headers = ("pairs and masks: length", "sequences", "tokens/s per core", "tokens/s prefetched", "bytes per token")
    rows = [
        (
            length,
            f"{speed.sequences:,}",
            f"{speed.tokens_per_cpu_second:,}",
            f"{speed.prefetched_tokens_per_second:,}",
            f"{speed.bytes_per_token:,}",
        )
        for length, speed in result.sampling.items()
    ]
    stages = console.format_table(("stage", "MB/s per core"), rates)
    times = [f"{spent:,.1f} ms with {count:,} shards" for count, spent in result.length_milliseconds.items()]
    step = f"lengths of {_EXAMPLES:,} examples, on a core: {', '.join(times)}"
    return "\n".join([stages, "", f"{corpus}; {ratio}", "", console.format_table(headers, rows), "", step])


@command(app)
def main(
    sources: Sources,
    vocab: VocabularyName,
    megabytes: Annotated[int, typer.Option(min=1, help="Measure on about this many MB of the files' beginnings.")] = 64,
    language: Language = "en",
    text_field: TextField = "text",
    as_json: AsJson = False,
    quiet: Quiet = False,
    debug: Debug = False,
) -> None:
    """Time every stage from text to masked pairs on one core, and SentencePiece alone."""
    settings = BuildSettings(language=language, read=ReadSettings(text_field=text_field))
    result = measure_data(sources, find_vocabulary(vocab), settings, megabytes)
    console.print_result(asdict(result), format_result(result))


if __name__ == "__main__":
    app()
