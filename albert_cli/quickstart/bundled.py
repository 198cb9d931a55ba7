"""The quickstart's bundled data: the documentation of installed Python packages, and a task that is generated from it.

`load_or_write_bundled` writes the unlabeled text `corpus.jsonl` and the labeled table `task/`. The task is to tell
which package a sentence is from; package names in the sentence are masked. The sentences come from held-out modules,
which the unlabeled text does not contain.
"""

from __future__ import annotations

import csv
import hashlib
import json
import re
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from heapq import nlargest
from pathlib import Path
from typing import Final

from albert_cli import console, store
from albert_cli.errors import BusyError
from albert_cli.randomness import hash_to_unit_interval
from albert_cli.text.corpus import Document, read_documents
from albert_cli.text.sentences import split_sentences

TaskRow = tuple[str, str]  # sentence, package

_MASKED_NAME: Final = "package"  # replaces every package name, because a name would reveal the label
_ALIASES: Final = {  # other names of packages, which are masked, too
    "numpy": ["np"],
    "pandas": ["pd"],
    "matplotlib": ["plt", "mpl", "pyplot"],
    "networkx": ["nx"],
    "sklearn": ["scikit-learn", "scikit", "skl"],
    "torch": ["pytorch"],
    "tkinter": ["tk", "tcl"],
}
_MIN_MODULES: Final = 8  # of a package that becomes a class of the task
_SENTENCE_WORDS: Final = range(5, 41)  # numbers of words of the task's sentences


@dataclass(frozen=True)
class BundledDataSettings:
    """The source and the sizes of the bundled data."""

    source: str  # as for `albert data`
    packages: int  # number of packages that are classes of the task
    heldout: float  # fraction of the modules of these packages that only the task uses
    train_sentences: int
    test_sentences: int  # of the split `dev`, on which the models are tested


def load_or_write_bundled(out: Path, settings: BundledDataSettings) -> dict[str, object]:
    """Write the corpus and the tables of the task below `out`; return their sizes and a hash of the documentation.

    If `out` has them already, only read the sizes from `text.json`, which is written last. Raises `BusyError` if some
    of the files were deleted, and the documentation has changed since.
    """
    facts_file = out / "text.json"
    files = [out / "corpus.jsonl", *(out / "task" / f"{split}.csv" for split in ("train", "dev"))]
    missing = [file for file in files if not file.is_file()]
    earlier = store.read_json(facts_file) if facts_file.is_file() else None
    if earlier is not None and not missing:
        return earlier
    documents = list(read_documents([settings.source]))
    fingerprint = hashlib.sha256("\0".join(document.text for document in documents).encode()).hexdigest()
    if earlier is not None and earlier.get("sha256") != fingerprint:
        raise BusyError(
            f"{missing[0]}: was deleted, and the installed documentation, from which it was written, has changed",
            "restore the file, or choose another --out",
        )
    class_names = _choose_packages(documents, settings.packages)
    heldout = []
    with store.open_text_writer(out / "corpus.jsonl") as stream:
        for document in documents:
            is_of_class = _package(document) in class_names
            if is_of_class and hash_to_unit_interval(f"held out {document.name}") < settings.heldout:
                heldout.append(document)
            else:
                line = json.dumps({"id": document.name, "text": document.text}, ensure_ascii=False)
                stream.write(line + "\n")
    tables = build_task_tables(heldout, class_names, settings)
    for split, rows in tables.items():
        with store.open_text_writer(out / "task" / f"{split}.csv") as stream:
            csv.writer(stream, lineterminator="\n").writerows([("text", "label"), *rows])
    characters = sum(len(document.text) for document in documents)
    facts: dict[str, object] = {
        "source": settings.source,
        "documents": len(documents),
        "characters": characters,
        "sha256": fingerprint,
        "packages": class_names,
        "held_out_modules": len(heldout),
        **{f"{split}_sentences": len(rows) for split, rows in tables.items()},
    }
    store.write_json(facts_file, facts)
    console.info(
        f"{characters / 1e6:.1f} MB in {len(documents):,} modules, fingerprint {fingerprint[:16]}; "
        f"task: {len(tables['train']):,} training and {len(tables['dev']):,} test sentences of {', '.join(class_names)}"
    )
    return facts


def _choose_packages(documents: Sequence[Document], count: int) -> list[str]:
    """Return the sorted names of the `count` packages with the most text, among packages with enough modules."""
    sizes: dict[str, list[int]] = defaultdict(list)
    for document in documents:
        sizes[_package(document)].append(len(document.text))
    candidates = [name for name, module_sizes in sizes.items() if len(module_sizes) >= _MIN_MODULES]
    return sorted(nlargest(count, candidates, key=lambda name: sum(sizes[name])))


def _package(document: Document) -> str:
    """Return the top-level package of a module, whose documentation is the document."""
    return document.name.split(".", 1)[0]


def build_task_tables(
    heldout: Sequence[Document], class_names: Sequence[str], settings: BundledDataSettings
) -> dict[str, list[TaskRow]]:
    """Return the rows of the splits `train` and `dev`, from different modules, with classes as balanced as possible.

    class_names: the packages that are classes. There is no split `test`: models are tested on `dev`, so its size is
    `settings.test_sentences`. Repeated sentences are left out.
    """
    sizes = {"train": settings.train_sentences, "dev": settings.test_sentences}
    train_fraction = sizes["train"] / sum(sizes.values())
    name_pattern = _name_pattern(class_names)
    seen: set[str] = set()
    sentences: dict[str, dict[str, list[str]]] = {split: {name: [] for name in class_names} for split in sizes}
    for document in heldout:
        split = "train" if hash_to_unit_interval(f"train {document.name}") < train_fraction else "dev"
        for sentence in split_sentences(document.text):
            masked = name_pattern.sub(_MASKED_NAME, sentence)
            if len(masked.split()) in _SENTENCE_WORDS and masked not in seen:
                seen.add(masked)
                sentences[split][_package(document)].append(masked)
    return {split: _balance_classes(split, by_name, sizes[split]) for split, by_name in sentences.items()}


def _name_pattern(names: Sequence[str]) -> re.Pattern[str]:
    """Return a pattern that matches the packages' names and aliases with any dotted path: `np`, `numpy.linalg`."""
    words = {word for name in names for word in (name, *_ALIASES.get(name, []))}
    longest_first = sorted(words, key=len, reverse=True)  # scikit-learn before scikit
    return re.compile(rf"\b(?:{'|'.join(map(re.escape, longest_first))})\b(?:\.\w+)*", re.IGNORECASE)


def _balance_classes(split: str, sentences: Mapping[str, Sequence[str]], size: int) -> list[TaskRow]:
    """Return `size` rows or a few more, shuffled by a hash; all rows if there are fewer.

    sentences: by class. Every class has the same number of rows, except classes with too few sentences.
    """
    counts = [len(pool) for pool in sentences.values()]
    limit = 0  # the maximum number of rows of a class
    while limit < max(counts) and sum(min(count, limit) for count in counts) < size:
        limit += 1
    rows = []
    for name, pool in sentences.items():
        shuffled = sorted(pool, key=lambda sentence: hash_to_unit_interval(f"{split} {sentence}"))
        rows += [(sentence, name) for sentence in shuffled[:limit]]
    return sorted(rows, key=lambda row: hash_to_unit_interval(f"order {row[0]}"))
