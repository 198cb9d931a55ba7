"""Write the table of the experiment `long-inputs`: recall a word that a long text states once, beyond position 512.

An example is about 620 consecutive words of any text. One additional sentence states the key word, and another one at
the end asks for the key word. A model that reads only the first 512 tokens can do no better than guess among four
words. A model that reads everything has to find one sentence among about fifty. A hash of an example's name, such as
`dev-17`, chooses the sentences, the key word and its position.

The experiment has a stage `table`, a step of its plan. This stage runs `main`.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from albert_cli import store
from albert_cli.errors import InputError
from albert_cli.formatting import hide_secrets
from albert_cli.randomness import hash_to_unit_interval
from albert_cli.text.corpus import read_documents
from albert_cli.text.sentences import split_sentences
from albert_cli.text.sources import is_stdin

KEY_WORDS: Final = ("silver", "summer", "winter", "yellow")  # even in small vocabularies they are one token each
WORDS_BEFORE_KEY: Final = (520, 590)  # minimum and maximum; a word is at least one token, so the key is beyond 512
WORDS: Final = 620  # approximate length of an example
EXAMPLES: Final = {"train": 4000, "dev": 400}  # by split
_DEV_FRACTION: Final = 0.15  # of the documents are for dev
_MAX_WORDS: Final = {"train": 600_000, "dev": 100_000}  # of each split; the rest of a long text is not read


def write_recall_table(source: str, directory: Path) -> dict[str, int]:
    """Write `train.jsonl` and `dev.jsonl` with `id`, `text` and `label`; return the number of examples by split.

    source: a text, as for `albert data`. Raises `InputError` if it is standard input or too short.
    """
    if is_stdin(source):
        raise InputError("-: standard input cannot be read again on resume", "write it to a file first")
    for split, sentences in _read_sentences(source).items():
        word_counts = [len(sentence.split()) for sentence in sentences]
        last_start = _find_last_start(word_counts)
        if last_start <= 0:
            message = f"{hide_secrets(source)}: {sum(word_counts)} words are too few for {split}"
            raise InputError(message, "use text of at least some thousand words")
        names = [f"{split}-{number}" for number in range(EXAMPLES[split])]
        rows = [_make_row(sentences, word_counts, last_start, name) for name in names]
        lines = [json.dumps(row, ensure_ascii=False) + "\n" for row in rows]
        store.write_text(directory / f"{split}.jsonl", "".join(lines))
    return dict(EXAMPLES)


def _read_sentences(source: str) -> dict[str, list[str]]:
    """Return the sentences of each split, without sentences that contain a key word.

    A hash of a document's text chooses its split. Reading stops when both splits have more than `_MAX_WORDS`.
    """
    sentences: dict[str, list[str]] = {"train": [], "dev": []}
    words = dict.fromkeys(sentences, 0)
    for document in read_documents([source]):
        if all(words[name] > _MAX_WORDS[name] for name in words):
            break
        split = "dev" if hash_to_unit_interval(document.text) < _DEV_FRACTION else "train"
        if words[split] > _MAX_WORDS[split]:
            continue
        for sentence in split_sentences(document.text):
            if not any(word in sentence.lower() for word in KEY_WORDS):
                sentences[split].append(sentence)
                words[split] += sentence.count(" ") + 1
    return sentences


def _find_last_start(word_counts: Sequence[int]) -> int:
    """Return the index of the last sentence with which an example of `WORDS` words can begin.

    It is 0 or less if the text has no more than one example.
    """
    start = len(word_counts) - 1
    while start > 0 and sum(word_counts[start:]) < WORDS:
        start -= 1
    return start


def _make_row(sentences: Sequence[str], word_counts: Sequence[int], last_start: int, name: str) -> dict[str, str]:
    """Return the example with this name: consecutive sentences, the key word among them, and the question."""
    index = int(hash_to_unit_interval(f"{name} begin") * (last_start + 1))
    minimum, maximum = WORDS_BEFORE_KEY
    words_before_key = minimum + int(hash_to_unit_interval(f"{name} place") * (maximum - minimum))
    key_word = KEY_WORDS[int(hash_to_unit_interval(f"{name} label") * len(KEY_WORDS))]
    chosen: list[str] = []
    key_index = 0  # of the key word's sentence among the chosen ones, after at least `words_before_key` words
    words = 0
    while words < WORDS and index < len(sentences):
        if words < words_before_key:
            key_index += 1
        chosen.append(sentences[index])
        words += word_counts[index]
        index += 1
    chosen.insert(key_index, f"The key word is {key_word}.")
    return {"id": name, "text": " ".join([*chosen, "What is the key word?"]), "label": key_word}


def main(arguments: Sequence[str] | None = None) -> tuple[int, str]:
    """Write the table; return the exit code 0, and the number of examples by split as JSON.

    The signature is that of `cli.app.invoke`, because `experiments.runner` calls one or the other to run a stage.
    """
    parser = argparse.ArgumentParser(prog="python -m albert_cli.experiments.recall_table", description=__doc__)
    parser.add_argument("source", help="a text, as for `albert data`")
    parser.add_argument("--out", type=Path, required=True, help="directory to write")
    parser.add_argument("--json", action="store_true", help="no effect: the output is always JSON")
    options = parser.parse_args(arguments)
    return 0, json.dumps(write_recall_table(options.source, options.out))


if __name__ == "__main__":
    print(main()[1])
