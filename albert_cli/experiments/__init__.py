"""The paper's experiments, each a recipe, and `albert reproduce`, which runs them.

In the order of a run: `recipe` reads the recipe, `stages` plans the commands (a `plan`), `budget` estimates their cost,
`runner` runs them, `outcome` reads their results (`records`), `claims` tests the claims, and `pages` writes a report.
"""
