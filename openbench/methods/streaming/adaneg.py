"""Class and negative labels that move towards the test images assigned to them."""

import heapq
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Annotated, ClassVar, Self

import torch
from torch import Tensor

from openbench.config.constraints import Count, Interval, NonNegative, Positive, Probability, Seed, Share
from openbench.core.features import FeatureSet, Head
from openbench.core.products import by_rows
from openbench.core.request import Field, Request
from openbench.core.streaming import StreamingMethod
from openbench.core.texts import CLASSES, Texts
from openbench.methods._inputs import classifier
from openbench.methods._stats import row_normalise
from openbench.methods._words import Far, far_of, grouped, two_lists

_FIELDS = frozenset({Field.FEATURES, Field.TEXT})
_BLOCK = 256  # images of a stream whose turns are taken at once


@dataclass
class Assigned:
    """The images that each label holds.

    Args:
        proxies: (c + m, d) unit vectors, of labels without images their texts.
        held: label → heap of (−entropy, −turn) of its images.
        features: turn of an image that a label holds → its unit feature (d,).
        turn: images seen so far.
    """

    proxies: Tensor
    held: dict[int, list[tuple[float, int]]] = field(default_factory=dict)
    features: dict[int, Tensor] = field(default_factory=dict)
    turn: int = 0


@dataclass(frozen=True)
class _Changes:
    """The proxies that a block of images changes.

    Args:
        labels: (u,) which label changes.
        rows: (u,) the image that changes it.
        until: (u,) the image that changes the same label next; the length of the block if none does.
        proxies: (u, d) the label's unit proxy from then on.
    """

    labels: Tensor
    rows: Tensor
    until: Tensor
    proxies: Tensor


