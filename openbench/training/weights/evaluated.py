"""From a checkpoint to the backbone that is evaluated: the network, or what its training says to score."""

import torch

from openbench.backbones.anatomy import Anatomy
from openbench.backbones.base import Backbone
from openbench.backbones.checkpoints import apply_weights, read_weights
from openbench.backbones.network import NetworkBackbone
from openbench.errors import ConfigError
from openbench.training.base import Surface, TrainingMethod
from openbench.training.job import TrainingJob
from openbench.training.weights.checkpoints import Checkpoint


def evaluated(job: TrainingJob, checkpoint: Checkpoint) -> Backbone:
    """Return the job's backbone with a checkpoint's weights, or the surface that its method evaluates instead.

    Raises:
        CheckpointError: weights that do not fit.
        ConfigError: the method has its own surface, and the backbone is not a NetworkBackbone.
    """
    backbone, method = job.backbone.load(checkpoint.weights, checkpoint.sha256), job.method
    if type(method).surface is TrainingMethod.surface:
        return backbone
    if not isinstance(backbone, NetworkBackbone):
        raise ConfigError(
            f"training '{type(method).__name__}' evaluates more than the network — backbone '{backbone.name}' is a "
            f"{type(backbone).__name__} — choose one made of a torch module"
        )
    with torch.random.fork_rng(devices=[]):
        prepared = method.prepare(backbone.module(), backbone.feature_dim, backbone.num_classes)
    if checkpoint.extras is not None:
        # The extras lack only the network, which is loaded already.
        apply_weights(prepared, prepared.state_dict() | read_weights(checkpoint.extras), f"'{checkpoint.extras}'")
    with torch.no_grad():
        surface = method.surface(prepared.eval())
    if surface is None:
        return backbone.load(checkpoint.weights, checkpoint.sha256)
    architecture = f"{backbone.architecture}, evaluated as {type(method).__qualname__} {type(method).version}"
    return backbone.replaced(surface.module, anatomy_of(surface, backbone.anatomy), architecture)


def anatomy_of(surface: Surface, network: Anatomy) -> Anatomy:
    """Return where head, stages and further outputs are in a surface; stages keep their neutral names."""
    names = {part: name for name, part in surface.module.named_modules()}
    within = names[surface.network]
    prefix = f"{within}." if within else ""
    stages = {layer: prefix + name for layer, name in network.stages.items()}
    stages |= {layer: names[part] for layer, part in surface.outputs.items()}
    return Anatomy(names[surface.head], stages, network.layout, network.prefix_tokens)
