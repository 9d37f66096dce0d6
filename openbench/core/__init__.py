"""The types that everything else uses; methods import from here: `from openbench.core import Field, Method, Request`.

`request` (what a method needs), `features` (cached tensors of a split), `method` with its kinds `composite`, `live` and
`streaming`, `search` (of hyper-parameters), `benchmark` (splits), `preprocess`, `scores` (of a set), `record` (of a
run), `runtime`, `products` (of matrices).
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from openbench.core.composite import Composite as Composite
    from openbench.core.features import FeatureSet as FeatureSet
    from openbench.core.features import Head as Head
    from openbench.core.live import LiveBackbone as LiveBackbone
    from openbench.core.live import LiveMethod as LiveMethod
    from openbench.core.method import HeadMethod as HeadMethod
    from openbench.core.method import Method as Method
    from openbench.core.products import by_rows as by_rows
    from openbench.core.request import CLASSES as CLASSES
    from openbench.core.request import STAGES as STAGES
    from openbench.core.request import Corruption as Corruption
    from openbench.core.request import Field as Field
    from openbench.core.request import Mixing as Mixing
    from openbench.core.request import Perturb as Perturb
    from openbench.core.request import Request as Request
    from openbench.core.request import Role as Role
    from openbench.core.request import Texts as Texts
    from openbench.core.streaming import StreamingMethod as StreamingMethod

# Module → the names that are imported from it when they are first used: some commands do without torch.
_HOMES = {
    "composite": "Composite",
    "features": "FeatureSet Head",
    "live": "LiveBackbone LiveMethod",
    "method": "HeadMethod Method",
    "products": "by_rows",
    "request": "CLASSES STAGES Corruption Field Mixing Perturb Request Role Texts",
    "streaming": "StreamingMethod",
}

if not TYPE_CHECKING:  # a type checker knows the names above

    def __getattr__(name: str) -> Any:
        for module, names in _HOMES.items():
            if name in names.split():
                return getattr(import_module(f"{__name__}.{module}"), name)
        raise AttributeError(f"module '{__name__}' has no attribute '{name}'")
