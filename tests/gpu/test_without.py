"""The code for GPUs, tested without one: its branches run on a CPU, or its calls of torch are recorded."""

from __future__ import annotations

import importlib.util
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor
from torch.nn.attention.flex_attention import BlockMask
from torch.overrides import TorchFunctionMode

from albert_cli import machine, ranks
from albert_cli.bench import memory
from albert_cli.cli.app import translate_error
from albert_cli.counting import costs
from albert_cli.errors import AlbertError, ConfigError, DivergedError, Interrupted
from albert_cli.model import encoder, packing, sparse_attention
from albert_cli.model.block import gelu_new, has_varlen
from albert_cli.model.heads import MultipleChoice, PretrainingModel, QuestionAnswering, SequenceClassifier
from albert_cli.model.packing import SparseAttentionLayout, copy_as_one_buffer, pack
from albert_cli.ranks import RankGroup
from albert_cli.tasks import classification
from albert_cli.tasks.registry import TASKS
from albert_cli.tasks.squad import head
from albert_cli.tasks.squad.head import BeamQuestionAnswering
from albert_cli.training import capacity, device, loop, objectives, plan
from albert_cli.training.device import prepare_model
from albert_cli.training.distill import DistillSettings
from albert_cli.training.loop import Loop, StepResult, measure_step_seconds
from albert_cli.training.pretrain_recipe import BatchSettings
from albert_cli.training.settings import TrainSettings
from tests.helpers import flash
from tests.helpers.jobs import MakeJob, make_loop
from tests.helpers.losses import SHAPE, Operations, losses
from tests.helpers.shapes import TINY, random_batch

CPU, CUDA = torch.device("cpu"), torch.device("cuda", 0)
LENGTHS = (20, 3, 11, 7)


def gradients(model: PretrainingModel, lengths: tuple[int, ...] = LENGTHS, seed: int = 0) -> Tensor:
    """Return all gradients of a loss as one vector."""
    batch = random_batch(lengths, seed=seed)
    model.zero_grad()
    torch.manual_seed(5)
    logits = model(pack(batch, CPU, batch.masked_index))
    (logits.masked.logsumexp(-1).sum() + logits.sentence_order.square().sum()).backward()
    return torch.cat([p.grad.flatten() for p in model.parameters() if p.grad is not None])


# ---------------------------------------------------------------- varlen attention


@pytest.mark.parametrize("lengths", [LENGTHS, (9, 9), (2,)], ids=["ragged", "equal", "one sequence"])
def test_varlen_attention_gradients_equal_padded_form(lengths: tuple[int, ...]) -> None:
    torch.manual_seed(0)
    model = PretrainingModel(SHAPE)
    padded = gradients(model, lengths)
    with flash.use_cpu_kernels() as calls:
        packed = gradients(model, lengths)
    assert calls == [0.0] * SHAPE.num_hidden_layers
    assert float((packed - padded).norm()) <= 1e-5 * float(padded.norm())


def test_varlen_attention_applies_dropout() -> None:
    model = PretrainingModel(replace(SHAPE, attention_probs_dropout_prob=0.1)).train()
    with flash.use_cpu_kernels() as calls:
        first, second = gradients(model), gradients(model)
    assert calls == [0.1] * 2 * SHAPE.num_hidden_layers
    assert torch.equal(first, second)  # the same seed
    with flash.use_cpu_kernels():
        assert not torch.equal(first, gradients(model.eval()))


def test_has_varlen_depends_on_device_dtype_and_head_size(monkeypatch: pytest.MonkeyPatch) -> None:
    for capability, expected in (((9, 0), True), ((8, 0), True), ((7, 5), False)):
        monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device, pair=capability: pair)
        assert has_varlen(CUDA, torch.bfloat16, 64) is expected
        assert not has_varlen(CUDA, None, 64) and not has_varlen(CUDA, torch.bfloat16, 20)
    assert not has_varlen(CPU, torch.bfloat16, 64)


