"""Render the model card of a checkpoint: a README.md with its description, scores, example of use, and recipe.

A card is Markdown that begins with the metadata that the Hugging Face Hub reads.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from albert_cli import __version__, console
from albert_cli.model.config import CUSTOM_MODEL_TYPE, ModelConfig
from albert_cli.model.hf_config import model_type

# Descriptions of the pretraining objectives, by `data.sentence_loss`.
_OBJECTIVES = {
    "sop": "masked-language and sentence-order prediction",
    "nsp": "masked-language and next-sentence prediction",
    "three-way": "masked-language and three-way sentence prediction",
    "none": "masked-language prediction",
}


def pretraining_card(
    config: ModelConfig, parameters: int, sentence_loss: str, metrics: Mapping[str, float], recipe: str
) -> str:
    """Return the card of a pretraining checkpoint; `recipe` is the resolved recipe as TOML.

    `parameters` is the number of parameters of encoder and pooler. The metric `mlm_loss` was measured on the held-out
    text, and `NAME/mlm_loss` on the evaluation corpus NAME.
    """
    summary = f"A {_describe_encoder(config, parameters)} pretrained with {_OBJECTIVES[sentence_loss]}."
    scores = {}
    for name, value in metrics.items():
        corpus, slash, measure = name.rpartition("/")
        title = console.escape_markdown(corpus) if slash else "held-out"
        scores[f"{title} {measure.replace('_', ' ')}"] = value
    return _render_card("fill-mask", summary, scores, config, "ForPreTraining", recipe)


def finetuning_card(
    config: ModelConfig, parameters: int, task: str, metrics: Mapping[str, float], recipe: str, architecture: str
) -> str:
    """Return the card of a task checkpoint; `recipe` is the resolved recipe as TOML.

    `parameters` is the number of parameters of encoder and pooler. `metrics` were measured on the dev set.
    `architecture` is the checkpoint's class without `Albert` or `Bert`, such as `ForTokenClassification`.
    """
    summary = f"A {_describe_encoder(config, parameters)} fine-tuned on {console.escape_markdown(task)}."
    scores = {f"dev {name}": value for name, value in metrics.items()}
    # The Hub's tags consist of the words of the class: token-classification for ForTokenClassification. There are two
    # exceptions: "Beam", a head of ours, is left out, and "Sequence" becomes "text".
    words = re.findall("[A-Z][a-z]+", architecture.removeprefix("For").removeprefix("Beam"))
    tag = "-".join(words).lower().replace("sequence", "text")
    return _render_card(tag, summary, scores, config, architecture, recipe)


def _describe_encoder(config: ModelConfig, parameters: int) -> str:
    """Return a noun phrase that describes the encoder's shape and size, without an article."""
    description = (
        f"transformer encoder of {config.num_hidden_layers} layers, hidden size {config.hidden_size}, "
        f"embedding size {config.embedding_size}, {parameters:,} parameters"
    )
    if not config.is_sparse:
        return description
    limit = f"for inputs of up to {config.max_position_embeddings:,} tokens"
    return f"{description}, {limit}, with sparse attention ({config.attention_summary})"


def _render_card(
    tag: str, summary: str, scores: Mapping[str, float], config: ModelConfig, architecture: str, recipe: str
) -> str:
    """Render a card; `tag` is the Hub's `pipeline_tag`, and the names in `scores` are already escaped as Markdown."""
    table = "Not evaluated yet.\n"
    if scores:
        rows = "".join(f"| {name} | {value:.4g} |\n" for name, value in scores.items())
        table = f"| measure | value |\n| --- | ---: |\n{rows}"
    library = ""
    usage = "`transformers` has no class for this shape or head; load the checkpoint with `albert`.\n"
    if model_type(config, architecture) != CUSTOM_MODEL_TYPE:
        library = "library_name: transformers\n"
        usage = (
            f"```python\nfrom transformers import AutoTokenizer, AutoModel{architecture}\n\n"
            'tokenizer = AutoTokenizer.from_pretrained("DIRECTORY")\n'
            f'model = AutoModel{architecture}.from_pretrained("DIRECTORY")\n```\n'
        )
    return (
        f"---\n{library}pipeline_tag: {tag}\ntags: [albert]\n---\n\n{summary}\n\n"
        f"## Scores\n\n{table}\n"
        f"## Use\n\n{usage}\n"
        f"## Training\n\nTrained with `albert` {__version__} and this recipe:\n\n```toml\n{recipe}```\n"
    )