@dataclass
class AdaNeg(StreamingMethod[Assigned]):
    """NegLabel's share of negative labels, by proxies that follow the test images, plus that by the texts.

    score(x_i) = N(x_i; P_i) + λ N(x_i; T), N the mean over groups of the share of negative labels in a softmax of s cos
    over classes and the group (`neglabel`), T the texts; P_i has for each label the direction of the sum of its text
    and of those up to `length` − 1 images of x_1 … x_i with the lowest entropy that were assigned to it: an image with
    1 − N(x; T) above θ + g(1 − θ) to its nearest class, one below θ − gθ to its nearest negative label.

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

    Reference: Zhang & Zhang, AdaNeg: Adaptive Negative Proxy Guided OOD Detection with Vision-Language Models,
    NeurIPS 2024, arXiv 2410.20149; YBZh/OpenOOD-VLM. The proxies are the task-adaptive ones of its script; those that
    weigh images anew for each test image are not here. The official code assigns 256 images before it scores any of
    them; here each is assigned and scored before the next. Entropies are over classes, or over negative labels.
    """

    needs: ClassVar[Request] = Request(fields=_FIELDS, head=True, texts=(Texts(CLASSES),))
    reference: ClassVar[str] = "Zhang & Zhang, NeurIPS 2024, arXiv 2410.20149"

    nouns: str = "wordnet_nouns"
    adjectives: str | None = "wordnet_adjectives"
    leave_out: Sequence[str] = ("animal", "food")
    template: str = "the nice {}"
    adjective_template: str = "This is a {} photo"
    quantile: Probability = 0.95
    share: Share = 0.15
    groups: Count = 5
    scale: Positive = 100.0
    seed: Seed = 0
    threshold: Probability = 0.5
    gap: Probability = 0.5
    length: Annotated[int, Interval(2)] = 10
    weight: NonNegative = 0.1

    @property
    def request(self) -> Request:
        """The classes, and the two lists."""
        return Request(fields=_FIELDS, head=True, texts=(self._classes, *self._words))

    @property
    def _classes(self) -> Texts:
        return Texts(CLASSES, templates=(self.template,))

    @property
    def _words(self) -> tuple[Texts, ...]:
        nouns = Texts(self.nouns, tuple(self.leave_out), (self.template,))
        return two_lists(nouns, self.adjectives, self.adjective_template)

    def fit(self, train: FeatureSet | None, head: Head | None) -> Self:
        """Keep the embeddings of the classes, and those of the chosen words in groups."""
        head = classifier(head, "AdaNeg")
        classes = head.text(self._classes).to(head.weight.device)
        found = far_of(head, self._words, classes, Far(self.quantile, self.share), "AdaNeg")
        chosen = grouped(found, self.groups, self.seed)
        self.texts_ = torch.cat([classes, chosen.flatten(0, 1)])
        self.size_ = len(classes), *chosen.shape[:2]  # classes, groups, words of a group
        return self

    def memory(self) -> Assigned:
        """Return labels without images."""
        return Assigned(self.learnt("texts_").clone())

    def score_next(self, x: FeatureSet, memory: Assigned) -> Tensor:
        """Return the scores (n,) float32 of the next n images, each after it was assigned."""
        texts: Tensor = self.learnt("texts_").to(x.features.device)
        memory.proxies = memory.proxies.to(texts.device)
        return torch.cat([self._block(row_normalise(rows), texts, memory) for rows in torch.split(x.features, _BLOCK)])

    def _block(self, unit: Tensor, texts: Tensor, memory: Assigned) -> Tensor:
        """Scores (n,) of a block of images, all turns at once."""
        by_text = self.scale * by_rows(unit, texts)
        negative = self._negative(by_text)
        changes = self._assign(unit, by_text, 1 - negative, memory)
        cosines = by_rows(unit, memory.proxies)
        if changes is not None:
            row = torch.arange(len(unit), device=unit.device)[:, None]
            valid = (changes.rows <= row) & (row < changes.until)
            moved = by_rows(unit, changes.proxies) - cosines[:, changes.labels]
            # At most one change of a label holds for an image.
            cosines.index_add_(1, changes.labels, torch.where(valid, moved, 0.0))
            last = changes.until == len(unit)
            memory.proxies[changes.labels[last]] = changes.proxies[last]
        return (self._negative(self.scale * cosines) + self.weight * negative).float()

    def _negative(self, logits: Tensor) -> Tensor:
        """The share (n,) float64 of negative labels, the mean over groups."""
        classes, groups, words = self.size_
        known = torch.logsumexp(logits[:, :classes], dim=1, keepdim=True)
        negative = torch.logsumexp(logits[:, classes:].reshape(-1, groups, words), dim=2)
        return torch.sigmoid((negative - known).double()).mean(dim=1)

    def _assign(self, unit: Tensor, logits: Tensor, inside: Tensor, memory: Assigned) -> _Changes | None:
        """Give each image of the block to its label, or to none; return what that changes, None if nothing."""
        classes = self.size_[0]
        known, words = logits[:, :classes], logits[:, classes:]
        is_known = inside > self.threshold + self.gap * (1 - self.threshold)
        is_word = inside < self.threshold - self.gap * self.threshold
        labels = torch.where(is_known, known.argmax(dim=1), classes + words.argmax(dim=1)).tolist()
        entropies = torch.where(is_known, _entropy(known), _entropy(words)).tolist()
        changed: list[tuple[int, int, list[int]]] = []
        for row in torch.nonzero(is_known | is_word)[:, 0].tolist():
            turn = memory.turn + row
            if self._take(memory, labels[row], (-entropies[row], -turn)):
                memory.features[turn] = unit[row]
                changed.append((row, labels[row], [-age for _, age in memory.held[labels[row]]]))
        memory.turn += len(unit)
        return _changes(changed, memory, self.texts_, len(unit)) if changed else None

    def _take(self, memory: Assigned, label: int, entry: tuple[float, int]) -> bool:
        """Put an image among those of its label, in place of one of higher entropy if these are full."""
        held = memory.held.setdefault(label, [])
        if len(held) < self.length - 1:
            heapq.heappush(held, entry)
            return True
        if entry[0] <= held[0][0]:
            return False
        heapq.heapreplace(held, entry)
        return True


def _changes(changed: list[tuple[int, int, list[int]]], memory: Assigned, texts: Tensor, length: int) -> _Changes:
    """The new proxies of labels, from (row, label, turns of the images held) in the order of rows."""
    turns = sorted({turn for _, _, held in changed for turn in held})
    place = {turn: index for index, turn in enumerate(turns)}
    features = torch.stack([memory.features[turn] for turn in turns])
    device = features.device
    of = torch.tensor([index for index, (_, _, held) in enumerate(changed) for _ in held], device=device)
    which = torch.tensor([place[turn] for _, _, held in changed for turn in held], device=device)
    labels = torch.tensor([label for _, label, _ in changed], device=device)
    sums = texts.to(device)[labels].index_add_(0, of, features[which])
    following: dict[int, int] = {}
    until = []
    for row, label, _ in reversed(changed):
        until.append(following.get(label, length))
        following[label] = row
    alive = {-age for held in memory.held.values() for _, age in held}
    memory.features = {turn: feature for turn, feature in memory.features.items() if turn in alive}
    rows = torch.tensor([row for row, _, _ in changed], device=device)
    return _Changes(labels, rows, torch.tensor(until[::-1], device=device), row_normalise(sums))


def _entropy(logits: Tensor) -> Tensor:
    """Entropy (n,) float64 of the softmax."""
    log_p = torch.log_softmax(logits.double(), dim=1)
    return -(log_p.exp() * log_p).sum(dim=1)
