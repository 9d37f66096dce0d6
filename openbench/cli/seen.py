"""Whether a released network has met the OOD classes of a benchmark: what the leaderboard says of each row."""

from functools import lru_cache

from openbench.core.benchmark import canonical
from openbench.data.benchmark_config import BenchmarkConfig
from openbench.data.dataset import SetConfig
from openbench.data.download.weights import released_weights
from openbench.errors import OpenbenchError


@lru_cache(maxsize=256)
def seen(benchmark: str, backbone: str) -> str:
    """Return how many OOD classes were among the labels that a network learnt before, e.g. `12 of 160`, or `none`.

    Near and far sets count together, and sets that name no classes are left out. Empty for networks without released
    weights of openbench's list, and where the benchmark's lists cannot be read.

    Args:
        benchmark: its name, as records have it.
        backbone: likewise.
    """
    weights = released_weights().get(backbone)
    classes = () if weights is None else _ood_classes(benchmark)
    if weights is None or not classes:
        return ""
    found = weights.pretraining.seen(classes)
    return "not known" if found.startswith("not known") else found.partition(":")[0]


@lru_cache(maxsize=64)
def _ood_classes(benchmark: str) -> tuple[str, ...]:
    """The classes that the near and far sets of a shipped benchmark name, each once."""
    from openbench.compose.composed import composed
    from openbench.config.shipped import names

    if benchmark not in names("benchmark"):
        return ()
    try:
        node = composed("run", [f"+benchmark={benchmark}"]).config["benchmark"]
        sets = [entry for entry in BenchmarkConfig.parse(node).sets if entry.path.startswith(("near.", "far."))]
        listed = [SetConfig.from_node(entry.node, f"benchmark.{entry.path}").listing().class_names() for entry in sets]
    except OpenbenchError:
        return ()
    return tuple({canonical(name): name for classes in listed for name in classes}.values())
