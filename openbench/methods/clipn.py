"""CLIPN: a second text tower that has learnt to say no."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, Literal, Self

import torch
from torch import Tensor
from torch.nn import functional

from openbench.config.constraints import Positive
from openbench.core import CLASSES, FeatureSet, Head, Method, Request, Texts, by_rows
from openbench.methods._stats import classifier, row_normalise
from openbench.methods._words import FIELDS


@dataclass
class CLIPN(Method):
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
    def request(self) -> Request:
        """The classes by both towers."""
        return Request(fields=FIELDS, head=True, texts=self._texts)

    @property
    def _texts(self) -> tuple[Texts, Texts]:
        templates = tuple(self.templates)
        return Texts(CLASSES, templates=templates), Texts(CLASSES, templates=templates, tower="no")

    def fit(self, train: FeatureSet | None, head: Head | None) -> Self:
        """Keep the embeddings of the classes by both towers."""
        head = classifier(head, "CLIPN")
        self.yes_, self.no_ = (row_normalise(head.text(texts)).to(head.weight.device) for texts in self._texts)
        return self

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
