"""Write minimal pairs of word order from the held-out text of a data directory.

The unacceptable sentence of a pair is the other one with two neighboring words swapped. This is the task of the scale
`mini`: a model that was pretrained for minutes prefers the original, one that was not pretrained does not.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

from albert_cli import store
from albert_cli.data.shards import TokenCorpus
from albert_cli.errors import InputError
from albert_cli.randomness import hash_to_unit_interval
from albert_cli.text.vocabulary import Vocabulary

PAIRS_FILE: Final = "pairs.jsonl"
_MAX_PAIRS: Final = 600
_WORDS: Final = range(6, 17)  # in a sentence; longer ones cost time and are more often split wrongly


def write_word_order_pairs(data: Path, directory: Path) -> int:
    """Write the pairs and return their number; raise `InputError` if the text has no sentence of suitable length.

    The sentences are spread evenly over the held-out text, or over all text if nothing is held out. The swapped words
    depend on the sentence only.
    """
    corpus = TokenCorpus.open(data, "heldout")
    if corpus.tokens == 0:
        corpus = TokenCorpus.open(data, "train")
    swapped = (_swap_neighbors(sentence) for sentence in _iter_sentences(corpus))
    candidates = [pair for pair in swapped if pair is not None]
    if not candidates:
        raise InputError(f"{data}: no sentence of {_WORDS[0]} to {_WORDS[-1]} words", "use more text")
    pairs = candidates[:: max(1, len(candidates) // _MAX_PAIRS)][:_MAX_PAIRS]
    rows = [{"sentence_good": good, "sentence_bad": bad, "linguistics_term": "word order"} for good, bad in pairs]
    lines = [json.dumps(row, ensure_ascii=False) + "\n" for row in rows]
    store.write_text(directory / PAIRS_FILE, "".join(lines))
    return len(rows)


def _iter_sentences(corpus: TokenCorpus) -> Iterator[str]:
    vocabulary = Vocabulary.load(corpus.vocabulary_dir)
    for shard in corpus.shards:
        for start, stop in zip(shard.sentences[:-1].tolist(), shard.sentences[1:].tolist(), strict=True):
            yield vocabulary.decode(shard.ids[start:stop].tolist())


def _swap_neighbors(sentence: str) -> tuple[str, str] | None:
    """Return the sentence and itself with two neighboring words swapped; None if it is not suitable."""
    words = sentence.split()
    if len(words) not in _WORDS:
        return None
    index = int(hash_to_unit_interval(f"{sentence} swap") * (len(words) - 1))
    if words[index] == words[index + 1]:
        return None
    swapped = [*words[:index], words[index + 1], words[index], *words[index + 2 :]]
    return " ".join(words), " ".join(swapped)


def main(arguments: Sequence[str] | None = None) -> tuple[int, str]:
    """Run the stage's command; return its exit code and the number of pairs as JSON."""
    parser = argparse.ArgumentParser(prog="python -m albert_cli.experiments.word_order_pairs", description=__doc__)
    parser.add_argument("data", type=Path, help="data directory")
    parser.add_argument("--out", type=Path, required=True, help="the pairs' directory")
    parser.add_argument("--json", action="store_true", help="accepted for symmetry with albert's commands")
    options = parser.parse_args(arguments)
    return 0, json.dumps({"pairs": write_word_order_pairs(options.data, options.out)})


if __name__ == "__main__":
    print(main()[1])
