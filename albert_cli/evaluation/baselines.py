"""Classical baselines: train scikit-learn's linear models on n-grams of the same examples that a model is trained on.

A pretrained model is only useful if it scores higher than these baselines. Nothing is tuned on dev: cross-validation on
the training examples chooses the strength of regularization, and `score_summary.best_baseline` chooses the model by the
same score. Words are runs of word characters in lower case, in any language.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from albert_cli.score_summary import CROSS_VALIDATED
from albert_cli.tasks.base import AnyTask, Array
from albert_cli.tasks.classification import Classification, TextExample
from albert_cli.tasks.metrics import scores
from albert_cli.text.words import word_pattern

WORDS: Final = "words"
CHARACTERS: Final = "characters"
OVERLAP: Final = "overlap"
_INVERSE_PENALTIES: Final = (1.0, 10.0)  # scikit-learn's C, the inverse strength of regularization
_FOLDS: Final = 3
_MAX_CROSS_VALIDATED: Final = 20_000  # training examples; more do not change the choice
_MAX_FEATURES: Final = 2**18  # the most frequent n-grams; 100,000 sentences have about this many words and bigrams
_OVERLAP_NGRAM_SIZES: Final = (1, 2)  # in words

Texts = list[list[str]]  # columns of texts: the first texts of all examples and, for pairs, their second texts


@dataclass(frozen=True)
class BaselineOutcome:
    """A linear model's scores, and its predictions on dev [N].

    scores: every metric of the task on dev, and `CROSS_VALIDATED`, the main metric in cross-validation on train.
    """

    scores: dict[str, float]
    predictions: Array


def train_baselines(task: AnyTask, train: Sequence[Any], dev: Sequence[Any]) -> dict[str, BaselineOutcome]:
    """Train linear models on the examples `train` and score them on the examples `dev`; return outcomes by model.

    `words` and `characters` are logistic regressions (for values: ridge regressions) on TF-IDF weights of n-grams: up
    to three words and punctuation marks, or up to five characters. `overlap`, for pairs of texts, is a regression on
    `_overlap_features`. The result is empty for tasks other than classification and regression, and if all texts are
    blank.
    """
    if not isinstance(task, Classification):
        return {}
    train_texts = _split_texts(train, task.inputs)
    dev_texts = _split_texts(dev, task.inputs)
    if not any(text.strip() for column in train_texts for text in column):
        return {}
    labels = np.array([example.label for example in train])
    gold = np.array([example.label for example in dev])
    word_or_punctuation = rf"{word_pattern()}|[^\w\s]"
    features = {
        WORDS: _tfidf_features(train_texts, dev_texts, ngram_range=(1, 3), token_pattern=word_or_punctuation),
        CHARACTERS: _tfidf_features(train_texts, dev_texts, ngram_range=(1, 5), analyzer="char"),
    }
    if task.inputs == 2:
        features[OVERLAP] = _overlap_features(train_texts, dev_texts)
    if np.ptp(labels) == 0:  # all training labels are equal: scikit-learn rejects them, and nothing is left to learn
        constant = np.full(len(gold), labels[0])
        metrics = {**scores(task.metrics, constant, gold), CROSS_VALIDATED: 0.0}
        return dict.fromkeys(features, BaselineOutcome(metrics, constant))
    outcomes = {}
    for name, (train_features, dev_features) in features.items():
        score_by_inverse_penalty = {
            inverse_penalty: _cross_validate(task, train_features, labels, inverse_penalty)
            for inverse_penalty in _INVERSE_PENALTIES
        }
        best_inverse_penalty = max(score_by_inverse_penalty, key=score_by_inverse_penalty.__getitem__)
        model = _linear_model(task, train_features, best_inverse_penalty).fit(train_features, labels)
        predictions = model.predict(dev_features)
        cross_validated = round(score_by_inverse_penalty[best_inverse_penalty], 4)
        metrics = {**scores(task.metrics, predictions, gold), CROSS_VALIDATED: cross_validated}
        outcomes[name] = BaselineOutcome(metrics, predictions)
    return outcomes


def _linear_model(task: Classification, features: Any, inverse_penalty: float) -> Any:
    """Return an untrained scikit-learn model for features [N, F], sparse or dense.

    For sparse features the solver is liblinear, which is ten times as fast on them as the default one.
    """
    from scipy.sparse import issparse
    from sklearn.linear_model import LogisticRegression, Ridge
    from sklearn.multiclass import OneVsRestClassifier

    if task.is_regression:
        return Ridge(alpha=1 / inverse_penalty)
    if not issparse(features):
        return LogisticRegression(C=inverse_penalty, max_iter=1000)
    return OneVsRestClassifier(LogisticRegression(C=inverse_penalty, solver="liblinear", dual=True, random_state=0))


def _cross_validate(task: Classification, features: Any, labels: Array, inverse_penalty: float) -> float:
    """Return the main metric in cross-validation on at most `_MAX_CROSS_VALIDATED` training examples.

    Returns 0 if there are fewer examples than folds.
    """
    from sklearn.model_selection import KFold

    sample = np.random.default_rng(0).permutation(len(labels))[:_MAX_CROSS_VALIDATED]
    if len(sample) < _FOLDS:
        return 0.0
    features = features[sample]
    labels = labels[sample]
    predictions = np.empty(len(sample))
    for train, held_out in KFold(_FOLDS).split(sample):
        if np.ptp(labels[train]) == 0:  # scikit-learn rejects equal labels, as in `train_baselines`
            predictions[held_out] = labels[train][0]
        else:
            model = _linear_model(task, features, inverse_penalty).fit(features[train], labels[train])
            predictions[held_out] = model.predict(features[held_out])
    return scores(task.metrics[:1], predictions, labels)[task.metrics[0]]


def _split_texts(examples: Sequence[TextExample], inputs: int) -> Texts:
    """Return the first texts of the examples and, if the task has two inputs, also their second texts."""
    first = [example.text_a for example in examples]
    second = [example.text_b or "" for example in examples]
    return [first, second][:inputs]


def _tfidf_features(train: Texts, dev: Texts, **options: Any) -> tuple[Any, Any]:
    """Return sparse TF-IDF weights of n-grams [N, F] for both splits; the weights of a pair's texts are concatenated.

    The vocabulary of n-grams comes from `train`. options: arguments of `TfidfVectorizer` that define an n-gram.
    """
    from scipy.sparse import hstack
    from sklearn.feature_extraction.text import TfidfVectorizer

    vectorizer = TfidfVectorizer(sublinear_tf=True, max_features=_MAX_FEATURES, dtype=np.float32, **options)
    # Splitting texts into n-grams takes most of the time, so `fit_transform` does it once for the vocabulary and the
    # weights. Unlike `transform`, it leaves the n-grams of a row unsorted.
    weights = vectorizer.fit_transform([text for column in train for text in column])
    weights.sort_indices()
    num_examples = len(train[0])
    columns = [weights[start : start + num_examples] for start in range(0, weights.shape[0], num_examples)]
    train_features = hstack(columns, format="csr")
    dev_features = hstack([vectorizer.transform(column) for column in dev], format="csr")
    return train_features, dev_features


def _overlap_features(train: Texts, dev: Texts) -> tuple[Array, Array]:
    """Return features of the overlap of each pair's texts [N, 11] for both splits.

    The features are the fractions of shared words and of shared bigrams (three each), the cosine of the TF-IDF weights
    and its square, the ratio of the lengths in words, and the logarithms of both lengths. All are standardized to mean
    0 and variance 1 on `train`.
    """
    from sklearn.feature_extraction.text import HashingVectorizer, TfidfTransformer
    from sklearn.preprocessing import StandardScaler

    # Unlike a vocabulary, hashing also counts words that are not in `train`.
    vectorizers = [
        HashingVectorizer(ngram_range=(size, size), alternate_sign=False, norm=None, token_pattern=word_pattern())
        for size in _OVERLAP_NGRAM_SIZES
    ]
    words = vectorizers[0]  # n-grams of one word
    weights = TfidfTransformer(sublinear_tf=True).fit(words.transform([text for column in train for text in column]))
    splits = []
    for first_texts, second_texts in (train, dev):
        columns: list[Array] = []
        for vectorizer in vectorizers:
            columns += _shared_fractions(vectorizer.transform(first_texts), vectorizer.transform(second_texts))
        first = words.transform(first_texts)
        second = words.transform(second_texts)
        cosine = _row_sums(weights.transform(first).multiply(weights.transform(second)))
        lengths = np.stack([_row_sums(first), _row_sums(second)])  # in words [2, N]
        ratio = lengths.min(0) / np.maximum(lengths.max(0), 1)
        splits.append(np.stack([*columns, cosine, cosine**2, ratio, *np.log1p(lengths)], axis=1))
    scaler = StandardScaler().fit(splits[0])
    return scaler.transform(splits[0]), scaler.transform(splits[1])


def _shared_fractions(first: Any, second: Any) -> list[Array]:
    """Return three fractions [N] of shared n-grams.

    They are the number of n-grams in both texts of a pair, divided by the number in the first text, in the second text,
    and in the union of both. first, second: sparse counts [N, n-grams] of the pairs' texts. An n-gram that occurs twice
    in a text counts once.
    """
    in_first = (first > 0).astype(np.float64)
    in_second = (second > 0).astype(np.float64)
    shared = _row_sums(in_first.multiply(in_second))
    num_first = _row_sums(in_first)
    num_second = _row_sums(in_second)
    num_union = num_first + num_second - shared
    return [shared / np.maximum(total, 1) for total in (num_first, num_second, num_union)]


def _row_sums(matrix: Any) -> Array:
    """Return the sums of a sparse matrix's rows [N]."""
    return np.asarray(matrix.sum(axis=1), dtype=np.float64).ravel()
