"""The model card of a checkpoint: what it is, how it was made, how to load it."""

from __future__ import annotations

import re
from collections.abc import Mapping

from albert_cli import __version__, console
from albert_cli.counting.costs import count_parameters
from albert_cli.model.config import CUSTOM_MODEL_TYPE, ModelConfig
from albert_cli.model.hub import model_type


def pretraining_card(config: ModelConfig, sentence_loss: str, metrics: Mapping[str, float], recipe: str) -> str:
    """The card of a pretraining checkpoint; `recipe` is the resolved recipe as TOML."""
    names = {"sop": "sentence-order", "nsp": "next-sentence", "none": "no sentence", "three-way": "three-way sentence"}
    summary = f"A {_describe_encoder(config)} pretrained with masked-language and {names[sentence_loss]} prediction."
    scores = {}
    for name, value in metrics.items():  # `mlm_loss` is of the held-out text, `NAME/mlm_loss` of another corpus
        corpus, slash, measure = name.rpartition("/")
        scores[f"{console.escape_markdown(corpus) if slash else 'held-out'} {measure.replace('_', ' ')}"] = value
    return _render_card("fill-mask", summary, scores, config, "ForPreTraining", recipe)


def finetuning_card(
    config: ModelConfig, task: str, metrics: Mapping[str, float], recipe: str, architecture: str
) -> str:
    """The card of a task checkpoint; `architecture` is the class that reads its head, without `Albert` or `Bert`."""
    head = re.findall("[A-Z][a-z]+", architecture.removeprefix("For").removeprefix("Beam"))  # question, answering
    summary = f"A {_describe_encoder(config)} fine-tuned on {console.escape_markdown(task)}."
    scores = {f"dev {name}": value for name, value in metrics.items()}
    return _render_card(
        "-".join(head).lower().replace("sequence", "text"), summary, scores, config, architecture, recipe
    )


def _describe_encoder(config: ModelConfig) -> str:
    parameters = count_parameters(config).with_pooler
    sees = f", each token seeing {config.attention_summary}, of up to {config.max_position_embeddings:,} tokens"
    return (
        f"transformer encoder of {config.num_hidden_layers} layers, hidden size {config.hidden_size}, "
        f"embedding size {config.embedding_size}, {parameters:,} parameters{sees if config.is_sparse else ''}"
    )


def _render_card(
    tag: str, summary: str, scores: Mapping[str, float], config: ModelConfig, architecture: str, recipe: str
) -> str:
    rows = "".join(f"| {name} | {value:.4f} |\n" for name, value in scores.items())
    table = f"| measure | value |\n| --- | ---: |\n{rows}" if rows else "Not evaluated yet.\n"
    use = "No class of Hugging Face has this shape or head; `albert` reads it.\n"
    if model_type(config, architecture) != CUSTOM_MODEL_TYPE:
        use = (
            f"```python\nfrom transformers import AutoTokenizer, AutoModel{architecture}\n\n"
            'tokenizer = AutoTokenizer.from_pretrained("DIRECTORY")\n'
            f'model = AutoModel{architecture}.from_pretrained("DIRECTORY")\n```\n'
        )
    return (
        f"---\nlibrary_name: transformers\npipeline_tag: {tag}\ntags: [albert]\n---\n\n{summary}\n\n"
        f"## Scores\n\n{table}\n"
        f"## Use\n\n{use}\n"
        f"## How it was made\n\nWith `albert` {__version__}, by this recipe:\n\n```toml\n{recipe}```\n"
    )
