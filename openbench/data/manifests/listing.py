"""From an image list (`relative/path label` a line, as OpenOOD writes them) to a manifest and back."""

import re
from collections.abc import Callable, Iterable, Sequence

from openbench.data.manifests.manifest import Manifest, compact, write_section
from openbench.errors import DataError

_PLACE = re.compile(r"\{(class|label|name|index(?::0\d+d)?)\}")


def read_list(lines: Iterable[str], name: str) -> list[tuple[str, str]]:
    """Return the path and the label text of each line.

    Raises:
        DataError: a line without a label.
    """
    rows: list[tuple[str, str]] = []
    for number, line in enumerate(lines, 1):
        path, space, label = line.strip().partition(" ")
        if not path:
            continue
        if not space:
            raise DataError(f"list '{name}' line {number}: found {line.strip()!r} — `relative/path label` expected")
        rows.append((path, label.strip()))
    return rows


def list_lines(manifest: Manifest, label_of: Callable[[str], int]) -> list[str]:
    """Return the manifest as an image list: `key label` a line."""
    return [f"{key} {label_of(name)}" for key, name in zip(manifest.keys, manifest.classes, strict=True)]


def section(
    pattern: str, keys: Sequence[str], class_of: Callable[[str], str] | None = None, ordered: bool = False
) -> str:
    """Return the manifest section that expands to `keys`.

    Args:
        pattern: the keys' pattern, e.g. `cifar10/test/{class}/{index:04d}.png`.
        keys: paths as the list has them.
        class_of: the class of a key where the pattern does not hold it.
        ordered: keep the order of `keys`; otherwise sort by class and number, which is shorter.

    Raises:
        DataError: a key that does not fit the pattern.
    """
    rows = [(row.get("class") or (class_of(key) if class_of else ""), row) for key, row in _matched(pattern, keys)]
    numbered = "{index" in pattern
    found = [(name, int(row["index"]) if numbered else row["name"]) for name, row in rows]
    if not ordered:
        found.sort()
    entries: list[tuple[str, list[int | str]]] = []
    for name, item in found:
        if not entries or entries[-1][0] != name:
            entries.append((name, []))
        entries[-1][1].append(item)
    return write_section(
        pattern,
        [
            (name, compact([int(i) for i in items]) if numbered else " ".join(map(str, items)))
            for name, items in entries
        ],
    )


def sequence_section(pattern: str, keys: Sequence[str], classes: str = "") -> str:
    """Return the section that gives every image a one-character class in the order of its number: short for digits.

    Args:
        pattern: the keys' pattern with `{index}` and `{label}`, e.g. `svhn/test/{index:06d}_{label}.jpg`.
        keys: paths as the list has them, in any order.
        classes: the class list whose lines the labels count; none = the labels are the classes.

    Raises:
        DataError: a key that does not fit the pattern, or numbers with a gap.
    """
    labels = {int(row["index"]): row["label"] for _, row in _matched(pattern, keys)}
    start = min(labels)
    if sorted(labels) != list(range(start, start + len(keys))):
        raise DataError(f"'{pattern}': numbers from {start} to {max(labels)} with gaps — write it with `section`")
    head = f"labels {start} {classes}".rstrip()
    return write_section(pattern, [(head, "".join(labels[i] for i in sorted(labels)))])


def _matched(pattern: str, keys: Iterable[str]) -> list[tuple[str, dict[str, str]]]:
    """Each key with its values for the pattern's places."""
    regex = re.compile(_as_regex(pattern))
    rows = []
    for key in keys:
        match = regex.fullmatch(key)
        if match is None:
            raise DataError(f"key '{key}' does not fit the pattern '{pattern}'")
        rows.append((key, match.groupdict()))
    return rows


def _as_regex(pattern: str) -> str:
    """The pattern as a regular expression; a place that comes twice must hold the same text twice."""
    regex, seen, last = "", set(), 0
    for place in _PLACE.finditer(pattern):
        kind = place[1].partition(":")[0]
        shape = {"class": r"[^/]+?", "label": r"[^/]", "name": r"[^/]+", "index": r"\d+"}[kind]
        regex += re.escape(pattern[last : place.start()])
        regex += f"(?P={kind})" if kind in seen else f"(?P<{kind}>{shape})"
        seen.add(kind)
        last = place.end()
    return regex + re.escape(pattern[last:])
