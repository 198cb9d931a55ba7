"""The same model as `transformers` builds it, to be compared with. The one module that imports that package."""

from __future__ import annotations

from typing import Any

import torch

from albert_cli.errors import ConfigError
from albert_cli.model import hub
from albert_cli.model.heads import PretrainingModel, SequenceClassifier


def twin(model: PretrainingModel | SequenceClassifier) -> torch.nn.Module:
    """The Hugging Face model with the weights of `model`, in training mode, on its device.

    Raises `ConfigError` where `transformers` is missing or has no such architecture.
    """
    transformers = _transformers()
    config = model.config
    kind = hub.model_type(config)
    if kind not in ("albert", "bert"):
        raise ConfigError(
            "transformers cannot express this shape, so there is nothing to compare with",
            "choose another shape, or --alone",
        )
    labels = getattr(model, "num_labels", 0)
    architecture = "ForSequenceClassification" if labels else "ForPreTraining"
    values: dict[str, Any] = hub.config_to_json(config, architecture, tuple(f"LABEL_{i}" for i in range(labels)))
    prefix = {"albert": "Albert", "bert": "Bert"}[kind]
    made = getattr(transformers, f"{prefix}Config")(**{k: v for k, v in values.items() if k != "architectures"})
    other: torch.nn.Module = getattr(transformers, prefix + architecture)(made)
    names = hub.name_map(config)
    state = {hub.translate(name, names): tensor for name, tensor in model.state_dict().items()}
    missing, unexpected = other.load_state_dict(state, strict=False)
    assert not unexpected and all("decoder" in name for name in missing), (missing, unexpected)
    return other.to(next(model.parameters()).device).train()


def _transformers() -> Any:
    try:
        import transformers
    except ImportError:
        raise ConfigError(
            "transformers is not installed, so there is nothing to compare with",
            "pip install transformers, or --alone",
        ) from None
    transformers.logging.set_verbosity_error()
    return transformers
