"""Train an encoder from a recipe: pretraining (`pretrain`) and fine-tuning on a task (`finetune`).

Each creates a `job.TrainingJob`, which computes losses, and `loop.Loop` trains the job to its last step. `settings` has
the recipe sections that both share, `checkpoint` saves and restores the state of a run, and `run` manages a run's
directory.
"""
