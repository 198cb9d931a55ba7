"""Train an encoder from a recipe: pretraining (`pretrain`) and fine-tuning on a task (`finetune`).

Both create a `job.TrainingJob`, which computes losses, and `loop.Loop` trains it to its last step. `settings` has the
sections that both kinds of recipe share, `checkpoint` what a run saves, and `run` the directory of a run.
"""
