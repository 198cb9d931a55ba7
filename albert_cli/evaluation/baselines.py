"""Classical baselines: linear models on n-grams of words and characters, by scikit-learn.

Nothing is tuned on dev. Cross-validation on the training examples chooses the strength of regularization, and which of
the models counts as the baseline. Words are runs of word characters in lower case, in any language.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from albert_cli.results import CROSS_VALIDATED
from albert_cli.tasks.base import AnyTask, Array
from albert_cli.tasks.classification import Classification, TextExample
from albert_cli.tasks.metrics import scores

WORDS: Final = "words"
CHARACTERS: Final = "characters"
OVERLAP: Final = "overlap"
_INVERSE_PENALTIES: Final = (1.0, 10.0)  # scikit-learn's C
_FOLDS: Final = 3
_MAX_CROSS_VALIDATED: Final = 20_000  # training examples; more do not change the choice
_WORD: Final = r"\w+"
_WORD_OR_SIGN: Final = r"\w+|[^\w\s]"
_MAX_FEATURES: Final = 2**18  # all words and bigrams of a hundred thousand sentences
_NGRAM_SIZES: Final = (1, 2)

Texts = list[list[str]]  # the first texts of all examples and, for pairs, the second ones


@dataclass(frozen=True)
class BaselineOutcome:
    """A linear model's metrics on dev, with `CROSS_VALIDATED` among them, and its predictions [N]."""

    scores: dict[str, float]
    predictions: Array


def train_baselines(task: AnyTask, train: Sequence[Any], dev: Sequence[Any]) -> dict[str, BaselineOutcome]:
    """Train linear models on `train` and score every metric of the task on `dev`; empty for choices and spans.

    `words` and `characters` are logistic regressions (for values: ridge regressions) on TF-IDF weights of the words, up
    to three together, or of the characters, up to five together. `overlap`, for pairs, is the same on what the two
    texts have in common. Each also has `CROSS_VALIDATED`, its main metric on held-out parts of `train`.
    """
    if not isinstance(task, Classification):
        return {}
    train_texts = _split_texts(train, task.inputs)
    dev_texts = _split_texts(dev, task.inputs)
    if not any(text.strip() for column in train_texts for text in column):
        return {}
    labels = np.array([example.label for example in train])
    gold = np.array([example.label for example in dev])
    features = {
        WORDS: _tfidf_features(train_texts, dev_texts, ngram_range=(1, 3), token_pattern=_WORD_OR_SIGN),
        CHARACTERS: _tfidf_features(train_texts, dev_texts, ngram_range=(1, 5), analyzer="char"),
    }
    if task.inputs == 2:
        features[OVERLAP] = _overlap_features(train_texts, dev_texts)
    if np.ptp(labels) == 0:  # a single class or value: the models predict nothing else
        constant = np.full(len(gold), labels[0])
        metrics = {**scores(task.metrics, constant, gold), CROSS_VALIDATED: 0.0}
        return dict.fromkeys(features, BaselineOutcome(metrics, constant))
    outcomes = {}
    for name, (train_features, dev_features) in features.items():
        cross_validated = {
            penalty: _cross_validate(task, train_features, labels, penalty) for penalty in _INVERSE_PENALTIES
        }
        best = max(cross_validated, key=cross_validated.__getitem__)
        model = _linear_model(task, train_features, best).fit(train_features, labels)
        predictions = model.predict(dev_features)
        metrics = {**scores(task.metrics, predictions, gold), CROSS_VALIDATED: round(cross_validated[best], 4)}
        outcomes[name] = BaselineOutcome(metrics, predictions)
    return outcomes


def _linear_model(task: Classification, features: Any, inverse_penalty: float) -> Any:
    """Return a scikit-learn model for these features: liblinear's dual solver is ten times as fast on sparse ones."""
    from scipy.sparse import issparse
    from sklearn.linear_model import LogisticRegression, Ridge
    from sklearn.multiclass import OneVsRestClassifier

    if task.is_regression:
        return Ridge(alpha=1 / inverse_penalty)
    if not issparse(features):
        return LogisticRegression(C=inverse_penalty, max_iter=1000)
    return OneVsRestClassifier(LogisticRegression(C=inverse_penalty, solver="liblinear", dual=True, random_state=0))


