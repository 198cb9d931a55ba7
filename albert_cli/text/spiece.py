"""`spiece.model`: SentencePiece's file of a vocabulary, and the special tokens that ALBERT's has."""

from __future__ import annotations

from typing import Any

SPECIAL_TOKENS = {"pad": "<pad>", "unk": "<unk>", "cls": "[CLS]", "sep": "[SEP]", "mask": "[MASK]"}
_DIGIT_COMMA_PENALTY = 100.0


def read_model(model: bytes) -> Any:
    """Parse a SentencePiece model (a `ModelProto`); raises `google.protobuf.message.DecodeError`."""
    from google.protobuf.message import DecodeError
    from sentencepiece import sentencepiece_model_pb2

    proto = sentencepiece_model_pb2.ModelProto()
    proto.ParseFromString(model)
    if not all(isinstance(p.piece, str) for p in proto.pieces):  # protobuf hands over other bytes as they are
        raise DecodeError("a piece is not UTF-8")
    return proto


def penalise_digit_comma(proto: Any) -> None:
    """Lower the score of pieces such as "▁2011," so far that they are never chosen.

    ALBERT's tokenizer never emits them. The reference encodes the text before the comma again instead; lowering the
    scores gives the same pieces in one pass, in SentencePiece and in Hugging Face alike.
    """
    for p in proto.pieces:
        if p.type == p.NORMAL and p.piece.endswith(",") and p.piece[-2:-1].isdigit():
            p.score -= _DIGIT_COMMA_PENALTY
