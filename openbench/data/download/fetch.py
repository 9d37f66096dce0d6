"""Downloads that survive being cut off: in ranges, resumed where they stopped, checked before they get their name."""

import hashlib
import http.client
import json
import os
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from openbench import __version__
from openbench.errors import DataError
from openbench.say import Say

_CHUNK = 1 << 18
_TELL_EVERY = 10.0


@dataclass(frozen=True)
class Expected:
    """What is published about a file.

    Args:
        urls: mirrors, tried in this order.
        size: in bytes, or None if not published.
        md5: 32 hex digits, or None.
        sha256: 64 hex digits, or None.
    """

    urls: tuple[str, ...]
    size: int | None = None
    md5: str | None = None
    sha256: str | None = None

    def wrong(self, path: Path) -> str:
        """Return how a file differs from the published one, or an empty string; without a hash, only size counts."""
        size = path.stat().st_size
        if self.size is not None and size != self.size:
            return f"{size} bytes, {self.size} published"
        for name, published in (("sha256", self.sha256), ("md5", self.md5)):
            if published is not None:
                found = hash_of(path, name)
                return "" if found == published else f"{name} {found}, {published} published"
        return ""


@dataclass(frozen=True)
class Patience:
    """How long a download is tried.

    Args:
        attempts: in a row without a single new byte, per mirror.
        pause: seconds before the second attempt; doubled for each further one, at most half a minute.
        timeout: seconds without an answer that end an attempt.
        sleep: waits; a parameter so that tests need not.
    """

    attempts: int = 5
    pause: float = 1.0
    timeout: float = 30.0
    sleep: Callable[[float], None] = time.sleep


def hash_of(path: Path, name: str) -> str:
    """Return the `md5` or `sha256` of a file, as hex digits."""
    with open(path, "rb") as stream:
        return hashlib.file_digest(stream, name).hexdigest()


def fetch(expected: Expected, target: Path, say: Say, patience: Patience | None = None) -> None:
    """Download a file to `target`, which exists afterwards only if it is what was published.

    What has arrived is kept in `target` + `.part`: the next call goes on from there, whatever ended this one.

    Raises:
        DataError: no mirror gave the file, or what it gave is not what was published.
    """
    patience = patience or Patience()
    target.parent.mkdir(parents=True, exist_ok=True)
    part = part_of(target)
    failures = []
    for url in expected.urls:
        for _ in range(2):
            resumed = _length(part) > 0
            problem = _from_mirror(url, expected, part, say, patience)
            if problem:
                failures.append(f"{url}: {problem}")
                break
            problem = expected.wrong(part)
            if not problem:
                os.replace(part, target)
                _note(part).unlink(missing_ok=True)
                return
            failures.append(f"{url}: {problem}")
            discard(part)
            if not resumed:
                # Bytes left by an earlier run may be the fault; a file that came in one piece will not get better.
                break
    reasons = "\n  ".join(dict.fromkeys(failures))
    raise DataError(
        f"'{target.name}' could not be downloaded:\n  {reasons}\ntry again later (what has arrived is kept), or get "
        f"the file by other means and put it at {target}"
    )


def _from_mirror(url: str, expected: Expected, part: Path, say: Say, patience: Patience) -> str:
    """Fetch what is missing from one mirror; return why that failed, or an empty string."""
    if urllib.parse.urlparse(url).scheme not in ("http", "https"):
        return "only http and https are supported"
    failures = 0
    problem = ""
    while failures < patience.attempts:
        if failures:
            patience.sleep(min(30.0, patience.pause * 2 ** (failures - 1)))
        before = _length(part)
        try:
            if _attempt(url, expected, part, say, patience.timeout):
                return ""
            problem = "the connection ended early"
        except urllib.error.HTTPError as error:
            error.close()
            if error.code == 416:
                discard(part)
            elif error.code < 500 and error.code not in (408, 425, 429):
                return f"HTTP {error.code} {error.reason}"
            problem = f"HTTP {error.code} {error.reason}"
        except (OSError, http.client.HTTPException) as error:
            problem = f"{type(error).__name__}: {error}"
        failures = 0 if _length(part) > before else failures + 1
    return problem


def _attempt(url: str, expected: Expected, part: Path, say: Say, timeout: float) -> bool:
    """One request; return whether the file is complete now."""
    start = _length(part)
    if start and start == expected.size:
        return True
    headers = {"User-Agent": f"openbench/{__version__}", "Accept-Encoding": "identity"}
    tag = _tag(part, url)
    if start and (tag or expected.size or expected.md5 or expected.sha256):
        headers["Range"] = f"bytes={start}-"
        if tag:
            # If the file has changed since, the server sends all of it.
            headers["If-Range"] = tag
    with urllib.request.urlopen(urllib.request.Request(url, headers=headers), timeout=timeout) as answer:
        start, total = _span(answer, start)
        if expected.size is not None and total is not None and total != expected.size:
            raise OSError(f"the server offers {total} bytes, {expected.size} are published")
        if start == 0:
            _note(part).write_text(
                json.dumps({"url": url, "etag": answer.headers.get("ETag")}), encoding="utf-8", newline="\n"
            )
        with open(part, "r+b" if start else "wb") as stream:
            stream.seek(start)
            stream.truncate()
            done = _copy(answer, stream, (start, total), part.stem, say)
    return done == total if total is not None else expected.size is None or done == expected.size


def _span(answer: Any, wanted: int) -> tuple[int, int | None]:
    """Where the answer begins, and how long the whole file is."""
    length = answer.headers.get("Content-Length")
    if answer.status != 206:
        return 0, None if length is None else int(length)
    span, _, total = answer.headers.get("Content-Range", "").removeprefix("bytes ").partition("/")
    start = span.partition("-")[0]
    if not start.isdigit() or int(start) != wanted:
        raise OSError(f"asked for bytes from {wanted}, the server sends '{span}'")
    return wanted, int(total) if total.isdigit() else None


def _copy(answer: Any, stream: Any, span: tuple[int, int | None], name: str, say: Say) -> int:
    done, total = span
    told = time.monotonic()
    while chunk := answer.read(_CHUNK):
        stream.write(chunk)
        done += len(chunk)
        if time.monotonic() - told > _TELL_EVERY:
            told = time.monotonic()
            share = f" of {total / 1e6:.0f} MB ({done / total:.0%})" if total else " MB"
            say(f"{name}: {done / 1e6:.0f}{share}")
    return done


def _note(part: Path) -> Path:
    return part.with_name(part.name + ".json")


def _tag(part: Path, url: str) -> str | None:
    """The strong ETag under which a part began, if it comes from the same address."""
    try:
        note = json.loads(_note(part).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    tag = note.get("etag") if isinstance(note, dict) and note.get("url") == url else None
    return tag if isinstance(tag, str) and not tag.startswith("W/") else None


def _length(part: Path) -> int:
    return part.stat().st_size if part.exists() else 0


def part_of(target: Path) -> Path:
    """Where what has arrived of a file is kept."""
    return target.with_name(target.name + ".part")


def discard(part: Path) -> None:
    """Delete what has arrived of a file, and the note of where it came from."""
    part.unlink(missing_ok=True)
    _note(part).unlink(missing_ok=True)