def test_gelu_new_equals_the_tanh_and_sigmoid_forms() -> None:
    x = torch.linspace(-9, 9, 4001, dtype=torch.float64)
    assert torch.equal(gelu_new(x), F.gelu(x, approximate="tanh"))
    expected = x * torch.sigmoid(2 * (2 / torch.pi) ** 0.5 * (x + 0.044715 * x * x * x))
    assert torch.allclose(expected, gelu_new(x), atol=1e-12)


# ---------------------------------------------------------------- compiled


class RecordingBackend:
    """A backend that compiles nothing: it counts the graphs and records inputs with dynamic sizes, such as weights."""

    def __init__(self) -> None:
        self.graphs = 0
        self.dynamic_inputs = list[tuple[Any, ...]]()

    def __call__(self, module: torch.fx.GraphModule, inputs: list[Any]) -> Callable[..., Any]:
        self.graphs += 1
        for node in module.graph.find_nodes(op="placeholder"):
            value = node.meta.get("example_value")
            if isinstance(value, Tensor) and value.dim() > 0:
                # Only the first dimension of activations may vary: the number of tokens, rows or sequences.
                static_from = 1 if node.name.startswith(("l_x", "l_layout", "l_rows")) else 0
                if any(isinstance(size, torch.SymInt) for size in value.shape[static_from:]):
                    self.dynamic_inputs.append((node.name, tuple(value.shape)))
        return module.forward


def with_backend(backend: Callable[..., Any]) -> Callable[..., Any]:
    """Return a `torch.compile` with another backend; `options` are dropped, because only the default one has them."""
    original = torch.compile
    return lambda function, dynamic=None, options=None: original(function, backend=backend, dynamic=dynamic)


def test_compiled_block_has_two_graphs_and_static_weights(monkeypatch: pytest.MonkeyPatch) -> None:
    torch._dynamo.reset()
    backend = RecordingBackend()
    monkeypatch.setattr(torch, "compile", with_backend(backend))
    model = PretrainingModel(replace(SHAPE, sharing="none"))
    prepare_model(model, TrainSettings(compile="on"), CPU)
    rng = np.random.default_rng(0)
    with flash.use_cpu_kernels():
        for step in range(12):
            lengths = tuple(map(int, rng.integers(2, 20, rng.integers(2, 7))))
            gradients(model, lengths, seed=step)
    torch._dynamo.reset()
    assert backend.dynamic_inputs == []
    assert backend.graphs == 2  # one for all tokens, one for the rows of the last layer


def test_compiled_padded_block_computes_same_gradients(monkeypatch: pytest.MonkeyPatch) -> None:
    """The only layer is the last one: the number of rows that it computes differs between batches of equal lengths.

    If the number of graphs grew with each form of a batch, torch would give up compiling late in a run.
    """
    model = PretrainingModel(replace(SHAPE, num_hidden_layers=1))
    seeds = range(3)
    expected = [gradients(model, seed=seed) for seed in seeds]
    torch._dynamo.reset()
    backend = RecordingBackend()
    monkeypatch.setattr(torch, "compile", with_backend(backend))
    prepare_model(model, TrainSettings(compile="on"), CPU)
    for seed in seeds:
        assert torch.allclose(gradients(model, seed=seed), expected[seed], rtol=1e-4, atol=1e-5)
    torch._dynamo.reset()
    assert backend.graphs == 1


