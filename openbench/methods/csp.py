"""The conjugated semantic pool: negative labels that name superclasses with an attribute."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, ClassVar, Self

from annotated_types import Interval, MinLen
from torch import Tensor

from openbench.config.constraints import Count, Positive, Probability, Seed, Share
from openbench.core import CLASSES, FeatureSet, Head, Texts
from openbench.methods._words import NegativeLabels, negative_odds

Several = Annotated[Sequence[str], MinLen(1)]


@dataclass
class CSP(NegativeLabels):
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
    version: ClassVar[int] = 2  # log odds
    read_by_score: ClassVar[frozenset[str]] = frozenset({"scale"})

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
        return (
            Texts(CLASSES, templates=tuple(self.templates)),
            Texts(self.nouns, tuple(self.leave_out), tuple(self.templates)),
            Texts(
                self.adjectives,
                tuple(self.leave_out_adjectives),
                tuple(self.adjective_templates),
                tuple(self.superclasses),
                self.seed,
            ),
        )

    def fit(self, train: FeatureSet | None, head: Head | None) -> Self:
        """Keep the embeddings of the classes, and those of the chosen words in groups."""
        self.classes_, self.words_ = self.embedded(head, self.nearest)
        return self

    def score(self, x: FeatureSet) -> Tensor:
        """Return the scores (n,) float32; larger = more OOD."""
        classes, words = (self.learnt(name).to(x.features.device) for name in ("classes_", "words_"))
        return negative_odds(x.features, classes, words, self.scale)
