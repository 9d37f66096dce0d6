"""Embeddings of text prompts, cached for each text tower and corpus."""

from collections.abc import Iterator, Sequence
from functools import cached_property
from pathlib import Path

import torch
from torch import Tensor
from torch.nn import functional

from openbench import __version__
from openbench.backbones.base import Backbone
from openbench.core.request import CLASSES, Texts
from openbench.data.manifests import load_words
from openbench.digest import digest
from openbench.errors import DataError, NotApplicableError
from openbench.features._arrays import ColumnFile, NamedRows, cached
from openbench.progress import Report
from openbench.source import code_digests, made_now

_AT_ONCE = 512  # prompts
_NAME = "text"


class Corpus:
    """The prompts of a corpus for one text tower."""

    def __init__(self, backbone: Backbone, texts: Texts) -> None:
        """Take a corpus as a backbone's text tower reads it.

        Args:
            backbone: with text towers.
            texts: what a method declares.

        Raises:
            NotApplicableError: the backbone has no such tower.
        """
        if texts.tower not in backbone.text_towers:
            raise NotApplicableError(
                f"backbone '{backbone.name}' has no text tower '{texts.tower}' to embed '{texts.words}' (it has "
                f"{', '.join(backbone.text_towers) or 'none'}) — write backbone=open_clip, 'no' with CLIPN's weights"
            )
        self.texts, self.tower = texts, backbone.text_towers[texts.tower]

    @cached_property
    def words(self) -> tuple[str, ...]:
        """The words, a row of embeddings for each.

        Raises:
            DataError: there is no such list.
        """
        return self.tower.classes if self.texts.words == CLASSES else load_words(self.texts.words, self.texts.without)

    @cached_property
    def digest(self) -> str:
        """Covers the tower and every prompt."""
        return digest({"tower": self.tower.digest, "prompts": self.texts.prompts(self.words, self.tower.templates)})

    def described(self) -> dict[str, object]:
        """Return its description in records."""
        templates = list(self.texts.templates or self.tower.templates)
        counted = {"words": self.texts.words, "count": len(self.words), "digest": self.digest}
        return {**counted, "templates": templates, "tower": self.texts.tower}


def text_embeddings(root: Path, backbone: Backbone, texts: Texts, progress: bool = False) -> Tensor:
    """Return the unit embeddings (m, d) float32 of a corpus, memory-mapped; computed now if they are not cached.

    Args:
        root: the folder of cached features.
        backbone: with text towers.
        texts: the corpus.
        progress: whether a long pass is reported on stderr.

    Raises:
        NotApplicableError: the backbone has no such tower.
        DataError: no such list of words, or an embedding that is not finite.
        CacheError: the folder cannot be written.
    """
    corpus = Corpus(backbone, texts)
    code = code_digests(__name__, backbone)
    folder = root / "texts" / (digest({"corpus": corpus.digest, **code}) if code else corpus.digest)
    title = f"{backbone.name} on texts '{texts.words}'"

    def parts() -> Iterator[NamedRows]:
        prompts = texts.prompts(corpus.words, corpus.tower.templates)
        size = max(1, _AT_ONCE // len(prompts[0]))
        with Report(title, len(prompts), unit="words", show=progress) as report:
            for start in range(0, len(prompts), size):
                part = prompts[start : start + size]
                yield {_NAME: _rows(corpus, part, start).contiguous().numpy()}
                report.advance(len(part))

    about = {"corpus": corpus.described(), "tower": corpus.tower.digest, "package": __version__, "made": made_now()}
    return cached(ColumnFile(folder, _NAME), len(corpus.words), parts(), about)


def _rows(corpus: Corpus, prompts: Sequence[Sequence[str]], first: int) -> Tensor:
    """The rows of consecutive words, from their prompts; `first` is the number of the first word."""
    with torch.no_grad():
        single = corpus.tower.embed([prompt for of_word in prompts for prompt in of_word])
    rows = functional.normalize(single.float().view(len(prompts), -1, single.shape[1]).mean(dim=1), dim=1)
    bad = ~rows.isfinite().all(dim=1)
    if bool(bad.any()):
        word = corpus.words[first + int(bad.int().argmax())]
        raise DataError(f"texts '{corpus.texts.words}': the embedding of {word!r} is NaN or infinite — check weights")
    return rows
