"""Result files of experiment stages, written by hand."""

from __future__ import annotations

from collections.abc import Mapping

from albert_cli import store
from albert_cli.experiments.plan import ExperimentPlan, Stage


def finish_stage(plan: ExperimentPlan, stage: Stage | None, result: Mapping[str, object], device: str = "cpu") -> None:
    """Write the result file of a stage, and an empty directory."""
    assert stage is not None
    record = {"stage": stage.id, "title": stage.title, "command": stage.command, "seconds": 1.0, "result": result}
    record["device"] = device
    plan.directory(stage).mkdir(parents=True, exist_ok=True)
    store.write_json(plan.result_path(stage), record)
