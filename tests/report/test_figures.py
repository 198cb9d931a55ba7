"""Labels in figures: short, different for different models, and in any script."""

from __future__ import annotations

import base64
import re
import warnings
from html import unescape

import pytest

from albert_cli.report.figures import (
    DotRow,
    LabeledPoint,
    LineSeries,
    TrendSeries,
    draw_curves,
    draw_dots,
    draw_points,
    draw_trends,
)

DIRECTORIES = ("lr=1e-5,batch=16", "lr=2e-5,batch=16", "lr=5e-5,batch=16")


def texts_in(image: str) -> list[str]:
    svg = base64.b64decode(image.removeprefix("data:image/svg+xml;base64,")).decode()
    return [unescape(text) for text in re.findall(r"<text[^>]*>([^<]*)</text>", svg)]


def draw_labels(figure: str, labels: list[str]) -> list[str]:
    """Draw a figure with these labels, and return all texts in it."""
    if figure == "dots":
        return texts_in(draw_dots([DotRow(label, [0.5, 0.6], 0.55) for label in labels]))
    if figure == "points":
        points = [LabeledPoint(1e6 * (n + 1), 50.0 + n, label, "#000000") for n, label in enumerate(labels)]
        return texts_in(draw_points(points))
    return texts_in(draw_trends([TrendSeries(label, {100: [0.5], 500: [0.6]}) for label in labels]))


@pytest.mark.parametrize("figure", ["dots", "points", "trends"])
@pytest.mark.parametrize("name", ["pretrain, step 3,000", "checkpoint 0123abcd"])
def test_labels_of_different_models_are_different(figure: str, name: str) -> None:
    labels = [f"{name} ({directory})" for directory in DIRECTORIES]
    texts = {text.removesuffix("  60.0") for text in draw_labels(figure, labels)}
    assert texts >= set(labels), "shortened, they would be equal"


def test_long_label_has_its_beginning_and_its_end() -> None:
    texts = draw_labels("dots", ["a model with a very long name (lr=1e-5)", "same init"])
    assert "same init" in texts
    (label,) = (text for text in texts if "…" in text)
    assert len(label) == 24 and label.startswith("a model") and label.endswith("(lr=1e-5)")


@pytest.mark.parametrize("name", ["预训练模型", "המודל", "मॉडल"])
def test_labels_in_any_script_are_drawn_without_warnings(name: str) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert name in draw_labels("dots", [name])


def test_legend_of_trends_has_every_label() -> None:
    """matplotlib leaves out labels that begin with "_"."""
    labels = ["_run", "run", "_", "__a__"]
    assert set(draw_labels("trends", labels)) >= {f"{label}  60.0" for label in labels}


def test_ticks_of_large_numbers_have_no_exponents() -> None:
    curve = texts_in(draw_curves([LineSeries([(1, 1e6), (2, 25e6)], "#000000")]))
    points = texts_in(draw_points([LabeledPoint(x, 50.0, "model", "#000000") for x in (2e8, 2e9)]))
    assert "20,000k" in curve and "1,000 M" in points
    assert not any(re.search(r"[0-9]e[+-]", text) for text in (*curve, *points))
