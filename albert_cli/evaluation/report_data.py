"""The report's section on data: how much text, and what the sequences look like that are drawn from it."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from typing import Any

from albert_cli.config import validate
from albert_cli.data.batches import PairSettings
from albert_cli.data.examples import LABELS
from albert_cli.data.shards import TokenCorpus
from albert_cli.data.statistics import LENGTH_BINS, length_statistics, sample_statistics
from albert_cli.errors import AlbertError
from albert_cli.evaluation import plots
from albert_cli.evaluation.page import Markup, figure, join, key, table, tag
from albert_cli.evaluation.results import Data, Pretraining, number
from albert_cli.text.vocabulary import Vocabulary


def section(found: Sequence[Data], runs: Sequence[Pretraining]) -> Markup:
    """Sizes, and for sequences drawn from each as its run draws them: lengths, spans, rates."""
    drawn = [_drawn(data, runs) for data in found]
    sizes = tag("div", _sizes(found), class_="compact")
    return join(sizes, *(_sequences(data, *sample) for data, sample in zip(found, drawn, strict=True)))


def _drawn(data: Data, runs: Sequence[Pretraining]) -> tuple[PairSettings, dict[str, Any], dict[str, dict[str, float]]]:
    """Statistics of a sample, with the settings and the seed of a run on this data where there is one."""
    settings, seed = PairSettings(), 0
    run = next((run for run in runs if run.data == data.fingerprint), None)
    if run is not None:
        # A recipe of another version is no reason to leave the data out of the report.
        with suppress(AlbertError):
            settings = validate(PairSettings, run.recipe.get("data", {}), run.name)
        seed = int(number(run.setting("train", "seed")) or 0)
    corpus, vocabulary = TokenCorpus.open(data.path, "train"), Vocabulary.load(data.path / "vocabulary")
    return settings, sample_statistics(corpus, vocabulary, settings, seed), length_statistics(corpus, seed)


def _sizes(found: Sequence[Data]) -> Markup:
    rows = [
        [data.name, split, *(f"{number(counts.get(unit)) or 0:,.0f}" for unit in ("documents", "sentences", "tokens"))]
        for data in found
        for split, counts in data.totals.items()
    ]
    return table(["data", "split", "documents", "sentences", "pieces"], rows, text_columns=2)


def _sequences(
    data: Data, settings: PairSettings, drawn: dict[str, Any], lengths: dict[str, dict[str, float]]
) -> Markup:
    edges = [f"{settings.max_seq_length * (n + 1) // LENGTH_BINS:,}" for n in range(LENGTH_BINS)]
    words = [f"{n}" for n in range(1, settings.ngram + 1)]
    panels = [
        figure(
            plots.bars(edges, drawn["length_share"], describes=f"Lengths of the sequences of {data.name}"),
            f"Per cent of the sequences, by length; {100 * drawn['fill']:.1f} % of the positions are filled.",
            title="Length of a sequence",
        ),
        figure(
            plots.bars(
                words, drawn["ngram_share"], drawn["ngram_expected"], describes=f"Words of a span in {data.name}"
            ),
            key("chosen", 1),
            key("drawn with p(n)", 2, "line"),
            "Per cent of the spans, by words. Long spans are left out more often, because they touch others.",
            title="Words of a masked span",
        ),
    ]
    facts = [
        ("positions masked, %", drawn["mask_rate"]),
        ("positions permuted, %", drawn["permuted_rate"] or None),
        (f"pairs with label 1 ({LABELS[settings.sentence_loss][1]}), %", drawn["label_1_share"]),
        ("sequences of one segment, %", drawn["one_segment_share"]),
        ("pieces unknown, %", drawn["unknown_share"]),
    ]
    rows = [[name, f"{100 * share:.2f}"] for name, share in facts if share is not None]
    rows += [
        [f"pieces a {unit}, mean (5 %, median, 95 %)", "{mean:,.1f} ({p5:,.0f}, {p50:,.0f}, {p95:,.0f})".format(**of)]
        for unit, of in lengths.items()
    ]
    sample = f"{drawn['sequences']} sequences of at most {settings.max_seq_length} positions, as training draws them"
    said = tag("p", f"{data.name}: {sample}. A pass over the text has {drawn['examples_per_pass']:,}.")
    return join(said, tag("div", *panels, class_="grid"), tag("div", table(["", data.name], rows), class_="compact"))
