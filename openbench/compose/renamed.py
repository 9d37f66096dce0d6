"""Old spellings: an error that gives the new one."""

from collections.abc import Iterable

from hydra.core.override_parser.types import Override

from openbench.errors import ConfigError

_OOD_TRAIN = "benchmark.ood_train"


def refuse_moved(overrides: Iterable[Override]) -> None:
    """Refuse outliers that are given to the benchmark; to leave out a set that a benchmark has is allowed.

    Raises:
        ConfigError: there are such overrides.
    """
    for override in overrides:
        typed = override.input_line or ""
        group, key = override.package == _OOD_TRAIN, override.key_or_group
        if override.is_delete() or not (group or key == _OOD_TRAIN or key.startswith(f"{_OOD_TRAIN}.")):
            continue
        now = f"{key}@outliers" if group else f"outliers{key.removeprefix(_OOD_TRAIN)}"
        raise ConfigError(
            f"`{typed}` — outliers belong to the training, not to the benchmark, so that its results stay comparable — "
            f"write {now}={typed.partition('=')[2]}"
        )
