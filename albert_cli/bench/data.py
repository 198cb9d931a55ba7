"""How fast text becomes shards on one core, stage by stage, beside SentencePiece alone; and shards masked pairs."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, TypeVar

import numpy as np
from sentencepiece import SentencePieceProcessor

from albert_cli import console
from albert_cli.data.batches import sample_batch
from albert_cli.data.build import plan_tasks
from albert_cli.data.pairs import PairSettings
from albert_cli.data.prefetch import prefetch
from albert_cli.data.shards import Shard, TokenCorpus
from albert_cli.data.tokenization import BuildSettings, clean_normalized, tokenize_documents, tokenize_task
from albert_cli.errors import InputError
from albert_cli.text.corpus import Document, hash_normalized_text, read_part
from albert_cli.text.sentences import segment_paragraphs, split_paragraphs
from albert_cli.text.source_parts import ReadCounter
from albert_cli.text.vocabulary import MODEL_FILE, Vocabulary

Result = TypeVar("Result")
_TOKENS = 131_072  # of one draw: what a micro-batch of 256 sequences of 512 holds
_SENTENCES = 8192  # of one call: about what a task encodes at a time


def measure(
    sources: Sequence[str], vocabulary_dir: Path, settings: BuildSettings, megabytes: int, seconds: float = 1.0
) -> dict[str, Any]:
    """Time each stage of `albert data` on about the first `megabytes` (of files) of the sources, in this process.

    mb_per_cpu_second: bytes of text (1e6) over processor time. "the whole" is a task of `albert data` from the
    file to the committed shards; "sentencepiece alone" encodes the same cleaned sentences to lists of ids, many in a
    call or one. seconds: for each figure of the pairs and masks that are drawn from the same text.
    """
    vocabulary = Vocabulary.load(vocabulary_dir)
    with TemporaryDirectory(prefix="albert-bench-") as folder:
        every = plan_tasks(sources, vocabulary_dir, Path(folder) / "data", settings)
        tasks, size = [every[0]], 0
        for task in every[1:]:
            if sum(t.size for t in tasks) + task.size <= megabytes * 1_000_000:
                tasks.append(task)

        def count(disk: int, text: int) -> None:
            nonlocal size
            size += text

        _, whole = _timed(lambda: [tokenize_task(task, count) for task in tasks])
    if not size:
        raise InputError("no text in any source", "check the files, or name others")
    parts = [(part, task.settings.read) for task in tasks for part in task.parts]
    documents, reading = _timed(lambda: [d for part, read in parts for d in read_part(part, read, ReadCounter())])
    stages = _stages(documents, vocabulary, vocabulary_dir, settings.language)
    spent = {"reading": reading, **stages, "the whole": whole}
    ids, *counts, _ = tokenize_documents(documents, vocabulary, settings.language)
    offsets = [np.append(0, np.cumsum(n)).astype(np.uint32) for n in counts]
    corpus = TokenCorpus([Shard(ids.astype(np.uint16 if ids.max(initial=0) < 1 << 16 else np.uint32), *offsets)])
    return {
        "bytes": size,
        "documents": len(documents),
        "pieces": int(ids.size),
        "mb_per_cpu_second": {name: round(size / 1e6 / max(took, 1e-9), 2) for name, took in spent.items()},
        "whole_to_sentencepiece": round(spent["sentencepiece alone"] / whole, 3),
        "pairs_and_masks": measure_sampling(corpus, vocabulary, seconds=seconds),
    }


def _timed(work: Callable[[], Result]) -> tuple[Result, float]:
    """The result and the processor time that it took, in seconds."""
    begin = time.process_time()
    return work(), time.process_time() - begin


def _stages(
    documents: Sequence[Document], vocabulary: Vocabulary, vocabulary_dir: Path, language: str
) -> dict[str, float]:
    """Seconds of each stage between reading and writing, on all documents at once."""
    texts, of_paragraphs = _timed(lambda: [split_paragraphs(document.text) for document in documents])
    spent = {"hashing": _timed(lambda: [hash_normalized_text(" ".join(lines)) for lines in texts])[1]}
    sentences, of_sentences = _timed(lambda: [segment_paragraphs(lines, language) for lines in texts])
    spent["segmentation"] = of_paragraphs + of_sentences
    flat = list(itertools.chain.from_iterable(sentences))
    cleaned, spent["cleaning"] = _timed(lambda: clean_normalized(flat, vocabulary.cleaning))
    spent["sentencepiece alone"] = 0.0
    for start in range(0, len(cleaned), _SENTENCES):  # one call for all would be slowed down by what it returns
        lines = cleaned[start : start + _SENTENCES]
        spent["sentencepiece alone"] += _timed(partial(vocabulary.encode_cleaned, lines))[1]
    encode = SentencePieceProcessor(model_file=str(vocabulary_dir / MODEL_FILE)).encode
    spent["sentencepiece, line by line"] = _timed(lambda: [encode(line) for line in cleaned])[1]
    return spent


# ---------------------------------------------------------------- pairs and masks


def measure_sampling(
    corpus: TokenCorpus, vocabulary: Vocabulary, lengths: Sequence[int] = (128, 512), seconds: float = 1.0
) -> dict[str, Any]:
    """Draw packed batches for about `seconds` a figure; one entry for each maximum length in `lengths`.

    sequences: of one draw; tokens_per_cpu_second: drawn by one thread, over the processor time it used;
    prefetched_tokens_per_second: delivered to a consumer that does nothing else, over wall-clock time, with
    the prefetcher's thread; bytes_per_token: what a drawn batch occupies.
    """
    found = {}
    for length in lengths:
        rules, sequences = PairSettings(max_seq_length=length), max(1, _TOKENS // length)

        def draw(step: int, rules: PairSettings = rules, sequences: int = sequences) -> tuple[int, int]:
            drawn = sample_batch(corpus, vocabulary, rules, 0, np.arange(step * sequences, (step + 1) * sequences))
            return drawn.ids.size, sum(part.nbytes for part in vars(drawn).values())

        draw(0)  # touches the vocabulary's tables and the pages of the shards' offsets
        tokens = size = delivered = 0
        began = time.process_time()
        for step in itertools.count(1):
            drawn, occupied = draw(step)
            tokens, size = tokens + drawn, size + occupied
            if (spent := time.process_time() - began) >= seconds:
                break
        started = time.monotonic()
        with prefetch(draw, itertools.count(1)) as batches:
            for drawn, _ in batches:
                delivered += drawn
                if (waited := time.monotonic() - started) >= seconds:
                    break
        found[str(length)] = {
            "sequences": sequences,
            "tokens_per_cpu_second": round(tokens / spent),
            "prefetched_tokens_per_second": round(delivered / waited),
            "bytes_per_token": round(size / tokens, 2),
        }
    return {"lengths": found}


# ---------------------------------------------------------------- shown


def text(measured: Mapping[str, Any]) -> str:
    """The result of `measure` as tables."""
    rates = [(name, f"{rate:,.1f}") for name, rate in measured["mb_per_cpu_second"].items()]
    stages = console.format_table(("stage", "MB/s a core"), rates)
    ratio = f"the whole runs at {measured['whole_to_sentencepiece']:.0%} of the speed of SentencePiece alone"
    size = f"{measured['bytes'] / 1e6:.1f} MB of text, {measured['documents']:,} documents"
    names = ("sequences", "tokens_per_cpu_second", "prefetched_tokens_per_second", "bytes_per_token")
    headers = ("pairs and masks: length", "sequences", "tokens/s a core", "tokens/s prefetched", "bytes a token")
    drawn = [[n, *(f"{r[name]:,}" for name in names)] for n, r in measured["pairs_and_masks"]["lengths"].items()]
    return "\n".join([stages, "", f"{size}; {ratio}", "", console.format_table(headers, drawn)])
