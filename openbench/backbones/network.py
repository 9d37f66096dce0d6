"""Backbones made of a torch module that ends in nn.Linear, fine-tuned ones, and ensembles of them."""

import copy
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Annotated, Any, Literal, Self

import numpy as np
import torch
from annotated_types import Ge
from torch import Tensor, nn

from openbench.backbones.anatomy import Anatomy, Tapped, tapping
from openbench.backbones.base import HALVES, Backbone, Outputs, Precision, arithmetic, as_input
from openbench.backbones.checkpoints import apply_weights, find_weights, read_weights
from openbench.config.constraints import Count
from openbench.core.features import Head
from openbench.core.preprocess import Preprocess
from openbench.core.request import Perturb, Request
from openbench.digest import array_sha256, digest
from openbench.errors import CheckpointError, ConfigError, NotApplicableError, did_you_mean
from openbench.source import note_maker

# Raised when the definition of an output changes (a reduction, the input step): cached columns are then not reused.
OUTPUTS_VERSION = 1
HeadStart = Literal["new", "kept"]
START: Literal["start"] = "start"
MEMBERS = "members"  # the layer of all members' logits, (n, m, c, 1)


class NetworkBackbone(Backbone):
    """A torch module and the places of its head and stages.

    Args:
        name: what users type after `backbone=`.
        architecture: the network in one line, without its weights.
        make: returns a new module with random weights; called under a fixed seed.
        find: returns the anatomy of a module made by `make`.
        preprocess: how images reach the network.
        precision: `fp32`; `tf32` where CUDA may round products to 10 bits; `bf16` or `fp16`, which `outputs` makes in
            16 bits up to the features. The classifier, input gradients and methods that run the network take float32.
        rename: rewrites the keys of weight files, for releases that name layers differently.

    Attributes:
        network: for reading only; `module` is for training.
        anatomy: where head and stages are in it.
        code: further objects whose source shapes the outputs.
    """

    network: nn.Module
    code: tuple[object, ...] = ()

    def __init__(
        self,
        name: str,
        architecture: str,
        make: Callable[[], nn.Module],
        find: Callable[[nn.Module], Anatomy],
        *,
        preprocess: Preprocess,
        precision: Precision = "fp32",
        rename: Callable[[str], str] = str,
    ) -> None:
        self.name = name
        self.architecture = architecture
        # A list from yaml would make equal preprocessings compare unequal.
        self.preprocess = replace(preprocess, mean=tuple(preprocess.mean), std=tuple(preprocess.std))
        self.precision = precision
        self._make, self._find, self._rename = make, find, rename
        self.device = torch.device("cpu")
        self._sha: str | None = None
        self._handed_out = False
        self.initialise(0)
        self.anatomy = find(self.network)
        head = self.anatomy.classifier(self.network)
        if isinstance(head, nn.Linear):
            self.num_classes, self.feature_dim = head.out_features, head.in_features
        else:
            self.classifies, self.num_classes, self.feature_dim = False, 0, self.width()
        self.layers = tuple(self.anatomy.stages)

    @property
    def head(self) -> Head:
        """The classifier as a linear head on CPU; with zero classes where the network has no classifier."""
        linear = self.anatomy.classifier(self.network)
        if isinstance(linear, nn.Identity):
            return Head(torch.zeros(0, self.feature_dim), torch.zeros(0))
        weight = linear.weight.detach().to("cpu", torch.float32, copy=True)
        bias = torch.zeros(len(weight)) if linear.bias is None else linear.bias.detach().to("cpu", copy=True)
        return Head(weight, bias.float())

    @property
    def weights_sha256(self) -> str:  # type: ignore[override]
        """Hash of the weights' content: names, dtypes, shapes and values; 64 hex digits."""
        if self._sha is None or self._handed_out:
            self._sha = state_sha256(self.network.state_dict())
        return self._sha

    @property
    def digest(self) -> str:  # type: ignore[override]
        """Covers architecture, anatomy, weights, preprocessing and precision.

        Raises:
            CheckpointError: there are no weights yet.
        """
        if not self.trained:
            raise CheckpointError(f"backbone '{self.name}' has random weights — train it, or load weights")
        parts = {name: getattr(self, name) for name in ("architecture", "anatomy", "preprocess", "precision")}
        return digest({**parts, "outputs": OUTPUTS_VERSION, "weights": self.weights_sha256})

    @property
    def made_of(self) -> tuple[object, ...]:
        """The classes of the network's modules, the functions that made it, and `code`; their source is identity."""
        return (*{type(module) for module in self.network.modules()}, self._make, self._find, *self.code)

    def to(self, device: torch.device) -> Self:
        """Move the network; return self."""
        self.network.to(device)
        self.device = torch.device(device)
        return self

    def initialise(self, seed: int) -> Self:
        """Draw fresh random weights from `seed` without touching the global generator; return self."""
        with torch.random.fork_rng(devices=[]):
            torch.default_generator.manual_seed(seed)  # torch.manual_seed would seed GPUs too, for good
            module = self._make()
        self._install(module, trained=False)
        return self

    def load(self, path: Path, sha256: str | None = None) -> Self:
        """Load weights from a file; return self."""
        return self.load_state(read_weights(Path(path), sha256), f"'{path}'")

    def load_state(self, state: Mapping[str, Tensor], where: str) -> Self:
        """Load weights that are in memory already; `where` names their source in messages. Return self."""
        apply_weights(self.network, state, where, self._rename)
        self._install(self.network, trained=True)
        return self

    def replaced(self, module: nn.Module, anatomy: Anatomy, architecture: str) -> "NetworkBackbone":
        """Return a backbone of this name, preprocessing and device that evaluates a trained module instead.

        Args:
            module: images (n, 3, h, w) to logits (n, c); copied.
            anatomy: where its head and stages are.
            architecture: the module in one line, without its weights.
        """
        other = NetworkBackbone(
            self.name,
            architecture,
            partial(copy.deepcopy, module),
            lambda _: anatomy,
            preprocess=self.preprocess,
            precision=self.precision,
        )
        note_maker(other, NetworkBackbone, (self,))
        return other.load_state(module.state_dict(), f"of {architecture}").to(self.device)

    def module(self) -> nn.Module:
        """The network itself, trainable: images (n, 3, h, w) to logits (n, c)."""
        self._handed_out = True
        return self.network.requires_grad_(True)

    @contextmanager
    def frozen(self) -> Iterator[nn.Module]:
        """The network in eval mode without parameter gradients, for methods that run it themselves; passes are counted.

        The caller may take gradients by images and set hooks.
        """

        def count(_: nn.Module, inputs: tuple[Any, ...]) -> None:
            self.passes += len(inputs[0])

        counting = self.network.register_forward_pre_hook(count)
        with counting, evaluating(self.network), arithmetic(self._full, self.device):
            yield self.network

    @contextmanager
    def changing(self, layer: str, change: Callable[[Tensor], Tensor]) -> Iterator[None]:
        """While open, the layers after `layer` receive its map (n, c, h, w) as `change` returns it.

        Raises:
            NotApplicableError: a layer that this network does not have.
        """
        self._require(layer)
        stage, places = self.network.get_submodule(self.anatomy.stages[layer]), self.anatomy
        with stage.register_forward_hook(lambda *args: places.with_map(args[2], change(places.as_map(args[2])))):
            yield

    def outputs(self, images: Tensor, request: Request) -> Outputs:
        """Return what `request` names for normalised images (n, 3, h, w), after its input-gradient step if any.

        Raises:
            NotApplicableError: a layer that this network does not have, or an input step where it has no classifier.
        """
        for layer in request.layers:
            self._require(layer)
        if request.perturb is not None and not self.num_classes:
            raise NotApplicableError(f"backbone '{self.name}' has no classifier, so its loss has no input gradient")
        images = as_input(images, self.device)
        # A walk through all modules takes a fifth of the pass of an image, and only `module()` lets others change them.
        with evaluating(self.network) if self._handed_out else nullcontext():
            if request.perturb is not None:
                with arithmetic(self._full, self.device):
                    images = perturbed(self.network, images, self.preprocess.std, request.perturb)
                self.passes += len(images)
            with (
                arithmetic(self.precision, self.device),
                torch.no_grad(),
                tapping(self.network, self.anatomy, request.layers, request.pool) as tapped,
            ):
                self.network(images)
        self.passes += images.shape[0]  # `len` of a tensor is Python code
        outputs, head = self._checked(tapped), self.anatomy.classifier(self.network)
        if self.precision not in HALVES or isinstance(head, nn.Identity):
            return outputs
        # The logits of a pass in 16 bits, from the features again: with 8 bits many would tie.
        with torch.no_grad(), arithmetic("fp32", self.device):
            return replace(outputs, logits=head(outputs.features))

    def traced(self, images: Tensor, request: Request) -> Outputs:
        """Return what `request` names for normalised images (n, 3, h, w), with gradients by the images."""
        for layer in request.layers:
            self._require(layer)
        with self.frozen() as module, tapping(module, self.anatomy, request.layers, request.pool) as tapped:
            module(images)
        return self._checked(tapped)

    @property
    def _full(self) -> Precision:
        """The precision where 16 bits would not do: gradients vanish in them, and methods expect float32."""
        return "fp32" if self.precision in HALVES else self.precision

    def width(self) -> int:
        """The feature dimension, from one black image.

        Raises:
            ConfigError: the network does not take an image of this size and these channels.
        """
        p = self.preprocess
        try:
            with evaluating(self.network), torch.no_grad(), tapping(self.network, self.anatomy, (), "none") as tapped:
                self.network(torch.zeros(1, p.channels, p.crop, p.crop, device=self.device))
        except (AssertionError, RuntimeError, ValueError) as error:
            found = f"fails on an image of {p.channels}×{p.crop}×{p.crop} ({error!r:.200})"
            raise ConfigError(f"backbone '{self.name}' {found} — change its preprocess or options") from error
        return self._checked(tapped).features.shape[1]

    def _require(self, layer: str) -> None:
        if layer not in self.layers:
            hint = f"{did_you_mean(layer, self.layers)} — allowed: {', '.join(self.layers) or 'none'}"
            raise NotApplicableError(f"backbone '{self.name}' has no layer '{layer}'{hint}")

    def _checked(self, tapped: Tapped) -> Outputs:
        """What a pass has filled, as float32 whatever the network computes in; maps are already."""
        if tapped.features is None or tapped.logits is None or tapped.features.ndim != 2:
            shape = None if tapped.features is None else tuple(tapped.features.shape)
            where = f"backbone '{self.name}': its head '{self.anatomy.head}'"
            raise ConfigError(f"{where} receives {shape}, not one vector (n, d) per image — choose another model")
        return Outputs(tapped.logits.float(), tapped.features.float(), tapped.maps)

    def _install(self, module: nn.Module, *, trained: bool) -> None:
        # Channels last is the faster layout for convolutions on CPU and CUDA: a quarter less time for ResNet-20.
        module = module.to(self.device).to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        self.network = module.eval().requires_grad_(False)
        self._sha, self._handed_out, self.trained = None, False, trained


