"""Scores of images against prompts, for networks that embed both."""

import heapq
import math
from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Annotated, ClassVar, Literal

import torch
from annotated_types import Ge, Interval, MinLen
from torch import Tensor
from torch.nn import functional

from openbench.config.constraints import Count, NonNegative, Positive, Probability, Seed, Share
from openbench.core import CLASSES, FeatureSet, Field, Head, Request, StreamingMethod, Texts, by_rows
from openbench.errors import MethodError
from openbench.methods._stats import BLOCK, Learning, log_odds_against_top, row_normalise, softmax_shortfall

FIELDS = frozenset({Field.FEATURES, Field.TEXT})
_CELLS = 1 << 22  # cosines in memory at a time
_IMAGES = 64  # whose patches are compared at a time
_BLOCK = 256  # images of a stream whose turns are taken at once
Several = Annotated[Sequence[str], MinLen(1)]
_WORDS = 8192  # compared at a time


class Prompted(Learning):
    """A score that reads the embeddings of prompts."""

    needs: ClassVar[Request] = Request(fields=FIELDS, head=True, texts=(Texts(CLASSES),))

    @property
    @abstractmethod
    def texts(self) -> tuple[Texts, ...]:
        """The classes, then what else is embedded."""

    @property
    def request(self) -> Request:
        """The embeddings of these texts."""
        return replace(self.needs, texts=self.texts)


