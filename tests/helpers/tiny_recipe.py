"""A pretraining recipe that trains in a second, and settings for `[train]` with short steps and evaluations."""

from __future__ import annotations

SMALL_BATCHES = """
[train]
batch_size = 4
micro_batch_size = 4
eval_sequences = 8
precision = "fp32"
"""
RECIPE = """
[model]
embedding_size = 8
hidden_size = 16
num_hidden_layers = 2
num_attention_heads = 2
intermediate_size = 32
max_position_embeddings = 48
[data]
max_seq_length = 32
[optimizer]
lr = 1e-2
[schedule]
total_steps = 30
[train]
batch_size = 8
micro_batch_size = 4
log_every = 5
eval_every = 15
eval_sequences = 8
save_every = 5
precision = "fp32"  # "auto" would measure in every run which precision is faster
"""