@contextmanager
def evaluating(module: nn.Module) -> Iterator[None]:
    """Put a network into eval mode without parameter gradients, and restore it afterwards: training may use it too."""
    learning = [p for p in module.parameters() if p.requires_grad]
    training = [m for m in module.modules() if m.training]
    module.requires_grad_(False)
    for part in training:
        part.training = False
    try:
        yield
    finally:
        for parameter in learning:
            parameter.requires_grad_(True)
        for part in training:
            part.training = True


def state_sha256(state: Mapping[str, Any]) -> str:
    """Return the SHA-256 of a state dict's content, 64 hex digits.

    Batch norm's counters are left out: no output depends on them.
    """
    hashes = {
        key: array_sha256(np.asarray(value.detach().cpu().float() if value.is_floating_point() else value.cpu()))
        for key, value in state.items()
        if not key.endswith("num_batches_tracked")
    }
    return digest(hashes, length=64)


def perturbed(forward: Callable[[Tensor], Tensor], images: Tensor, std: tuple[float, ...], step: Perturb) -> Tensor:
    """Return x̃ = x − ε·sign(∇ₓ CE(z/T, ŷ))/σ with ŷ = argmax z and sign(0) = +1, or what `step.kind` says instead.

    Args:
        forward: images (n, ch, h, w) to logits (n, c); samples must not influence one another (eval mode).
        images: normalised; not changed.
        std: σ, the per-channel standard deviation by which images were divided.
        step: T > 0, ε in pixel units of [0, 1], and which elements move: all (`sign`) or, in each image, the one with
            the largest |gradient| (`peak`, the first of equals); `logit` moves all towards a larger maximum of z, and
            `flat` moves the `share` of them with the smallest |gradient|, by ε itself.

    Reference:
        Liang, Li, Srikant: Enhancing the reliability of out-of-distribution image detection in neural networks
        (ODIN), ICLR 2018, arXiv:1706.02690.
    """
    gradient = _gradient(forward, images, step)
    if step.kind == "flat":
        flat = gradient.flatten(1)
        least = flat.abs().topk(int(step.share * flat.shape[1]), dim=1, largest=False, sorted=False).indices
        chosen = torch.zeros_like(flat).scatter_(1, least, 1.0)
        return (images - step.epsilon * (flat.sign() * chosen).view_as(images)).detach()
    direction = torch.where(gradient >= 0, 1.0, -1.0).to(images.dtype)
    if step.kind == "peak":
        flat = gradient.abs().flatten(1)
        peak = torch.zeros_like(flat).scatter_(1, flat.argmax(dim=1, keepdim=True), 1.0)
        direction = direction * peak.view_as(images)
    sigma = torch.tensor(std, dtype=images.dtype, device=images.device).view(1, -1, 1, 1)
    return (images - step.epsilon * direction / sigma).detach()


