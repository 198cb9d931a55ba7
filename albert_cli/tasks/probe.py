"""Fit a linear model to an encoder's features, as the initial weights of a classifier.

Cross-validation on the training examples chooses the strength of regularization. With few labels it is strong, and
that is what the features of a small encoder need.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np

from albert_cli.tasks.base import Array

_INVERSE_PENALTIES: Final = (0.003, 0.01, 0.03, 0.1)  # scikit-learn's C, for standardized features
_RIDGE_PENALTIES: Final = (10.0, 100.0, 1_000.0)
_FOLDS: Final = 3
_UNSEEN_MARGIN: Final = 1.0  # nats of a class without a training example below the least frequent class


def fit_probe(features_NH: Array, labels_N: Array, num_classes: int) -> tuple[Array, Array]:
    """Return weights [C, H] and biases [C] of a linear model that predicts the labels from the features.

    num_classes: 0 for values, which have one output. Equal labels give zero weights.
    """
    mean_H = features_NH.mean(axis=0, dtype=np.float64)
    scale_H = features_NH.std(axis=0, dtype=np.float64) + 1e-6
    standardized_NH = (features_NH - mean_H) / scale_H
    weight_CH = np.zeros((max(1, num_classes), features_NH.shape[1]))
    bias_C = np.zeros(len(weight_CH))
    if np.ptp(labels_N) == 0:
        bias_C[int(labels_N[0]) if num_classes else 0] = 1.0 if num_classes else labels_N[0]
        return weight_CH, bias_C
    if not num_classes:
        model = _best_model(standardized_NH, labels_N, is_regression=True)
        weight_CH[0] = model.coef_
        bias_C[0] = model.intercept_
    else:
        model = _best_model(standardized_NH, labels_N, is_regression=False)
        weight_kH = model.coef_
        bias_k = model.intercept_
        if len(weight_kH) == 1:  # two classes have one row, the difference of their logits
            weight_kH = np.concatenate([-weight_kH, weight_kH]) / 2
            bias_k = np.concatenate([-bias_k, bias_k]) / 2
        bias_C[:] = bias_k.min() - _UNSEEN_MARGIN
        weight_CH[model.classes_] = weight_kH
        bias_C[model.classes_] = bias_k
    weight_CH /= scale_H
    return weight_CH, bias_C - weight_CH @ mean_H


def _best_model(features_NH: Array, labels_N: Array, *, is_regression: bool) -> Any:
    """Return the fitted model that is best in cross-validation."""
    from sklearn.linear_model import LogisticRegression, Ridge
    from sklearn.model_selection import GridSearchCV, KFold

    order = np.random.default_rng(0).permutation(len(labels_N))
    if is_regression:
        model: Any = Ridge()
        grid: dict[str, Any] = {"alpha": _RIDGE_PENALTIES}
    else:
        model = LogisticRegression(C=_INVERSE_PENALTIES[0], max_iter=300)
        grid = {"C": _INVERSE_PENALTIES}
    # A fold of a few examples may lack a class or have a single one; then the strongest penalty is taken.
    if len(labels_N) < 10 * _FOLDS:
        return model.fit(features_NH, labels_N)
    search = GridSearchCV(model, grid, cv=KFold(_FOLDS), error_score=0.0)
    return search.fit(features_NH[order], labels_N[order]).best_estimator_
