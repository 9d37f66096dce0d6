"""The types that everything else uses; methods import from here: `from openbench.core import Field, Method, Request`.

`request` (what a method needs), `features` (cached tensors of a split), `method` (its kinds), `search` (of
hyper-parameters), `benchmark` (splits), `preprocess`, `scores` (of a set), `record` (of a run), `runtime`.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from openbench.core.features import FeatureSet as FeatureSet, Head as Head, by_rows as by_rows
    from openbench.core.method import (
        Composite as Composite,
        HeadMethod as HeadMethod,
        LiveBackbone as LiveBackbone,
        LiveMethod as LiveMethod,
        Method as Method,
        SoftmaxMethod as SoftmaxMethod,
        StreamingMethod as StreamingMethod,
    )
    from openbench.core.request import (
        CLASSES as CLASSES,
        STAGES as STAGES,
        Corruption as Corruption,
        Field as Field,
        Mixing as Mixing,
        Perturb as Perturb,
        Request as Request,
        Role as Role,
        Texts as Texts,
    )

_HOMES = ("request", "features", "method")

if not TYPE_CHECKING:  # a type checker knows the names above

    def __getattr__(name: str) -> Any:
        # When it is first used, as some commands do without torch.
        for home in () if name.startswith("_") else _HOMES:
            if hasattr(module := import_module(f"{__name__}.{home}"), name):
                return getattr(module, name)
        raise AttributeError(f"module '{__name__}' has no attribute '{name}'")
