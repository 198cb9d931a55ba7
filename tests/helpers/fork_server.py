"""Prepare the fork server of `processes`, which imports this module last, for the processes that it forks.

It measures the matmul peak once, so that every process has the result. `albert bench` then measures two matmuls per
backend, as with `few_seconds`. The garbage collector of the forked processes does not scan the imported modules.
"""

from __future__ import annotations

import gc

import torch

from albert_cli import machine

machine.measure_matmul_peak.__kwdefaults__ = {"seconds": 0.0}
machine.matmul_peak("fp32", torch.device("cpu"))
gc.freeze()
