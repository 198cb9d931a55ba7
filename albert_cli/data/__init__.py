"""Token shards, and the batches sampled from them during training."""
