"""How fast pairs and masks are drawn: a core's rate, and that of the prefetcher that training reads from."""

from __future__ import annotations

import itertools
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from albert_cli import console
from albert_cli.data.batches import PairSettings, batch, step_indices
from albert_cli.data.prefetch import prefetch
from albert_cli.data.shards import TokenCorpus
from albert_cli.text.vocabulary import Vocabulary

_TOKENS = 131_072  # of one draw: what a micro-batch of 256 sequences of 512 holds


def measure(
    corpus: TokenCorpus,
    vocabulary: Vocabulary,
    lengths: Sequence[int] = (128, 512),
    settings: PairSettings | None = None,
    seconds: float = 1.0,
) -> dict[str, Any]:
    """Draw packed batches for about `seconds` a figure; one entry for each maximum length in `lengths`.

    sequences: of one draw; tokens_per_cpu_second: drawn by one thread, over the processor time it used;
    prefetched_tokens_per_second: delivered to a consumer that does nothing else, over wall-clock time, with
    the prefetcher's thread; bytes_per_token: what a drawn batch occupies.
    """
    found = {}
    for length in lengths:
        rules = replace(settings or PairSettings(), max_seq_length=length)
        sequences = max(1, _TOKENS // length)
        found[str(length)] = _one(corpus, vocabulary, rules, sequences, seconds)
    return {"lengths": found}


def _one(
    corpus: TokenCorpus, vocabulary: Vocabulary, rules: PairSettings, sequences: int, seconds: float
) -> dict[str, Any]:
    def draw(step: int) -> tuple[int, int]:
        drawn = batch(corpus, vocabulary, rules, 0, step_indices(step, sequences))
        return drawn.ids.size, sum(part.nbytes for part in vars(drawn).values())

    draw(0)  # touches the vocabulary's tables and the pages of the shards' offsets
    tokens = size = 0
    began = time.process_time()
    for step in itertools.count(1):
        drawn, occupied = draw(step)
        tokens, size = tokens + drawn, size + occupied
        if (spent := time.process_time() - began) >= seconds:
            break
    delivered, started = 0, time.monotonic()
    with prefetch(draw, itertools.count(1)) as batches:
        for drawn, _ in batches:
            delivered += drawn
            if (waited := time.monotonic() - started) >= seconds:
                break
    return {
        "sequences": sequences,
        "tokens_per_cpu_second": round(tokens / spent),
        "prefetched_tokens_per_second": round(delivered / waited),
        "bytes_per_token": round(size / tokens, 2),
    }


def text(measured: Mapping[str, Any]) -> str:
    """The result of `measure` as a table."""
    names = ("sequences", "tokens_per_cpu_second", "prefetched_tokens_per_second", "bytes_per_token")
    headers = ("pairs and masks: length", "sequences", "tokens/s a core", "tokens/s prefetched", "bytes a token")
    rows = [[length, *(f"{rates[name]:,}" for name in names)] for length, rates in measured["lengths"].items()]
    return console.table(headers, rows)
