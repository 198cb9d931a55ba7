"""Measure the matmul peak once in the fork server of `processes`, so that every process that it forks has the result.

The fork server imports this module. `albert bench` then measures two matmuls per backend, as with `few_seconds`.
"""

from __future__ import annotations

import torch

from albert_cli import machine

machine.measure_matmul_peak.__kwdefaults__ = {"seconds": 0.0}
machine.matmul_peak("fp32", torch.device("cpu"))
