"""Plain configs from overrides, by the public interface of Hydra.

`config` composes, checks and resolves the config of a job, or of thousands of runs, and translates Hydra's errors.
`sweep` lists the jobs of a sweep.
"""
