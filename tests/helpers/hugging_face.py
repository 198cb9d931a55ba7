"""Create, save and load the models of `albert` and of `transformers` with every head, and compare their outputs."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import transformers
from torch import Tensor, nn

from albert_cli import store
from albert_cli.bench.peer import pad_batch
from albert_cli.data.batches import PackedBatch
from albert_cli.model import heads, hub, loading
from albert_cli.model.config import ModelConfig
from albert_cli.model.hf_config import config_to_json
from albert_cli.model.packing import PackedTokens, pack

transformers.logging.set_verbosity_error()
transformers.logging.disable_progress_bar()


@dataclass(frozen=True)
class Head:
    """One of our heads, and Hugging Face's head with the same architecture name.

    auto: the class of `transformers` that loads the head; make: a function that creates our model of a shape; ours: a
    function that computes the outputs of our model on a packed batch; theirs: the same for Hugging Face's model on the
    padded inputs of the batch, with equal rows; labels: the classes, if the head has any.
    """

    architecture: str
    auto: Any
    make: Callable[[ModelConfig], nn.Module]
    ours: Callable[[nn.Module, PackedTokens], tuple[Tensor, ...]]
    theirs: Callable[[Any, dict[str, Tensor], PackedBatch], tuple[Tensor, ...]]
    labels: tuple[str, ...] = ()


def _pretraining(model: Any, inputs: dict[str, Tensor], batch: PackedBatch) -> tuple[Tensor, ...]:
    outputs = model(**inputs)
    order = outputs.sop_logits if "sop_logits" in outputs else outputs.seq_relationship_logits
    return _real(outputs.prediction_logits, inputs)[batch.masked_index], order


def _masked(model: Any, inputs: dict[str, Tensor], batch: PackedBatch) -> tuple[Tensor, ...]:
    return (_real(model(**inputs).logits, inputs)[batch.masked_index],)


def _classes(model: Any, inputs: dict[str, Tensor], batch: PackedBatch) -> tuple[Tensor, ...]:
    return (model(**inputs).logits,)


def _choices(model: Any, inputs: dict[str, Tensor], batch: PackedBatch) -> tuple[Tensor, ...]:
    return (model(**{name: tensor.unflatten(0, (-1, 2)) for name, tensor in inputs.items()}).logits,)


def _answers(model: Any, inputs: dict[str, Tensor], batch: PackedBatch) -> tuple[Tensor, ...]:
    outputs = model(**inputs)
    return (_real(torch.stack([outputs.start_logits, outputs.end_logits], -1), inputs),)


def _states(model: Any, inputs: dict[str, Tensor], batch: PackedBatch) -> tuple[Tensor, ...]:
    outputs = model(**inputs)
    return _real(outputs.last_hidden_state, inputs), outputs.last_hidden_state[:, 0], outputs.pooler_output


def _real(padded_NS: Tensor, inputs: dict[str, Tensor]) -> Tensor:
    """Return a padded tensor's values at real tokens: [N, S, …] to [T, …]."""
    return padded_NS[inputs["attention_mask"].bool()]


def _tuple(model: nn.Module, tokens: PackedTokens) -> tuple[Tensor, ...]:
    outputs = model(tokens)
    return outputs if isinstance(outputs, tuple) else (outputs,)


# In multiple choice a question has two choices, so a batch must have an even number of sequences.
HEADS: dict[str, Head] = {
    "pretraining": Head(
        "ForPreTraining", transformers.AutoModelForPreTraining, heads.PretrainingModel, _tuple, _pretraining
    ),
    "masked words": Head(
        "ForMaskedLM", transformers.AutoModelForMaskedLM, heads.MaskedLanguageModel, _tuple, _masked
    ),
    "classification": Head(
        "ForSequenceClassification", transformers.AutoModelForSequenceClassification,
        lambda config: heads.SequenceClassifier(config, 3), _tuple, _classes, ("no", "maybe", "yes"),
    ),
    "multiple choice": Head(
        "ForMultipleChoice", transformers.AutoModelForMultipleChoice,
        lambda config: heads.MultipleChoice(config, 2), _tuple, _choices,
    ),
    "question answering": Head(
        "ForQuestionAnswering", transformers.AutoModelForQuestionAnswering, heads.QuestionAnswering, _tuple, _answers
    ),
    "bare": Head("Model", transformers.AutoModel, heads.BareEncoder, _tuple, _states),
}  # fmt: skip


