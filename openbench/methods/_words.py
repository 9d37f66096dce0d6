"""Texts as classifiers: cosines with text embeddings, words far from the classes, and their share of a softmax."""

from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor
from torch.nn import functional

from openbench.config.constraints import Count, Positive, Probability, Seed, Share
from openbench.core import CLASSES, Field, Head, Method, Request, Texts, by_rows
from openbench.errors import MethodError
from openbench.methods._stats import BLOCK, classifier, row_normalise

FIELDS = frozenset({Field.FEATURES, Field.TEXT})
_CELLS = 1 << 22  # cosines of words and classes in memory at a time


@dataclass(frozen=True)
class WordChoice:
    """The choice of words of a corpus.

    Args:
        quantile: of a word's cosines with the classes, from which its closeness is read.
        share: of the words, those of the lowest closeness.
        nearest: words with a larger cosine to any class are taken last; 1 takes none last.
    """

    quantile: float
    share: float
    nearest: float = 1.0


class NegativeLabels(Method):
    """Negative labels: the words of lists that lie farthest from the classes, in groups."""

    needs: ClassVar[Request] = Request(fields=FIELDS, head=True, texts=(Texts(CLASSES),))

    quantile: float
    share: float
    groups: int
    seed: int

    @property
    @abstractmethod
    def texts(self) -> tuple[Texts, ...]:
        """The classes, then the word lists."""

    @property
    def request(self) -> Request:
        """The classes and the word lists."""
        return Request(fields=FIELDS, head=True, texts=self.texts)

    def embedded(self, head: Head | None, nearest: float = 1.0) -> tuple[Tensor, Tensor]:
        """Return the embeddings of the classes (c, d), and those of the chosen words in groups (g, k, d).

        Args:
            head: with the embeddings of all texts.
            nearest: words with a larger cosine to any class are taken last; 1 takes none last.
        """
        where = type(self).__name__
        head = classifier(head, where)
        classes, *lists = (head.text(texts) for texts in self.texts)
        classes, choice = classes.to(head.weight.device), WordChoice(self.quantile, self.share, nearest)
        words = torch.cat([far_words(corpus, classes, choice, where) for corpus in lists])
        return classes, grouped(words, self.groups, self.seed)


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


def far_words(corpus: Tensor, classes: Tensor, choice: WordChoice, where: str) -> Tensor:
    """Return the embeddings (k, d) float32 of the words that lie farthest from the classes, the farthest first.

    The closeness of a word is a quantile of its cosines with all classes. The corpus is read in parts.

    Args:
        corpus: (m, d) unit embeddings, possibly memory-mapped.
        classes: (c, d) unit embeddings, on the device that computes.
        choice: which words are taken.
        where: the method, for errors.

    Raises:
        MethodError: the share leaves no word.
    """
    parts = torch.split(corpus, max(1, _CELLS // len(classes)))
    closeness = torch.cat([_closeness(rows.to(classes.device), classes, choice) for rows in parts])
    size = int(len(corpus) * choice.share)
    if not size:
        raise MethodError(
            f"{where}.fit: a share of {choice.share:g} of {len(corpus)} words is empty — take a larger one"
        )
    order = closeness.argsort(stable=True)[:size].cpu()
    return corpus[order].to(classes.device)


def _closeness(rows: Tensor, classes: Tensor, choice: WordChoice) -> Tensor:
    cosines = rows @ classes.T
    closeness = torch.quantile(cosines, choice.quantile, dim=1)
    return torch.where(cosines.amax(dim=1) > choice.nearest, torch.ones_like(closeness), closeness)


def grouped(words: Tensor, groups: int, seed: int) -> Tensor:
    """Return words (g, k, d) in g groups of equal size, drawn by a seed; what does not fill a group is left out.

    The words left out are the last ones. Fewer words than groups make groups of one word.
    """
    groups = min(groups, len(words))
    words = words[: len(words) - len(words) % groups]
    order = torch.randperm(len(words), generator=torch.Generator().manual_seed(seed)).to(words.device)
    return words[order].view(groups, -1, words.shape[1])


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


def directions(head: Head | None, where: str) -> Tensor:
    """Return the directions (c, d) float32 of the head's rows: text embeddings for zero-shot CLIP."""
    return row_normalise(classifier(head, where).weight.double()).float()
