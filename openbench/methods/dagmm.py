"""Energy of a Gaussian mixture over an autoencoder's code and errors."""

import itertools
import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Annotated, ClassVar, Self

import torch
from annotated_types import Ge
from torch import Tensor, nn

from openbench.config.constraints import Count, NonNegative, Positive, Seed
from openbench.core import FeatureSet, Field, Head, Method, Request, Role
from openbench.methods._stats import training

# Added to each covariance: a component on few samples would be singular.
_RIDGE = 1e-6
_CLIP = 5.0


@dataclass
class DAGMM(Method):
    """Energy of a sample's code and reconstruction errors under a Gaussian mixture learnt together with them.

    score(x) = −log Σ_k φ_k N(z; μ_k, Σ_k), z = (code, ‖x−x̂‖/‖x‖, cos(x, x̂)); the loss is the mean squared error +
    λ₁ mean energy + λ₂ Σ_k Σ_j 1/(Σ_k)_jj, memberships γ_k(z) come from a network, and φ, μ, Σ are their moments.

    Args:
        components: K; 4, as in ADBench and in the paper for KDDCup (2 for its smaller sets).
        latent: length of the code; 1 in the paper for KDDCup.
        energy_weight: λ₁; 0.1 in the paper.
        covariance_weight: λ₂; 0.005 in the paper.
        epochs: passes over the training samples; 200 in the paper for KDDCup. One over 1.28 million features of 2,048
            takes minutes, 200 take hours: fewer suffice there.
        learning_rate: of Adam; 1e-4 in the paper.
        batch: samples a step; 256, as in ADBench (the paper has 1024 for KDDCup).
        seed: of weights, batches and dropout.

    Raises:
        MethodError: a hyper-parameter out of range, fewer than 2 training samples, or features that are not finite.

    Reference: Zong et al., Deep Autoencoding Gaussian Mixture Model for Unsupervised Anomaly Detection, ICLR 2018. The
    networks are the paper's for KDDCup: 60-30-10-code and back, and 10 units with dropout 0.5 for memberships, tanh
    throughout. ADBench's code wraps the loss in a new Variable, which cuts it off from the weights, and keeps dropout
    on while it scores: its published figures are those of an untrained network. Here it is trained, and dropout is
    off in scores.
    """

    needs: ClassVar[Request] = Request(fields=frozenset({Field.FEATURES}), fit_on=Role.ID_TRAIN)
    learns_objects: ClassVar[str] = "networks of its own"
    reference: ClassVar[str] = "Zong et al., ICLR 2018"

    components: Count = 4
    latent: Count = 1
    energy_weight: NonNegative = 0.1
    covariance_weight: NonNegative = 0.005
    epochs: Count = 200
    learning_rate: Positive = 1e-4
    batch: Annotated[int, Ge(2)] = 256
    seed: Seed = 0

    def fit(self, train: FeatureSet | None, head: Head | None) -> Self:
        """Train the networks on training features (n, d), then take the mixture's moments over all of them."""
        whole = training(train, "DAGMM")
        device = whole.device
        with torch.random.fork_rng(devices=[device] if device.type == "cuda" else []), torch.enable_grad():
            torch.manual_seed(self.seed)
            network = Compression(whole.features.shape[1], self.latent, self.components).to(device)
            self._train(network, whole)
        network.eval().requires_grad_(False)
        outputs = [network(rows.features.float()) for rows in whole.batches()]
        self.mixture_ = Mixture.of(*(torch.cat([f[i] for f in outputs]) for i in (0, 1)))
        self.network_ = network
        return self

    def score(self, x: FeatureSet) -> Tensor:
        """Return the scores (n,) float32; larger = more OOD."""
        self.learnt("network_")
        code, _, _ = self.network_.to(x.features.device)(x.features.float())
        return self.mixture_.energy(code).float()

    def _train(self, network: "Compression", whole: FeatureSet) -> None:
        optimiser = torch.optim.Adam(network.parameters(), lr=self.learning_rate)
        for _ in range(self.epochs):
            for rows in self._batches(whole):
                optimiser.zero_grad()
                torch.autograd.backward(self._loss(network, rows))
                nn.utils.clip_grad_norm_(network.parameters(), _CLIP)
                optimiser.step()

    def _loss(self, network: "Compression", rows: Tensor) -> Tensor:
        code, membership, rebuilt = network(rows)
        mixture = Mixture.of(code, membership)
        spread = (1 / mixture.covariance.diagonal(dim1=1, dim2=2)).sum()
        error = (rows - rebuilt).square().mean()
        return error + self.energy_weight * mixture.energy(code).mean() + self.covariance_weight * spread

    def _batches(self, whole: FeatureSet) -> Iterator[Tensor]:
        """Batches in random order; a rest would make poor moments, so it waits for another epoch."""
        size = min(self.batch, len(whole))
        order = torch.randperm(len(whole))
        for start in range(0, len(whole) - size + 1, size):
            yield whole[order[start : start + size].sort().values].features.float()


