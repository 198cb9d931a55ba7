"""Build a data directory of token shards from text (`build`), and sample training batches from it (`batches`)."""