class NegativeLabels(Prompted):
    """Negative labels: the words of lists that lie farthest from the classes, in groups."""

    quantile: float
    share: float
    groups: int
    seed: int
    nearest: float = 1.0  # words with a larger cosine to any class are taken last

    def embedded(self, head: Head) -> tuple[Tensor, Tensor]:
        """Return the embeddings of the classes (c, d), and those of the chosen words in groups (g, k, d).

        What does not fill a group of the last words is left out. Fewer words than groups make groups of one word.
        """
        classes, *lists = (head.text(texts) for texts in self.texts)
        classes = classes.to(head.weight.device)
        words = torch.cat([self._far_words(corpus, classes) for corpus in lists])
        groups = min(self.groups, len(words))
        words = words[: len(words) - len(words) % groups]
        order = torch.randperm(len(words), generator=torch.Generator().manual_seed(self.seed)).to(words.device)
        return classes, words[order].view(groups, -1, words.shape[1])

    def _far_words(self, corpus: Tensor, classes: Tensor) -> Tensor:
        """The words (k, d) of a corpus (m, d) that lie farthest from the classes (c, d), the farthest first.

        The closeness of a word is a quantile of its cosines with all classes. The corpus is read in parts.
        """
        parts = torch.split(corpus, max(1, _CELLS // len(classes)))
        closeness = torch.cat([self._closeness(rows.to(classes.device) @ classes.T) for rows in parts])
        size = int(len(corpus) * self.share)
        if not size:
            where = f"{type(self).__name__}.fit"
            raise MethodError(f"{where}: a share of {self.share:g} of {len(corpus)} words is empty — take a larger one")
        order = closeness.argsort(stable=True)[:size].cpu()
        return corpus[order].to(classes.device)

    def _closeness(self, cosines: Tensor) -> Tensor:
        closeness = torch.quantile(cosines, self.quantile, dim=1)
        return torch.where(cosines.amax(dim=1) > self.nearest, torch.ones_like(closeness), closeness)


@dataclass
class WordNetLabels(NegativeLabels):
    """Negative labels as NegLabel finds them: nouns, and adjectives with a prompt of their own."""

    nouns: str = "wordnet_nouns"
    adjectives: str | None = "wordnet_adjectives"
    leave_out: Sequence[str] = ("animal", "food")
    template: str = "the nice {}"
    adjective_template: str = "This is a {} photo"
    quantile: Probability = 0.95
    share: Share = 0.15
    groups: Count = 100
    scale: Positive = 100.0
    seed: Seed = 0

    @property
    def texts(self) -> tuple[Texts, ...]:
        """The classes, the nouns, and the adjectives where there are any."""
        prompts = (self.template,)
        plain = (Texts(CLASSES, templates=prompts), Texts(self.nouns, tuple(self.leave_out), prompts))
        if self.adjectives is None:
            return plain
        return (*plain, Texts(self.adjectives, templates=(self.adjective_template,)))


def negative_odds(features: Tensor, classes: Tensor, groups: Tensor, scale: float) -> Tensor:
    """Return log(n/(1 − n)) (n,) float32 of n, the mean over groups of the share that their words take of the softmax.

    n = mean_g Σ_{w∈g} e^{s cos} / (Σ_ID e^{s cos} + Σ_{w∈g} e^{s cos}). The odds rank as n does, and resolve both ends,
    where n rounds to 0 or 1.

    Args:
        features: (n, d), of any length.
        classes: (c, d) unit embeddings.
        groups: (g, k, d) unit embeddings.
        scale: s.
    """
    bank = torch.cat([classes, groups.flatten(0, 1)])
    odds = []
    for rows in torch.split(features, BLOCK):
        logits = scale * cosines(rows, bank)
        known = torch.logsumexp(logits[:, : len(classes)], dim=1, keepdim=True)
        negative = torch.logsumexp(logits[:, len(classes) :].reshape(-1, *groups.shape[:2]), dim=2)
        lead = (negative - known).double()
        words, classed = (torch.logsumexp(functional.logsigmoid(x), dim=1) for x in (lead, -lead))
        odds.append((words - classed).float())
    return torch.cat(odds)


def cosines(features: Tensor, directions: Tensor) -> Tensor:
    """Return the cosines (n, c) of features (n, d) with unit vectors (c, d); 0 for a feature of zeros."""
    lengths = torch.linalg.vector_norm(features, dim=1, keepdim=True)
    # Lengths divide the few cosines instead of the many features.
    return by_rows(features, directions) / lengths.clamp(min=torch.finfo(lengths.dtype).tiny)


class Prototyped(Learning):
    """A score of cosines with the rows of the head: text embeddings for zero-shot CLIP."""

    needs: ClassVar[Request] = Request(fields=frozenset({Field.FEATURES}), head=True)

    def _learn(self, train: FeatureSet, head: Head) -> None:
        """Keep the directions of the head's rows, (c, d)."""
        self.prototypes_ = row_normalise(head.weight.double()).float()

    def _cosines(self, vectors: Tensor) -> Tensor:
        return cosines(vectors, self.learnt("prototypes_").to(vectors.device))


@dataclass
class MCM(Prototyped):
    """Negative maximum softmax probability of the cosines between the feature and the class prototypes.

    score(x) = 1/C − max_c softmax(cos(f, w_c)/τ)_c, w_c the rows of the head: text embeddings for zero-shot CLIP. The
    constant 1/C moves scores to where float32 resolves them.

    Args:
        temperature: τ > 0; the paper's default is 1.

    Raises:
        MethodError: a temperature that is not positive, or no head.

    Reference: Ming et al., Delving into Out-of-Distribution Detection with Vision-Language Representations,
    NeurIPS 2022, arXiv 2211.13445. Cosines are computed from feature and head, so that no logit scale (CLIP's 100)
    enters; the softmax is taken in float64, where half precision would tie.
    """

    reference: ClassVar[str] = "Ming et al., NeurIPS 2022, arXiv 2211.13445"

    temperature: Positive = 1.0

    def score(self, x: FeatureSet) -> Tensor:
        """Return the scores (n,) float32; larger = more OOD."""
        return softmax_shortfall(self._cosines(x.features), self.temperature)


@dataclass
class GLMCM(Prototyped):
    """MCM of the image, and of the patch that fits a class best.

    score(x) = 1/C − max_c softmax(cos(f, w_c)/T)_c + λ (1/C − max_{p,c} softmax(cos(z_p, w_c)/T)_c), f the features of
    the image, z_p those of its patches, w_c the rows of the head. The constants move scores to where float32 resolves
    them.

    Args:
        temperature: T > 0; the paper's default is 1.
        weight: λ ≥ 0 of the patches; the paper's default is 1, and 0 gives MCM.

    Reference: Miyai et al., GL-MCM: Global and Local Maximum Concept Matching for Zero-Shot Out-of-Distribution
    Detection, IJCV 2025, arXiv 2304.04521; AtsuMiyai/GL-MCM. Patches are read in float16.
    """

    needs: ClassVar[Request] = Request(fields=frozenset({Field.FEATURES, Field.PATCHES}), head=True)
    reference: ClassVar[str] = "Miyai et al., IJCV 2025, arXiv 2304.04521"
    read_by_score: ClassVar[frozenset[str]] = frozenset({"temperature", "weight"})

    temperature: Positive = 1.0
    weight: NonNegative = 1.0

    def score(self, x: FeatureSet) -> Tensor:
        """Return the scores (n,) float32; larger = more OOD."""
        parts = torch.split(x.patches, _IMAGES)
        local = [self._shortfall(part.flatten(0, 1).float()).view(part.shape[:2]).amin(dim=1) for part in parts]
        return self._shortfall(x.features) + self.weight * torch.cat(local)

    def _shortfall(self, vectors: Tensor) -> Tensor:
        """1/C − max_c softmax(cos/T) (m,) of vectors (m, d)."""
        return softmax_shortfall(self._cosines(vectors), self.temperature)


@dataclass
class ZeroShot(Prototyped):
    """Maximum softmax probability, maximum logit or energy of cosines, at a temperature of its own.

    score(x) = −max_c softmax(cos(f, w_c)/T)_c for `msp`, as log odds; −max_c cos(f, w_c) for `mls`, whatever T; and
    −T log Σ_c exp(cos(f, w_c)/T) for `energy`. `method=msp`, `mls` and `energy` read the logits instead, which carry
    the scale that the model learnt (100 for CLIP) and, in SigLIP, a bias.

    Args:
        kind: `msp`, `mls` or `energy`.
        temperature: T > 0. The zero-shot figures in print use 0.01 for the softmax (CLIP's own scale) and 1 for energy.

    Raises:
        MethodError: `msp` of one class.

    Reference: Ming et al., NeurIPS 2022, arXiv 2211.13445, whose tables have these baselines, after Hendrycks & Gimpel,
    ICLR 2017 (msp), Hendrycks et al., ICML 2022 (mls) and Liu et al., NeurIPS 2020 (energy). `msp` is returned as
    log((1 − p)/p) − log(C − 1) of the probability p, which ranks as −p does and never saturates.
    """

    reference: ClassVar[str] = "Ming et al., NeurIPS 2022, arXiv 2211.13445"

    kind: Literal["msp", "mls", "energy"] = "msp"
    temperature: Positive = 0.01

    def score(self, x: FeatureSet) -> Tensor:
        """Return the scores (n,) float32; larger = more OOD."""
        fits = self._cosines(x.features)
        if self.kind == "msp":
            return log_odds_against_top(fits, self.temperature)
        if self.kind == "energy":
            fits = self.temperature * torch.logsumexp(fits.double() / self.temperature, dim=1, keepdim=True)
        largest: Tensor = fits.amax(dim=1).float()
        return -largest


class NegativeOdds(NegativeLabels):
    """The odds of negative labels against those of the classes, averaged over the groups."""

    version: ClassVar[int] = 2  # log odds
    read_by_score: ClassVar[frozenset[str]] = frozenset({"scale"})

    scale: float

    def _learn(self, train: FeatureSet, head: Head) -> None:
        """Keep the embeddings of the classes, and those of the chosen words in groups."""
        self.classes_, self.words_ = self.embedded(head)

    def score(self, x: FeatureSet) -> Tensor:
        """Return the scores (n,) float32; larger = more OOD."""
        classes, words = (self.learnt(name).to(x.features.device) for name in ("classes_", "words_"))
        return negative_odds(x.features, classes, words, self.scale)


@dataclass
class NegLabel(NegativeOdds, WordNetLabels):
    """The share of words far from all classes in a softmax over classes and words, averaged over groups of words.

    score(x) = log((1 − p)/p) with p = (1/G) Σ_g Z / (Z + Σ_{w∈g} e^{s cos(f, t_w)}), Z = Σ_c e^{s cos(f, t_c)}, over G
    groups of the words w whose closeness to the classes, the q-quantile over c of cos(t_w, t_c), is among the lowest
    share of the nouns, or of the adjectives. It ranks as the published −p does, and resolves what rounds to 0 or 1.

    Args:
        nouns: a list of words, or the path of a file with one a line.
        adjectives: the same, for words with a prompt of their own; null = none.
        leave_out: sections of the nouns that are not taken; WordNet's lexicographer files.
        template: the prompt of classes and nouns; the paper's is `the nice {}`.
        adjective_template: the prompt of adjectives.
        quantile: q in [0, 1]; the paper's is 0.95.
        share: of each list, in (0, 1]; the paper's is 0.15.
        groups: G; the paper's is 100.
        scale: s > 0; the paper's is 100, CLIP's.
        seed: of the draw of groups.

    Reference: Jiang et al., Negative Label Guided OOD Detection with Pretrained Vision-Language Models, ICLR 2024,
    arXiv 2403.20078; tmlr-group/NegLabel. Differences: the word lists are made from WordNet 3.0 itself
    (data_manifests/README.md); a word that is a noun and an adjective stands in both lists, theirs keeps whichever file
    was read first; the draw of groups is another generator's.
    """

    reference: ClassVar[str] = "Jiang et al., ICLR 2024, arXiv 2403.20078"


@dataclass
class Assigned:
    """The images that are assigned to the labels.

    Args:
        heaps: label → heap of (−entropy, −turn) of its images.
        features: turn of an assigned image → its unit feature (d,).
        turn: images seen so far.
    """

    heaps: dict[int, list[tuple[float, int]]] = field(default_factory=dict)
    features: dict[int, Tensor] = field(default_factory=dict)
    turn: int = 0


@dataclass(frozen=True)
class _Entries:
    """The images of a label while some images of a block are scored.

    Args:
        label: its number.
        start: the first image of the block that is scored with these.
        stop: the first one that no longer is; the length of the block if there is none.
        turns: of the images of the label.
    """

    label: int
    start: int
    stop: int
    turns: list[int]


@dataclass
class AdaNeg(WordNetLabels, StreamingMethod[Assigned]):
    """NegLabel's share of negative labels, by proxies that follow the test images, plus that by the texts.

    score(x_i) = N(x_i; P_i) + λ N(x_i; T), N the mean over groups of the share of negative labels in a softmax of s cos
    over classes and the group (`neglabel`), T the texts; P_i has for each label the direction of Σ_e e^{β cos(e, x_i)}
    e over its text and those up to `length` − 1 images of x_1 … x_i with the lowest entropy that were assigned to it:
    an image with 1 − N(x; T) above θ + g(1 − θ) to its nearest class, one below θ − gθ to its nearest negative label.

    Args:
        nouns: as in `neglabel`.
        adjectives: as in `neglabel`.
        leave_out: as in `neglabel`.
        template: as in `neglabel`.
        adjective_template: as in `neglabel`.
        quantile: as in `neglabel`.
        share: as in `neglabel`.
        groups: the paper's is 5.
        scale: s > 0; the paper's is 100, CLIP's.
        seed: of the draw of groups.
        threshold: θ; 0.5.
        gap: g in [0, 1], the part of the scores around θ that is not assigned; 0.5.
        length: entries of a label, its text among them; 10.
        weight: λ ≥ 0; 0.1.
        sharpness: β ≥ 0. 0 weighs all entries of a label alike: the task-adaptive proxies of the authors' script. Above
            0, entries count by their likeness to the test image: their sample-adaptive proxies, with 5.5 in the script,
            which the code cuts to 5.

    Reference: Zhang & Zhang, AdaNeg: Adaptive Negative Proxy Guided OOD Detection with Vision-Language Models,
    NeurIPS 2024, arXiv 2410.20149; YBZh/OpenOOD-VLM, whose script notes 96.70 % AUROC on four far sets of ImageNet with
    task-adaptive proxies and 96.47 % with sample-adaptive ones. The official code assigns 256 images before it scores
    any of them; here each is assigned and scored before the next. Entropies are over classes, or over negative labels.
    """

    reference: ClassVar[str] = "Zhang & Zhang, NeurIPS 2024, arXiv 2410.20149"

    groups: Count = 5
    threshold: Probability = 0.5
    gap: Probability = 0.5
    length: Annotated[int, Ge(2)] = 10
    weight: NonNegative = 0.1
    sharpness: NonNegative = 0.0

    def _learn(self, train: FeatureSet, head: Head) -> None:
        """Keep the embeddings of the classes, and those of the chosen words in groups."""
        classes, words = self.embedded(head)
        self.texts_ = torch.cat([classes, words.flatten(0, 1)])
        self.size_ = len(classes), *words.shape[:2]  # classes, groups, words of a group

    def memory(self) -> Assigned:
        """Return labels without images."""
        self.learnt("texts_")
        return Assigned()

    def score_next(self, x: FeatureSet, memory: Assigned) -> Tensor:
        """Return the scores (n,) float32 of the next n images, each after it was assigned."""
        texts: Tensor = self.learnt("texts_").to(x.features.device)
        return torch.cat([self._block(row_normalise(rows), texts, memory) for rows in torch.split(x.features, _BLOCK)])

    def _block(self, unit: Tensor, texts: Tensor, memory: Assigned) -> Tensor:
        """Scores (n,) of a block of images, all turns at once."""
        cosines = by_rows(unit, texts)
        negative = self._negative(self.scale * cosines)
        proxies = self._assign(unit, self.scale * cosines, 1 - negative, memory)
        at_once = max(1, _CELLS // (len(unit) * self.length))
        moved = [
            self._moved(unit, texts, memory, proxies[start : start + at_once])
            for start in range(0, len(proxies), at_once)
        ]
        labels = torch.tensor([proxy.label for proxy in proxies], dtype=torch.int64, device=unit.device)
        # For an image a label has one proxy at most.
        proxied = cosines.index_add(1, labels, torch.cat(moved, dim=1)) if moved else cosines
        self._forget(memory)
        return (self._negative(self.scale * proxied) + self.weight * negative).float()

    def _moved(self, unit: Tensor, texts: Tensor, memory: Assigned, proxies: list[_Entries]) -> Tensor:
        """How much nearer (n, u) images are to the proxies of labels with images than to their texts."""
        entries = texts.new_zeros(len(proxies), self.length, texts.shape[1])
        empty = torch.ones(entries.shape[:2], dtype=torch.bool, device=unit.device)
        for row, (proxy, vectors) in enumerate(zip(proxies, entries, strict=True)):
            vectors[0] = texts[proxy.label]
            vectors[1 : 1 + len(proxy.turns)] = torch.stack([memory.features[turn] for turn in proxy.turns])
            empty[row, : 1 + len(proxy.turns)] = False
        alike = by_rows(unit, entries.flatten(0, 1)).view(len(unit), *entries.shape[:2])
        # Shares, so that the nearest entry counts however large β is; their direction is that of the weights.
        weights = (self.sharpness * alike).masked_fill(empty, -math.inf).softmax(dim=2).transpose(0, 1)  # (u, n, e)
        lengths = ((weights @ (entries @ entries.mT)) * weights).sum(dim=2).sqrt().T
        towards = (weights.transpose(0, 1) * alike).sum(dim=2) / lengths.clamp(min=torch.finfo(lengths.dtype).tiny)
        image = torch.arange(len(unit), device=unit.device)[:, None]
        start, stop = torch.tensor([(proxy.start, proxy.stop) for proxy in proxies], device=unit.device).T
        return torch.where((start <= image) & (image < stop), towards - alike[:, :, 0], 0.0)

    def _negative(self, logits: Tensor) -> Tensor:
        """The share (n,) float64 of negative labels, the mean over groups."""
        classes, groups, words = self.size_
        known = torch.logsumexp(logits[:, :classes], dim=1, keepdim=True)
        negative = torch.logsumexp(logits[:, classes:].reshape(-1, groups, words), dim=2)
        return torch.sigmoid((negative - known).double()).mean(dim=1)

    def _assign(self, unit: Tensor, logits: Tensor, inside: Tensor, memory: Assigned) -> list[_Entries]:
        """Give each image of the block to its label, or to none; return what labels hold meanwhile."""
        classes = self.size_[0]
        known, words = logits[:, :classes], logits[:, classes:]
        is_known = inside > self.threshold + self.gap * (1 - self.threshold)
        is_word = inside < self.threshold - self.gap * self.threshold
        labels = torch.where(is_known, known.argmax(dim=1), classes + words.argmax(dim=1)).tolist()
        entropies = torch.where(is_known, _entropy(known), _entropy(words)).tolist()
        since = {label: (0, _turns(heap)) for label, heap in memory.heaps.items()}
        past: list[_Entries] = []
        for row in torch.nonzero(is_known | is_word)[:, 0].tolist():
            turn, label = memory.turn + row, labels[row]
            if self._take(memory, label, (-entropies[row], -turn)):
                memory.features[turn] = unit[row]
                if label in since:
                    start, turns = since[label]
                    past.append(_Entries(label, start, row, turns))
                since[label] = row, _turns(memory.heaps[label])
        memory.turn += len(unit)
        return [*past, *(_Entries(label, start, len(unit), turns) for label, (start, turns) in since.items())]

    def _forget(self, memory: Assigned) -> None:
        """Drop the features of images that no label holds any longer."""
        alive = {turn for heap in memory.heaps.values() for turn in _turns(heap)}
        memory.features = {turn: feature for turn, feature in memory.features.items() if turn in alive}

    def _take(self, memory: Assigned, label: int, entry: tuple[float, int]) -> bool:
        """Put an image among those of its label, in place of one of higher entropy if these are full."""
        heap = memory.heaps.setdefault(label, [])
        if len(heap) < self.length - 1:
            heapq.heappush(heap, entry)
            return True
        return heapq.heappushpop(heap, entry) != entry


def _turns(heap: list[tuple[float, int]]) -> list[int]:
    return [-age for _, age in heap]


def _entropy(logits: Tensor) -> Tensor:
    """Entropy (n,) float64 of the softmax."""
    log_p = torch.log_softmax(logits.double(), dim=1)
    return -(log_p.exp() * log_p).sum(dim=1)


@dataclass
class CSP(NegativeOdds):
    """NegLabel's share of negative words, with adjectives turned into the names of superclasses, as in `red object`.

    score(x) = log((1 − p)/p) with p = (1/G) Σ_g Z / (Z + Σ_{w∈g} e^{s cos(f, t_w)}), Z = Σ_c e^{s cos(f, t_c)}, over G
    groups of the nouns and `adjective superclass` pairs w whose q-quantile over c of cos(t_w, t_c) is among the lowest
    share of their kind; a word with a cosine above `nearest` to any class is taken last. Embeddings are averaged over
    prompts. It ranks as the published −p does, and resolves what rounds to 0 or 1.

    Args:
        nouns: a list of words, or the path of a file with one a line.
        adjectives: the same, for words that get a superclass.
        leave_out: sections of the nouns that are not taken.
        leave_out_adjectives: sections of the adjectives.
        superclasses: what an adjective is joined with, one for each, drawn by the seed; `{}` is the adjective.
        templates: prompts of classes and nouns.
        adjective_templates: prompts of adjectives with their superclass.
        quantile: q in [0, 1]; the paper's is 0.95.
        share: of each kind, in (0, 1]; the paper's is 0.15.
        nearest: the largest cosine, in [−1, 1]; the paper's is 0.95.
        groups: G; the paper's is 100.
        scale: s > 0; the paper's is 100.
        seed: of the draws of superclasses and groups.

    Reference: Chen et al., Conjugated Semantic Pool Improves OOD Detection with Pre-trained Vision-Language Models,
    NeurIPS 2024, arXiv 2410.08611; MengyuanChen21/NeurIPS2024-CSP. Differences: the word lists are made from WordNet
    3.0 itself; a word that is a noun and an adjective stands in both; embeddings of prompts have unit length before
    they are averaged; the draws are another generator's.
    """

    reference: ClassVar[str] = "Chen et al., NeurIPS 2024, arXiv 2410.08611"

    nouns: str = "wordnet_nouns"
    adjectives: str = "wordnet_adjectives"
    leave_out: Sequence[str] = ("animal", "food", "group", "person", "quantity")
    leave_out_adjectives: Sequence[str] = ("pert",)
    superclasses: Several = (
        *("{} environment", "{} space", "{} object", "{} scene", "{} place", "{} item", "{} area"),
        *("{} view", "{} thing", "{} pattern", "{} structure", "{} landscape", "{} vista", "{} creature"),
    )
    templates: Several = (
        *("a close-up photo of the nice {}.", "a photo with the nice {}.", "a good photo with the nice {}."),
        *("a photo of the nice {}.", "{}", "the {}", "the good {}", "the nice {}"),
    )
    adjective_templates: Several = ("{}", "a nice photo of {}", "a good photo of {}", "a close-up photo of {}")
    quantile: Probability = 0.95
    share: Share = 0.15
    nearest: Annotated[float, Interval(ge=-1, le=1)] = 0.95
    groups: Count = 100
    scale: Positive = 100.0
    seed: Seed = 0

    @property
    def texts(self) -> tuple[Texts, ...]:
        """The classes, the nouns, and the adjectives with their superclasses."""
        prompts, left_out = tuple(self.templates), (tuple(self.leave_out), tuple(self.leave_out_adjectives))
        others, joined = tuple(self.adjective_templates), tuple(self.superclasses)
        plain = (Texts(CLASSES, templates=prompts), Texts(self.nouns, left_out[0], prompts))
        return (*plain, Texts(self.adjectives, left_out[1], others, joined, self.seed))


@dataclass
class EOE(Prompted):
    """The largest probability of an ID class less a part of that of an outlier label, negated.

    score(x) = (1 − β)/(C + M) − (max_c p_c − β max_o p_o) with p = softmax(cos(f, t)/T) over the C ID classes c and the
    M outlier labels o. The constant moves scores to where float32 resolves them.

    Args:
        outliers: the path of a text file with one label a line, or a list of data_manifests/words.
        leave_out: sections of that list that are not taken.
        templates: prompts of classes and labels; [] = those of the backbone.
        beta: β ≥ 0; the paper's is 0.25.
        temperature: T > 0; the paper's is 1.

    Reference: Cao et al., Envisioning Outlier Exposure by Large Language Models for Out-of-Distribution Detection,
    ICML 2024, arXiv 2406.00806; tmlr-group/EOE. The labels are the user's: a language model is not asked here. Their
    near task also drops labels that share a word with a class name: leave such labels out of the file.
    """

    reference: ClassVar[str] = "Cao et al., ICML 2024, arXiv 2406.00806"
    read_by_score: ClassVar[frozenset[str]] = frozenset({"beta", "temperature"})

    outliers: str = "wordnet_nouns"
    leave_out: Sequence[str] = ()
    templates: Sequence[str] = ("a photo of a {}",)
    beta: NonNegative = 0.25
    temperature: Positive = 1.0

    @property
    def texts(self) -> tuple[Texts, ...]:
        """The classes and the labels."""
        templates = tuple(self.templates)
        return Texts(CLASSES, templates=templates), Texts(self.outliers, tuple(self.leave_out), templates)

    def _learn(self, train: FeatureSet, head: Head) -> None:
        """Keep the embeddings of the classes and of the labels."""
        self.classes_, self.outliers_ = (head.text(texts).to(head.weight.device) for texts in self.texts)

    def score(self, x: FeatureSet) -> Tensor:
        """Return the scores (n,) float32; larger = more OOD."""
        classes, outliers = (self.learnt(name).to(x.features.device) for name in ("classes_", "outliers_"))
        # Differences of probabilities just above 1/(C + M) need the digits that float32 has around 0 only.
        even = (1 - self.beta) / (len(classes) + len(outliers))
        scores = []
        for rows in torch.split(x.features, BLOCK):
            unit = row_normalise(rows)
            known, total = self._largest(unit, classes)
            other, of_others = self._largest(unit, outliers)
            total = torch.logaddexp(total, of_others)
            scores.append((even - torch.exp(known - total) + self.beta * torch.exp(other - total)).float())
        return torch.cat(scores)

    def _largest(self, unit: Tensor, bank: Tensor) -> tuple[Tensor, Tensor]:
        """The maximum and the log-sum-exp (n,) float64 of cos/T with the rows of a bank, read in parts."""
        largest, sums = [], []
        for rows in torch.split(bank, _WORDS):
            logits = by_rows(unit, rows).double() / self.temperature
            largest.append(logits.amax(dim=1))
            sums.append(torch.logsumexp(logits, dim=1))
        return torch.stack(largest).amax(dim=0), torch.logsumexp(torch.stack(sums), dim=0)


@dataclass
class CLIPN(Prompted):
    """How far the `no` prompts of the classes fit an image better than the plain ones.

    score(x) = log(u/(1 − u)) with u = Σ_c p_c q_c for `atd` (agreeing to differ) and u = q_ŷ for `ctw` (competing to
    win); p = softmax(z), ŷ = argmax z, q_c = e^{z'_c} / (e^{z_c} + e^{z'_c}), where z_c = s cos(f, t_c) and likewise
    z'_c = s cos(f, t'_c), t and t' the embeddings of the classes by the text tower and the `no` tower. It ranks as the
    published u − 1 does, and resolves what rounds to 0 or 1.

    Args:
        variant: `atd` or `ctw`.
        templates: prompts of both towers; [] = those of the backbone.
        scale: s > 0; the released code's is 100.

    Reference: Wang et al., CLIPN for Zero-Shot OOD Detection: Teaching CLIP to Say No, ICCV 2023, arXiv 2308.12213;
    xmed-lab/CLIPN, whose figures average the prompts of its prompt.txt.
    """

    needs: ClassVar[Request] = Request(fields=FIELDS, head=True, texts=(Texts(CLASSES), Texts(CLASSES, tower="no")))
    reference: ClassVar[str] = "Wang et al., ICCV 2023, arXiv 2308.12213"
    version: ClassVar[int] = 2  # log odds

    variant: Literal["atd", "ctw"] = "atd"
    templates: Sequence[str] = ()
    scale: Positive = 100.0

    @property
    def texts(self) -> tuple[Texts, ...]:
        """The classes by both towers."""
        templates = tuple(self.templates)
        return Texts(CLASSES, templates=templates), Texts(CLASSES, templates=templates, tower="no")

    def _learn(self, train: FeatureSet, head: Head) -> None:
        """Keep the embeddings of the classes by both towers."""
        self.yes_, self.no_ = (row_normalise(head.text(texts)).to(head.weight.device) for texts in self.texts)

    def score(self, x: FeatureSet) -> Tensor:
        """Return the scores (n,) float32; larger = more OOD."""
        yes, no = (self.learnt(name).to(x.features.device) for name in ("yes_", "no_"))
        unit = row_normalise(x.features)
        plain, negated = (self.scale * by_rows(unit, bank).double() for bank in (yes, no))
        against = negated - plain  # log odds of q
        if self.variant == "ctw":
            return against.gather(1, plain.argmax(dim=1, keepdim=True))[:, 0].float()
        weight = torch.log_softmax(plain, dim=1)
        for_no, for_yes = (torch.logsumexp(weight + functional.logsigmoid(odds), dim=1) for odds in (against, -against))
        return (for_no - for_yes).float()
