"""From what is typed to plain configs: the only package, besides the jobs of the command line, that knows Hydra."""
