"""The training contract, the one loop, and one file per training method.

`base.TrainingMethod` is the contract, `recipe.Recipe` how long and how fast, `job.TrainingJob` what names a checkpoint;
`methods`, `parts` (what several of them are made of), `augment`, `images` (what batches are taken from), `loop` (the
loop, and from a job to trained weights).
"""
