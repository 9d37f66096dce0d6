"""Make the word lists of data_manifests/words from WordNet's data files.

    apt-get install wordnet-base && python scripts/wordnet_words.py /usr/share/wordnet
    git diff --stat data_manifests/words        # what differs from the lists that were there

FOLDER holds `data.noun` and `data.adj` of WordNet 3.0. A list has the first word of each synset, in lower case, with
spaces for underscores and without the syntactic marker of adjectives, each once in a section. Sections are WordNet's
lexicographer files, in its order.
"""

import argparse
import sys
from collections.abc import Iterator
from pathlib import Path

from openbench.paths import manifest_dir
from openbench.storage.files import write_whole

# Lexicographer files by number (WordNet's lexnames(5)).
_NOUNS = (
    *("Tops", "act", "animal", "artifact", "attribute", "body", "cognition", "communication", "event", "feeling"),
    *("food", "group", "location", "motive", "object", "person", "phenomenon", "plant", "possession", "process"),
    *("quantity", "relation", "shape", "state", "substance", "time"),
)
NOUNS = dict(enumerate(_NOUNS, start=3))
ADJECTIVES = {0: "all", 1: "pert", 44: "ppl"}
LISTS = {"wordnet_nouns": ("data.noun", NOUNS), "wordnet_adjectives": ("data.adj", ADJECTIVES)}


def synsets(path: Path) -> Iterator[tuple[int, str]]:
    """Yield the lexicographer file's number and the first word of each synset of a data file (WordNet's wndb(5))."""
    for line in path.read_text(encoding="utf-8").splitlines():
        if not line.startswith(" "):  # the licence, at the top
            _, number, _, _, word, *_ = line.split(" ", 5)
            yield int(number), word


def cleaned(word: str) -> str:
    """Return a word as it is written in a prompt."""
    return word.split("(")[0].replace("_", " ").lower()


def text_of(folder: Path, name: str) -> str:
    """Return a list's text: a comment, then each section under its heading, its words in order."""
    file, sections = LISTS[name]
    words: dict[int, set[str]] = {number: set() for number in sections}
    for number, word in synsets(folder / file):
        words[number].add(cleaned(word))
    lines = [f"# First words of WordNet 3.0's {name.split('_')[1][:-1]} synsets. Licence: words/LICENSE."]
    for number, section in sections.items():
        lines += [f"# section {section}", *sorted(words[number])]
    return "\n".join(lines) + "\n"


def main() -> int:
    """Write the lists."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    given = parser.parse_args()
    for name in LISTS:
        path, text = manifest_dir() / "words" / f"{name}.txt", text_of(given.folder, name)
        write_whole(path, text.encode())
        print(f"{path}: {sum(not line.startswith('#') for line in text.splitlines()):,} words, {len(text):,} bytes")
    return 0


if __name__ == "__main__":
    sys.exit(main())
