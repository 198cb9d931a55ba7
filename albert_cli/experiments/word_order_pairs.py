"""Write minimal pairs of word order from the held-out text of a data directory.

The acceptable sentence of a pair is a sentence of the text, and the unacceptable one has two neighboring words swapped.
At the scale `mini` the pairs are a task of the experiments, because a few minutes of pretraining are enough for a model
to prefer the original sentences. The plans of these experiments have a stage `pairs`, which runs `main`.
"""

from __future__ import annotations

import argparse
import itertools
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
MAX_PAIRS: Final = 1500  # the standard error of an accuracy is at most sqrt(0.25 / 1500), 1.3 points
SENTENCE_WORDS: Final = range(6, 11)  # the time to score a sentence grows with the square of its length


def write_word_order_pairs(data: Path, directory: Path) -> int:
    """Write `pairs.jsonl` and return the number of pairs; raise `InputError` if no sentence has a suitable length.

    The sentences are spread evenly over the held-out text, or over all text if nothing is held out. A hash of the
    sentence chooses the words to swap, so the same sentence always gives the same pair.
    """
    corpus = TokenCorpus.open(data, "heldout")
    if corpus.n_tokens == 0:
        corpus = TokenCorpus.open(data, "train")
    swapped = map(_swap_neighbors, _iter_sentences(corpus))
    pairs = [pair for pair in swapped if pair is not None]
    if not pairs:
        raise InputError(f"{data}: no sentence of {SENTENCE_WORDS[0]} to {SENTENCE_WORDS[-1]} words", "use more text")
    if len(pairs) > MAX_PAIRS:
        pairs = [pairs[index * len(pairs) // MAX_PAIRS] for index in range(MAX_PAIRS)]
    rows = [{"sentence_good": good, "sentence_bad": bad, "linguistics_term": "word order"} for good, bad in pairs]
    lines = [json.dumps(row, ensure_ascii=False) + "\n" for row in rows]
    store.write_text(directory / PAIRS_FILE, "".join(lines))
    return len(rows)


def _iter_sentences(corpus: TokenCorpus) -> Iterator[str]:
    """Yield the sentences of a corpus as text."""
    vocabulary = Vocabulary.load(corpus.vocabulary_dir)
    for shard in corpus.shards:
        for start, stop in itertools.pairwise(shard.sentence_offsets.tolist()):
            yield vocabulary.decode(shard.ids[start:stop].tolist())


def _swap_neighbors(sentence: str) -> tuple[str, str] | None:
    """Return a sentence, and the sentence with two neighboring words swapped.

    Return None if the sentence is too short or too long, or if the two words are equal.
    """
    words = sentence.split()
    if len(words) not in SENTENCE_WORDS:
        return None
    index = int(hash_to_unit_interval(f"{sentence} swap") * (len(words) - 1))
    if words[index] == words[index + 1]:
        return None
    swapped = [*words[:index], words[index + 1], words[index], *words[index + 2 :]]
    return " ".join(words), " ".join(swapped)


def main(arguments: Sequence[str] | None = None) -> tuple[int, str]:
    """Write the pairs; return the exit code 0, and the number of pairs as JSON.

    The signature is that of `cli.app.invoke`, because `experiments.runner` calls one or the other to run a stage.
    """
    parser = argparse.ArgumentParser(prog="python -m albert_cli.experiments.word_order_pairs", description=__doc__)
    parser.add_argument("data", type=Path, help="data directory")
    parser.add_argument("--out", type=Path, required=True, help="directory to write")
    parser.add_argument("--json", action="store_true", help="no effect: the output is always JSON")
    options = parser.parse_args(arguments)
    return 0, json.dumps({"pairs": write_word_order_pairs(options.data, options.out)})


if __name__ == "__main__":
    print(main()[1])
