"""The manual's settings. Build it from the repository's top with `python -m sphinx -W docs docs/_build/html`."""

import os
import sys
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE))

from docutils import nodes
from generate.everything import write
from generate.pictures import written
from latex2mathml.converter import convert
from sphinx.application import Sphinx

import openbench
from openbench import _compat  # noqa: F401 - torchvision beside a CPU-only torch, for the examples

project = "openbench"
author = "The openbench authors"
copyright = f"2026, {author}"
version = release = openbench.__version__

# No intersphinx: the pages name half a dozen things of other libraries, whose inventories hold tens of thousands of
# names and could only be had, and checked, over a network, which building this manual must not need.
extensions = ["myst_parser", "sphinx_copybutton", "sphinx_design", "sphinx_gallery.gen_gallery"]
source_suffix = {".md": "markdown", ".rst": "restructuredtext"}
exclude_patterns = [
    "_build",
    "generate",
    "pictures",
    "**/README.md",
    "learn/**/*.ipynb",
    "learn/**/*.py",
    "**/sg_execution_times.rst",
]
nitpicky = True
suppress_warnings = ["config.cache"]

myst_enable_extensions = ["colon_fence", "deflist", "dollarmath", "smartquotes"]
myst_heading_anchors = 3

html_theme = "pydata_sphinx_theme"
html_title = "openbench"
html_static_path = ["_static"]
html_css_files = ["manual.css"]
html_context = {"default_mode": "auto"}
html_copy_source = False
html_show_search_summary = False  # it fetches pages, which a browser refuses on a disk
html_math_renderer = "mathml"
html_theme_options = {
    "logo": {"text": "openbench"},
    "navigation_with_keys": True,
    "show_prev_next": False,
    "secondary_sidebar_items": ["page-toc"],
    "footer_start": ["copyright"],
    "footer_end": [],
    "navbar_end": ["theme-switcher"],
    "search_bar_text": "Search the manual",
    "show_toc_level": 2,
    "pygments_light_style": "a11y-high-contrast-light",
    "pygments_dark_style": "a11y-high-contrast-dark",
}

copybutton_prompt_text = r">>> |\.\.\. |\$ "
copybutton_prompt_is_regexp = True

sphinx_gallery_conf = {
    "examples_dirs": ["../examples"],
    "gallery_dirs": ["learn"],
    "filename_pattern": r"\.py",
    "within_subsection_order": "generate.lessons.Ordered",
    "reset_modules": ("matplotlib", "generate.lessons.apart"),
    "download_all_examples": False,
    "show_memory": False,
    "show_signature": False,
    "remove_config_comments": True,
    "abort_on_example_error": True,
    "min_reported_time": 1e9,
    "write_computation_times": False,
    "capture_repr": ("_repr_html_", "__repr__"),
}
# What is written is written below the build, never into the checkout's results or the user's cache.
BUILD = HERE / "_build"
os.environ["OPENBENCH_CACHE"] = str(BUILD / "cache")
os.environ["OPENBENCH_RESULTS"] = str(BUILD / "results")
os.environ.pop("OPENBENCH_DATA", None)


def _inline(self: Any, node: nodes.math) -> None:
    self.body.append(convert(node.astext()))
    raise nodes.SkipNode


def _block(self: Any, node: nodes.math_block) -> None:
    self.body.append(f'<div class="math">{convert(node.astext(), display="block")}</div>')
    raise nodes.SkipNode


def _generated(app: Sphinx) -> None:
    write(Path(app.srcdir) / "look_up")
    written(Path(app.srcdir) / "pictures")


def setup(app: Sphinx) -> dict[str, bool]:
    """Formulas as MathML, which browsers show by themselves; the generated part before anything is read."""
    app.add_html_math_renderer("mathml", (_inline, None), (_block, None))
    app.connect("builder-inited", _generated)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
