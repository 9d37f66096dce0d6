"""Texts as rows of numbers, so that methods that read features need no network."""

import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from openbench.config.constraints import Count
from openbench.data.sources.base import Found, Source
from openbench.data.sources.items import VectorItems
from openbench.storage.files import read_regular

_MOST_BYTES = 2**24  # of one text; the longest message of 20 Newsgroups has 160 thousand


@dataclass(frozen=True)
class HashedTexts(Source):
    """Text files as rows (n, columns): counts of their words, hashed to columns with a sign, of length 1.

    Nothing is learnt, so no part can tell another anything. What stands before the first empty line (the header of a
    message), lines that begin with `>` (quotations) and English stop words are left out; a text without other words is
    a row of zeros.

    Args:
        at: folders below each root.
        columns: how many numbers a row has.
        deviation: how these texts differ from the set as published.

    Reference:
        Weinberger et al., Feature hashing for large scale multitask learning, ICML 2009, arXiv 0902.2206, as in
        scikit-learn's HashingVectorizer.
    """

    at: Sequence[str] = (".",)
    columns: Count = 1024
    deviation: str = ""

    def places(self, roots: Sequence[Path]) -> list[Path]:
        """Each folder below each root."""
        return [root / folder for root in roots for folder in self.at]

    def names_in(self, place: Path, folder: str) -> Iterable[str]:
        """The file names in a folder of keys; hidden files do not belong to the set."""
        try:
            return [name for name in os.listdir(place / folder) if not name.startswith(".")]
        except (FileNotFoundError, NotADirectoryError):
            return []

    def find(self, place: Path, keys: Sequence[str]) -> Found | None:
        """The rows of the texts that are there."""
        present = np.array([(place / key).is_file() for key in keys], dtype=bool)
        if not present.any():
            return None
        texts = [_text(place / key) for key, there in zip(keys, present, strict=True) if there]
        return Found(VectorItems(_hashed(texts, int(self.columns)), np.arange(len(texts))), present)


def _text(path: Path) -> str:
    """The body of a message without what it quotes; any byte is a letter of latin-1."""
    header, blank, body = read_regular(path, _MOST_BYTES).decode("latin-1").partition("\n\n")
    lines = (body if blank else header).splitlines()
    return "\n".join(line for line in lines if not line.lstrip().startswith(">"))


def _hashed(texts: Sequence[str], columns: int) -> NDArray[np.float32]:
    from sklearn.feature_extraction.text import HashingVectorizer

    hashing = HashingVectorizer(n_features=columns, stop_words="english", dtype=np.float32)
    rows: NDArray[np.float32] = hashing.transform(texts).toarray()
    return rows
