"""Outlier detectors for tables of numbers."""

import importlib
import importlib.util
import itertools
import math
import warnings
from abc import abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, Literal

import numpy as np
import torch
from annotated_types import Ge
from numpy.typing import NDArray
from scipy.sparse import csr_matrix
from torch import Tensor, nn

from openbench.config.constraints import Count, Fraction, NonNegative, Positive, Seed
from openbench.core import FeatureSet, Head
from openbench.errors import MethodError, NotApplicableError, pip_install
from openbench.methods._bank import Bank
from openbench.methods._stats import FIT_BATCH, Learning, drawn, mean_feature, seeded, sorted_rows

_SORTED_IN_MEMORY = 2**30  # training values in a sorted copy, at most: 4 GiB
_SORTED = 2**25  # values sorted at a time
_BLOCK = 512
# Added to each covariance: a component on few samples would be singular.
_RIDGE = 1e-6
_CLIP = 5.0
Detector = Literal["IForest", "OCSVM", "CBLOF", "HBOS", "KNN", "LOF", "PCA", "DeepSVDD"]
_MODULES = {"DeepSVDD": "deep_svdd"}  # others: the name in lower case
_SEEDED = ("IForest", "CBLOF", "PCA", "DeepSVDD")


@dataclass(frozen=True)
class Tails:
    """Empirical tails of d features.

    Args:
        values: (d, n) training values of each feature in ascending order; or, where these would fill the memory, the
            training features (n, d) as they are, memory-mapped or not.
        skew: (d,) sign of each feature's skewness; 0 where it is symmetric or constant.
        ordered: whether `values` is the sorted copy.
    """

    values: Tensor
    skew: Tensor
    ordered: bool

    @classmethod
    def of(cls, train: FeatureSet) -> "Tails":
        """The tails of training features (n, d), finite, read in batches."""
        skew, features = _skewness(train), train.features
        if features.numel() > _SORTED_IN_MEMORY:
            return cls(features, skew, ordered=False)
        n, d = features.shape
        ordered = torch.empty(d, n, dtype=features.dtype, device=train.device)
        wide = max(1, _SORTED // n)
        for start in range(0, d, wide):
            strip = slice(start, start + wide)
            ordered[strip] = sorted_rows(features[:, strip].to(train.device).T.contiguous())
        return cls(ordered, skew, ordered=True)

    def surprise(self, features: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return −log of P(X ≤ x), of P(X ≥ x), and of the tail on the long side, (n, d) float32 each.

        Probabilities count the sample itself as one of n + 1. A feature that is not skewed counts both tails.
        """
        skew, x = self.skew.to(features.device), features.T.contiguous()
        n = below = at_most = torch.zeros((), dtype=torch.int64, device=x.device)
        for ordered in self._blocks(x.device):
            n = n + ordered.shape[1]
            below = below + torch.searchsorted(ordered, x)
            at_most = at_most + torch.searchsorted(ordered, x, right=True)
        left, right = (-((count.T + 1) / (n + 1)).log() for count in (at_most, n - below))
        return left, right, left * (skew <= 0) + right * (skew >= 0)

    def _blocks(self, device: torch.device) -> Iterator[Tensor]:
        """Training values (d, k) in ascending order, of all samples at once or of one group after another."""
        if self.ordered:
            yield self.values.to(device)
            return
        for rows in torch.split(self.values, max(1, _SORTED // self.values.shape[1])):
            yield sorted_rows(rows.to(device).T.contiguous())


class TailMethod(Learning):
    """A score made of the tail probabilities of each feature."""

    @abstractmethod
    def _combined(self, left: Tensor, right: Tensor, skewed: Tensor) -> Tensor:
        """The summands (n, d) of −log of the left tail, of the right tail and of the tail on the long side."""

    def _learn(self, train: FeatureSet, head: Head) -> None:
        """Keep the training values of each feature in order, (d, n), or training features (n, d) where they are."""
        self.tails_ = Tails.of(train)

    def score(self, x: FeatureSet) -> Tensor:
        """Return the scores (n,) float32; larger = more OOD."""
        self.learnt("tails_")
        return self._combined(*self.tails_.surprise(x.features)).sum(dim=1)


def _skewness(train: FeatureSet) -> Tensor:
    """The sign (d,) float32 of each feature's third central moment, in two passes."""
    mean = mean_feature(train)
    second, third = torch.zeros_like(mean), torch.zeros_like(mean)
    for rows in train.batches(FIT_BATCH):
        centred = rows.features.double() - mean
        squared = centred.square()
        second += squared.sum(dim=0)
        third += squared.mul_(centred).sum(dim=0)
    spread, third = (second / len(train)).sqrt(), third / len(train)
    # Sums of n cubes are rounded; below this, a symmetric feature would get the sign of the rounding.
    return torch.where(third.abs() > 1e-9 * spread**3, third.sign(), 0.0).float()


@dataclass
class ECOD(TailMethod):
    """Sum over features of the surprise at lying so far out in the tail.

    score(x) = Σ_j max(l, r, s), with l = −log P(X_j ≤ f_j), r = −log P(X_j ≥ f_j) over training
    samples and x itself, and s the one on the side to which feature j is skewed, or l + r where it is symmetric.

    Raises:
        MethodError: no training split, or features that are not finite.

    Reference: Li et al., ECOD: Unsupervised Outlier Detection Using Empirical Cumulative Distribution Functions,
    TKDE 2022, arXiv 2201.00382.
    Skewness is that of training features alone. PyOD takes tails and skewness over all samples scored together, so that
    its scores depend on the batch; for a batch of one they equal these. Above 2³⁰ training values none are copied, and
    each batch that is scored takes a pass over all of them, minutes long.
    """

    reference: ClassVar[str] = "Li et al., TKDE 2022, arXiv 2201.00382"

    def _combined(self, left: Tensor, right: Tensor, skewed: Tensor) -> Tensor:
        return left.maximum(right).maximum(skewed)


@dataclass
class COPOD(TailMethod):
    """Sum over features of the surprise at the skewed tail, or at both tails on average if that is more.

    score(x) = Σ_j max((l + r)/2, s), with l = −log P(X_j ≤ f_j), r = −log P(X_j ≥ f_j) over training
    samples and x itself, and s the one on the side to which feature j is skewed, or l + r where it is symmetric.

    Raises:
        MethodError: no training split, or features that are not finite.

    Reference: Li et al., COPOD: Copula-Based Outlier Detection, ICDM 2020, arXiv 2009.09463.
    Skewness is that of training features alone. PyOD takes tails and skewness over all samples scored together, so that
    its scores depend on the batch; for a batch of one they equal these. Above 2³⁰ training values none are copied, and
    each batch that is scored takes a pass over all of them, minutes long.
    """

    reference: ClassVar[str] = "Li et al., ICDM 2020, arXiv 2009.09463"

    def _combined(self, left: Tensor, right: Tensor, skewed: Tensor) -> Tensor:
        return ((left + right) / 2).maximum(skewed)


@dataclass
class COF(Learning):
    """Cost of linking a sample to its k nearest training samples, relative to what these pay for theirs.

    score(x) = k a(x) / Σ_j a(p_j), a(x) = Σ_j 2(k+1−j)/(k(k+1)) min_{i<j} ‖p_j − p_i‖, p_0 = x and p_1 … p_k its
    neighbours, nearest first.

    Args:
        k: neighbours; 20 by default, as in PyOD.
        max_train: number of training samples to draw without replacement, at most; None takes all.
        seed: of that draw.

    Raises:
        MethodError: k < 1, max_train < 2, not more than k training samples, or features that are not finite.

    Reference: Tang, Chen, Fu & Cheung, Enhancing Effectiveness of Outlier Detections for Low Density Patterns, PAKDD
    2002. As in PyOD, the links follow the neighbours' order by distance from x, not the paper's chain in which the
    next is the one nearest to those linked so far. PyOD's `decision_function`, from which ADBench's figures come,
    forgets the training samples and looks for neighbours within the batch that it scores. Here neighbours are
    training samples and each sample is scored by itself.
    """

    reference: ClassVar[str] = "Tang et al., PAKDD 2002"

    k: Count = 20
    max_train: Annotated[int, Ge(2)] | None = 10_000
    seed: Seed = 0

    def _learn(self, train: FeatureSet, head: Head) -> None:
        """Keep training features (n, d) and what each pays for its links, (n,)."""
        bank = drawn(train, self.max_train, self.seed).features
        self.require(self.k < len(bank), "k", f"1 to {len(bank) - 1}, one less than the training samples")
        self.bank_ = bank
        self.cost_ = self._cost(bank, Bank(bank).nearest_exactly(bank.double(), self.k, own=True))

    def score(self, x: FeatureSet) -> Tensor:
        """Return the scores (n,) float32; larger = more OOD."""
        cost = self.learnt("cost_").to(x.features.device)
        bank = self.bank_.to(x.features.device)
        index = Bank(bank).nearest_exactly(x.features.double(), self.k)
        own_cost, their_cost = self._cost(x.features, index), cost[index].mean(dim=1)
        # Copies of one sample pay nothing; relative to them, any cost is infinite.
        relative = torch.where(own_cost > 0, own_cost / their_cost, 0.0)
        return relative.clamp(max=torch.finfo(torch.float32).max).float()

    def _cost(self, samples: Tensor, index: Tensor) -> Tensor:
        """What samples (n, d) pay for their links to the bank's rows `index` (n, k), float64 (n,)."""
        bank, k = self.bank_.to(samples.device), self.k
        weight = 2 * torch.arange(k, 0, -1, device=samples.device).double() / (k * (k + 1))
        earlier = torch.ones(k + 1, k + 1, dtype=torch.bool, device=samples.device).tril(-1)
        costs = []
        for start in range(0, len(samples), _BLOCK):
            part = slice(start, start + _BLOCK)
            linked = torch.cat([samples[part, None], bank[index[part]]], dim=1).double()
            distances = torch.cdist(linked, linked, compute_mode="donot_use_mm_for_euclid_dist")
            costs.append(distances.masked_fill(~earlier, torch.inf)[:, 1:].amin(dim=2) @ weight)
        return torch.cat(costs)


@dataclass
class SOD(Learning):
    """Distance to the mean of the reference set, in the features in which that set varies little.

    score(x) = √( Σ_{j∈S} (f_j − μ_j)² / |S| ), S = {j : σ_j² < α mean_i σ_i²}; μ, σ² of the l training samples
    that share most of their k nearest training samples with x. 0 if S is empty.

    Args:
        k: neighbours that are compared; 20 by default, as in PyOD.
        l: samples in the reference set; 10 by default, as in PyOD.
        alpha: α; 0.8 in the paper.
        max_train: number of training samples to draw without replacement, at most; None takes all.
        seed: of that draw.

    Raises:
        MethodError: a hyper-parameter out of range, not more than k training samples, or features that are not finite.

    Reference: Kriegel, Kröger, Schubert & Zimek, Outlier Detection in Axis-Parallel Subspaces of High Dimensional
    Data, PAKDD 2009. Of training samples that share equally many neighbours with x the nearest are taken; PyOD takes
    those that its sort happens to put last. PyOD's `decision_function`, from which ADBench's figures come, forgets the
    training samples and takes reference sets from the batch that it scores. Here they are training samples and each
    sample is scored by itself.
    """

    reference: ClassVar[str] = "Kriegel et al., PAKDD 2009"

    k: Count = 20
    l: Count = 10  # noqa: E741 - the paper's name
    alpha: Fraction = 0.8
    max_train: Annotated[int, Ge(2)] | None = 10_000
    seed: Seed = 0

    def __post_init__(self) -> None:
        """Check the hyper-parameters."""
        self.require(self.l <= self.k, "l", "1 to k")

    def _learn(self, train: FeatureSet, head: Head) -> None:
        """Keep training features (n, d) and the neighbours of each, (n, k)."""
        bank = drawn(train, self.max_train, self.seed).features
        self.require(self.k < len(bank), "k", f"1 to {len(bank) - 1}, one less than the training samples")
        self.bank_ = bank
        self.neighbours_ = Bank(bank).nearest(bank.double(), self.k, own=True).cpu()

    def score(self, x: FeatureSet) -> Tensor:
        """Return the scores (n,) float32; larger = more OOD."""
        neighbours = self.learnt("neighbours_")
        bank = self.bank_.to(x.features.device)
        lists = _incidence(neighbours, len(bank)).T.tocsr()
        scores = []
        for start in range(0, len(x), _BLOCK):
            part = x.features[start : start + _BLOCK]
            reference = bank[self._reference(part, bank, lists)].double()
            mean, variance = reference.mean(dim=1), reference.var(dim=1, correction=0)
            tight = variance < self.alpha * variance.mean(dim=1, keepdim=True)
            squared = (part.double() - mean).square() * tight
            scores.append((squared.sum(dim=1) / tight.sum(dim=1).clamp(min=1)).sqrt())
        return torch.cat(scores).float()

    def _reference(self, part: Tensor, bank: Tensor, lists: csr_matrix) -> Tensor:
        """Rows of the bank (n, l) that share most neighbours with samples (n, d), the nearest first among equals."""
        neighbours = _incidence(Bank(bank).nearest(part.double(), self.k).cpu(), len(bank))
        shared = torch.from_numpy((neighbours @ lists).toarray()).to(part.device)
        distances = torch.cdist(part.double(), bank.double())
        return (shared - distances / (1 + distances)).topk(self.l, dim=1).indices


def _incidence(index: Tensor, columns: int) -> csr_matrix:
    """Rows of ones where `index` (n, k) points to, (n, columns)."""
    n, k = index.shape
    ends = np.arange(0, n * k + 1, k)
    return csr_matrix((np.ones(n * k), index.reshape(-1).numpy(), ends), shape=(n, columns))


@dataclass
class DAGMM(Learning):
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

    def _learn(self, train: FeatureSet, head: Head) -> None:
        """Train the networks on training features (n, d), then take the mixture's moments over all of them."""
        device = train.device
        with torch.random.fork_rng(devices=[device] if device.type == "cuda" else []), torch.enable_grad():
            torch.manual_seed(self.seed)
            network = Compression(train.features.shape[1], self.latent, self.components).to(device)
            self._train(network, train)
        network.eval().requires_grad_(False)
        outputs = [network(rows.features.float()) for rows in train.batches()]
        self.mixture_ = Mixture.of(*(torch.cat([f[i] for f in outputs]) for i in (0, 1)))
        self.network_ = network

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


@dataclass
class PyOD(Learning):
    """Score of a PyOD detector at that library's defaults, which ADBench's tables use.

    score(x) = detector.decision_function(f), the detector fitted on training features without labels.

    Args:
        detector: PyOD's class: IForest, OCSVM, CBLOF, HBOS, KNN, LOF, PCA or DeepSVDD.
        seed: of the detectors that draw: IForest, CBLOF, PCA, DeepSVDD; and of the subset.
        max_train: the detector is fitted on at most that many training samples, drawn without replacement; None takes
            all. OCSVM and LOF cost the square of their number: hours for the 50,000 features of CIFAR-10.

    Raises:
        NotApplicableError: PyOD is not installed.
        MethodError: an unknown detector, a subset below 2 samples, features that are not finite, a detector that
            refuses the features, or one whose scores of them are not finite.

    Reference: Zhao, Nasrullah & Li, PyOD: A Python Toolbox for Scalable Outlier Detection, JMLR 20, 2019,
    arXiv 1901.01588; Han et al., ADBench, NeurIPS 2022, arXiv 2206.09426. COF, SOD, ECOD and COPOD are separate methods
    here: with PyOD's, a sample's score depends on the others in its batch.
    """

    reference: ClassVar[str] = "Zhao et al., JMLR 2019, arXiv 1901.01588"
    learns_objects: ClassVar[str] = "an object of PyOD's"
    version: ClassVar[int] = 2  # at most max_train training samples

    detector: Detector = "IForest"
    seed: Seed = 0
    max_train: Annotated[int, Ge(2)] | None = 10_000

    def __post_init__(self) -> None:
        """Check the detector's name and that PyOD is there, without importing it."""
        if importlib.util.find_spec("pyod") is None:
            raise NotApplicableError(f"PyOD({self.detector!r}): pyod is not installed — {pip_install('pyod')}")

    def _learn(self, train: FeatureSet, head: Head) -> None:
        """Fit the detector on training features (n, d)."""
        if self.max_train is not None and len(train) > self.max_train:
            chosen = np.random.default_rng(self.seed).choice(len(train), self.max_train, replace=False)
            train = train[torch.from_numpy(np.sort(chosen))]
        features = _array(train)
        # NaN scores are refused below, with a reason that a warning would not give.
        with seeded(self.seed), np.errstate(all="ignore"), warnings.catch_warnings():
            warnings.filterwarnings("error", message="n_neighbors")  # otherwise it goes on with fewer neighbours
            detector = self._new(features.shape[1])
            try:
                detector.fit(features)
            except (ValueError, UserWarning) as error:
                raise MethodError(f"PyOD.fit: {self.detector} refuses {features.shape} features — {error}") from error
            lost = int((~np.isfinite(np.asarray(detector.decision_scores_, dtype=np.float32))).sum())
        if lost:
            raise MethodError(
                f"PyOD.fit: {self.detector} gives {lost} of {len(features)} training samples a score that is not "
                "finite — omit columns that are constant or follow from others, or take another detector"
            )
        self.detector_ = detector

    def score(self, x: FeatureSet) -> Tensor:
        """Return the scores (n,) float32; larger = more OOD."""
        detector: Any = self.learnt("detector_")
        scores = np.asarray(detector.decision_function(_array(x)), dtype=np.float64)
        return torch.from_numpy(scores).to(x.features.device, torch.float32)

    def _new(self, dim: int) -> Any:
        module = importlib.import_module(f"pyod.models.{_MODULES.get(self.detector, self.detector.lower())}")
        options: dict[str, Any] = {"random_state": self.seed} if self.detector in _SEEDED else {}
        if self.detector == "DeepSVDD":
            options |= {"n_features": dim, "verbose": 0}
        return getattr(module, self.detector)(**options)


def _array(x: FeatureSet) -> NDArray[np.float64]:
    return x.features.cpu().double().numpy()
