"""What methods with negative labels share: words that lie far from the classes, and their share of a softmax."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional

from openbench.core.features import Head
from openbench.core.products import by_rows
from openbench.core.request import Texts
from openbench.errors import MethodError
from openbench.methods._stats import BLOCK

_CELLS = 1 << 22  # cosines of words and classes in memory at a time


@dataclass(frozen=True)
class Far:
    """Which words of a corpus are taken.

    Args:
        quantile: of a word's cosines with the classes, from which its closeness is read.
        share: of the words that is kept, those of the lowest closeness.
        nearest: words with a larger cosine to any class are taken last; 1 takes none last.
    """

    quantile: float
    share: float
    nearest: float = 1.0


def two_lists(nouns: Texts, adjectives: str | None, template: str) -> tuple[Texts, ...]:
    """Return the corpora of NegLabel: nouns, and adjectives where there are any.

    Args:
        nouns: with their templates.
        adjectives: a list of words, or None.
        template: of adjectives.
    """
    return (nouns,) if adjectives is None else (nouns, Texts(adjectives, templates=(template,)))


def far_of(head: Head, lists: Iterable[Texts], classes: Tensor, far: Far, where: str) -> Tensor:
    """Return the embeddings (k, d) float32 of the words of each list that lie farthest from the classes, list by list.

    Args:
        head: with the embeddings of the lists.
        lists: the corpora; of each its own share is taken.
        classes: (c, d) unit embeddings, on the device that computes.
        far: which words are taken.
        where: the method, for errors.

    Raises:
        MethodError: the share leaves no word of a list.
    """
    return torch.cat([far_words(head.text(words), classes, far, where) for words in lists])


def far_words(corpus: Tensor, classes: Tensor, far: Far, where: str) -> Tensor:
    """Return the embeddings (k, d) float32 of the words that lie farthest from the classes, the farthest first.

    The closeness of a word is a quantile of its cosines with all classes. The corpus is read in parts.

    Args:
        corpus: (m, d) unit embeddings, possibly memory-mapped.
        classes: (c, d) unit embeddings, on the device that computes.
        far: which words are taken.
        where: the method, for errors.

    Raises:
        MethodError: the share leaves no word.
    """
    closeness = torch.cat([_closeness(rows, classes, far) for rows in _parts(corpus, classes)])
    kept = int(len(corpus) * far.share)
    if not kept:
        raise MethodError(
            f"{where}.fit: {far.share:g} of {len(corpus)} words are none — at least one is needed — take a larger "
            "share or a longer list"
        )
    order = closeness.argsort(stable=True)[:kept].cpu()
    return corpus[order].to(classes.device)


def _closeness(rows: Tensor, classes: Tensor, far: Far) -> Tensor:
    cosines = rows @ classes.T
    found = torch.quantile(cosines, far.quantile, dim=1)
    return torch.where(cosines.amax(dim=1) > far.nearest, torch.ones_like(found), found)


def _parts(corpus: Tensor, classes: Tensor) -> Iterator[Tensor]:
    for rows in torch.split(corpus, max(1, _CELLS // len(classes))):
        yield rows.to(classes.device)


def grouped(words: Tensor, groups: int, seed: int) -> Tensor:
    """Return words (g, k, d) in g groups of equal size, drawn by a seed; what does not fill a group is left out.

    The words left out are the last ones. Fewer words than groups make groups of one word.
    """
    groups = min(groups, len(words))
    kept = words[: len(words) - len(words) % groups]
    order = torch.randperm(len(kept), generator=torch.Generator().manual_seed(seed)).to(words.device)
    return kept[order].view(groups, -1, words.shape[1])


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
    size = groups.shape[:2]
    bank = torch.cat([classes, groups.flatten(0, 1)])
    found = []
    for rows in torch.split(features, BLOCK):
        lengths = torch.linalg.vector_norm(rows, dim=1, keepdim=True)
        logits = scale * by_rows(rows, bank) / lengths.clamp(min=torch.finfo(lengths.dtype).tiny)
        known = torch.logsumexp(logits[:, : len(classes)], dim=1, keepdim=True)
        negative = torch.logsumexp(logits[:, len(classes) :].unflatten(1, size), dim=2)
        lead = (negative - known).double()
        words, classed = (torch.logsumexp(functional.logsigmoid(odds), dim=1) for odds in (lead, -lead))
        found.append((words - classed).float())
    return torch.cat(found)
