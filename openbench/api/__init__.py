"""What `import openbench as ob` offers: evaluating one's own model, features or scores, and results as data.

`evaluate.evaluate` (models), `features.evaluate_features`, `scores.evaluate_scores`, `methods.method` (a method as an
estimator), `records.records` and `records.load`; `result` is what they return, `models` makes a user's model a
backbone, `arguments` checks what a call is given.
"""