@pytest.mark.parametrize(
    ("sparse", "varlen", "dynamic"),
    [
        (None, True, None),
        (None, False, True),
        (SparseAttentionLayout, True, "not compiled"),
        (BlockMask, False, None),
        (BlockMask, True, None),
    ],
)
def test_compiled_attention_has_static_widths(
    sparse: type | None, varlen: bool, dynamic: bool | str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With a dynamic width, `flex_attention` would scale by a symbol, and its kernel would not compile."""
    used: list[bool | str | None] = []

    def fake_compile(function: Any, dynamic: bool | None = None, options: Any = None) -> Any:
        assert options == {"fallback_random": True}, "dropout samples the numbers of uncompiled code"
        return lambda *arguments: used.append(dynamic)

    monkeypatch.setattr(torch, "compile", fake_compile)
    monkeypatch.setattr(encoder, "block", lambda *arguments: used.append("not compiled"))
    model: Any = PretrainingModel(TINY).encoder
    model.compile_block()
    layout = SimpleNamespace(sparse=sparse and object.__new__(sparse), offsets=torch.arange(2))
    x_TH: Any = torch.ones(3, TINY.hidden_size)
    model.block(x_TH, None, None, layout, None, replace(model.block_settings(), varlen=varlen))
    assert used == [dynamic]


@pytest.mark.parametrize(("compiled", "form"), [(False, SparseAttentionLayout), (True, BlockMask)])
def test_flex_attention_is_used_only_if_compiled(compiled: bool, form: type, monkeypatch: pytest.MonkeyPatch) -> None:
    """Compiling takes minutes and needs a C compiler, so code that is not compiled computes in chunks."""
    used: list[type] = []

    def record_layout(x_TH: Tensor, *arguments: Any) -> Tensor:
        used.append(type(arguments[2].sparse))
        return x_TH

    monkeypatch.setattr(sparse_attention, "has_flex", lambda *arguments: True)  # as on CUDA
    monkeypatch.setattr(torch, "compile", lambda function, **options: record_layout)
    monkeypatch.setattr(encoder, "block", record_layout)
    config = replace(TINY, attention="window", attention_window=2)
    model = PretrainingModel(config).encoder
    if compiled:
        model.compile_block()
    model(pack(random_batch((9, 12), config), CPU), all_rows=True)
    assert used == [form] * config.num_hidden_layers


def test_compiled_losses_have_one_graph_for_all_batch_sizes(make_job: MakeJob, monkeypatch: pytest.MonkeyPatch) -> None:
    torch._dynamo.reset()
    objectives._compiled_sum_losses.cache_clear()
    backend = RecordingBackend()
    job = make_job(train__micro_batch_size=3)
    parts = [part for step in range(6) for part in job.sample_step(step, RankGroup())]

    def reference_losses(logits: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
        """Compute the losses as the compiled code does: `cross_entropy_sum` rounds in another way."""
        return F.cross_entropy(logits.float(), labels, reduction="sum"), objectives.count_correct(logits, labels)

    with monkeypatch.context() as patch:
        patch.setattr(objectives, "cross_entropy_sum", reference_losses)
        expected = [job.loss_sums(part.data) for part in parts]
    monkeypatch.setattr(torch, "compile", with_backend(backend))
    job.settings = replace(job.settings, train=replace(job.settings.train, compile="on"))
    for part, sums in zip(parts, expected, strict=True):
        compiled_sums = job.loss_sums(part.data)
        assert compiled_sums.keys() == sums.keys()
        assert all(torch.equal(compiled_sums[name], sums[name]) for name in sums)
    assert backend.graphs == 1
    objectives._compiled_sum_losses.cache_clear()
    torch._dynamo.reset()


def failing_compile(function: Any, **options: Any) -> Any:
    def fail(*arguments: Any) -> Any:
        raise torch._dynamo.exc.InternalTorchDynamoError("fatal error: Python.h: No such file or directory")

    return fail


def test_resolve_auto_failing_compiler_raises_with_the_cause(monkeypatch: pytest.MonkeyPatch) -> None:
    device._find_compile_error.cache_clear()
    with monkeypatch.context() as patch:
        patch.setattr(torch, "compile", failing_compile)
        options = {"config": TINY, "device": CPU, "sequences": 1, "length": 8}
        settings = TrainSettings(precision="fp32", compile="on")
        with pytest.raises(ConfigError, match=r"train\.compile .* Python\.h"):
            device.resolve_auto(settings, **options)  # type: ignore[arg-type]
    device._find_compile_error.cache_clear()


def test_compile_error_in_training_raises_with_a_hint(monkeypatch: pytest.MonkeyPatch) -> None:
    """A second model in the same process fails too, and does not fall back to uncompiled code."""

    def broken(module: Any, inputs: Any) -> Any:
        raise RuntimeError("ptxas failed")

    monkeypatch.setattr(torch, "compile", with_backend(broken))
    for _ in range(2):
        torch._dynamo.reset()
        model = PretrainingModel(SHAPE)
        prepare_model(model, TrainSettings(compile="on"), CPU)
        # Variable-length attention is traced four times as fast as padded attention.
        with flash.use_cpu_kernels(), pytest.raises(torch._dynamo.exc.TorchDynamoException) as raised:
            gradients(model)
    error = translate_error(raised.value)
    assert error is not None
    assert "ptxas failed" in error.message
    assert "train.compile=off" in str(error.hint)
    torch._dynamo.reset()


# ---------------------------------------------------------------- copies and waits


class WaitRecorder(TorchFunctionMode):
    """A recorder of the operations that wait for a device: blocking copies to it, and values read from it."""

    def __init__(self) -> None:
        super().__init__()
        self.copies = 0
        self.waits = list[str]()

    def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        name = getattr(function, "__name__", "")
        if name in ("item", "tolist", "nonzero", "__bool__", "__int__", "__float__", "__index__", "cpu"):
            self.waits.append(name)
        target = next((a for a in (*args[1:], kwargs.get("device")) if isinstance(a, torch.device)), None)
        if name in ("to", "tensor", "as_tensor", "cuda") and target is not None:
            self.copies += 1
            if not kwargs.get("non_blocking"):
                self.waits.append(f"blocking {name}")
        return function(*args, **kwargs)


@contextmanager
def copies_as_on_cuda(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """Copy arrays as for CUDA, but without pinned memory; yield the name of the thread of each copy."""
    threads = list[str]()

    def copy_like_cuda(arrays: Any, target: torch.device) -> list[Tensor]:
        threads.append(threading.current_thread().name)
        return copy_as_one_buffer(arrays, lambda size: torch.empty(size, dtype=torch.uint8), target)

    with monkeypatch.context() as patch:
        for module in (packing, loop, objectives, classification, head):
            patch.setattr(module, "to_device", copy_like_cuda)
        yield threads


def test_training_step_waits_once_and_has_no_blocking_copy(
    make_job: MakeJob, recipe: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = make_job()
    steps = make_loop(job, tmp_path / "run", recipe, "train.save_every=0", "schedule.total_steps=3")
    recorder = WaitRecorder()
    original = Loop._step

    def recorded_step(self: Loop[Any], parts: Any) -> StepResult:
        with recorder:
            return original(self, parts)

    with copies_as_on_cuda(monkeypatch) as threads, monkeypatch.context() as patch:
        patch.setattr(Loop, "_step", recorded_step)
        for _ in steps.steps(None, None):
            assert recorder.waits == ["tolist"], "only the check that all values are finite"
            recorder.waits.clear()
    main_thread = [name for name in threads if name != "run_ahead"]
    prefetched = len(threads) - len(main_thread)
    assert prefetched == 2 * 3 * len(job.sample_step(0, RankGroup())), "batches are copied during the computation"
    assert len(main_thread) == 2 * 3  # the counts and the stop requests
    assert recorder.copies == len(main_thread)


@pytest.mark.parametrize("name", ["mrpc", "stsb", "race", "squad1", "squad2"])
def test_finetuning_loss_never_waits_for_the_device(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The only wait of a training step is outside the loss."""
    answers = np.array([[3, 4], [0, 0], [2, 2], [5, 7]])
    models: dict[str, tuple[torch.nn.Module, Any]] = {
        "mrpc": (SequenceClassifier(SHAPE, 2), np.array([0, 1, 1, 0])),
        "stsb": (SequenceClassifier(SHAPE, 1), np.array([0.5, 4.0, 1.0, 2.5], np.float32)),
        "race": (MultipleChoice(SHAPE, 4), np.array([2])),
        "squad1": (QuestionAnswering(SHAPE), answers),
        "squad2": (BeamQuestionAnswering(SHAPE), answers),
    }
    model, labels = models[name]
    recorder = WaitRecorder()
    with copies_as_on_cuda(monkeypatch) as threads, flash.use_cpu_kernels(), recorder:
        TASKS[name].loss_sum(model, random_batch((12, 7, 9, 12)), labels, CPU).backward()
    assert recorder.copies == len(threads) > 1
    assert recorder.waits == []


def test_copy_as_one_buffer_holds_arrays_of_every_type() -> None:
    arrays = [np.arange(5), np.array([[True], [False]]), np.array([1.5], np.float32), np.arange(3, dtype=np.int32)]
    copies = copy_as_one_buffer(arrays, lambda size: torch.empty(size, dtype=torch.uint8), CPU)
    for array, tensor in zip(arrays, copies, strict=True):
        assert np.array_equal(tensor.numpy(), array)
        assert tensor.numpy().dtype == array.dtype
        assert tensor.storage_offset() * tensor.element_size() % 64 == 0


def test_measure_step_seconds_waits_for_the_device(make_job: MakeJob, monkeypatch: pytest.MonkeyPatch) -> None:
    """The clock of this test advances only in `synchronize`: without a wait the measured time would be 0."""
    now = [0.0]
    queued = [0.0]
    original = Loop._step

    def step(self: Loop[Any], parts: Any) -> StepResult:
        result = original(self, parts)
        queued[0] += 2.0
        return result

    def synchronize(device: torch.device) -> None:
        now[0] += queued[0]
        queued[0] = 0.0

    monkeypatch.setattr(Loop, "_step", step)
    monkeypatch.setattr(machine, "matmul_peak", lambda *a: 1.0)
    monkeypatch.setattr(machine, "synchronize", synchronize)
    monkeypatch.setattr(loop, "time", SimpleNamespace(monotonic=lambda: now[0]))
    job = make_job()
    assert measure_step_seconds(job, RankGroup(), steps=6, seconds=0.0) == pytest.approx(2.0)


# ---------------------------------------------------------------- deterministic kernels


# Operations that a model like this might use and that `torch.use_deterministic_algorithms` rejects on CUDA.
NONDETERMINISTIC = (
    "nll_loss2d", "put_", "histc", "bincount", "kthvalue", "median", "_ctc_loss", "cumsum", "scatter_reduce",
    "_embedding_bag", "max_unpool", "adaptive_", "upsample", "grid_sampler", "reflection_pad", "replication_pad",
)  # fmt: skip


@pytest.mark.parametrize("name", list(losses()))
def test_losses_use_no_nondeterministic_operation(name: str) -> None:
    with Operations() as operations, flash.use_cpu_kernels():
        losses()[name]().backward()
    assert not [operation for operation in operations.names if operation.startswith(NONDETERMINISTIC)]
    assert torch.float64 not in operations.types  # Apple's GPUs have no fp64


# ---------------------------------------------------------------- hardware


def test_resolve_auto_gpu_with_emulated_bf16_takes_fp32(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_bf16_supported", lambda including_emulation=True: including_emulation)
    settings = TrainSettings(compile="off")
    assert device.resolve_auto(settings, TINY, CUDA, sequences=1, length=8).precision == "fp32"


def test_resolve_auto_deterministic_run_is_not_compiled(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(device, "_find_compile_error", lambda device: None)
    settings = TrainSettings(precision="fp32")
    for deterministic, expected in ((False, "on"), (True, "off")):
        settings = replace(settings, deterministic=deterministic)
        assert device.resolve_auto(settings, TINY, CUDA, sequences=1, length=8).compile == expected
    required = replace(settings, compile="on")
    assert device.resolve_auto(required, TINY, CUDA, sequences=1, length=8).compile == "on"


@pytest.mark.parametrize(
    ("capability", "dropout", "expected"), [((9, 0), 0.0, "FA3"), ((9, 0), 0.1, None), ((8, 0), 0.0, None)]
)
def test_flash_attention_3_is_active_only_if_it_applies(
    capability: tuple[int, int], dropout: float, expected: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    active: list[str | None] = ["FA3"]  # activated for an earlier model
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: capability)
    monkeypatch.setattr(device, "current_flash_attention_impl", lambda: active[-1])
    monkeypatch.setattr(device, "activate_flash_attention_impl", active.append)
    monkeypatch.setattr(device, "restore_flash_attention_impl", lambda: active.append(None))
    device._select_flash_attention(dropout, CUDA)
    assert active == ["FA3"], "its package is not installed"
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: object())
    device._select_flash_attention(dropout, CPU)
    assert active == ["FA3"]
    device._select_flash_attention(dropout, CUDA)
    assert active[-1] == expected


def test_broken_flash_attention_3_warns_in_one_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def broken(name: str) -> None:
        raise ImportError("undefined symbol: _ZN3c10\nmore")

    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (9, 0))
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: object())
    monkeypatch.setattr(device, "activate_flash_attention_impl", broken)
    device._select_flash_attention(0.0, CUDA)
    printed = capsys.readouterr().err
    assert "undefined symbol: _ZN3c10" in printed
    assert "more" not in printed


