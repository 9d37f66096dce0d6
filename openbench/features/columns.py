"""Names of cached columns, and the columns that a request reads."""

from dataclasses import dataclass, replace

from torch import Tensor

from openbench.backbones.base import Backbone, Outputs
from openbench.core.request import Field, Perturb, Pool, Request
from openbench.digest import digest
from openbench.errors import FieldError, NotApplicableError


@dataclass(frozen=True)
class Column:
    """One cached array of a split: a field of the network's outputs, for a map with its layer and reduction.

    Args:
        field: LOGITS, FEATURES, PATCHES or MAPS.
        layer: neutral stage name, maps only.
        pool: reduction, maps only.
        perturb: the input-gradient step before the pass, if any.
    """

    field: Field
    layer: str = ""
    pool: Pool = "none"
    perturb: Perturb | None = None

    @property
    def name(self) -> str:
        """The file's stem, e.g. `logits`, `maps.stage4.gram`, `logits.<digest of the step>`."""
        parts = [str(self.field)]
        if self.field == Field.MAPS:
            parts += [self.layer, self.pool]
        if self.perturb is not None:
            parts.append(digest(self.perturb))
        return ".".join(parts)

    def of(self, outputs: Outputs) -> Tensor:
        """The column's rows in one batch of outputs."""
        if self.field == Field.MAPS:
            return outputs.maps[self.layer]
        if self.field == Field.PATCHES:
            if outputs.patches is None:
                raise NotApplicableError("this backbone gives no features of patches — choose one that does: open_clip")
            return outputs.patches
        return outputs.logits if self.field == Field.LOGITS else outputs.features


def read_by(request: Request) -> tuple[Column, ...]:
    """Return the columns that `request` reads.

    Raises:
        FieldError: maps asked for without layers, or layers without maps.
    """
    if (Field.MAPS in request.fields) != bool(request.layers):
        raise FieldError(f"Request: layers {list(request.layers)} — maps need both, the field 'maps' and layers")
    known = (Field.FEATURES, Field.LOGITS, Field.PATCHES)
    plain = [Column(f, perturb=request.perturb) for f in known if f in request.fields]
    return (*plain, *(Column(Field.MAPS, layer, request.pool, request.perturb) for layer in request.layers))


def separated(request: Request) -> tuple[Request, Request | None]:
    """Return the request without its second pass, and the request of that second pass, if there is one.

    Raises:
        FieldError: the field without the step, or the step without the field.
    """
    if (Field.PERTURBED in request.fields) != (request.second_pass is not None):
        raise FieldError(f"Request: second_pass={request.second_pass} — need both, the field 'perturbed' and a step")
    if request.second_pass is None:
        return request, None
    others = (request.fields - {Field.PERTURBED}) or frozenset({Field.FEATURES})
    second = Request(fields=frozenset({Field.FEATURES}), perturb=request.second_pass)
    return replace(request, fields=others, second_pass=None), second


def columns_of_pass(backbone: Backbone, request: Request) -> tuple[Column, ...]:
    """Return the columns to cache from a pass for `request`.

    Features and logits cost nothing once the pass is made, so both are cached (logits only with a classifier).
    """
    columns = read_by(replace(request, fields=request.fields | {Field.FEATURES, Field.LOGITS}))
    return columns if backbone.num_classes else tuple(column for column in columns if column.field != Field.LOGITS)


def pass_for(columns: tuple[Column, ...]) -> Request:
    """Return the Request of a single pass that yields `columns`, which share one step and one reduction."""
    fields, layers = frozenset(c.field for c in columns), tuple(c.layer for c in columns if c.layer)
    pools: list[Pool] = [c.pool for c in columns if c.layer]
    return Request(fields, layers=layers, pool=pools[0] if pools else "none", perturb=columns[0].perturb)
