"""What stands in the fenced blocks of a page, and whether its commands are commands."""

import re
import shlex
from pathlib import Path

from openbench.compose.config import compose

FENCE = re.compile(r"^```(\w*)\n(.*?)^```", re.M | re.S)


def blocks(page: Path, language: str) -> list[str]:
    return [text for found, text in FENCE.findall(page.read_text()) if found == language]


def commands(page: Path) -> list[list[str]]:
    """The words of each openbench command in the shell blocks of a page, comments and the installation left out."""
    found = []
    for block in blocks(page, "sh"):
        for line in block.splitlines():
            text = line.rpartition("&& ")[2].replace(".venv/bin/python", "python")
            if text.startswith(("python -m openbench ", "openbench ")):
                found.append(shlex.split(text.removeprefix("python -m "), comments=True)[1:])
    return found


def composes(words: list[str]) -> None:
    """Compose the config that a command of Hydra's asks for; what it names must exist."""
    swept = [word for word in words[1:] if "glob(" in word or "," in word or "{" in word]
    compose(words[0], [word for word in words[1:] if word != "-m" and word not in swept])
