"""Negative labels mined from WordNet."""

from dataclasses import dataclass
from typing import ClassVar, Self

from torch import Tensor

from openbench.core import FeatureSet, Head
from openbench.methods._words import WordNetLabels, negative_odds


@dataclass
class NegLabel(WordNetLabels):
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
    version: ClassVar[int] = 2  # log odds
    read_by_score: ClassVar[frozenset[str]] = frozenset({"scale"})

    def fit(self, train: FeatureSet | None, head: Head | None) -> Self:
        """Keep the embeddings of the classes, and those of the chosen words in groups."""
        self.classes_, self.words_ = self.embedded(head)
        return self

    def score(self, x: FeatureSet) -> Tensor:
        """Return the scores (n,) float32; larger = more OOD."""
        classes, words = (self.learnt(name).to(x.features.device) for name in ("classes_", "words_"))
        return negative_odds(x.features, classes, words, self.scale)
