"""Envisioned outliers: names of OOD classes that a user or a language model expects."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, Self

import torch
from torch import Tensor

from openbench.config.constraints import NonNegative, Positive
from openbench.core import CLASSES, FeatureSet, Head, Method, Request, Texts, by_rows
from openbench.methods._stats import BLOCK, classifier
from openbench.methods._words import FIELDS

_WORDS = 8192  # compared at a time


@dataclass
class EOE(Method):
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

    needs: ClassVar[Request] = Request(fields=FIELDS, head=True, texts=(Texts(CLASSES),))
    reference: ClassVar[str] = "Cao et al., ICML 2024, arXiv 2406.00806"
    read_by_score: ClassVar[frozenset[str]] = frozenset({"beta", "temperature"})

    outliers: str = "wordnet_nouns"
    leave_out: Sequence[str] = ()
    templates: Sequence[str] = ("a photo of a {}",)
    beta: NonNegative = 0.25
    temperature: Positive = 1.0

    @property
    def request(self) -> Request:
        """The classes and the labels."""
        return Request(fields=FIELDS, head=True, texts=self._texts)

    @property
    def _texts(self) -> tuple[Texts, Texts]:
        templates = tuple(self.templates)
        return Texts(CLASSES, templates=templates), Texts(self.outliers, tuple(self.leave_out), templates)

    def fit(self, train: FeatureSet | None, head: Head | None) -> Self:
        """Keep the embeddings of the classes and of the labels."""
        head = classifier(head, "EOE")
        self.classes_, self.outliers_ = (head.text(texts).to(head.weight.device) for texts in self._texts)
        return self

    def score(self, x: FeatureSet) -> Tensor:
        """Return the scores (n,) float32; larger = more OOD."""
        classes, outliers = (self.learnt(name).to(x.features.device) for name in ("classes_", "outliers_"))
        # Differences of probabilities just above 1/(C + M) need the digits that float32 has around 0 only.
        even = (1 - self.beta) / (len(classes) + len(outliers))
        scores = []
        for rows in torch.split(x.features, BLOCK):
            lengths = torch.linalg.vector_norm(rows, dim=1, keepdim=True)
            unit = rows / lengths.clamp(min=torch.finfo(lengths.dtype).tiny)
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
