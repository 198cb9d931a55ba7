"""Build a domain's data set from labeled pages: unlabeled text (`text.jsonl`), and a labeled table in `task/`.

A hash of a page's name assigns the page to train or to dev. The unlabeled text consists of all training pages, one per
line. The rows of the table (`task/train.jsonl` and `task/dev.jsonl`) are some paragraphs of each page. `write_pages`
leaves out dev rows whose text also occurs in the unlabeled text.
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

MAX_DEV_ROWS: Final = 2_000
MAX_TRAIN_ROWS: Final = 20_000
MIN_CHARACTERS: Final = 15  # of a paragraph of the unlabeled text
_DEV_FRACTION: Final = 0.25  # of the pages
_MAX_ROWS_PER_PAGE: Final = 30  # so that no long page dominates its class
_MIN_PAGES: Final = 20  # labels with fewer pages are left out of the table
_MIN_BYTES: Final = 60  # of a labeled paragraph: 60 Latin, 30 Cyrillic or 20 Chinese characters
_MIN_ROWS_PER_WORD: Final = 5  # `find_best_word` ignores words in fewer training rows


@dataclass(frozen=True)
class LabeledText:
    """A text and its class."""

    text: str
    label: str


@dataclass(frozen=True)
class Page:
    """A page: its name, its label, and its paragraphs, from which words that reveal the label were removed."""

    name: str
    label: str
    paragraphs: tuple[str, ...]

    @property
    def is_dev(self) -> bool:
        """True if the page belongs to dev; all translations of a page have the same name, and so the same split."""
        return hash_to_unit_interval(f"dev page {self.name}") < _DEV_FRACTION

    def sample_rows(self) -> list[LabeledText]:
        """Return up to 30 of the page's longer paragraphs with the page's label."""
        rows = [LabeledText(text, self.label) for text in self.paragraphs if len(text.encode()) >= _MIN_BYTES]
        return shuffle_rows(rows)[:_MAX_ROWS_PER_PAGE]


@dataclass(frozen=True)
class DatasetFacts:
    """Sizes of a data set, and the dev accuracies of two simple rules, as fractions."""

    documents: int
    characters: int
    train: int  # rows
    dev: int  # rows
    classes: dict[str, int]  # training rows by class
    majority: float  # accuracy of the most common training class
    best_word: float  # accuracy of the best rule "class A if the text has `word`, otherwise class B"
    word: str


def write_pages(out: Path, pages: Sequence[Page]) -> DatasetFacts:
    """Split pages into train and dev, and write their data set into `out`.

    Raises `InputError` if no label has enough pages.
    """
    counts = Counter(page.label for page in pages if page.paragraphs)
    labels = {label for label, count in counts.items() if count >= _MIN_PAGES}
    train_pages = [page for page in pages if not page.is_dev and page.paragraphs]
    unlabeled = {text for page in train_pages for text in page.paragraphs}
    dev_pages = [page for page in pages if page.is_dev and page.label in labels]
    labeled_train_pages = [page for page in train_pages if page.label in labels]
    dev = shuffle_rows(row for page in dev_pages for row in page.sample_rows() if row.text not in unlabeled)
    train = shuffle_rows(row for page in labeled_train_pages for row in page.sample_rows())
    if not train or not dev:
        message = f"no rows for train or dev: a label needs {_MIN_PAGES} pages with text"
        raise InputError(message, "use a folder with more pages")
    documents = ("\n".join(page.paragraphs) for page in train_pages)
    return write_dataset(out, documents, train[:MAX_TRAIN_ROWS], dev[:MAX_DEV_ROWS])


def write_dataset(
    out: Path, documents: Iterable[str], train: Sequence[LabeledText], dev: Sequence[LabeledText]
) -> DatasetFacts:
    """Write the files of a data set into `out`; return the facts that `dataset.json` contains."""
    num_documents = 0
    characters = 0
    with store.open_text_writer(out / "text.jsonl") as stream:
        for text in documents:
            stream.write(json.dumps({"text": text}, ensure_ascii=False) + "\n")
            num_documents += 1
            characters += len(text)
    for split, rows in (("train", train), ("dev", dev)):
        lines = [json.dumps({"text": row.text, "label": row.label}, ensure_ascii=False) for row in rows]
        store.write_text(out / "task" / f"{split}.jsonl", "\n".join(lines) + "\n")
    classes = Counter(row.label for row in train)
    majority_class = classes.most_common(1)[0][0]
    word, word_accuracy = find_best_word(train, dev)
    facts = DatasetFacts(
        documents=num_documents,
        characters=characters,
        train=len(train),
        dev=len(dev),
        classes=dict(sorted(classes.items())),
        majority=sum(row.label == majority_class for row in dev) / len(dev),
        best_word=word_accuracy,
        word=word,
    )
    store.write_json(out / "dataset.json", vars(facts))
    return facts


def shuffle_rows(rows: Iterable[LabeledText]) -> list[LabeledText]:
    """Return the distinct rows in the order of a hash of their text, which does not depend on the input's order."""
    return sorted(dict.fromkeys(rows), key=lambda row: hash_to_unit_interval(f"order {row.text}"))


@dataclass(frozen=True)
class _WordRule:
    """A rule that classifies a text by the presence of one word, and its number of correct training rows."""

    word: str
    correct: int
    label_with: str
    label_without: str

    def predict(self, text: str) -> str:
        """Return the class of a text."""
        return self.label_with if self.word in text.lower().split() else self.label_without


def find_best_word(train: Sequence[LabeledText], dev: Sequence[LabeledText]) -> tuple[str, float]:
    """Return the word whose presence predicts the class best on train, and the accuracy of this rule on dev.

    A high accuracy shows that a single word reveals the label. Without a better rule, the word is "" and the prediction
    is the most common class.
    """
    totals = Counter(row.label for row in train)
    with_word: dict[str, Counter[str]] = defaultdict(Counter)
    for row in train:
        for word in dict.fromkeys(row.text.lower().split()):  # in a fixed order, because the first of equal rules wins
            with_word[word][row.label] += 1
    best = _WordRule("", 0, "", totals.most_common(1)[0][0])  # always predicts the majority class
    for word, counts in with_word.items():
        without = totals - counts
        if counts.total() >= _MIN_ROWS_PER_WORD and without:
            label_with, correct_with = counts.most_common(1)[0]
            label_without, correct_without = without.most_common(1)[0]
            correct = correct_with + correct_without
            if correct > best.correct:
                best = _WordRule(word, correct, label_with, label_without)
    correct = sum(best.predict(row.text) == row.label for row in dev)
    return best.word, correct / len(dev)


def format_facts(facts: DatasetFacts) -> str:
    """Return two lines of text: the sizes, and the accuracies of the two rules."""
    classes = ", ".join(f"{name} {count:,}" for name, count in facts.classes.items())
    return (
        f"{facts.documents:,} documents, {facts.characters / 1e6:.1f} M characters; {facts.train:,} training and "
        f"{facts.dev:,} dev texts ({classes})\n"
        f"dev accuracy of the majority class {facts.majority:.1%}, of the best single word ({facts.word!r}) "
        f"{facts.best_word:.1%}"
    )
