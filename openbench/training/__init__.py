"""Training: the contract of training methods, one loop, and the methods by topic.

`base.TrainingMethod` is the contract, `recipe.Recipe` sets epochs and rates; `methods`, `augment`, and `loop.weights`
(get or train the weights of a job).
"""
