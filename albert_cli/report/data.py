"""The report's section on data: how much text, and what the sequences look like that are drawn from it."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress

from albert_cli.config import validate
from albert_cli.data.describe import LENGTH_BINS, sample_statistics
from albert_cli.data.pairs import PairSettings
from albert_cli.data.shards import UNITS, TokenCorpus, read_facts
from albert_cli.data.verified import verify_data
from albert_cli.errors import AlbertError
from albert_cli.report import plots
from albert_cli.report.found import Data, Pretraining, setting
from albert_cli.report.page import Block, Figure, Grid, Key, Paragraph, Table
from albert_cli.text.vocabulary import Vocabulary


def section(found: Sequence[Data], runs: Sequence[Pretraining]) -> list[Block]:
    """Sizes, and for sequences drawn from each as its run draws them: lengths and spans."""
    rows = [
        [data.name, split, *(f"{counts[unit]:,}" for unit in UNITS)]
        for data in found
        for split, counts in read_facts(data.path)["totals"].items()
    ]
    sizes = Table(["data", "split", *UNITS], rows, text_columns=2, look="compact")
    return [sizes, *(block for data in found for block in _sequences(data, runs))]


def _sequences(data: Data, runs: Sequence[Pretraining]) -> list[Block]:
    """Statistics of a sample, with the settings and the seed of a run on this data where there is one."""
    settings, seed = PairSettings(), 0
    run = next((run for run in runs if run.data == data.fingerprint), None)
    if run is not None:
        with suppress(AlbertError):  # a recipe of another version is no reason to leave the data out of the report
            settings = validate(PairSettings, run.recipe.get("data", {}), run.name)
        seed = int(setting(run.recipe, "train", "seed") or 0)
    verify_data(data.path)
    corpus, vocabulary = TokenCorpus.open(data.path, "train"), Vocabulary.load(data.path / "vocabulary")
    drawn = sample_statistics(corpus, vocabulary, settings, seed)
    edges = [f"{settings.max_seq_length * (n + 1) // LENGTH_BINS:,}" for n in range(LENGTH_BINS)]
    words = [f"{n}" for n in range(1, settings.ngram + 1)]
    of_lengths = plots.bars(edges, drawn["length_share"], describes=f"Lengths of the sequences of {data.name}")
    of_words = plots.bars(
        words, drawn["ngram_share"], drawn["ngram_expected"], describes=f"Words of a masked n-gram in {data.name}"
    )
    filled = f"Per cent of the sequences, by length; {100 * drawn['fill']:.1f} % of the positions are filled."
    by_words = "Per cent of the n-grams, by words. Long ones are left out more often, because they touch others."
    panels = [
        Figure(of_lengths, "Length of a sequence", [filled]),
        Figure(of_words, "Words of a masked n-gram", [Key("chosen", 1), Key("drawn with p(n)", 2, "line"), by_words]),
    ]
    sample = f"{drawn['sequences']} sequences of at most {settings.max_seq_length} positions, as training draws them"
    text = f"{data.name}: {sample}. A pass over the text has {drawn['examples_per_pass']:,}."
    return [Paragraph(text), Grid(panels)]