def assert_same(ours: Tensor, theirs: Tensor) -> None:
    """Assert that two tensors differ by at most 1e-5 of the largest value."""
    assert ours.shape == theirs.shape
    assert float((ours - theirs).abs().max()) <= 1e-5 * float(theirs.abs().max())


def assert_same_outputs(head: Head, ours: nn.Module, theirs: Any, batch: PackedBatch) -> None:
    """Assert that our model and Hugging Face's model give the same outputs for a batch."""
    with torch.no_grad():
        outputs = head.ours(ours.eval(), pack(batch, torch.device("cpu"), batch.masked_index))
        wanted = head.theirs(theirs.eval(), pad_batch(batch, torch.device("cpu")), batch)
    for one, other in zip(outputs, wanted, strict=True):
        assert_same(one, other)


def hf_config(config: ModelConfig, labels: tuple[str, ...] = ()) -> Any:
    """Return the Hugging Face configuration of a shape."""
    values = config_to_json(config, "Model", labels)
    kind = {"albert": transformers.AlbertConfig, "bert": transformers.BertConfig}[str(values["model_type"])]
    return kind(**{key: value for key, value in values.items() if key not in ("architectures", "dtype")})


def new_of_theirs(head: Head, config: ModelConfig) -> Any:
    """Create Hugging Face's model of a shape, with random weights."""
    # With some other seeds a ReLU is nearly always 0, and its gradients are mostly rounding errors.
    torch.manual_seed(0)
    return head.auto.from_config(hf_config(config, head.labels), attn_implementation="sdpa")


def saved(model: nn.Module, directory: Path, architecture: str, labels: tuple[str, ...] = ()) -> Path:
    """Save our model as a checkpoint; return its directory."""
    with store.commit_directory(directory, "checkpoint") as staging:
        hub.write_checkpoint(model, staging, architecture, labels)
    return directory


def load_with_transformers(auto: Any, directory: Path) -> Any:
    """Load a checkpoint with `transformers`; assert that it has exactly the tensors of the model."""
    model, info = auto.from_pretrained(directory, output_loading_info=True, attn_implementation="sdpa")
    assert not any(info[kind] for kind in ("missing_keys", "unexpected_keys", "mismatched_keys")), info
    return model.eval()


def read_into(model: nn.Module, directory: Path) -> None:
    """Load the encoder of a checkpoint into our model, and those of the model's heads that the checkpoint has."""
    model.eval()
    loading.load_weights(model, hub.read_checkpoint(directory))


def read_all_into(model: nn.Module, directory: Path) -> None:
    """Load a checkpoint into our model; assert that it has exactly the model's parameters."""
    model.eval()
    checkpoint = hub.read_checkpoint(directory)
    assert checkpoint.tensors.keys() == model.state_dict().keys()
    loading.load_weights(model, checkpoint, loading.LoadPolicy.EVERYTHING)


def write_modules(
    directory: Path, pooling: dict[str, object], *further: str, lowercase: bool = False, prompt: str | None = None
) -> None:
    """Write the files that sentence-transformers 5 saves next to a model; prompt: the one put before each text."""
    names = {"": "Transformer", "1_Pooling": "Pooling", **{f"{i}_{name}": name for i, name in enumerate(further, 2)}}
    modules = [
        {"idx": i, "name": str(i), "path": path, "type": f"sentence_transformers.models.{name}"}
        for i, (path, name) in enumerate(names.items())
    ]
    (directory / "modules.json").write_text(json.dumps(modules))
    (directory / "1_Pooling").mkdir()
    (directory / "1_Pooling" / "config.json").write_text(json.dumps(pooling))
    transformer = {"max_seq_length": 12, "do_lower_case": lowercase}
    (directory / "sentence_bert_config.json").write_text(json.dumps(transformer))
    prompts = {"prompts": {"query": prompt}, "default_prompt_name": None if prompt is None else "query"}
    (directory / "config_sentence_transformers.json").write_text(json.dumps(prompts))
