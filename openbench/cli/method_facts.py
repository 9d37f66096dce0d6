"""What the site tells of each method, from its class and the parts that it is made of; kept in the cache.

To build every method takes seconds and hundreds of MB, as it imports torch, for what depends on openbench's code alone.
"""

from dataclasses import asdict
from typing import Any

from openbench import paths
from openbench.cli.commands.listing import Registry
from openbench.cli.kept_facts import kept
from openbench.config.overrides import NAME
from openbench.errors import OpenbenchError
from openbench.report.site.facts import MethodFacts

_TEXT = ("mcm",)  # the classifier of its paper is made of text


def method_facts() -> dict[str, MethodFacts]:
    """Return {method as typed: facts} of all that openbench ships; what cannot be built here is left out."""
    facts = kept("methods", _built)
    return {name: MethodFacts(**own | {"needs": tuple(own["needs"])}) for name, own in facts.items()}


def _built() -> tuple[dict[str, dict[str, Any]], bool]:
    """The facts, and whether no method was left out: its library may be installed later."""
    from openbench.config.shipped import shipped
    from openbench.core.composite import leaves
    from openbench.core.live import LiveMethod
    from openbench.core.request import Field, Role
    from openbench.engine.api import build_method

    found: dict[str, dict[str, Any]] = {}
    entries = Registry((paths.config_dir(),)).entries("method")
    for entry in entries:
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
        facts = MethodFacts(
            next(family for family, holds in families.items() if holds),
            tuple(need for need, asked in wanted.items() if asked),
            source.year,
            source.summary,
        )
        found[entry.name] = asdict(facts)
    return found, len(found) == len(entries)
