"""How fast text becomes shards on one core, stage by stage, beside SentencePiece alone on the same lines."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from itertools import chain
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, TypeVar

import numpy as np
from sentencepiece import SentencePieceProcessor

from albert_cli import console
from albert_cli.bench import batches
from albert_cli.data.plan import plan
from albert_cli.data.shards import Shard, TokenCorpus
from albert_cli.data.tokenise import BuildSettings, Task, clean_tidy, run_task, tokenise
from albert_cli.errors import InputError
from albert_cli.text.corpus import Document, hash_words, read_part
from albert_cli.text.lines import Tally
from albert_cli.text.sentences import paragraphs, split_paragraphs
from albert_cli.text.vocabulary import MODEL, Vocabulary

Result = TypeVar("Result")
_SENTENCES = 8192  # of one call: about what a task encodes at a time
_STAGES = (
    *("reading", "hashing", "segmentation", "cleaning"),
    *("sentencepiece alone", "sentencepiece, line by line", "the whole"),
)


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
        tasks = _first_tasks(plan(sources, vocabulary_dir, Path(folder) / "data", settings), megabytes)
        size = 0

        def count(disk: int, text: int) -> None:
            nonlocal size
            size += text

        spent = {"the whole": _timed(lambda: [run_task(task, count) for task in tasks])[1]}
    if not size:
        raise InputError("no text in any source", "check the files, or name others")
    documents, spent["reading"] = _timed(lambda: _read(tasks))
    spent |= _stages(documents, vocabulary, vocabulary_dir, settings.language)
    arrays = tokenise(documents, vocabulary, settings.language)
    return {
        "bytes": size,
        "documents": len(documents),
        "pieces": int(arrays[0].size),
        "mb_per_cpu_second": {name: round(size / 1e6 / max(spent[name], 1e-9), 2) for name in _STAGES},
        "whole_to_sentencepiece": round(spent["sentencepiece alone"] / spent["the whole"], 3),
        "pairs_and_masks": batches.measure(_corpus(*arrays[:3]), vocabulary, seconds=seconds),
    }


def _timed(work: Callable[[], Result]) -> tuple[Result, float]:
    """The result and the processor time that it took, in seconds."""
    begin = time.process_time()
    return work(), time.process_time() - begin


def _first_tasks(tasks: Sequence[Task], megabytes: int) -> list[Task]:
    """The tasks of the first megabytes; at least one."""
    chosen = [tasks[0]]
    for task in tasks[1:]:
        if sum(t.size for t in chosen) + task.size <= megabytes * 1_000_000:
            chosen.append(task)
    return chosen


def _read(tasks: Sequence[Task]) -> list[Document]:
    parts = ((task, part) for task in tasks for part in task.parts)
    return [d for task, part in parts for d in read_part(part, task.settings.read, Tally())]


def _stages(
    documents: Sequence[Document], vocabulary: Vocabulary, vocabulary_dir: Path, language: str
) -> dict[str, float]:
    """Seconds of each stage between reading and writing, on all documents at once."""
    spent = {}
    texts, of_paragraphs = _timed(lambda: [paragraphs(document.text) for document in documents])
    _, of_hashes = _timed(lambda: [hash_words(" ".join(lines)) for lines in texts])
    spent["hashing"] = of_hashes
    sentences, of_sentences = _timed(lambda: [split_paragraphs(lines, language) for lines in texts])
    spent["segmentation"] = of_paragraphs + of_sentences
    flat = list(chain.from_iterable(sentences))
    cleaned, spent["cleaning"] = _timed(lambda: clean_tidy(flat, vocabulary.cleaning))
    spent["sentencepiece alone"] = 0.0
    for start in range(0, len(cleaned), _SENTENCES):  # one call for all would be slowed down by what it returns
        lines = cleaned[start : start + _SENTENCES]
        spent["sentencepiece alone"] += _timed(partial(vocabulary.encode_cleaned, lines))[1]
    encode = SentencePieceProcessor(model_file=str(vocabulary_dir / MODEL)).encode
    spent["sentencepiece, line by line"] = _timed(lambda: [encode(line) for line in cleaned])[1]
    return spent


def _corpus(ids: Any, lengths: Any, sizes: Any) -> TokenCorpus:
    """Tokenised documents as a corpus of one shard in memory."""
    offsets = [np.append(0, np.cumsum(n)).astype(np.uint32) for n in (lengths, sizes)]
    return TokenCorpus([Shard(ids.astype(np.uint16 if ids.max(initial=0) < 1 << 16 else np.uint32), *offsets)])


def text(measured: Mapping[str, Any]) -> str:
    """The result of `measure` as tables."""
    rates = measured["mb_per_cpu_second"]
    rows = [[name, f"{rates[name]:,.1f}"] for name in _STAGES]
    ratio = f"the whole runs at {measured['whole_to_sentencepiece']:.0%} of the speed of SentencePiece alone"
    size = f"{measured['bytes'] / 1e6:.1f} MB of text, {measured['documents']:,} documents"
    table = console.table(("stage", "MB/s a core"), rows)
    return "\n".join([table, "", f"{size}; {ratio}", "", batches.text(measured["pairs_and_masks"])])
