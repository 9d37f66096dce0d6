"""From what is typed to plain configs, by Hydra's public interface.

`composed` gives one job's config as plain values, `config` composes and checks it, `sweep` knows the jobs of a sweep,
`errors` says what is wrong in the project's words.
"""
