"""Tests of `experiments.metrics`: the tasks among metrics."""

from __future__ import annotations

from albert_cli.experiments.metrics import list_tasks


def test_list_tasks_scores_of_a_task_give_its_name() -> None:
    metrics = ["task_squad1", "task_squad1_f1", "task_squad2_best_em", "task_mrpc_f1", "tasks_mean", "mlm_loss"]
    assert list_tasks(metrics) == {"squad1", "squad2", "mrpc"}


def test_list_tasks_name_with_underscore_is_whole() -> None:
    assert list_tasks(["task_race_middle", "task_race_high"]) == {"race_middle", "race_high"}
    assert list_tasks(["task_race", "task_race_middle_accuracy"]) == {"race"}


def test_list_tasks_unknown_tasks_keep_their_names() -> None:
    assert list_tasks(["task_table", "task_minimal-pairs"]) == {"table", "minimal-pairs"}