def _gradient(forward: Callable[[Tensor], Tensor], images: Tensor, step: Perturb) -> Tensor:
    """Return ∇ₓ CE(z/T, ŷ) up to a positive factor per image, which changes neither sign nor peak; or −∇ₓ max z.

    The gradient by z is (p − onehot(ŷ))/T. Divided by (1 − p_ŷ)/T it is −1 at ŷ and, elsewhere, the softmax over the
    other classes: nothing cancels when p_ŷ rounds to 1, nothing gets small when T is large.
    """
    with torch.enable_grad():
        x = images.detach().clone().requires_grad_(True)
        logits = forward(x)
        top = logits.detach().argmax(dim=1, keepdim=True)
        others = (logits.detach() / step.temperature).scatter(1, top, float("-inf"))
        others = torch.zeros_like(others) if step.kind in ("logit", "flat") else torch.softmax(others, dim=1)
        cotangent = others.scatter(1, top, -1.0)
        (gradient,) = torch.autograd.grad(logits, x, cotangent)
    return gradient


def finetuned(
    name: str,
    start: NetworkBackbone,
    *,
    head: HeadStart = "new",
    num_classes: Count | None = None,
    preprocess: Preprocess | Literal["start"] | None = None,
    precision: Precision = "fp32",
) -> NetworkBackbone:
    """Return an untrained backbone whose weights are those of `start` whenever they are drawn.

    A new head is drawn from the seed as torch draws any linear layer; batch norm's statistics come with the weights.
    With head=kept the network already is a trained classifier, so fine-tunings start from it directly.

    Args:
        name: what users type after `backbone=`.
        start: the network to start from, with weights; it stays as it is.
        head: `new`, or `kept` where the classes are those that `start` was trained on, in the same order.
        num_classes: c of the head; null = the benchmark's.
        preprocess: `start` = that of `start`; null = the benchmark's.
        precision: see NetworkBackbone.

    Raises:
        ConfigError: `start` has no weights, classes or preprocessing are not known, or a kept head has another number
            of classes.
    """
    if not start.trained:
        raise ConfigError(f"backbone '{name}': start is {start.name}, without weights — set backbone.start.weights")
    if num_classes is None or preprocess is None:
        raise ConfigError(f"backbone '{name}': num_classes or preprocess is null — give both, or a benchmark")
    if head == "kept" and start.num_classes != num_classes:
        found = f"'{start.name}' has {start.num_classes} classes instead of {num_classes}"
        raise ConfigError(f"backbone '{name}': head=kept, but {found} — write backbone.head=new")
    classes, released, anatomy = num_classes, copy.deepcopy(start.module()), start.anatomy

    def make() -> nn.Module:
        module = copy.deepcopy(released)
        if head == "new":
            old = anatomy.linear(module)
            module.set_submodule(anatomy.head, nn.Linear(old.in_features, classes, bias=old.bias is not None))
        return module

    kind = "head kept" if head == "kept" else f"new head of {classes}"
    backbone = NetworkBackbone(
        name,
        f"{start.architecture}, {kind}, started from weights {start.weights_sha256}",
        make,
        lambda _: anatomy,
        preprocess=start.preprocess if preprocess == START else preprocess,
        precision=precision,
    )
    backbone.starts_trained = head == "kept"
    return backbone


