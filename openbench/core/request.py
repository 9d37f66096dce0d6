"""What a method needs: fields, roles and corpora of prompts, and the hashable Request made of them."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Annotated, ClassVar, Literal

from annotated_types import Interval, MinLen

from openbench.config.constraints import Checked, Fraction, Positive, Probability, Seed
from openbench.digest import OMIT_IF_DEFAULT, digest
from openbench.errors import ConfigError, FieldError, OpenbenchError

Pool = Literal["none", "mean", "max", "gram", "gram10"]
Tower = Literal["text", "no"]
CLASSES = "classes"  # as `Texts.words`: the names of the ID classes
STAGES = ("stage1", "stage2", "stage3", "stage4")  # shallow to deep; small networks have fewer


class Field(StrEnum):
    """A kind of tensor that one forward pass yields."""

    LOGITS = "logits"  # (n, c) float32
    FEATURES = "features"  # (n, d) float32, penultimate, after pooling
    MAPS = "maps"  # {layer: reduced map}
    LABELS = "labels"  # (n,) int64; visible in fit, removed before score
    PERTURBED = "perturbed"  # (n, d) float32, features of the input after the step `Request.second_pass`
    MIXED = "mixed"  # (n, d) float32, features of images mixed as `Request.mixing` says; only in `fit`
    PATCHES = "patches"  # (n, p, d) float16, unit, of image patches in the space of the features
    TEXT = "text"  # (m, d) float32 for each corpus of `Request.texts`; reaches `fit` with the head


class Role(StrEnum):
    """What a split is for. Tuning sees ID_VAL and OOD_VAL only."""

    ID_TRAIN = "id_train"
    ID_VAL = "id_val"
    ID_TEST = "id_test"
    CSID = "csid"
    OOD_TRAIN = "ood_train"
    OOD_VAL = "ood_val"
    NEAR = "near"
    FAR = "far"
    NEAR_ATTACKED = "near_attacked"
    FAR_ATTACKED = "far_attacked"

    @property
    def is_id(self) -> bool:
        """Whether images of this role carry ID labels (csID is an ID-side set)."""
        return self in (Role.ID_TRAIN, Role.ID_VAL, Role.ID_TEST, Role.CSID)


@dataclass(frozen=True)
class Perturb(Checked):
    """A declared input-gradient step; the outputs at the perturbed input are cached per value.

    The step is x̃ = x − ε·sign(∇ₓ CE(z/T, ŷ))/σ with sign(0) = +1 and σ the transform's per-channel std; for kind
    `logit` it is x̃ = x + ε·sign(∇ₓ max_c z_c)/σ, whatever T, and for `flat` x̃ = x + ε·sign(∇ₓ max_c z_c) with
    sign(0) = 0, where |∇ₓ max_c z_c| is smallest.

    Args:
        temperature: T > 0 inside the cross-entropy.
        epsilon: step length in pixel units of [0, 1]; for `flat` in units of the normalised input.
        kind: `sign` moves every input element (ODIN), `peak` only the one with the largest |gradient| (iODIN), `logit`
            every one by the gradient of the largest logit alone (generalised ODIN), `flat` the `share` of elements to
            which that logit is least sensitive (AdaSCALE).
        share: of an image's elements that `flat` moves, rounded down; the other kinds ignore it.
    """

    temperature: Positive = 1000.0
    epsilon: float = 0.0014
    kind: Literal["sign", "peak", "logit", "flat"] = "sign"
    share: Probability = field(default=1.0, metadata={OMIT_IF_DEFAULT: True})


@dataclass(frozen=True)
class Corruption(Checked):
    """A common corruption of the input, applied to the network's crop before it is normalised.

    Attributes:
        version: raised when corrupted images change; enters the names of their columns, the digests of sets that are
            made of them, and records by the methods that read them.

    Args:
        kind: one of ImageNet-C's, e.g. `fog`.
        severity: 1 to 5.
    """

    version: ClassVar[int] = 1
    error: ClassVar[type[OpenbenchError]] = FieldError

    kind: str
    severity: Annotated[int, Interval(ge=1, le=5)]


@dataclass(frozen=True)
class Mixing(Checked):
    """Copies of the images that `fit` reads, each mixed with an image of OOD validation: x̃ = a·x + (1 − a)·o.

    Attributes:
        version: raised when the copies change; enters the names of their columns, and of records by the methods that
            read them.

    Args:
        shares: values of a, one of which is drawn for each image.
        seed: of the draws of a and o.
    """

    version: ClassVar[int] = 1
    error: ClassVar[type[OpenbenchError]] = FieldError

    shares: Annotated[tuple[Fraction, ...], MinLen(1)] = (0.25, 0.5, 0.75)
    seed: Seed = 0


@dataclass(frozen=True)
class Texts:
    """Words as prompts; each word's row is the unit mean of the unit embeddings of its prompts.

    Args:
        words: `classes` = the names of the ID classes in label order; a list of data_manifests/words; or the path of a
            text file with one word or phrase a line.
        without: sections of the list that are left out.
        templates: prompts with one `{}` for the word; () = those of the backbone.
        forms: what a word becomes before it enters the templates, e.g. `{} object`: for each word one of these, drawn
            by the seed; () = itself.
        seed: of that draw.
        tower: `text`, or `no` for the second text tower of a model that has one (CLIPN).

    Raises:
        ConfigError: a template or form without exactly one `{}`, or with other braces.
    """

    words: str
    without: tuple[str, ...] = ()
    templates: tuple[str, ...] = ()
    forms: tuple[str, ...] = ()
    seed: int = 0
    tower: Tower = "text"

    def __post_init__(self) -> None:
        """Check the templates and forms."""
        check_templates((*self.templates, *self.forms), f"prompts of '{self.words}'")

    def prompts(self, words: Sequence[str], templates: Sequence[str]) -> list[list[str]]:
        """Return the prompts of each word.

        Args:
            words: as the list has them; underscores are read as spaces.
            templates: the backbone's, for a corpus that names none.
        """
        chosen = self.templates or tuple(templates)
        return [[template.format(self._formed(word.replace("_", " "))) for template in chosen] for word in words]

    def _formed(self, word: str) -> str:
        if not self.forms:
            return word
        # By the word and not by its place: the form stays when other words come and go.
        drawn = int(digest([self.seed, word]), 16) % len(self.forms)
        return self.forms[drawn].format(word)


def check_templates(templates: Sequence[str], where: str) -> None:
    """Check that each template has one place for the word, and no other braces.

    Raises:
        ConfigError: one has not.
    """
    bad = [text for text in templates if [text.count(part) for part in ("{}", "{", "}")] != [1, 1, 1]]
    if bad:
        raise ConfigError(f"{where}: templates {bad} — each needs one {{}} for the word, and no other braces")


@dataclass(frozen=True)
class Request:
    """What a method needs from the network; part of the cache key.

    Args:
        fields: the tensors that `fit` and `score` may touch (labels: in `fit` only).
        fit_on: the split that `fit` sees; None means that there is nothing to fit and no train pass at all.
        head: whether `fit` receives the classifier's weight (c, d) and bias (c,).
        layers: neutral names `stage1` … `stage4` of the maps wanted, or of outputs that a training added, e.g.
            `confidence`; the backbone knows the modules.
        pool: how a map (n, c, h, w) is reduced while it is extracted.
        perturb: an input-gradient step before the pass that `score` reads; `fit` always reads unperturbed outputs.
        second_pass: an input-gradient step before a second pass, whose features `fit` and `score` read as PERTURBED,
            with the other fields of the first.
        corruption: done to the images that `score` reads; `fit` always reads them as they are.
        mixing: a second pass of the images that `fit` reads, mixed with images of OOD validation; with the field MIXED.
        texts: corpora of prompts whose embeddings `fit` reads as `head.text(…)`; with the field TEXT and the head.

    Raises:
        FieldError: TEXT without corpora, corpora without TEXT, or either without the head; MIXED without a mixing, or
            the other way round.
    """

    fields: frozenset[Field] = field(default_factory=lambda: frozenset({Field.LOGITS}))
    fit_on: Role | None = None
    head: bool = False
    layers: tuple[str, ...] = ()
    pool: Pool = "none"
    perturb: Perturb | None = None
    second_pass: Perturb | None = None
    texts: tuple[Texts, ...] = field(default=(), metadata={OMIT_IF_DEFAULT: True})
    corruption: Corruption | None = field(default=None, metadata={OMIT_IF_DEFAULT: True})
    mixing: Mixing | None = field(default=None, metadata={OMIT_IF_DEFAULT: True})

    def __post_init__(self) -> None:
        """Check that texts and mixed images are declared as a whole."""
        if (Field.TEXT in self.fields) != bool(self.texts) or (self.texts and not self.head):
            raise FieldError(f"Request: texts={self.texts}, head={self.head} — text needs field, corpora and head")
        if (Field.MIXED in self.fields) != (self.mixing is not None):
            raise FieldError(f"Request: mixing={self.mixing} — mixed images need both, field and Mixing()")

    @property
    def unmixed(self) -> "Request":
        """The same without mixed images: what is read of every split but the one that `fit` sees."""
        return replace(self, fields=self.fields - {Field.MIXED}, mixing=None)

    @property
    def clean(self) -> "Request":
        """What `fit` reads of the images as they are: statistics come from them, even where scores read others."""
        return replace(self.unmixed, perturb=None, corruption=None)
