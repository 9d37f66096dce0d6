"""Texts from which a zero-shot classifier is made: the user's own prompts, or published ones by name."""

from collections.abc import Sequence
from typing import Any

from openbench import paths
from openbench.errors import ConfigError, check_choice

OPENAI = "openai_imagenet"
# What open_clip calls the published prompts: the 80 of CLIP's ImageNet figures, and the 7 best of them.
_TEMPLATES = {OPENAI: "OPENAI_IMAGENET_TEMPLATES", "simple_imagenet": "SIMPLE_IMAGENET_TEMPLATES"}
_LISTED = 5


def templates_of(library: Any, where: str, given: Sequence[str] | str) -> list[str]:
    """Return the templates that a user gives or names, each with one `{}`.

    Args:
        library: open_clip.
        where: the backbone, for messages.
        given: templates, or `openai_imagenet` (80) or `simple_imagenet` (7).

    Raises:
        ConfigError: an unknown name, none at all, or a template without `{}`.

    Reference:
        Radford et al.: Learning transferable visual models from natural language supervision, ICML 2021,
        arXiv:2103.00020; the prompts and class names are in its released code.
    """
    if isinstance(given, str):
        check_choice(f"{where}: templates", given, tuple(_TEMPLATES))
        return [template("{}") for template in getattr(library, _TEMPLATES[given])]
    bad = [t for t in given if t.count("{}") != 1]
    if bad or not given:
        raise ConfigError(f"{where}: templates {bad or 'are empty'} — each needs one {{}} for the class name")
    return list(given)


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
