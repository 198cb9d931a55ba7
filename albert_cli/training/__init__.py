"""From a recipe to weights: LAMB, the one loop, pretraining, fine-tuning."""
