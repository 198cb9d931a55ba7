"""A uniform sample of sentences out of any amount of text, and what the cleaning takes from it."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from unicodedata import normalize

from albert_cli import console
from albert_cli.text.clean import Cleaning, clean
from albert_cli.text.corpus import Document
from albert_cli.text.sentences import split_sentences

_STUDIED = 50_000  # sentences that the losses are measured on
_NOTABLE = 0.01  # share of the words: English of Wikipedia loses 0.3 % to accents, German 7 %
_DOTLESS = 0.001  # share of the letters that are a dotless i: none in English, 4 % in Turkish


@dataclass
class Sample:
    """Sentences drawn from the text, and how much text there was: documents, sentences, characters."""

    sentences: list[str]
    documents: int = 0
    read: int = 0
    characters: int = 0


def draw(
    documents: Iterable[Document], size: int, seed: int, language: str, when_filled: Callable[[list[str]], None]
) -> Sample:
    """At most `size` sentences, each of the text's equally likely to be among them.

    Reservoir sampling (Vitter 1985, algorithm R), so that memory is bounded by the sample. The same text in the
    same order and the same seed give the same sample. `when_filled` gets the first `size` sentences, or all that
    there are, as soon as they are known: long before the end of a large corpus.
    """
    choose = random.Random(seed).random  # noqa: S311  (a sample, not a secret)
    sample = Sample([])
    kept, seen = sample.sentences, 0
    with console.progress("reading") as progress:
        for document in documents:
            sample.documents += 1
            sample.characters += len(document.text)
            for sentence in split_sentences(document.text, language):
                seen += 1
                if seen <= size:
                    kept.append(sentence)
                    if seen == size:
                        when_filled(kept)
                elif (place := int(choose() * seen)) < size:
                    kept[place] = sentence
            progress.update(seen, f"{seen:,} sentences, {sample.characters / 1e6:.0f} M characters")
    sample.read = seen
    if 0 < seen < size:
        when_filled(kept)
    return sample


def clean_in_place(sentences: list[str], cleaning: Cleaning) -> None:
    """Clean the sentences and leave out those of which nothing remains, without holding the list twice."""
    kept = 0
    for sentence in sentences:
        if cleaned := clean(sentence, cleaning):
            sentences[kept] = cleaned
            kept += 1
    del sentences[kept:]


@dataclass(frozen=True)
class Loss:
    """What dropping accents and marks does to the words of a text.

    changed: share of the running words that it changes; merged: share of those that it makes equal to another,
    more frequent word of the text; examples: the most frequent of these, as (word, other word, what both become).
    """

    changed: float
    merged: float
    examples: list[tuple[str, str, str]]


def loss_of_accents(sentences: list[str], cleaning: Cleaning) -> Loss | None:
    """What accent stripping takes from raw sentences, where it is on.

    The compatibility forms need no measure: SentencePiece's own normaliser applies NFKC in any case.
    """
    if not cleaning.strip_accents:
        return None
    words = Counter[str]()
    kinder = replace(cleaning, strip_accents=False)
    for sentence in sentences[:: max(1, len(sentences) // _STUDIED)]:
        words.update(normalize("NFKC", clean(sentence, kinder)).split())
    changed, merged = 0, Counter[tuple[str, str, str]]()
    first: dict[str, str] = {}  # what a word becomes: the most frequent word that becomes it
    for word, count in words.most_common():
        result = normalize("NFKC", clean(word, cleaning))
        changed += count * (result != word)
        other = first.setdefault(result, word)
        if other != word:
            merged[word, other, result] = count
    total = max(words.total(), 1)
    return Loss(changed / total, merged.total() / total, [example for example, _ in merged.most_common(3)])


def warn_of_losses(accents: Loss | None, sentences: list[str], cleaning: Cleaning) -> None:
    """Warn once of what the cleaning would take from a language that needs it, with the switch to change."""
    warnings = []
    if accents and accents.changed >= _NOTABLE:
        examples = ", ".join(f"{a} = {b}" for a, b, _ in accents.examples)
        made_equal = f" and makes {accents.merged:.1%} equal to another word ({examples})" if examples else ""
        warnings.append(
            f"dropping accents and marks changes {accents.changed:.1%} of the words{made_equal}:"
            " --no-strip-accents keeps them"
        )
    if cleaning.lowercase:
        text = "".join(sentences[:: max(1, len(sentences) // 1000)])
        if text.count("ı") > _DOTLESS * len(text):
            warnings.append("lower-casing makes i of I, which is ı in this text: --no-lowercase keeps it")
    if warnings:
        console.warn("; ".join(warnings))