def simulate_two_gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)


def test_choose_device_rank_without_a_gpu_raises(monkeypatch: pytest.MonkeyPatch) -> None:
    simulate_two_gpus(monkeypatch)
    monkeypatch.setenv("LOCAL_RANK", "1")
    assert device.choose_device("cuda") == torch.device("cuda", 1)
    monkeypatch.setenv("LOCAL_RANK", "2")
    with pytest.raises(ConfigError, match="LOCAL_RANK is 2, and this process sees 2 GPUs"):
        device.choose_device("auto")


def test_choose_device_ranks_do_not_use_the_gpu_of_apple(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: True)
    assert device.choose_device("auto") == device.choose_device("mps") == torch.device("mps")
    monkeypatch.setenv("WORLD_SIZE", "2")
    assert device.choose_device("auto") == CPU
    with pytest.raises(ConfigError, match="--device mps: several processes"):
        device.choose_device("mps")


def simulate_process_group(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """Let rank 1 of two join a simulated group; return the arguments with which it is initialized."""
    options: dict[str, Any] = {}
    monkeypatch.setattr(
        torch.distributed, "init_process_group", lambda kind, **keywords: options.update(keywords, kind=kind)
    )
    monkeypatch.setattr(torch.cuda, "set_device", lambda device: None)
    store = torch.distributed.HashStore()  # type: ignore[attr-defined]
    monkeypatch.setattr(
        sys.modules["torch.distributed.rendezvous"], "rendezvous", lambda *_, **__: iter([(store, 1, 2)])
    )
    for name, value in {"WORLD_SIZE": "2", "RANK": "1", "LOCAL_RANK": "1"}.items():
        monkeypatch.setenv(name, value)
    return options


def test_process_group_on_gpus_uses_nccl(monkeypatch: pytest.MonkeyPatch) -> None:
    """Only the arguments are tested: `tests/test_ranks.py` joins real groups on CPUs, `test_cuda.py` one with NCCL."""
    options = simulate_process_group(monkeypatch)
    with ranks.process_group("cuda") as group:
        assert group == RankGroup(1, 2)
    assert options["kind"] == "nccl"
    assert options["device_id"] == torch.device("cuda", 1)


@pytest.mark.parametrize(
    ("device_type", "error", "is_destroyed"),
    [
        ("cuda", None, True),
        ("cuda", Interrupted("stopped"), True),
        ("cuda", DivergedError("not finite"), True),
        ("cuda", ConfigError("one rank failed"), False),
        ("cuda", KeyboardInterrupt(), False),
        ("cpu", ConfigError("one rank failed"), True),
    ],
)
def test_process_group_rank_that_fails_alone_does_not_wait(
    device_type: str, error: BaseException | None, is_destroyed: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """NCCL destroys a group only when all ranks do so; gloo's group closes the connections at once."""
    simulate_process_group(monkeypatch)
    destroyed: list[bool] = []
    monkeypatch.setattr(torch.distributed, "is_initialized", lambda: True)
    monkeypatch.setattr(torch.distributed, "destroy_process_group", lambda: destroyed.append(True))
    with nullcontext() if error is None else pytest.raises(type(error)), ranks.process_group(device_type):
        if error is not None:
            raise error
    assert destroyed == [True] * is_destroyed


def test_process_group_nccl_setup_error_shows_its_cause(monkeypatch: pytest.MonkeyPatch) -> None:
    simulate_process_group(monkeypatch)

    def fail(*arguments: Any, **keywords: Any) -> None:
        raise torch.distributed.DistBackendError(
            "NCCL error in: NCCLUtils.cpp:94, unhandled system error, NCCL version 2.27.5\n"
            "ncclSystemError: System call (e.g. socket, malloc) or external library call failed or device error.\n"
            "Last error:\nError while creating shared memory segment /dev/shm/nccl-7 (size 9637888)\n"
        )

    monkeypatch.setattr(torch.distributed, "init_process_group", fail)
    with pytest.raises(AlbertError) as raised, ranks.process_group("cuda"):
        pass
    assert raised.value.message == (
        "rank 1: NCCL cannot connect the ranks: "
        "Error while creating shared memory segment /dev/shm/nccl-7 (size 9637888)"
    )
    for remedy in ("NCCL_DEBUG=INFO", "/dev/shm", "NCCL_SOCKET_IFNAME"):
        assert remedy in str(raised.value.hint)


def test_resolve_micro_tokens_grow_with_free_memory(monkeypatch: pytest.MonkeyPatch, make_job: MakeJob) -> None:
    recipe = make_job(train__precision="bf16", train__compile="off", train__batch_size=4096).settings
    free_bytes = {"small": 10**7, "large": 10**11}
    tokens = {}
    for name, size in free_bytes.items():
        monkeypatch.setattr(capacity, "available_memory", lambda device, size=size: size)
        tokens[name] = plan.resolve_micro_tokens(recipe, CUDA, 1)
    length = recipe.data.max_seq_length
    assert tokens["large"] == 131_072 // length * length
    assert length <= tokens["small"] < tokens["large"]
    assert plan.resolve_micro_tokens(recipe, CUDA, 512) == 8 * length  # a rank has only 8 sequences of the batch
    assert plan.resolve_micro_tokens(recipe, CPU, 1) == 0
    unresolved = replace(recipe, batch=BatchSettings(micro_tokens="auto"))
    assert unresolved.sequences_per_micro_batch == recipe.train.micro_batch_size


def test_resolve_micro_tokens_leave_room_for_the_teacher(
    monkeypatch: pytest.MonkeyPatch, make_job: MakeJob, finished: Path
) -> None:
    recipe = make_job(train__precision="bf16", train__compile="off", train__batch_size=4096).settings
    distilled = replace(recipe, distill=DistillSettings(str(finished)))
    free = int(plan.estimate_run_memory(distilled, CUDA, 5).total / 0.9) + 1
    monkeypatch.setattr(capacity, "available_memory", lambda device: free)
    assert plan.resolve_micro_tokens(recipe, CUDA, 1) > plan.resolve_micro_tokens(distilled, CUDA, 1)
    assert plan.resolve_micro_tokens(distilled, CUDA, 1) == 5 * recipe.data.max_seq_length


def test_count_sent_bytes_depends_on_ranks_and_precision(make_job: MakeJob) -> None:
    recipe = make_job().settings
    parameters = costs.count_parameters(recipe.model).total
    assert plan.count_sent_bytes(recipe, 1) == 0
    assert plan.count_sent_bytes(recipe, 4) == 2 * 4 * parameters * 3 // 4
    halved = replace(recipe, train=replace(recipe.train, communication="bf16"))
    assert plan.count_sent_bytes(halved, 4) == 2 * 2 * parameters * 3 // 4


def test_measure_memory_records_that_memory_ran_out(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*arguments: Any) -> Any:
        raise torch.OutOfMemoryError("CUDA out of memory.\nTried")

    monkeypatch.setattr(memory, "measure_saved_bytes", fail)
    memory_by_rate = memory.measure_memory(TINY, random_batch((5,)), TrainSettings(precision="fp32"), CPU)
    assert [use.failed for use in memory_by_rate.values()] == ["CUDA out of memory."] * 2
    assert "CUDA out of memory" in memory.format_memory(memory_by_rate)