class Ensemble(NetworkBackbone):
    """Networks of one kind, trained independently; its weights are random until all members are trained.

    Features are the members' side by side (n, m·d) and the head averages their classifiers, so that logits are the
    mean of the members' logits and linear in the features: every method works on it as on one network.

    Args:
        name: how it is called in records.
        members: at least two, of one architecture and preprocessing; the ensemble is trained where all of them are.
    """

    def __init__(self, name: str, members: Sequence[NetworkBackbone]) -> None:
        self.code = self.members = tuple(members)
        first = members[0]
        super().__init__(
            name,
            f"mean of {len(members)}: {first.architecture}",
            lambda: _Mean([copy.deepcopy(member.module()) for member in members], first.anatomy),
            lambda _: Anatomy("head", {MEMBERS: "each"}),
            preprocess=first.preprocess,
            precision=first.precision,
        )
        if all(member.trained for member in members):
            self.load_state(self.module().state_dict(), f"of the members of '{name}'")


class _Mean(nn.Module):
    """Images to the mean of the members' logits, as one linear head on their features side by side."""

    def __init__(self, members: Sequence[nn.Module], anatomy: Anatomy) -> None:
        super().__init__()
        self.anatomy = anatomy
        self.members = nn.ModuleList(members)
        self.each = nn.Identity()
        heads = [anatomy.linear(member) for member in members]
        m, c, d = len(heads), heads[0].out_features, heads[0].in_features
        self.head = nn.Linear(m * d, c, device=heads[0].weight.device)
        with torch.no_grad():
            self.head.weight.copy_(torch.cat([head.weight for head in heads], dim=1) / m)
            biases: list[Tensor] = [head.weight.new_zeros(c) if head.bias is None else head.bias for head in heads]
            self.head.bias.copy_(torch.stack(biases).mean(dim=0))

    def forward(self, images: Tensor) -> Tensor:
        """Images (n, 3, h, w) to logits (n, c)."""
        features, logits = [], []
        for member in self.members:
            with tapping(member, self.anatomy, (), "none") as tapped:
                member(images)
            features.append(tapped.features)
            logits.append(tapped.logits)
        self.each(torch.stack(logits, dim=1)[..., None])  # type: ignore[arg-type]
        return self.head(torch.cat(features, dim=1))  # type: ignore[arg-type]


