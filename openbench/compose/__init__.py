"""Plain configs from overrides, by the public interface of Hydra.

`composed` returns the config of a job as plain values, `config` composes and checks it, `sweep` lists the jobs of a
sweep, `errors` translates the errors of Hydra, `many` composes thousands of configs.
"""
