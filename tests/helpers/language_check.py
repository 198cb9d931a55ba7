"""Check the pipeline on one language: vocabulary, data and masks; optionally also pretraining, fill-mask and a task."""

from __future__ import annotations

import json
import random
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import numpy as np

from albert_cli.data.masking import select_spans
from albert_cli.data.pairs import PairSettings, pack_sequences, sample_pairs
from albert_cli.data.records import read_data_facts
from albert_cli.data.shards import TokenCorpus
from albert_cli.text.clean import clean
from albert_cli.text.vocabulary import Vocabulary
from tests.campaigns.world import CPU, RECIPE
from tests.helpers.command import albert
from tests.helpers.languages import LANGUAGE_CODES, has_spaces, sentences
from tests.helpers.vocabularies import load_sentencepiece

_SENTENCES_PER_DOCUMENT: Final = 6
_SEQUENCES: Final = 200
_CLEANING: Final = ("--no-strip-accents", "--normal-form", "NFKC")
_LANGUAGE_OPTIONS: Final = {
    "turkish": ("--no-lowercase",),  # lowercasing "I" gives "i", but Turkish has "ı"
    "persian": ("--keep-zwnj",),
}


@dataclass(frozen=True)
class LanguageReport:
    """Results of one language.

    tokens_per_word: tokens per character if the language writes no spaces between words; cut_words: the number of
    masked spans that begin or end within a word, None without spaces; spans: the number of masked spans;
    sentences_found: the number of sentences from the sentence splitter; different_ids: the number of sentences whose
    ids differ in `transformers`; not_restored: the number of sentences whose decoded ids differ from the normalized
    sentence.
    """

    language: str
    tokens_per_word: float
    unknown_tokens: int
    cut_words: int | None
    spans: int
    sentences_found: int
    sentences_expected: int
    different_ids: int
    not_restored: int


def write_text(language: str, folder: Path) -> tuple[Path, list[str]]:
    """Write the sentences of a language in random order; return the file and the sentences.

    A line of the file is a document of six sentences; blank lines separate the documents.
    """
    lines = sentences(language)
    random.Random(3).shuffle(lines)
    documents = [
        " ".join(lines[start : start + _SENTENCES_PER_DOCUMENT])
        for start in range(0, len(lines), _SENTENCES_PER_DOCUMENT)
    ]
    path = folder / f"{language}.txt"
    path.write_text("\n\n".join(documents) + "\n", encoding="utf-8")
    return path, lines


def build_language(language: str, folder: Path) -> list[str]:
    """Write text, vocabulary and data of a language below `folder`; return its sentences."""
    text, lines = write_text(language, folder)
    code = LANGUAGE_CODES[language]
    options = [*_CLEANING, *_LANGUAGE_OPTIONS.get(language, ()), "--language", code]
    # The first try fails if the text is too small for 10,000 tokens.
    first_try = albert("vocab", text, "--out", folder / "vocabulary", "--size", 10_000, *options, expect=None)
    if first_try.code:
        size = first_try.err.split("at most ")[1].split()[0].replace(",", "")
        albert("vocab", text, "--out", folder / "vocabulary", "--size", size, *options)
    data = folder / "data"
    albert("data", text, "--vocab", folder / "vocabulary", "--out", data, "--holdout", 0.1, "--language", code)
    return lines


