"""Prepare the fork server of `processes`, which imports this module last, for the processes that it forks.

It does once what each of them would do again: it builds the command line and the types of recipes and records,
compiles the patterns of a vocabulary, and measures the matmul peak. `albert bench` then measures two matmuls per
backend, as with `short_measurements`. The garbage collector of the forked processes does not scan the imported
modules.
"""

from __future__ import annotations

import gc
from pathlib import Path
from tempfile import TemporaryDirectory

import torch

from albert_cli import machine, store
from albert_cli.cli.app import command_line
from albert_cli.data.records import DataFacts
from albert_cli.store.manifests import Manifest
from albert_cli.training.checkpoint import TrainState
from albert_cli.training.pretrain_recipe import load_pretrain_recipe
from albert_cli.training.task_recipe import load_recipe
from albert_cli.work_plan import RunStatus
from tests.helpers.vocabularies import ALBERT_OPTIONS, load_sentencepiece, train_elsewhere

command_line()
load_pretrain_recipe("mini/docs", [], vocab_size=300)
load_recipe("rte", ())
for record_type in (DataFacts, Manifest, RunStatus, TrainState):
    store.type_adapter(record_type)
with TemporaryDirectory() as folder:
    load_sentencepiece(train_elsewhere(Path(folder), **ALBERT_OPTIONS)).copy_to(Path(folder))
machine.measure_matmul_peak.__kwdefaults__ = {"seconds": 0.0}
machine.matmul_peak("fp32", torch.device("cpu"))
gc.freeze()
