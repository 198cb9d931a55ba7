"""Baselines without pretraining: linear models on word counts, by scikit-learn.

Nothing is tuned on dev: the strength of regularization is fixed for all tasks. Words are runs of word characters in
lower case, in any language.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import numpy as np

from albert_cli.tasks.base import AnyTask, Array
from albert_cli.tasks.classification import Classification, TextExample
from albert_cli.tasks.metrics import scores

WORDS: Final = "words"
OVERLAP: Final = "overlap"
_INVERSE_PENALTY: Final = 10.0  # scikit-learn's C
_WORD: Final = r"\w+"
_WORD_OR_SIGN: Final = r"\w+|[^\w\s]"
_MAX_FEATURES: Final = 2**18  # all words and bigrams of a hundred thousand sentences
_NGRAM_SIZES: Final = (1, 2)

Texts = list[list[str]]  # the first texts of all examples and, for pairs, the second ones


def score_baselines(task: AnyTask, train: Sequence[Any], dev: Sequence[Any]) -> dict[str, dict[str, float]]:
    """Train linear models on `train` and return every metric of the task on `dev`; empty for choices and spans.

    `words` is logistic regression (for values: ridge regression) on TF-IDF weights of the words and bigrams of each
    text. `overlap`, for pairs, is the same on what the two texts have in common.
    """
    if not isinstance(task, Classification):
        return {}
    train_texts = _split_texts(train, task.inputs)
    dev_texts = _split_texts(dev, task.inputs)
    if not any(text.strip() for column in train_texts for text in column):
        return {}
    from sklearn.linear_model import LogisticRegression, Ridge

    labels = np.array([example.label for example in train])
    gold = np.array([example.label for example in dev])
    features = {WORDS: _tfidf_features(train_texts, dev_texts)}
    if task.inputs == 2:
        features[OVERLAP] = _overlap_features(train_texts, dev_texts)
    if np.ptp(labels) == 0:  # a single class or value: the models predict nothing else
        return dict.fromkeys(features, scores(task.metrics, np.full(len(gold), labels[0]), gold))
    metrics = {}
    for name, (train_features, dev_features) in features.items():
        if task.is_regression:
            model = Ridge(alpha=1 / _INVERSE_PENALTY)
        else:
            model = LogisticRegression(C=_INVERSE_PENALTY, max_iter=1000)
        predictions = model.fit(train_features, labels).predict(dev_features)
        metrics[name] = scores(task.metrics, predictions, gold)
    return metrics


def _split_texts(examples: Sequence[TextExample], inputs: int) -> Texts:
    first = [example.text_a for example in examples]
    second = [example.text_b or "" for example in examples]
    return [first, second][:inputs]


def _tfidf_features(train: Texts, dev: Texts) -> tuple[Any, Any]:
    """Return sparse TF-IDF weights of words, signs and bigrams for both splits; two texts are concatenated."""
    from scipy.sparse import hstack
    from sklearn.feature_extraction.text import TfidfVectorizer

    vectorizer = TfidfVectorizer(
        ngram_range=(1, 2), sublinear_tf=True, token_pattern=_WORD_OR_SIGN, max_features=_MAX_FEATURES
    )
    vectorizer.fit([text for column in train for text in column])
    train_features = hstack([vectorizer.transform(column) for column in train], format="csr")
    dev_features = hstack([vectorizer.transform(column) for column in dev], format="csr")
    return train_features, dev_features


def _overlap_features(train: Texts, dev: Texts) -> tuple[Array, Array]:
    """Return what pairs have in common [N, 11] for both splits, standardized to mean 0 and variance 1 on train."""
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
