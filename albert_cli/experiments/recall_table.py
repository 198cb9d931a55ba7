"""Write the table of the `long-inputs` experiment: recall a word that a long text states once, beyond position 512.

One sentence of the text states the key word, and the text ends by asking for it. A model that reads the first 512
tokens can only guess one of four words; one that reads everything has to find a sentence among about fifty. The text is
any text. An example's sentences, its key word, and the word's position depend on its split and number only.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from albert_cli import store
from albert_cli.errors import InputError
from albert_cli.randomness import hash_to_unit_interval
from albert_cli.text.corpus import read_documents
from albert_cli.text.sentences import split_sentences

KEY_WORDS: Final = ("silver", "summer", "winter", "yellow")  # one token each, in small vocabularies too
WORDS_BEFORE_KEY: Final = (520, 590)  # minimum and maximum; a word is at least one token
WORDS: Final = 620  # approximate length of an example
EXAMPLES: Final = {"train": 4000, "dev": 400}
_DEV_FRACTION: Final = 0.15  # fraction of the documents
_MAX_WORDS: Final = {"train": 600_000, "dev": 100_000}  # read from the text


def write_recall_table(source: str, directory: Path) -> dict[str, int]:
    """Write `train.jsonl` and `dev.jsonl` with `id`, `text` and `label`; return the number of examples by split.

    `source` is text as `albert data` takes it. Raises `InputError` for standard input and for too little text.
    """
    if source == "-":
        raise InputError("-: standard input cannot be read again on resume", "write it to a file first")
    for split, sentences in _read_sentences(source).items():
        counts = [len(sentence.split()) for sentence in sentences]
        last = _last_start(counts)
        if last <= 0:
            raise InputError(f"{source}: {sum(counts)} words are too few for {split}", "use some thousand words")
        rows = [_make_row(sentences, counts, last, f"{split}-{number}") for number in range(EXAMPLES[split])]
        lines = [json.dumps(row, ensure_ascii=False) + "\n" for row in rows]
        store.write_text(directory / f"{split}.jsonl", "".join(lines))
    return dict(EXAMPLES)


def _read_sentences(source: str) -> dict[str, list[str]]:
    """Return the sentences of each split that contain no key word; a document belongs to one split."""
    sentences: dict[str, list[str]] = {"train": [], "dev": []}
    words = dict.fromkeys(sentences, 0)
    for document in read_documents([source]):
        split = "dev" if hash_to_unit_interval(document.text) < _DEV_FRACTION else "train"
        if words[split] > _MAX_WORDS[split]:
            if all(words[name] > _MAX_WORDS[name] for name in words):
                break
            continue
        for sentence in split_sentences(document.text):
            if not any(word in sentence.lower() for word in KEY_WORDS):
                sentences[split].append(sentence)
                words[split] += sentence.count(" ") + 1
    return sentences


def _last_start(counts: Sequence[int]) -> int:
    """Return the index of the last sentence from which `WORDS` words follow; 0 or below if there is none."""
    start = len(counts) - 1
    while start > 0 and sum(counts[start:]) < WORDS:
        start -= 1
    return start


def _make_row(sentences: Sequence[str], counts: Sequence[int], last_start: int, name: str) -> dict[str, str]:
    """Return the example of a name such as `dev-17`: consecutive sentences, the fact among them, and the question."""
    sentence = int(hash_to_unit_interval(f"{name} begin") * (last_start + 1))
    first, last = WORDS_BEFORE_KEY
    words_before = first + int(hash_to_unit_interval(f"{name} place") * (last - first))
    key_word = KEY_WORDS[int(hash_to_unit_interval(f"{name} label") * len(KEY_WORDS))]
    fact = f"The key word is {key_word}."
    chosen: list[str] = []
    words = 0
    while words < WORDS and sentence < len(sentences):
        if words >= words_before and fact not in chosen:
            chosen.append(fact)
        chosen.append(sentences[sentence])
        words += counts[sentence]
        sentence += 1
    if fact not in chosen:  # the last sentence was a very long one
        chosen.append(fact)
    return {"id": name, "text": " ".join([*chosen, "What is the key word?"]), "label": key_word}


def main(arguments: Sequence[str] | None = None) -> tuple[int, str]:
    """Run the stage's command; return its exit code and the number of examples as JSON."""
    parser = argparse.ArgumentParser(prog="python -m albert_cli.experiments.recall_table", description=__doc__)
    parser.add_argument("source", help="text as `albert data` takes it")
    parser.add_argument("--out", type=Path, required=True, help="the table's directory")
    parser.add_argument("--json", action="store_true", help="accepted for symmetry with albert's commands")
    options = parser.parse_args(arguments)
    return 0, json.dumps(write_recall_table(options.source, options.out))


if __name__ == "__main__":
    print(main()[1])