def check_language(language: str, folder: Path) -> LanguageReport:
    """Build vocabulary and data of a language; return the counts of mistakes."""
    lines = build_language(language, folder)
    vocabulary = load_sentencepiece(folder / "vocabulary")
    encoded = [vocabulary.encode(line) for line in lines]
    restored = [vocabulary.decode(ids) for ids in encoded]
    expected_texts = [clean(line, vocabulary.cleaning) for line in lines]
    facts = read_data_facts(folder / "data")
    cut_words, spans = count_cut_words(folder / "data")
    is_spaced = has_spaces(language)
    words = sum(len(line.split()) if is_spaced else len(line) for line in lines)
    return LanguageReport(
        language=language,
        tokens_per_word=sum(map(len, encoded)) / words,
        unknown_tokens=sum(ids.count(vocabulary.unk_id) for ids in encoded),
        cut_words=cut_words if is_spaced else None,
        spans=spans,
        sentences_found=sum(counts.sentences for counts in facts.totals.values()),
        sentences_expected=len(lines),
        different_ids=count_different_ids(folder / "vocabulary", lines, encoded),
        not_restored=sum(text != wanted for text, wanted in zip(restored, expected_texts, strict=True)),
    )


def count_cut_words(data: Path) -> tuple[int, int]:
    """Count masked spans that begin or end between two tokens of one word, and all spans.

    The check does not use the rule of `albert_cli.text.words`: within a segment, a token without the word mark "▁"
    continues a word.
    """
    corpus = TokenCorpus.open(data)
    vocabulary = Vocabulary.load(data)
    settings = PairSettings(64)
    index = np.arange(_SEQUENCES)
    packed = pack_sequences(corpus, sample_pairs(corpus, index, settings, 0), vocabulary.cls_id, vocabulary.sep_id)
    spans = select_spans(packed, vocabulary, settings, 0, index)
    has_mark = np.array([piece.startswith("▁") for piece in vocabulary.pieces])[packed.ids]
    follows_special = np.append(True, packed.is_special[:-1])
    is_boundary = np.append(has_mark | packed.is_special | follows_special, True)
    is_cut = ~is_boundary[spans.start] | ~is_boundary[spans.stop]
    return int(is_cut.sum()), is_cut.size


def count_different_ids(vocabulary: Path, lines: Sequence[str], encoded: Sequence[list[int]]) -> int:
    """Count the lines whose ids differ in `transformers`."""
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(str(vocabulary))
    theirs = tokenizer(list(lines), add_special_tokens=False)["input_ids"]
    return sum(ours != other for ours, other in zip(encoded, theirs, strict=True))


def train_and_use(folder: Path, lines: Sequence[str]) -> tuple[str, float]:
    """Pretrain 20 steps, fill a mask and fine-tune on a table; return the filled-in text and the table's score."""
    recipe = RECIPE.replace("total_steps = 4", "total_steps = 20")
    recipe = recipe.replace("max_position_embeddings = 32", "max_position_embeddings = 64")
    (folder / "recipe.toml").write_text(recipe)
    albert("pretrain", folder / "recipe.toml", "--data", folder / "data", "--out", folder / "run", *CPU)
    first, *words = lines[0].split()
    # Without spaces, `first` is the whole sentence, and the mask replaces its first two characters.
    masked = " ".join(["[MASK]", *words]) if words else f"[MASK]{first[2:]}"
    filled = json.loads(albert("fill-mask", folder / "run", masked, "--top", 1, "--json", *CPU).out)
    table = folder / "table"
    table.mkdir()
    rows = [(line, ("one", "two")[number % 2]) for number, line in enumerate(lines[:60])]
    for split, part in (("train", rows[:48]), ("dev", rows[48:])):
        content = "".join(f"{text}\t{label}\n" for text, label in part)
        (table / f"{split}.tsv").write_text(f"text\tlabel\n{content}", encoding="utf-8")
    (folder / "table.toml").write_text(
        'extends = "finetune/table"\n[data]\nmax_seq_length = 24\n[schedule]\ntotal_steps = 4\nwarmup_steps = 1\n'
        '[train]\nbatch_size = 8\nmicro_batch_size = 8\neval_every = 4\nprecision = "fp32"\ncompile = "off"\n'
    )
    arguments = ("finetune", folder / "table.toml", "--checkpoint", folder / "run", "--data", table)
    result = json.loads(albert(*arguments, "--out", folder / "tuned", "--json", *CPU).out)
    return filled["texts"][0]["masks"][0][0]["text"], result["score"]
