"""Token shards, and the batches drawn from them while training."""
