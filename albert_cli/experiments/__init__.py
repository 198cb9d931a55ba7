"""The paper's experiments, each a recipe: planned, run, resumed, judged and reported by the same few modules."""