def _cross_validate(task: Classification, features: Any, labels: Array, inverse_penalty: float) -> float:
    """Return the main metric of predictions for training examples by models that have not seen them."""
    from sklearn.model_selection import KFold

    order = np.random.default_rng(0).permutation(len(labels))[:_MAX_CROSS_VALIDATED]
    if len(order) < _FOLDS:
        return 0.0
    predictions = np.empty(len(order))
    for fit, held_out in KFold(_FOLDS).split(order):
        fit_labels = labels[order[fit]]
        if np.ptp(fit_labels) == 0:
            predictions[held_out] = fit_labels[0]
        else:
            model = _linear_model(task, features, inverse_penalty).fit(features[order[fit]], fit_labels)
            predictions[held_out] = model.predict(features[order[held_out]])
    return scores(task.metrics[:1], predictions, labels[order])[task.metrics[0]]


def _split_texts(examples: Sequence[TextExample], inputs: int) -> Texts:
    first = [example.text_a for example in examples]
    second = [example.text_b or "" for example in examples]
    return [first, second][:inputs]


def _tfidf_features(train: Texts, dev: Texts, **options: Any) -> tuple[Any, Any]:
    """Return sparse TF-IDF weights of n-grams for both splits; the weights of two texts are concatenated.

    options: arguments of scikit-learn's vectorizer that define an n-gram.
    """
    from scipy.sparse import hstack
    from sklearn.feature_extraction.text import TfidfVectorizer

    vectorizer = TfidfVectorizer(sublinear_tf=True, max_features=_MAX_FEATURES, dtype=np.float32, **options)
    vectorizer.fit([text for column in train for text in column])
    train_features = hstack([vectorizer.transform(column) for column in train], format="csr")
    dev_features = hstack([vectorizer.transform(column) for column in dev], format="csr")
    return train_features, dev_features


def _overlap_features(train: Texts, dev: Texts) -> tuple[Array, Array]:
    """Return features of each pair's overlap [N, 11] for both splits, standardized to mean 0, variance 1 on train."""
    from sklearn.feature_extraction.text import HashingVectorizer, TfidfTransformer
    from sklearn.preprocessing import StandardScaler

    # Hashes also count words that train does not have.
    vectorizers = [
        HashingVectorizer(ngram_range=(size, size), alternate_sign=False, norm=None, token_pattern=_WORD)
        for size in _NGRAM_SIZES
    ]
    words = vectorizers[0]
    weights = TfidfTransformer(sublinear_tf=True).fit(words.transform([text for column in train for text in column]))
    splits = []
    for texts in (train, dev):
        columns: list[Array] = []
        for vectorizer in vectorizers:
            columns += _shared_fractions(*(vectorizer.transform(column) for column in texts))
        first, second = (words.transform(column) for column in texts)
        cosine = _row_sums(weights.transform(first).multiply(weights.transform(second)))
        lengths = np.stack([_row_sums(first), _row_sums(second)])
        ratio = lengths.min(0) / np.maximum(lengths.max(0), 1)
        splits.append(np.stack([*columns, cosine, cosine**2, ratio, *np.log1p(lengths)], axis=1))
    scaler = StandardScaler().fit(splits[0])
    return scaler.transform(splits[0]), scaler.transform(splits[1])


def _shared_fractions(first: Any, second: Any) -> list[Array]:
    """Return the number of shared n-grams [N] as a fraction of the first text's, the second's, and their union."""
    in_first = (first > 0).astype(np.float64)
    in_second = (second > 0).astype(np.float64)
    shared = _row_sums(in_first.multiply(in_second))
    num_first = _row_sums(in_first)
    num_second = _row_sums(in_second)
    return [shared / np.maximum(total, 1) for total in (num_first, num_second, num_first + num_second - shared)]


def _row_sums(matrix: Any) -> Array:
    return np.asarray(matrix.sum(axis=1), dtype=np.float64).ravel()
