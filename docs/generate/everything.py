"""All generated pages, written where they changed: a second build reads only what is new."""

from pathlib import Path

from generate import benchmarks, commands, groups, methods, metrics, names
from generate.markdown import hidden_contents, page

PARTS = (methods, groups, benchmarks, metrics, commands, names)
CARDS = (
    ("method", "Methods", "Formula, needs, parameters, what was measured."),
    ("benchmark", "Benchmarks", "Sets, how many images, licences."),
    ("metric", "Metrics", "Formula, direction, range."),
    ("training", "Trainings", "How backbones are trained."),
    ("augment", "Augmentations", "What is done to training images."),
    ("backbone", "Backbones", "Networks by name."),
    ("command", "Commands", "Their help, in full."),
    ("python", "Python", "The names of `import openbench as ob`."),
)


def pages() -> dict[str, str]:
    """Return {path below the part, without suffix: Markdown}."""
    found: dict[str, str] = {}
    for part in PARTS:
        found |= part.pages()
    groups_there = sorted({name.partition("/")[0] for name in found if "/" in name} - {card[0] for card in CARDS})
    cards = [f"- [{title}]({group}/index.md): {text}" for group, title, text in CARDS]
    cards += ["- [Config keys](keys.md): every key of a run, with its default."]
    cards += ["- Config groups: " + ", ".join(f"[{group}]({group}/index.md)" for group in groups_there)]
    contents = [*(f"{group}/index" for group, *_ in CARDS), "keys", *(f"{group}/index" for group in groups_there)]
    lead = "Made from the package, its configs, manifests and records whenever the manual is built."
    found["index"] = page("Look up", lead, "\n".join(cards), hidden_contents(contents))
    return found


def write(folder: Path) -> None:
    """Write all pages below a folder and delete those that nothing describes any more."""
    found = pages()
    for name, text in found.items():
        path = folder / f"{name}.md"
        path.parent.mkdir(parents=True, exist_ok=True)
        if not path.exists() or path.read_text(encoding="utf-8") != text:
            path.write_text(text, encoding="utf-8")
    for path in folder.rglob("*.md"):
        if path.relative_to(folder).with_suffix("").as_posix() not in found:
            path.unlink()
