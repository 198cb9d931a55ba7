"""`albert bench lengths`: time and memory of an encoder by the length of its input, for every form of attention.

One sequence forward and backward, all states of the last layer read, against `transformers`' Longformer and Big Bird
of the same shape. Every measurement has a process of its own, so that its peak of memory is its own.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

import torch
from torch import Tensor

from albert_cli import console, pool
from albert_cli.bench import harness, peer
from albert_cli.bench.harness import random_batch
from albert_cli.counting import shapes
from albert_cli.errors import ConfigError
from albert_cli.machine import synchronize
from albert_cli.model.config import ModelConfig
from albert_cli.model.encoder import Encoder
from albert_cli.model.packing import pack
from albert_cli.training.device import autocast, choose_device

LENGTHS: Final = (512, 1024, 2048, 4096, 8192)
PEERS: Final = ("longformer", "big bird")
FORMS: Final = ("full", "window", "block", *PEERS)
# Tokens of the pass that is not measured. On 704 or fewer Big Bird gives up its blocks, and for good: it attends fully.
_WARM: Final = 768


def run(
    name: str, lengths: Sequence[int], forms: Sequence[str], layers: int, rounds: int, precision: str, device_: str
) -> dict[str, Any]:
    """Seconds of the fastest of some rounds and bytes of the peak beside the model, by form and length.

    layers: 0 for the model's. Raises `ConfigError` for an unknown form. A form that fails at a length, for want of
    memory for example, has `error` in the place of its numbers.
    """
    for form in forms:
        if form not in FORMS:
            raise ConfigError(f"--form {form}: unknown", f"choose from {', '.join(FORMS)}")
    config = shapes.find_shape(name).config
    layers = layers or config.num_hidden_layers
    config = replace(
        config, max_position_embeddings=max(lengths), num_hidden_layers=layers,
        num_hidden_groups=min(config.num_hidden_groups, layers),
        hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0,
    )  # fmt: skip
    threads, work = torch.get_num_threads(), [(n, form) for n in sorted(lengths) for form in forms]
    found: dict[str, dict[str, Any]] = {form: {} for form in forms}
    fresh = pool.process_context({__name__} | ({"transformers.modeling_utils"} if {*PEERS} & {*forms} else set()))
    with console.progress("lengths", len(work)) as progress:
        for done, (length, form) in enumerate(work, start=1):
            with ProcessPoolExecutor(1, fresh) as alone:
                asked = alone.submit(_measured, config, form, length, rounds, precision, device_, threads)
                try:
                    found[form][str(length)] = asked.result()
                except Exception as error:
                    found[form][str(length)] = {"error": str(error).splitlines()[0] if str(error) else repr(error)}
            progress.update(done)
    conditions = harness.conditions(choose_device(device_), precision)
    sizes = {"attention_window": config.attention_window, "attention_block": config.attention_block}
    return {"model": name, "layers": layers, **sizes, **conditions, "forms": found}


def _measured(
    config: ModelConfig, form: str, length: int, rounds: int, precision: str, device_: str, threads: int
) -> dict[str, float]:
    """One form at one length, in a fresh process."""
    torch.set_num_threads(threads)
    torch.manual_seed(0)
    device = choose_device(device_)
    states = peer.make_sparse_model(config, form, length, device) if form in PEERS else _own(config, form, device)

    def one_pass(tokens: int) -> float:
        synchronize(device)
        begin = time.perf_counter()
        with autocast(precision, device):
            found = states(tokens)
        found.backward(torch.ones_like(found))  # type: ignore[no-untyped-call]
        synchronize(device)
        return time.perf_counter() - begin

    one_pass(min(_WARM, length))
    before = _memory(device, reset=True)
    seconds = min(one_pass(length) for _ in range(rounds))
    return {"seconds": round(seconds, 4), "bytes": _memory(device) - before}


def _own(config: ModelConfig, form: Any, device: torch.device) -> Callable[[int], Tensor]:
    encoder = Encoder(replace(config, attention=form), pooler=False).to(device).train()
    return lambda tokens: encoder(pack(random_batch([tokens], config.vocab_size), device), all_rows=True)


def _memory(device: torch.device, *, reset: bool = False) -> int:
    """Bytes at the peak since the last reset; after a reset those in use."""
    if device.type == "cuda":
        if reset:
            torch.cuda.reset_peak_memory_stats(device)
        return torch.cuda.max_memory_allocated(device)
    status = Path("/proc/self/status")
    if not status.is_file():
        return 0  # Linux alone counts a peak from a chosen moment on
    if reset:
        switch = os.open("/proc/self/clear_refs", os.O_WRONLY)
        os.write(switch, b"5")
        os.close(switch)
    fields = dict(line.split(":", 1) for line in status.read_text().splitlines())
    return 1024 * int(fields["VmHWM"].split()[0])


def text(result: dict[str, Any]) -> str:
    """The result of `run` as two tables, and where sparse attention begins to be faster."""
    forms: dict[str, dict[str, Any]] = result["forms"]
    lengths = list(next(iter(forms.values())))

    def cells(form: str, key: str, scale: float) -> list[str]:
        found = [forms[form][n].get(key) for n in lengths]
        return ["–" if value is None else f"{scale * value:,.0f}" for value in found]

    head = (
        f"{result['model']}, {result['layers']} layers, on {result['device']}, {result['threads']} threads, "
        f"{result['precision']}; a window of {result['attention_window']} tokens to either side, blocks of "
        f"{result['attention_block']}; one sequence, forward and backward"
    )
    parts = [head]
    for title, key, scale in (("milliseconds", "seconds", 1e3), ("peak, MB", "bytes", 1e-6)):
        parts.append(console.format_table((title, *lengths), [(form, *cells(form, key, scale)) for form in forms]))
    for form in ("window", "block"):
        if "full" in forms and form in forms:
            faster = [n for n in lengths if _ratio(forms, form, n) > 1]
            says = f"faster than full attention from {faster[0]} tokens on" if faster else "never faster than full"
            times = ", ".join(f"{_ratio(forms, form, n):.1f}x at {n}" for n in lengths if _ratio(forms, form, n))
            parts.append(f"{form}: {says} ({times})")
    return "\n\n".join(parts)


def _ratio(forms: dict[str, dict[str, Any]], form: str, length: str) -> float:
    full, own = (forms[name][length].get("seconds") for name in ("full", form))
    return full / own if full and own else 0.0
