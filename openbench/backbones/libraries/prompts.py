"""Texts from which a zero-shot classifier is made: the user's own prompts, or published ones by name."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from openbench import paths
from openbench.core.request import check_templates
from openbench.errors import ConfigError, check_choice
from openbench.storage.files import read_regular

OPENAI = "openai_imagenet"
# What open_clip calls the published prompts: the 80 of CLIP's ImageNet figures, and the 7 best of them.
_TEMPLATES = {OPENAI: "OPENAI_IMAGENET_TEMPLATES", "simple_imagenet": "SIMPLE_IMAGENET_TEMPLATES"}
# CLIP's prompts for CIFAR-10 and CIFAR-100, in the order in which they were published.
_CIFAR = "openai_cifar"
_OF_CIFAR = tuple(
    f"{start} {article} {rest}"
    for article in ("a", "the")
    for start, rest in (
        *((f"a {kind}photo of", "{}.") for kind in ("", "blurry ", "black and white ", "low contrast ")),
        *((f"a {kind}photo of", "{}.") for kind in ("high contrast ", "bad ", "good ")),
        *(("a photo of", f"{size} {{}}.") for size in ("small", "big")),
    )
)
_LISTED = 5
_MOST_BYTES = 1_000_000


def templates_of(library: Any, where: str, given: Sequence[str] | str) -> list[str]:
    """Return the templates that a user gives or names, each with one `{}`.

    Args:
        library: open_clip.
        where: the backbone, for messages.
        given: templates; `openai_imagenet` (80), `simple_imagenet` (7) or `openai_cifar` (18); or the path of a text
            file with one template a line, absolute or below a data root or the working directory.

    Raises:
        ConfigError: an unknown name, a file that cannot be read, none at all, or a template without exactly
            one `{}`.

    Reference:
        Radford et al.: Learning transferable visual models from natural language supervision, ICML 2021,
        arXiv:2103.00020; the prompts and class names are in its released code.
    """
    if isinstance(given, str) and not given.endswith(".txt"):
        check_choice(f"{where}: templates", given, (*_TEMPLATES, _CIFAR))
        if given == _CIFAR:
            return list(_OF_CIFAR)
        return [template("{}") for template in getattr(library, _TEMPLATES[given])]
    if isinstance(given, str):
        given = _lines(Path(given).expanduser(), where)
    if not given:
        raise ConfigError(f"{where}: templates are empty — at least one is needed, with {{}} for the class name")
    check_templates(given, where)
    return list(given)


def _lines(path: Path, where: str) -> list[str]:
    places = [path] if path.is_absolute() else [root / path for root in (*paths.data_roots(), Path.cwd())]
    found = next((place for place in places if place.is_file()), None)
    if found is None:
        raise ConfigError(
            f"{where}: templates '{path}' not found — looked for {', '.join(map(str, places))} — a text file with one "
            "template a line expected"
        )
    try:
        lines = read_regular(found, _MOST_BYTES).decode("utf-8-sig").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{where}: templates '{found}' cannot be read — {error} — text in UTF-8 expected") from error
    return [line.strip() for line in lines if line.strip() and not line.startswith("#")]


def class_names_of(
    library: Any, where: str, given: Sequence[str] | str | None, benchmark: Sequence[str] | None
) -> tuple[str, ...]:
    """Return the class names for the prompts in label order.

    Args:
        library: open_clip.
        where: the backbone, for messages.
        given: the names; or `openai_imagenet`: those that CLIP's authors cleaned, for the benchmark's classes.
        benchmark: the classes of the benchmark in label order; needed with a name only.

    Raises:
        ConfigError: an unknown name, or classes that are not ImageNet's.
    """
    if not isinstance(given, str):
        return tuple(given or ())
    check_choice(f"{where}: classes", given, (OPENAI,))
    # Both lists are in the order of the WordNet ids, which is that of the labels.
    cleaned = dict(zip(_imagenet_classes(), library.IMAGENET_CLASSNAMES, strict=True))
    others = [name for name in benchmark or () if name not in cleaned]
    if others or not benchmark:
        shown = f"{others[:_LISTED]} and {len(others) - _LISTED} more" if len(others) > _LISTED else others
        raise ConfigError(
            f"{where}: classes '{given}' are names for ImageNet's classes — found {shown or 'no benchmark'} — leave "
            "backbone.classes null for the benchmark's own names, or list the names in label order"
        )
    return tuple(cleaned[name] for name in benchmark)


def _imagenet_classes() -> list[str]:
    text = (paths.manifest_dir() / "imagenet1k" / "classes.txt").read_text(encoding="utf-8")
    return [line.strip() for line in text.splitlines() if line.strip() and not line.startswith("#")]
