"""What needs no pretraining, as a measure for what does: linear models on counted words, by scikit-learn.

Nothing is chosen on dev: how strongly the models are regularised is fixed for every task. Words are runs of word
characters, in small letters; nothing else is known of the language.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from albert_cli.tasks.base import AnyTask, Array
from albert_cli.tasks.classification import Classification
from albert_cli.tasks.metrics import scores

WORDS, OVERLAP = "words", "overlap"

_INVERSE_PENALTY = 10.0  # the inverse of the penalty's strength
_WORD, _WORD_OR_SIGN = r"\w+", r"\w+|[^\w\s]"
_MAX_FEATURES = 2**18  # the commonest words and bigrams: all of them for a hundred thousand sentences


def score_baselines(task: AnyTask, train: Sequence[Any], dev: Sequence[Any]) -> dict[str, dict[str, float]]:
    """Every metric of the task on dev, for each linear model that learns from `train`; none for choices and spans.

    `words` is logistic regression (ridge regression for values) on TF-IDF weights of words and bigrams, of each text by
    itself; `overlap`, for pairs, the same on what the two texts have in common.
    """
    if not isinstance(task, Classification):
        return {}
    labels, gold = (np.array([e.label for e in examples]) for examples in (train, dev))
    texts = [
        [[e.text_a for e in examples], [e.text_b or "" for e in examples]][: task.inputs] for examples in (train, dev)
    ]
    if not any(text.strip() for texts_of_train in texts[0] for text in texts_of_train):
        return {}  # not a word to count
    from sklearn.linear_model import LogisticRegression, Ridge

    features = {WORDS: _tfidf_features(*texts)}
    if task.inputs == 2:
        features[OVERLAP] = _overlap_features(*texts)
    if np.ptp(labels) == 0:  # of one class, or one value, there is nothing to learn
        return dict.fromkeys(features, scores(task.metrics, np.full(len(gold), labels[0]), gold))
    found = {}
    for name, (of_train, of_dev) in features.items():
        model = (
            Ridge(alpha=1 / _INVERSE_PENALTY)
            if task.is_regression
            else LogisticRegression(C=_INVERSE_PENALTY, max_iter=1000)
        )
        found[name] = scores(task.metrics, model.fit(of_train, labels).predict(of_dev), gold)
    return found


def _tfidf_features(train: list[list[str]], dev: list[list[str]]) -> tuple[Any, Any]:
    """TF-IDF weights of words, signs and their bigrams for both splits, sparse; of two texts side by side."""
    from scipy.sparse import hstack
    from sklearn.feature_extraction.text import TfidfVectorizer

    counted = TfidfVectorizer(
        ngram_range=(1, 2), sublinear_tf=True, token_pattern=_WORD_OR_SIGN, max_features=_MAX_FEATURES
    )
    counted.fit([text for texts in train for text in texts])
    of_train, of_dev = (hstack([counted.transform(texts) for texts in split], format="csr") for split in (train, dev))
    return of_train, of_dev


def _overlap_features(train: list[list[str]], dev: list[list[str]]) -> tuple[Array, Array]:
    """What pairs of texts have in common, for both splits [N, 11], each column with mean 0 and variance 1 in train."""
    from sklearn.feature_extraction.text import HashingVectorizer, TfidfTransformer
    from sklearn.preprocessing import StandardScaler

    # By hashes, so that words which train does not have are compared too.
    hashed = {"alternate_sign": False, "norm": None, "token_pattern": _WORD}
    count = {n: HashingVectorizer(ngram_range=(n, n), **hashed) for n in (1, 2)}
    weights = TfidfTransformer(sublinear_tf=True).fit(count[1].transform([text for texts in train for text in texts]))
    splits = []
    for split in (train, dev):
        columns: list[Array] = []
        for counter in count.values():
            a, b = ((counter.transform(texts) > 0).astype(np.float64) for texts in split)
            shared, of_a, of_b = (_row_sums(x) for x in (a.multiply(b), a, b))
            columns += [shared / np.maximum(total, 1) for total in (of_a, of_b, of_a + of_b - shared)]
        a, b = (count[1].transform(texts) for texts in split)
        cosine = _row_sums(weights.transform(a).multiply(weights.transform(b)))
        lengths = np.stack([_row_sums(a), _row_sums(b)])
        ratio = lengths.min(0) / np.maximum(lengths.max(0), 1)
        splits.append(np.stack([*columns, cosine, cosine**2, ratio, *np.log1p(lengths)], axis=1))
    scale = StandardScaler().fit(splits[0])
    return scale.transform(splits[0]), scale.transform(splits[1])


def _row_sums(matrix: Any) -> Array:
    return np.asarray(matrix.sum(axis=1), dtype=np.float64).ravel()
