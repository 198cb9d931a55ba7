"""Labeled tasks: read examples from files, encode them for a model, and score its predictions.

`base.Task` is the interface that training, evaluation and prediction use. The kinds of task are in `classification`,
`multi_label`, `choice`, `token_classification` and `squad.task`. `registry` lists the published tasks (GLUE, SQuAD,
RACE); `table.open_table` and `token_classification.open_token_task` build tasks from a user's files.
"""
