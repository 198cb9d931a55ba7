"""Make a domain's data set from pages: `text.jsonl`, a page a line, `task/train.jsonl` and `task/dev.jsonl`.

Whole pages belong to train or to dev. The unlabeled text consists of all pages that are not in dev, so it contains the
training texts; a dev text that also occurs there is dropped.
"""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from albert_cli import store
from albert_cli.errors import InputError
from albert_cli.randomness import hash_to_unit_interval

DEV_ROWS: Final = 2_000
TRAIN_ROWS: Final = 20_000
MIN_CHARACTERS: Final = 15  # of a paragraph of the unlabeled text
_DEV_FRACTION: Final = 0.25  # of the pages
_ROWS_OF_A_PAGE: Final = 30  # so that no long page dominates its class
_MIN_PAGES: Final = 20  # of a label that becomes a class
_MIN_BYTES: Final = 60  # of a labeled paragraph: 60 Latin, 30 Cyrillic or 20 Chinese characters
_MIN_ROWS_OF_A_WORD: Final = 5


@dataclass(frozen=True)
class LabeledText:
    """A text and its class."""

    text: str
    label: str


@dataclass(frozen=True)
class Page:
    """A page of a manual: its name, its label, and its paragraphs without anything that gives the label away."""

    name: str
    label: str
    paragraphs: tuple[str, ...]

    @property
    def is_dev(self) -> bool:
        """True if the page belongs to dev; the translations of a page agree."""
        return hash_to_unit_interval(f"dev page {self.name}") < _DEV_FRACTION

    def sample_rows(self) -> list[LabeledText]:
        """Return some of the page's paragraphs with its label."""
        rows = [LabeledText(text, self.label) for text in self.paragraphs if len(text.encode()) >= _MIN_BYTES]
        return shuffle_rows(rows)[:_ROWS_OF_A_PAGE]


@dataclass(frozen=True)
class DatasetFacts:
    """Sizes of a data set, and two scores on dev that need no model, as fractions.

    `majority` is the frequency of the most common training class. `best_word` is the accuracy of the best rule of the
    form "class A if the text has this word, otherwise class B"; a label that one word gives away shows here.
    """

    documents: int
    characters: int
    train: int
    dev: int
    classes: dict[str, int]
    majority: float
    best_word: float
    word: str


def write_pages(out: Path, pages: Sequence[Page]) -> DatasetFacts:
    """Split pages and write their data set; raises `InputError` if they are too few."""
    counts = Counter(page.label for page in pages if page.paragraphs)
    labels = {label for label, count in counts.items() if count >= _MIN_PAGES}
    train_pages = [page for page in pages if not page.is_dev and page.paragraphs]
    unlabeled = {text for page in train_pages for text in page.paragraphs}
    dev_pages = [page for page in pages if page.is_dev and page.label in labels]
    dev = shuffle_rows(row for page in dev_pages for row in page.sample_rows() if row.text not in unlabeled)
    train = shuffle_rows(row for page in train_pages if page.label in labels for row in page.sample_rows())
    if not train or not dev:
        raise InputError(f"found no label with {_MIN_PAGES} pages", "use a folder with more pages")
    documents = ("\n".join(page.paragraphs) for page in train_pages)
    return write_dataset(out, documents, train[:TRAIN_ROWS], dev[:DEV_ROWS])


def write_dataset(
    out: Path, documents: Iterable[str], train: Sequence[LabeledText], dev: Sequence[LabeledText]
) -> DatasetFacts:
    """Write the files of a data set into `out` and return its sizes."""
    written = 0
    characters = 0
    with store.open_text_writer(out / "text.jsonl") as stream:
        for text in documents:
            stream.write(json.dumps({"text": text}, ensure_ascii=False) + "\n")
            written += 1
            characters += len(text)
    for split, rows in (("train", train), ("dev", dev)):
        lines = [json.dumps({"text": row.text, "label": row.label}, ensure_ascii=False) for row in rows]
        store.write_text(out / "task" / f"{split}.jsonl", "\n".join(lines) + "\n")
    classes = Counter(row.label for row in train)
    majority = classes.most_common(1)[0][0]
    word, best_word = find_best_word(train, dev)
    facts = DatasetFacts(
        documents=written,
        characters=characters,
        train=len(train),
        dev=len(dev),
        classes=dict(sorted(classes.items())),
        majority=sum(row.label == majority for row in dev) / len(dev),
        best_word=best_word,
        word=word,
    )
    store.write_json(out / "dataset.json", vars(facts))
    return facts


def shuffle_rows(rows: Iterable[LabeledText]) -> list[LabeledText]:
    """Return distinct rows in the order of a hash of their text, the same for every order of the input."""
    return sorted(dict.fromkeys(rows), key=lambda row: hash_to_unit_interval(f"order {row.text}"))


def find_best_word(train: Sequence[LabeledText], dev: Sequence[LabeledText]) -> tuple[str, float]:
    """Return the word whose presence predicts the class best on train, and the accuracy of that rule on dev."""
    totals = Counter(row.label for row in train)
    with_word: dict[str, Counter[str]] = defaultdict(Counter)
    for row in train:
        for word in set(row.text.lower().split()):
            with_word[word][row.label] += 1
    best = ("", 0, "", totals.most_common(1)[0][0])
    for word, counts in with_word.items():
        without = totals - counts
        if counts.total() >= _MIN_ROWS_OF_A_WORD and without:
            inside, correct_inside = counts.most_common(1)[0]
            outside, correct_outside = without.most_common(1)[0]
            rule = (word, correct_inside + correct_outside, inside, outside)
            best = max(best, rule, key=lambda candidate: candidate[1])
    word, _, inside, outside = best
    predicted = [inside if word in row.text.lower().split() else outside for row in dev]
    correct = sum(label == row.label for label, row in zip(predicted, dev, strict=True))
    return word, correct / len(dev)


def format_facts(facts: DatasetFacts) -> str:
    """Return two lines about a data set."""
    classes = ", ".join(f"{name} {count:,}" for name, count in facts.classes.items())
    return (
        f"{facts.documents:,} documents, {facts.characters / 1e6:.1f} M characters; {facts.train:,} training and "
        f"{facts.dev:,} dev texts ({classes})\n"
        f"dev accuracy of the majority class {facts.majority:.1%}, of the best single word ({facts.word!r}) "
        f"{facts.best_word:.1%}"
    )
