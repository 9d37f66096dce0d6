"""The Python interface: `import openbench as ob` loads its names from here.

`evaluate.evaluate` (models), `features.evaluate_features`, `scores.evaluate_scores`, `methods.method` (a method as an
estimator), `result.records` and `result.load`; `result` has the results, `models` turns a user's model into a backbone,
`arguments` checks arguments.
"""
