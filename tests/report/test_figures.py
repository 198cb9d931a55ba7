"""Figures of the report: what their images contain."""

from __future__ import annotations

from base64 import b64decode

from albert_cli.report.figures import TrendSeries, draw_trends


def test_legend_of_trends_has_every_label() -> None:
    trends = [TrendSeries(label, {10.0: [0.25], 100.0: [0.5, 0.75]}) for label in ("_run", "run", "_", "__a__")]
    image = b64decode(draw_trends(trends).partition(",")[2]).decode()
    assert all(f">{trend.label}  62.5<" in image for trend in trends)
