"""What the benchmarks of a study need that is not here: sets of images, and files of weights."""

from collections.abc import Iterable
from pathlib import Path

from openbench import paths
from openbench.config.shipped import shipped
from openbench.studies.plan import Part
from openbench.studies.status import Need
from openbench.studies.wanted import Wanted


def needs(parts: Iterable[Part], config_dir: Path | None) -> dict[str, Need]:
    """Return what is missing of every benchmark on which something is to do.

    Args:
        parts: the runs of a study, by benchmark.
        config_dir: the user's folder of group files.
    """
    return {part.benchmark: _need(part.missing, config_dir) for part in parts if part.missing}


def _need(missing: Iterable[Wanted], config_dir: Path | None) -> Need:
    from openbench.cli.commands.data import benchmark_config
    from openbench.data.build import survey

    runs = list(missing)
    forms = {tuple(word for word in run.words if word.lstrip("+").startswith("benchmark")): run for run in runs}
    lines: list[str] = []
    for words in forms:
        statuses = survey(benchmark_config(words, config_dir))
        lines += [f"{s.path} ({s.found:,} of {s.expected:,})" for s in statuses if s.message]
    backbones = dict.fromkeys(run.names["backbone"] for run in runs if "backbone" in run.names)
    weights = [line for name in backbones for line in _absent(name)]
    return Need(tuple(dict.fromkeys(lines)), tuple(weights))


def _absent(backbone: str) -> list[str]:
    """What is said of weights that are not in a data root."""
    node = shipped("backbone", backbone) or {}
    file = str(node.get("weights") or node.get("checkpoint") or "")
    if "/" not in file:
        return []  # a library's, which it downloads where they are not in its cache
    there = any((root / file).is_file() for root in paths.data_roots())
    return [] if there else [f"{file} of backbone {backbone}, in a data root (OPENBENCH_DATA, ./data)"]
