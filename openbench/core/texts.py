"""Corpora of text prompts, whose embeddings methods read beside the features of images."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from openbench.digest import digest
from openbench.errors import ConfigError

CLASSES = "classes"
Tower = Literal["text", "no"]


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
