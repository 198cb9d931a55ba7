"""The paper's experiments, each a recipe: planned, run, resumed, checked and reported by the same few modules."""
