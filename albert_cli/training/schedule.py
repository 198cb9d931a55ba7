"""The learning rate over a run: linear warm-up, then linear decay to zero."""


def learning_rate(step: int, peak: float, decay_steps: int, warmup_steps: int) -> float:
    """The rate of the update numbered `step` (from 0).

    As in the reference code the decay is reckoned from step 0, and warm-up replaces it while
    `step < warmup_steps`; so there is a small step down where warm-up ends, to `peak * (1 - warmup / decay_steps)`.
    """
    if step < warmup_steps:
        return peak * step / warmup_steps
    return peak * max(0.0, 1 - step / decay_steps)
