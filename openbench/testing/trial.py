"""Fitting and scoring any kind of method on the planted problem: on columns, part by part, or on images."""

from dataclasses import replace

import torch
from torch import Tensor

from openbench.core.composite import Composite, leaves
from openbench.core.features import FeatureSet
from openbench.core.live import LiveMethod
from openbench.core.method import Method
from openbench.core.request import Field, Request
from openbench.testing.toy import Toy, declared
from openbench.testing.toy_network import images_with, network_with


def fitted(method: Method, data: Toy) -> Method:
    """Fit a method on the columns that it declares, of the split that it names; return what `fit` returns."""
    if isinstance(method, Composite):
        return method.fit_parts(
            lambda part: fitted(part, data),
            lambda part: scored(part, declared(data.val, read_by(part)).without_labels(), data),
        )
    request = method.request
    return method.fit(data.for_fit(request), data.head_for(request))


def scored(method: Method, x: FeatureSet, data: Toy) -> Tensor:
    """Return the scores (n,) of samples; a live method gets images, with a network that finds their features."""
    if isinstance(method, LiveMethod):
        return method.score_images(images_with(x.features), network_with(data.head))
    # The planted copies of an image are the image itself.
    apart = any(isinstance(leaf, LiveMethod) or leaf.request.corruption for leaf in leaves(method))
    if isinstance(method, Composite) and apart:
        return method.combine({name: scored(part, x, data) for name, part in method.fitted_parts.items()})
    return method.score(x)


def read_by(method: Method) -> Request:
    """Return what scoring reads; for live methods the features from which the images are made."""
    if not any(isinstance(leaf, LiveMethod) for leaf in leaves(method)):
        return method.request
    return replace(method.request, fields=method.request.fields | {Field.FEATURES})


def samples_of(method: Method, data: Toy) -> FeatureSet:
    """Return ID and OOD samples alternating, without labels, with only the declared columns."""
    # The first ones before maps are reduced: those of the others would be thrown away.
    parts = [declared(split[:160], read_by(method)).without_labels() for split in (data.id_test, data.ood_test)]
    order = torch.arange(320).view(2, 160).T.reshape(-1)
    return FeatureSet(
        {name: torch.cat([part.columns[name] for part in parts])[order] for name in parts[0].columns},
        {name: torch.cat([part.maps[name] for part in parts])[order] for name in parts[0].maps},
    )
