"""Tests of the report of an experiment."""

from __future__ import annotations

from pathlib import Path

from albert_cli.experiments import pages, recipe
from albert_cli.experiments.claims import CheckedClaim, Finding
from albert_cli.experiments.experiment import Condition, PaperClaim
from albert_cli.experiments.outcome import Outcome
from albert_cli.experiments.plan import ExperimentRequest
from albert_cli.experiments.stages import make_plan
from tests.helpers.markdown import find_table


def test_limits_are_exact_only_for_counts(tmp_path: Path) -> None:
    plan = make_plan(recipe.load_experiment("sharing"), ExperimentRequest("smoke", tmp_path, dry_run=True))
    measured = Condition("all.mlm_accuracy", "above", 0, ("none.mlm_accuracy",))
    count = Condition("all.parameters", "above", 0)
    findings = [
        Finding(condition, {0: value, 1: value}, value, value, value)
        for condition, value in ((measured, 0.0), (count, 7.0))
    ]
    claim = CheckedClaim(PaperClaim("S", "T", "M", (measured, count)), findings)
    page = pages.write_report(Outcome(plan, {}, claims=[claim]))
    rows = find_table(page.with_suffix(".md").read_text(encoding="utf-8"), "confidence limits")
    assert [row["confidence limits"] for row in rows] == ["0 … 0", "exact"]
