"""Does what is published work for somebody who has only that? The first lesson, from a wheel in a new environment.

    python scripts/try_wheel.py                                 # builds both; offline, packages from this environment
    python scripts/try_wheel.py dist/*.whl dist/*.tar.gz        # as they are, with what pip installs beside them

Both archives are looked into: the wheel has every config and manifest of the checkout, and the source archive makes the
same wheel. Then the wheel is installed and `examples/first_table.py` is run in an empty folder. Exit code 0 = it works.
"""

import argparse
import os
import subprocess
import sys
import sysconfig
import tarfile
import tempfile
import venv
import zipfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
SHIPPED = {"configs": "openbench/configs", "data_manifests": "openbench/data_manifests", "openbench": "openbench"}
SHIPPED["results/reference"] = "openbench/reference"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("archives", nargs="*", type=Path, metavar="FILE", help="a wheel and a source archive")
    given = [path.resolve() for path in parser.parse_args().archives]
    with tempfile.TemporaryDirectory() as name:
        place = Path(name)
        wheel, source = _pair(given or _built(ROOT, place / "dist", "wheel", "sdist"))
        _check_contents(wheel, source, place)
        python = _installed(wheel, place / "venv", offline=not given)
        _run_lesson(python, place)
    print(f"{wheel.name} and {source.name} are complete, and the first lesson runs from the wheel")


def _pair(archives: list[Path]) -> tuple[Path, Path]:
    (wheel,), (source,) = ([path for path in archives if path.name.endswith(end)] for end in (".whl", ".tar.gz"))
    return wheel, source


def _built(checkout: Path, to: Path, *targets: str) -> list[Path]:
    """Build without network, by the hatchling of this environment."""
    chosen = [word for target in targets for word in ("-t", target)]
    subprocess.run([sys.executable, "-m", "hatchling", "build", "-d", str(to), *chosen], cwd=checkout, check=True)
    return list(to.iterdir())


def _check_contents(wheel: Path, source: Path, place: Path) -> None:
    """Compare the wheel with the checkout, and with the wheel that the source archive makes."""
    with tarfile.open(source) as pack:
        pack.extractall(place / "source", filter="data")
    (unpacked,) = (place / "source").iterdir()
    again = _built(unpacked, place / "again", "wheel")[0]
    listed = subprocess.run(["git", "ls-files", "-z", *SHIPPED], cwd=ROOT, capture_output=True, check=True).stdout
    wanted = {_packaged(file) for file in listed.decode().rstrip("\0").split("\0")}
    there = _members(wheel)
    if missing := sorted(wanted - there.keys()):
        raise SystemExit(f"{wheel.name} lacks {len(missing)} files, e.g. {missing[0]}")
    if there != _members(again):
        raise SystemExit(f"the wheel that {source.name} makes holds other files than {wheel.name}")
    print(f"{wheel.name}: {len(there)} files, as the source archive makes them")


def _packaged(file: str) -> str:
    """Where a file of the checkout lies in the wheel."""
    top = next(folder for folder in SHIPPED if file.startswith(f"{folder}/"))
    return SHIPPED[top] + file.removeprefix(top)


def _members(wheel: Path) -> dict[str, int]:
    """The package's files with the CRC of their content."""
    with zipfile.ZipFile(wheel) as pack:
        return {one.filename: one.CRC for one in pack.infolist() if one.filename.startswith("openbench/")}


def _installed(wheel: Path, folder: Path, *, offline: bool) -> Path:
    """Install a wheel in a new environment and return its Python; offline, the packages of this one are seen there."""
    venv.create(folder, with_pip=True)
    python = folder / ("Scripts/python.exe" if os.name == "nt" else "bin/python")
    few = ["--no-deps", "--no-index"] if offline else []
    subprocess.run([str(python), "-m", "pip", "install", "--quiet", *few, str(wheel)], check=True)
    if offline:
        asked = "import sysconfig; print(sysconfig.get_paths()['purelib'])"
        site = subprocess.run([str(python), "-c", asked], capture_output=True, text=True, check=True).stdout.strip()
        Path(site, "of_the_builder.pth").write_text(sysconfig.get_paths()["purelib"] + "\n", encoding="utf-8")
    return python


def _run_lesson(python: Path, place: Path) -> None:
    """Run the first lesson in an empty folder, with an empty cache; what it prints is printed if it fails."""
    empty = place / "empty"
    empty.mkdir()
    lesson = place / "first_table.py"
    lesson.write_bytes((ROOT / "examples" / "first_table.py").read_bytes())
    known = {key: value for key, value in os.environ.items() if not key.startswith(("OPENBENCH_", "PYTHON"))}
    known |= {"OPENBENCH_CACHE": str(place / "cache"), "MPLBACKEND": "agg"}
    asked = [str(python), "-c", "import openbench; print(openbench.__file__)"]
    found = subprocess.run(asked, cwd=empty, env=known, capture_output=True, text=True, check=True).stdout.strip()
    if place.resolve() not in Path(found).resolve().parents:
        raise SystemExit(f"the lesson would have run with {found}, not with the wheel")
    done = subprocess.run([str(python), str(lesson)], cwd=empty, env=known, stdout=subprocess.PIPE, text=True)
    records = list((empty / "results" / "records").rglob("*.json"))
    if done.returncode or len(records) != 2:
        raise SystemExit(f"{done.stdout}\nthe first lesson ended with {done.returncode} and {len(records)} records")


if __name__ == "__main__":
    main()