def ensemble(
    name: str, member: NetworkBackbone, *, members: Annotated[int, Ge(2)] = 5, weights: Sequence[str] | None = None
) -> Ensemble:
    """Return an ensemble whose members wait to be trained on the benchmark, each from its own seed.

    Args:
        name: what users type after `backbone=`; records call it by members and kind, e.g. `ensemble5_resnet18_cifar`.
        member: the network to train, without weights.
        members: how many, 2 or more; 5 in Lakshminarayanan et al.
        weights: a file of weights for each member, searched in the data roots; None: they are trained.

    Raises:
        ConfigError: a member that comes with weights, or a number of files other than `members`.
        CheckpointError: weights that are missing or do not fit.

    Reference:
        Lakshminarayanan, Pritzel, Blundell: Simple and scalable predictive uncertainty estimation using deep ensembles,
        NeurIPS 2017, arXiv:1612.01474. They average probabilities: see `method=ensemble`. The average of logits, which
        this network puts out, is OpenOOD's ensemble.
    """
    if member.trained:
        found = f"its member '{member.name}' comes with weights, so all members would be equal"
        raise ConfigError(f"backbone '{name}': {found} — give it none, but a file for each as backbone.weights")
    if weights is not None and len(weights) != members:
        raise ConfigError(f"backbone '{name}': {len(weights)} files of weights for {members} members — one for each")
    copies = [copy.deepcopy(member) for _ in range(members)]
    for part, file in zip(copies, weights or (), strict=False):
        part.load(find_weights(file))
    return Ensemble(f"{name}{members}_{member.name}", copies)
