"""What the jobs of a sweep have in common: the benchmark opened and the network loaded once, not once per job."""

from collections import OrderedDict
from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeVar

from openbench import paths
from openbench.backbones.base import Backbone
from openbench.core.benchmark import Benchmark
from openbench.core.composite import leaves
from openbench.core.live import LiveMethod
from openbench.core.method import Method
from openbench.digest import digest
from openbench.engine.outcomes.learnt import Learnt
from openbench.engine.reads import settings_of
from openbench.engine.runtime import Runtime

T = TypeVar("T")
_MOST = 2  # of each kind: a benchmark with its training images, and without for methods that do not read them
_PER_JOB = ("method", "tune", "metrics")  # nodes that neither a benchmark nor a network depends on


@dataclass
class Kept:
    """Benchmarks and backbones that the jobs of one process have made, by what they were made of; the latest few.

    A job finds what an earlier one left as if it had made it: nothing that enters a record differs. Who carries out
    jobs decides how long it lives, and forgets it after a job that failed.
    """

    _held: dict[str, "OrderedDict[Hashable, Any]"] = field(default_factory=dict)

    def benchmark(self, config: Mapping[str, Any], reads_train: bool, make: Callable[[], Benchmark]) -> Benchmark:
        """Return the benchmark of a config, opened once for the jobs that read the same of it.

        Args:
            config: the scientific nodes.
            reads_train: whether the ID training images are read, so that they are looked for.
            make: opens it.
        """
        return self._get("benchmark", (digest(config["benchmark"]), reads_train, paths.data_roots()), make)

    def backbone(
        self,
        config: Mapping[str, Any],
        reads_train: bool,
        runtime: Runtime,
        make: Callable[[], tuple[Backbone, Learnt | None]],
    ) -> tuple[Backbone, Learnt | None]:
        """Return the backbone of a config with weights, loaded once for the jobs that only read its outputs.

        Args:
            config: the scientific nodes.
            reads_train: whether the ID training images are read; as for `benchmark`.
            runtime: of the job.
            make: loads or trains it.
        """
        if runtime.train == "force":
            return make()
        nodes = {name: node for name, node in config.items() if name not in _PER_JOB}
        key = digest(nodes), reads_train, paths.data_roots(), runtime
        # Weights that were trained now are read back by the next job: its record says that they were reused.
        return self._get("backbone", key, make, lambda made: made[1] is None or bool(made[1].reused))

    def forget(self) -> None:
        """Drop everything."""
        self._held.clear()

    def _get(self, kind: str, key: Hashable, make: Callable[[], T], lasting: Callable[[T], bool] = lambda _: True) -> T:
        """What was made of `key`, or is made now, and kept if the next job would make the same."""
        held = self._held.setdefault(kind, OrderedDict())
        if key in held:
            held.move_to_end(key)
            return held[key]  # type: ignore[no-any-return]
        # The oldest goes first: two networks may not fit into memory where one does.
        while len(held) >= _MOST:
            held.popitem(last=False)
        made = make()
        if lasting(made):
            held[key] = made
        return made


def runs_network(method: Method, space: Mapping[str, Any]) -> bool:
    """Return whether a setting of a method runs the network itself, and so might leave it otherwise than it was.

    Args:
        method: unfitted.
        space: that it is searched in.
    """
    return any(isinstance(leaf, LiveMethod) for made in (method, *settings_of(method, space)) for leaf in leaves(made))
