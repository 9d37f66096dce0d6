"""What the site tells of each method, from its class and the parts that it is made of."""

from openbench import paths
from openbench.cli.commands.listing import Registry
from openbench.config.overrides import NAME
from openbench.errors import OpenbenchError
from openbench.report.site.facts import MethodFacts

_TEXT = ("mcm",)  # the classifier of its paper is made of text


def method_facts() -> dict[str, MethodFacts]:
    """Return {method as typed: facts} of all that openbench ships; what cannot be built here is left out."""
    from openbench.config.shipped import shipped
    from openbench.core.composite import leaves
    from openbench.core.live import LiveMethod
    from openbench.core.request import Field, Role
    from openbench.engine.api import build_method

    found: dict[str, MethodFacts] = {}
    for entry in Registry((paths.config_dir(),)).entries("method"):
        try:
            parts = list(leaves(build_method({**(shipped("method", entry.name) or {}), NAME: entry.name})[0]))
            source = entry.source()
        except OpenbenchError:  # e.g. it needs a library that is not installed
            continue
        requests = [part.request for part in parts]
        fields = {field for request in requests for field in request.fields}
        fitted = {request.fit_on for request in requests}
        gradients = any(request.perturb or request.second_pass for request in requests)
        live = any(isinstance(part, LiveMethod) for part in parts)
        mixed = any(request.mixing for request in requests)
        wanted = {
            "training data": Role.ID_TRAIN in fitted,
            "outliers": Role.OOD_TRAIN in fitted,
            "gradients": gradients or live,
            "text": entry.name in _TEXT,
        }
        families = {
            "text": entry.name in _TEXT,
            "gradients or images": gradients or live or mixed,
            "layers": any(request.layers for request in requests),
            "features and classifier": Field.FEATURES in fields
            and (Field.LOGITS in fields or any(request.head for request in requests)),
            "features": Field.FEATURES in fields,
            "logits": True,
        }
        found[entry.name] = MethodFacts(
            next(family for family, holds in families.items() if holds),
            tuple(need for need, asked in wanted.items() if asked),
            source.year,
            source.summary,
        )
    return found
