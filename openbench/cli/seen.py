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

    Near and far sets count together; how many of them name no classes is said too. Empty for networks without released
    weights of openbench's list, and where the benchmark's lists cannot be read.

    Args:
        benchmark: its name, as records have it.
        backbone: likewise.
    """
    weights = released_weights().get(backbone)
    listed = () if weights is None else _ood_classes(benchmark)
    classes = {canonical(name): name for own in listed for name in own}
    if weights is None or not classes:
        return ""
    found = weights.pretraining.seen(tuple(classes.values()))
    if found.startswith("not known"):
        return "not known"
    nameless = sum(not own for own in listed)
    more = f" ({nameless} of {len(listed)} sets name no classes)" if nameless else ""
    return f"{found.partition(':')[0]}{more}"


@lru_cache(maxsize=64)
def _ood_classes(benchmark: str) -> tuple[tuple[str, ...], ...]:
    """The classes that each near and far set of a shipped benchmark names; some name none."""
    from openbench.compose.composed import composed
    from openbench.config.shipped import names

    if benchmark not in names("benchmark"):
        return ()
    try:
        node = composed("run", [f"+benchmark={benchmark}"]).config["benchmark"]
        sets = [entry for entry in BenchmarkConfig.parse(node).sets if entry.path.startswith(("near.", "far."))]
        listings = [SetConfig.from_node(entry.node, f"benchmark.{entry.path}").listing() for entry in sets]
        return tuple(tuple(listing.class_names()) for listing in listings)
    except OpenbenchError:
        return ()
