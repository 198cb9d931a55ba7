"""`albert fill-mask` with tokenizers whose tokens contain spaces."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch
import transformers

from albert_cli.inference.fill_mask import fill_masks
from tests.helpers.hugging_face import hf_config
from tests.helpers.shapes import TINY, shake
from tests.helpers.tokenizers import KINDS


@pytest.mark.parametrize("kind", ["byte-level BPE", "byte fallback"])
def test_fill_masks_space_before_the_mask_is_no_token(kind: str, tmp_path: Path) -> None:
    """The masks of RoBERTa's and ALBERT's tokenizers take the space before them (`lstrip`)."""
    directory = KINDS[kind](tmp_path / "model")
    content = json.loads((directory / "tokenizer.json").read_text(encoding="utf-8"))
    for token in content["added_tokens"]:
        token["lstrip"] = token["content"] in ("<mask>", "[MASK]")
    (directory / "tokenizer.json").write_text(json.dumps(content), encoding="utf-8")
    fast = transformers.AutoTokenizer.from_pretrained(directory)
    shape = replace(TINY, vocab_size=len(fast), max_position_embeddings=64)
    model = transformers.AutoModelForMaskedLM.from_config(hf_config(shape)).eval()
    shake(model)
    model.save_pretrained(directory)
    for text in ("Die [MASK] kaufte Bücher.", "[MASK] [MASK] Bücher", "Das Fass[MASK]", "Mein [MASK], [MASK]."):
        ids = fast(text.replace("[MASK]", fast.mask_token), add_special_tokens=False)["input_ids"]
        inputs = torch.tensor([[fast.cls_token_id, *ids, fast.sep_token_id]])
        with torch.inference_mode():
            logits = model(inputs).logits[0][inputs[0] == fast.mask_token_id]
        best = logits.softmax(-1).topk(3)
        (filled,) = fill_masks(str(directory), [text], 3, "cpu", "fp32").texts
        pieces = [fast.convert_ids_to_tokens(row) for row in best.indices.tolist()]
        assert [[guess.piece for guess in mask] for mask in filled.masks] == pieces
        probabilities = torch.tensor([[guess.probability for guess in mask] for mask in filled.masks])
        assert torch.allclose(probabilities, best.values, atol=1e-5)