class Compression(nn.Module):
    """The autoencoder, and the network that says which component a sample belongs to.

    Args:
        dim: d, of the features.
        latent: of the code.
        components: K.
    """

    def __init__(self, dim: int, latent: int, components: int) -> None:
        """Draw the weights."""
        super().__init__()
        self.encoder, self.decoder = _tanh(dim, 60, 30, 10, latent), _tanh(latent, 10, 30, 60, dim)
        self.estimator = nn.Sequential(
            nn.Linear(latent + 2, 10), nn.Tanh(), nn.Dropout(0.5), nn.Linear(10, components), nn.Softmax(dim=1)
        )

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return z (n, latent + 2), memberships (n, K) and the reconstruction (n, d)."""
        code = self.encoder(x)
        rebuilt = self.decoder(code)
        length = x.norm(dim=1).clamp(min=1e-6)
        errors = torch.stack([(x - rebuilt).norm(dim=1) / length, torch.cosine_similarity(x, rebuilt)], dim=1)
        z = torch.cat([code, errors], dim=1)
        return z, self.estimator(z), rebuilt


def _tanh(*widths: int) -> nn.Sequential:
    """Linear layers with tanh between them."""
    layers: list[nn.Module] = []
    for before, after in itertools.pairwise(widths):
        layers += [nn.Linear(before, after), nn.Tanh()]
    return nn.Sequential(*layers[:-1])


@dataclass(frozen=True)
class Mixture:
    """A Gaussian mixture in float64.

    Args:
        share: (K,) φ.
        mean: (K, d) μ.
        covariance: (K, d, d) Σ.
    """

    share: Tensor
    mean: Tensor
    covariance: Tensor

    @classmethod
    def of(cls, z: Tensor, membership: Tensor) -> "Mixture":
        """The weighted moments of samples (n, d) with memberships (n, K)."""
        z, membership = z.double(), membership.double()
        weight = membership.sum(dim=0).clamp(min=1e-12)
        mean = (membership.T @ z) / weight[:, None]
        centred = z[:, None] - mean
        covariance = torch.einsum("nk,nki,nkj->kij", membership, centred, centred) / weight[:, None, None]
        ridge = _RIDGE * torch.eye(z.shape[1], dtype=z.dtype, device=z.device)
        return cls(weight / len(z), mean, covariance + ridge)

    def energy(self, z: Tensor) -> Tensor:
        """Return −log density of samples (n, d), (n,) float64."""
        z = z.double()
        share, mean, covariance = (t.to(z.device) for t in (self.share, self.mean, self.covariance))
        root = torch.linalg.cholesky(covariance)
        white = torch.linalg.solve_triangular(root, (z - mean[:, None]).mT, upper=False)
        volume = root.diagonal(dim1=1, dim2=2).log().sum(dim=1) + z.shape[1] / 2 * math.log(2 * math.pi)
        return -torch.logsumexp(share.log()[:, None] - volume[:, None] - white.square().sum(dim=1) / 2, dim=0)
