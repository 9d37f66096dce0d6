"""Lists of words for text prompts: those that openbench ships, by name, and a user's own files."""

from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path

from openbench import paths
from openbench.errors import DataError, did_you_mean
from openbench.storage.files import read_regular

_FOLDER = "words"
_SECTION = "# section "
_MOST_BYTES = 100_000_000


def load_words(name: str, without: Sequence[str] = ()) -> tuple[str, ...]:
    """Return the words of a list in its order, each once.

    Args:
        name: a file of data_manifests/words without `.txt`, e.g. `wordnet_nouns`; else a user's text file: absolute, or
            below a data root or the working directory. One word or phrase a line; lines that begin with `#` are
            comments.
        without: sections to leave out; a section begins with a line `# section NAME`.

    Raises:
        DataError: no such list, one that cannot be read or has no words, or a section that it does not have.
    """
    sections = _sections(_place(name))
    unknown = [section for section in without if section not in sections]
    if unknown:
        raise DataError(
            f"word list '{name}' has no section {unknown[0]!r}{did_you_mean(unknown[0], list(sections))} — allowed: "
            f"{', '.join(filter(None, sections)) or 'none: it is not divided'}"
        )
    kept = (words for section, words in sections.items() if section not in without)
    found = tuple(dict.fromkeys(word for words in kept for word in words))
    if not found:
        raise DataError(f"word list '{name}' has no words — at least one is needed — one a line in '{_place(name)}'")
    return found


def _place(name: str) -> Path:
    shipped = paths.manifest_dir() / _FOLDER
    known = {path.stem: path for path in sorted(shipped.glob("*.txt"))}
    if name in known:
        return known[name]
    path = Path(name).expanduser()
    places = [path] if path.is_absolute() else [root / path for root in (*paths.data_roots(), Path.cwd())]
    for place in places:
        if place.is_file():
            return place
    raise DataError(
        f"word list '{name}' not found{did_you_mean(name, list(known))} — looked for {', '.join(map(str, places))} — "
        f"allowed: {', '.join(known)}, or the path of a text file with one word a line"
    )


@lru_cache(maxsize=16)
def _read(path: Path, _: tuple[int, int]) -> dict[str, tuple[str, ...]]:
    try:
        lines = read_regular(path, _MOST_BYTES).decode("utf-8-sig").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise DataError(f"word list '{path}' cannot be read — {error} — text in UTF-8 expected") from error
    found: dict[str, list[str]] = {"": []}
    section = ""
    for line in lines:
        if line.startswith(_SECTION):
            section = line.removeprefix(_SECTION).strip()
            found.setdefault(section, [])
        elif line.strip() and not line.startswith("#"):
            found[section].append(line.strip())
    return {name: tuple(words) for name, words in found.items()}


def _sections(path: Path) -> dict[str, tuple[str, ...]]:
    try:
        stat = path.stat()
    except OSError as error:
        raise DataError(f"word list '{path}' cannot be read — {error}") from error
    return _read(path, (stat.st_mtime_ns, stat.st_size))
