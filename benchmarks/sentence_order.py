"""Measure how well simple features tell the order of two segments: a baseline for the SOP accuracy of a model.

python -m benchmarks.sentence_order data --length 128
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Final, TypeAlias

import numpy as np
import typer
from numpy.typing import NDArray
from scipy import sparse
from sklearn.ensemble import HistGradientBoostingClassifier
from sklearn.linear_model import LogisticRegression

from albert_cli import console
from albert_cli.cli.app import command
from albert_cli.cli.options import AsJson, Debug, Quiet
from albert_cli.data.arrays import Ids
from albert_cli.data.batches import original_ids, sample_batch
from albert_cli.data.pairs import NO_LABEL, PairSettings
from albert_cli.data.shards import TokenCorpus
from albert_cli.errors import InputError
from albert_cli.text.vocabulary import Vocabulary

Pair: TypeAlias = tuple[Ids, Ids]
Labels: TypeAlias = NDArray[np.int32]
_SENTENCE_ENDS: Final = (".", "▁.", "!", "?", "。", "।", "؟")  # pieces that end a sentence
_EDGE: Final = 12  # the first and the last tokens of a segment, which are features of their own
_MIN_TEST_PAIRS: Final = 100
app = typer.Typer(pretty_exceptions_enable=False, add_completion=False)


@dataclass(frozen=True)
class OrderBaselines:
    """Accuracies on held-out pairs of two classifiers; chance is 0.5.

    by_lengths: boosted trees that see only the lengths of segments and sentences. by_tokens: a logistic regression that
    sees which tokens each segment, and each end of a segment, has.
    """

    train_pairs: int
    test_pairs: int
    by_lengths: float
    by_tokens: float


def measure_baselines(data: Path, length: int, examples: int, seed: int = 0) -> OrderBaselines:
    """Train both classifiers on pairs of a data directory's train split, and score them on pairs of the held-out split.

    length: the recipe setting `data.max_seq_length` for the examples; examples: the number that is sampled for
    training, and the most that are sampled for the test. Examples of one segment are left out of both. Raises
    `InputError` if the held-out split has fewer than `_MIN_TEST_PAIRS` pairs.
    """
    vocabulary = Vocabulary.load(data)
    settings = PairSettings(max_seq_length=length)
    train, train_labels = sample_labeled_pairs(TokenCorpus.open(data, "train"), vocabulary, settings, examples, seed)
    heldout = TokenCorpus.open(data, "heldout")
    test_examples = min(examples, 4 * heldout.n_tokens // length)  # about four passes over the text
    test, test_labels = sample_labeled_pairs(heldout, vocabulary, settings, test_examples, seed)
    if len(test) < _MIN_TEST_PAIRS:
        raise InputError(
            f"{data}: the held-out text gives {len(test)} pairs of segments, fewer than {_MIN_TEST_PAIRS}",
            "build the data with a larger --holdout, or from documents of several sentences",
        )
    ends = np.isin(np.array(vocabulary.pieces), _SENTENCE_ENDS)
    trees = HistGradientBoostingClassifier(random_state=seed)
    trees.fit([length_features(pair, ends) for pair in train], train_labels)
    by_lengths = trees.score([length_features(pair, ends) for pair in test], test_labels)
    regression = LogisticRegression(C=0.03, solver="liblinear")
    regression.fit(token_features(train, len(vocabulary.pieces)), train_labels)
    by_tokens = regression.score(token_features(test, len(vocabulary.pieces)), test_labels)
    return OrderBaselines(len(train), len(test), round(by_lengths, 4), round(by_tokens, 4))


def sample_labeled_pairs(
    corpus: TokenCorpus, vocabulary: Vocabulary, settings: PairSettings, examples: int, seed: int
) -> tuple[list[Pair], Labels]:
    """Sample examples as training does, and return the ids of their segments before masking and their order labels.

    Examples of one segment are left out.
    """
    if corpus.n_tokens == 0:
        return [], np.empty(0, np.int32)
    batch = sample_batch(corpus, vocabulary, settings, seed, np.arange(examples))
    has_label = batch.order_labels != NO_LABEL
    sequences = np.split(original_ids(batch), batch.offsets[1:-1])
    pairs = []
    for number in np.flatnonzero(has_label):
        ids = sequences[number]
        first_sep, last_sep = np.flatnonzero(ids == vocabulary.sep_id)
        pairs.append((ids[1:first_sep], ids[first_sep + 1 : last_sep]))
    return pairs, batch.order_labels[has_label]


def length_features(pair: Pair, ends_sentence: NDArray[np.bool_]) -> list[int]:
    """Return the lengths of both segments and of their sentences.

    A segment has five numbers: its tokens, the tokens of its first sentence, the tokens after its last sentence end,
    the tokens of its last complete sentence, and its sentence ends.
    ends_sentence: True for the ids of pieces that end a sentence, bool [vocabulary].
    """
    features = []
    for ids in pair:
        ends = np.flatnonzero(ends_sentence[ids])
        first = ends[0] + 1 if ends.size else ids.size
        rest = ids.size - 1 - ends[-1] if ends.size else ids.size
        last = ends[-1] - ends[-2] if ends.size > 1 else first
        features += [ids.size, int(first), int(rest), int(last), ends.size]
    return features


def token_features(pairs: Sequence[Pair], vocabulary_size: int) -> sparse.csr_matrix:
    """Return which tokens occur in each segment, and among the first and the last `_EDGE` tokens of each: a 0/1 matrix.

    The shape is [pairs, 6 × vocabulary].
    """
    columns: list[NDArray[np.int64]] = []
    for a, b in pairs:
        parts = (a, b, a[:_EDGE], a[-_EDGE:], b[:_EDGE], b[-_EDGE:])
        offset_ids = [ids.astype(np.int64) + number * vocabulary_size for number, ids in enumerate(parts)]
        columns.append(np.unique(np.concatenate(offset_ids)))
    row_ends = np.cumsum([0, *map(len, columns)])
    indices = np.concatenate(columns)
    return sparse.csr_matrix((np.ones(indices.size), indices, row_ends), (len(pairs), 6 * vocabulary_size))


@command(app)
def main(
    data: Annotated[Path, typer.Argument(help="The data directory.", metavar="DATA")],
    length: Annotated[int, typer.Option("--length", help="Positions of a sequence.", min=8)] = 128,
    examples: Annotated[int, typer.Option("--examples", help="Examples to sample for training.", min=100)] = 50_000,
    as_json: AsJson = False,
    quiet: Quiet = False,
    debug: Debug = False,
) -> None:
    """Measure how well lengths and single tokens tell the order of two segments."""
    result = measure_baselines(data, length, examples)
    text = (
        f"order of two segments, {result.train_pairs:,} pairs to train and {result.test_pairs:,} held out; chance 50%\n"
        f"by the lengths of segments and sentences: {result.by_lengths:.1%}\n"
        f"by single tokens: {result.by_tokens:.1%}"
    )
    console.print_result(asdict(result), text)


if __name__ == "__main__":
    app()
