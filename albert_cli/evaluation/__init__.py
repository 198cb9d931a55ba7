"""Score models on tasks, and write each score to a `results.json` with the protocol behind it.

`single` evaluates one task, `controls` compares it with other initial weights, `suite` evaluates all tasks of GLUE,
`search` a grid of hyperparameters, `ensemble` several models together, and `verify` a published checkpoint. `tables`
prints their results.
"""
