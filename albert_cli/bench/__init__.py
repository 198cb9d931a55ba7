"""`albert bench`: speed of training on this machine, compared with `transformers`; `harness` does the timing."""
