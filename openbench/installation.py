"""The pip command that errors recommend."""

import json
from importlib import metadata
from pathlib import Path
from urllib.parse import unquote, urlsplit

DISTRIBUTION = "openbench-ood"
_ROOT = Path(__file__).resolve().parent.parent


def pip_install(extra: str = "", *options: str) -> str:
    """Return the command that installs openbench as it was installed, with an extra if one is named.

    Args:
        extra: e.g. `slurm`; empty for openbench alone.
        options: of pip, e.g. `--force-reinstall`.
    """
    suffix = f"[{extra}]" if extra else ""
    folder, editable = _source()
    target = DISTRIBUTION if folder is None else str(folder)
    words = ["pip install", *options, *(["-e"] if editable else []), f"'{target}{suffix}'"]
    return " ".join(words)


def _source() -> tuple[Path | None, bool]:
    """The folder that openbench was installed from, None for the index; and whether it is an editable installation."""
    try:
        origin = json.loads(metadata.distribution(DISTRIBUTION).read_text("direct_url.json") or "{}")
    except metadata.PackageNotFoundError:
        # Run from a checkout that is not installed.
        return (_ROOT, True) if (_ROOT / "pyproject.toml").is_file() else (None, False)
    url = urlsplit(str(origin.get("url", "")))
    if url.scheme != "file":
        return None, False
    return Path(unquote(url.path)), bool(origin.get("dir_info", {}).get("editable", False))
