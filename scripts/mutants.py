"""Draw mutants of the package, run the tests that reach them, and record which ones no test notices.

    pip install -e '.[test,mutation]'
    python scripts/mutants.py cover metrics              # which tests reach which line; once per area
    python scripts/mutants.py run metrics --seed 0       # draws and tests; appends to results/mutation/mutants.csv
    python scripts/mutants.py again metrics              # tests the survivors of the record again, after new tests
    python scripts/mutants.py report                     # writes results/mutation/README.md

The mutants are those of mutmut (its operators, and `[tool.mutmut]` of pyproject.toml), with three differences, for
which mutmut itself has no setting: a sample is drawn instead of all, the operators take turns (arguments of calls
would be half of the sample), and bodies of decorated functions (properties) are mutated too. Text is not mutated:
the words of an error message are not behaviour, raising it is.

One copy of the tree (`--work`) is mutated at a time. For each mutant a process is forked that has torch imported
already; in it pytest runs the tests that reach the mutated line, the quickest first, up to the first failure, then
those tests of the area that start processes. A survivor that no caller can distinguish from the original is
equivalent: its reason goes to results/mutation/equivalent.csv (the columns file, change, reason), or to
golden_equivalent.csv. The area `golden` is what golden values hold beside post-hoc methods; its mutants are in
golden.csv.
"""

import argparse
import ast
import csv
import difflib
import importlib
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path

from filelock import FileLock

ROOT = Path(__file__).parents[1]
RECORD = ROOT / "results" / "mutation"
AREAS = (
    "metrics",
    "methods",
    "core",
    "results",
    "storage",
    "features",
    "engine",
    "data",
    "backbones",
    "training",
    "config",
    "compose",
    "cli",
    "api",
    "detect",
    "studies",
    "report",
    "golden",
)
FOLDERS = {  # an area that is not a folder of the package: here what golden values hold, but for post-hoc methods
    "golden": (
        "training/methods",
        "training/parts",
        "training/augment",
        "data/sources/corruptions.py",
        "data/sources/common_corruptions.py",
        "data/sources/imagenet_c.py",
        "data/sources/weather.py",
    ),
}
BESIDE = {  # tests of an area that do not lie in tests/<area>
    "methods": ["tests/test_network_methods.py", "tests/test_values.py"],
    "core": ["tests/test_values.py"],
    "config": [
        "tests/test_annotations.py",
        "tests/test_build.py",
        "tests/test_values.py",
        "tests/test_boundaries.py",
        "tests/test_source.py",
    ],
    "compose": [
        "tests/cli/test_refused.py",
        "tests/cli/test_interpolations.py",
        "tests/cli/test_errors.py",
        "tests/cli/test_sweep.py",
        "tests/cli/test_published.py",
        "tests/cli/test_unread.py",
        "tests/cli/test_moved.py",
        "tests/engine/test_identity.py",
    ],
    "cli": ["tests/test_security.py"],
}
# Imported before the fork, as every test file would import them; openbench itself comes from the mutated tree.
WARM = ["torch", "numpy", "scipy.stats", "scipy.optimize", "pandas", "sklearn.covariance", "sklearn.metrics", "hydra"]
WARM += ["pyarrow.parquet", "omegaconf", "pydantic", "matplotlib.figure", "PIL.Image", "rich.console"]
PYTEST = ["-q", "-p", "no:cacheprovider", "-W", "ignore::pytest.PytestAssertRewriteWarning"]  # of what is imported
SECONDS = 30.0  # of tests per mutant, as measured without the mutant


@dataclass(frozen=True)
class Mutant:
    """One change of one file, and what became of it."""

    area: str
    seed: int
    file: str
    line: int
    change: str  # "- before", "+ after", joined by a line break
    outcome: str = ""  # killed, survived, or slow: past its time limit, which on a busy machine says nothing
    by: str = ""  # the test that failed
    at_first: str = ""  # the outcome when it was drawn, before any test was written for it; empty where not kept


# ---------------------------------------------------------------- the mutants of a file


@dataclass(frozen=True)
class Candidate:
    """A mutant before its source is written."""

    operator: str
    line: int
    write: Callable[[], str]


def candidates(source: str, skip: list[str]) -> list[Candidate]:
    """Every mutant of a file."""
    import libcst as cst
    from libcst.metadata import MetadataWrapper, PositionProvider
    from mutmut.mutation.mutators import mutation_operators

    wrapper = MetadataWrapper(cst.parse_module(source))
    positions = wrapper.resolve(PositionProvider)

    def walk(node: cst.CSTNode, in_raise: bool) -> Iterator[Candidate]:
        if isinstance(node, cst.Annotation | cst.Decorator | cst.Import | cst.ImportFrom | cst.Assert):
            return
        if isinstance(node, cst.FunctionDef) and node.name.value in skip:
            return
        if isinstance(node, cst.Expr) and isinstance(node.value, cst.SimpleString | cst.ConcatenatedString):
            return  # a docstring
        in_raise = in_raise or isinstance(node, cst.Raise)
        if isinstance(node, cst.SimpleString) and (in_raise or " " in node.value):
            return  # prose
        for kind, operator in mutation_operators:
            if isinstance(node, kind) and node in positions:
                for changed in operator(node):
                    write = partial(lambda old, new: wrapper.module.deep_replace(old, new).code, node, changed)
                    yield Candidate(operator.__name__, positions[node].start.line, write)
        for child in node.children:
            yield from walk(child, in_raise)

    return list(walk(wrapper.module, False))


def valid(source: str) -> bool:
    """Whether Python reads the mutant: some operators drop what a statement needs."""
    try:
        compile(source, "mutant", "exec", dont_inherit=True)
    except SyntaxError:
        return False
    return True


def change_of(before: str, after: str) -> tuple[int, str]:
    """The first changed line, and the changed lines before and after."""
    lines = list(difflib.unified_diff(before.splitlines(), after.splitlines(), lineterm="", n=0))
    first = int(lines[2].split()[1].lstrip("-").split(",")[0])
    return first, "\n".join(f"{line[0]} {line[1:].strip()}" for line in lines[3:])


def draw(area: str, seed: int, count: int, skip: list[str]) -> list[tuple[Mutant, str]]:
    """Draws mutants with their sources: the operators take turns, one mutant per line of code."""
    from mutmut.configuration import config

    places = [ROOT / "openbench" / name for name in FOLDERS.get(area, (area,))]
    found = [path for place in places for path in (sorted(place.rglob("*.py")) if place.is_dir() else [place])]
    files = [str(path.relative_to(ROOT)) for path in found]
    sources = {file: (ROOT / file).read_text() for file in files if config().should_mutate(file)}
    chance = random.Random(f"{area}-{seed}")
    weights = [len(source) for source in sources.values()]
    pool: dict[str, list[Candidate]] = {}
    taken: set[tuple[str, int]] = set()
    turns: dict[str, int] = {}
    drawn: list[tuple[Mutant, str]] = []
    while len(drawn) < count:
        file = chance.choices(list(sources), weights)[0]
        if file not in pool:
            pool[file] = candidates(sources[file], skip)
        choice = [c for c in pool[file] if (file, c.line) not in taken]
        if not choice:
            continue
        fewest = min(turns.get(c.operator, 0) for c in choice)
        chosen = chance.choice([c for c in choice if turns.get(c.operator, 0) == fewest])
        taken.add((file, chosen.line))
        source = chosen.write()
        if source != sources[file] and valid(source):
            turns[chosen.operator] = turns.get(chosen.operator, 0) + 1
            line, change = change_of(sources[file], source)
            drawn.append((Mutant(area, seed, file, line, change), source))
    return drawn


# ---------------------------------------------------------------- a tree and processes of its own


def prepare_tree(work: Path) -> Path:
    """A copy of the repository's files, compiled: the one that is mutated."""
    tree = work / "tree"
    shutil.rmtree(tree, ignore_errors=True)
    listed = subprocess.run(["git", "ls-files", "-co", "--exclude-standard"], cwd=ROOT, capture_output=True, text=True)
    for name in listed.stdout.splitlines():
        if (ROOT / name).is_file():
            (tree / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, tree / name)
    subprocess.run([sys.executable, "-m", "compileall", "-q", str(tree / "openbench")], check=True)
    return tree


class Listener:
    """A pytest plugin: what ran, for how long, what failed, which tests started processes."""

    def __init__(self, coverage=None):
        self.coverage, self.seconds, self.failed, self.spawned, self.current = coverage, {}, [], set(), ""
        sys.addaudithook(self.audit)

    def audit(self, event, args):
        """Note a process that a test starts."""
        if event in ("subprocess.Popen", "os.posix_spawn", "os.fork", "os.forkpty") and self.current:
            self.spawned.add(self.current)

    def pytest_runtest_logstart(self, nodeid):
        """Note which test runs."""
        self.current = nodeid
        if self.coverage:
            self.coverage.switch_context(nodeid)

    def pytest_runtest_logfinish(self, nodeid):
        """Note that it ended."""
        self.current = ""
        if self.coverage:
            self.coverage.switch_context("")

    def pytest_runtest_logreport(self, report):
        """Note its time, and whether it failed."""
        self.seconds[report.nodeid] = self.seconds.get(report.nodeid, 0.0) + report.duration
        if report.failed:
            self.failed.append(report.nodeid)
        if report.skipped:
            self.seconds.pop(report.nodeid)

    def pytest_collectreport(self, report):
        """Note a file that cannot be imported."""
        if report.failed:
            self.failed.append(report.nodeid)


def in_child(tree: Path, arguments: list[str], limit: float, cover: Path | None = None) -> dict | None:
    """What the listener heard in a forked process that runs pytest in the tree; None past the time limit."""
    heard = tree.parent / "heard.json"
    heard.unlink(missing_ok=True)
    scratch = Path(tempfile.mkdtemp(dir=tree.parent))
    child = os.fork()
    if child == 0:
        os.setsid()
        os.chdir(tree)
        sys.dont_write_bytecode = True
        sys.path.insert(0, str(tree))
        os.environ |= {"PYTHONPATH": str(tree), "PYTHONDONTWRITEBYTECODE": "1", "TMPDIR": str(scratch)}
        os.environ |= {name: str(scratch / name) for name in ("OPENBENCH_CACHE", "OPENBENCH_RESULTS")}
        tempfile.tempdir = None
        log = os.open(tree.parent / "log.txt", os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        os.dup2(log, 1)
        os.dup2(log, 2)
        code = 70
        try:
            import pytest

            coverage = None
            if cover:
                from coverage import Coverage

                coverage = Coverage(data_file=str(cover), source=[str(tree / "openbench")], config_file=False)
                coverage.start()
            listener = Listener(coverage)
            code = pytest.main([*PYTEST, *arguments], plugins=[listener])
            if coverage:
                coverage.stop()
                coverage.save()
            spawned = sorted(listener.spawned)
            heard.write_text(
                json.dumps({"code": code, "seconds": listener.seconds, "failed": listener.failed, "spawned": spawned})
            )
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(int(code))
    end = time.monotonic() + limit
    while os.waitpid(child, os.WNOHANG) == (0, 0):
        if time.monotonic() > end:
            os.killpg(child, signal.SIGKILL)
            os.waitpid(child, 0)
            return None
        time.sleep(0.02)
    shutil.rmtree(scratch, ignore_errors=True)
    return json.loads(heard.read_text()) if heard.exists() else {"code": 70, "failed": ["the process"], "seconds": {}}


# ---------------------------------------------------------------- which tests reach a line


def cover(area: str, work: Path) -> None:
    """Runs an area's tests once and keeps which of them reach which line."""
    from coverage import CoverageData

    tree = prepare_tree(work)
    data_file = work / f"coverage.{area}"
    data_file.unlink(missing_ok=True)
    folder = [f"tests/{area}"] if (ROOT / "tests" / area).is_dir() else []
    tests = [*folder, *BESIDE.get(area, [])]
    heard = in_child(tree, ["-m", "not slow", *tests], 3600, data_file)
    if heard is None or not heard["seconds"]:
        raise SystemExit(f"the tests of {area} did not come to an end: {(work / 'log.txt').read_text()[-2000:]}")
    data = CoverageData(str(data_file))
    data.read()
    lines = {
        str(Path(file).relative_to(tree)): {k: [c for c in v if c] for k, v in data.contexts_by_lineno(file).items()}
        for file in data.measured_files()
    }
    failed = set(heard["failed"])
    seconds = {name: value for name, value in heard["seconds"].items() if name not in failed}
    spawned = [name for name in heard["spawned"] if name in seconds]
    (work / f"reach.{area}.json").write_text(json.dumps({"seconds": seconds, "spawned": spawned, "lines": lines}))
    print(f"{area}: {len(seconds)} tests in {sum(seconds.values()):.0f} s, {len(failed)} fail: {sorted(failed)[:5]}")


class Reach:
    """Which tests reach which lines, from all areas that were covered."""

    def __init__(self, work: Path, area: str):
        self.seconds: dict[str, float] = {}
        self.lines: dict[str, dict[int, set[str]]] = {}
        self.spawned: list[str] = []
        self.own: set[str] = set()
        self.named = area in FOLDERS  # whether the tests that name a module run too
        for path in sorted(work.glob("reach.*.json")):
            known = json.loads(path.read_text())
            self.seconds |= known["seconds"]
            if path.name == f"reach.{area}.json":
                self.spawned, self.own = known["spawned"], set(known["seconds"])
            for file, lines in known["lines"].items():
                of_file = self.lines.setdefault(file, {})
                for line, tests in lines.items():
                    of_file.setdefault(int(line), set()).update(t for t in tests if t in known["seconds"])

    def tests(self, file: str, line: int, source: str) -> list[str]:
        """The tests that reach the statement at a line; those that reach its file, where only the import does."""
        if not self.own:
            return naming(file)
        of_file = self.lines.get(file, {})
        found = set().union(*(of_file.get(at, set()) for at in statement(source, line)))
        reached = self.affordable(found or set().union(*of_file.values()), f"test_{Path(file).stem}")
        return [*reached, *naming(file)] if self.named else reached

    def leave_out(self, test: str) -> None:
        """Forget a test."""
        self.own.discard(test)
        self.spawned = [name for name in self.spawned if name != test]
        for of_file in self.lines.values():
            for tests in of_file.values():
                tests.discard(test)

    def affordable(self, names: set[str], first: str = "") -> list[str]:
        """One case of each test function in turn, the quickest first, within the time; before them, those of a file."""
        turn: dict[str, int] = {}
        ranked = []
        for name in sorted(names, key=lambda n: (n not in self.own, self.seconds[n], n)):
            function = name.split("[")[0]
            turn[function] = turn.get(function, 0) + 1
            elsewhere = Path(function.partition("::")[0]).stem != first
            ranked.append((elsewhere, turn[function], name not in self.own, self.seconds[name], name))
        spent, chosen = 0.0, []
        for *_, duration, name in sorted(ranked):
            spent += duration + 0.02
            if spent < SECONDS:
                chosen.append(name)
        return chosen


def naming(file: str) -> list[str]:
    """The test files that name a module, where its area was not covered.

    Commands are tested from outside: beside them, the files of the area that share a word with the module's path.
    """
    _, area, *folders = Path(file).with_suffix("").parts
    stem, module = Path(file).stem, ".".join(Path(file).with_suffix("").parts)
    texts = {str(p.relative_to(ROOT)): p.read_text() for p in sorted((ROOT / "tests").rglob("test_*.py"))}
    found = [name for name, text in texts.items() if module in text]
    words = {word for part in folders for word in part.split("_")}
    own = [name for name in texts if name.startswith(f"tests/{area}/") or name in BESIDE.get(area, [])]
    found += [name for name in own if words & set(Path(name).stem.split("_")) and name not in found]
    return sorted(found, key=lambda name: stem not in Path(name).stem)[:4] or own


def statement(source: str, line: int) -> range:
    """The lines of the statement at a line, a compound one without its body."""
    best = range(line, line + 1)
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.stmt) and node.lineno <= line <= (node.end_lineno or node.lineno):
            body = getattr(node, "body", None)
            end = max(node.lineno, body[0].lineno - 1) if body else node.end_lineno
            if line <= end:
                best = range(node.lineno, end + 1)
    return best


# ---------------------------------------------------------------- testing mutants


def judge(mutant: Mutant, source: str, tree: Path, reach: Reach, more: list[str]) -> Mutant:
    """The mutant with its outcome."""
    before = (ROOT / mutant.file).read_text()
    tests = reach.tests(mutant.file, mutant.line, before)
    processes = [name for name in reach.affordable(set(reach.spawned)) if name not in tests]
    target = tree / mutant.file
    for cached in (target.parent / "__pycache__").glob(f"{target.stem}.*.pyc"):
        cached.unlink()
    target.write_text(source)
    try:
        for batch in (more, tests[:12], tests[12:], processes):
            if not batch:
                continue
            limit = 60 + (5 * sum(reach.seconds.get(name, 10) for name in batch))
            heard = in_child(tree, ["-x", "-m", "not slow", *batch], limit)
            if heard is None:
                return replace(mutant, outcome="slow")
            if heard["code"] not in (0, 5):
                return replace(mutant, outcome="killed", by=(heard["failed"] or ["the import"])[0])
        return replace(mutant, outcome="survived")
    finally:
        target.write_text(before)


def record_of(area: str) -> Path:
    """The file that holds an area's mutants."""
    return RECORD / (f"{area}.csv" if area in FOLDERS else "mutants.csv")


def read_record() -> list[Mutant]:
    """The recorded mutants."""
    found = []
    for path in sorted({record_of(area) for area in AREAS}):
        with path.open(newline="") if path.exists() else nullcontext([]) as file:
            rows = csv.DictReader(file)
            found += [Mutant(**(row | {"seed": int(row["seed"]), "line": int(row["line"])})) for row in rows]
    return found


def read_reasons() -> dict[tuple[str, str], str]:
    """Why a mutant, by its file and its change, is equivalent to the original."""
    found = {}
    for path in sorted(RECORD.glob("*equivalent.csv")):
        with path.open(newline="") as file:
            found |= {(row["file"], row["change"]): row["reason"] for row in csv.DictReader(file)}
    return found


def write_record(mutants: list[Mutant]) -> None:
    """Writes the record, ordered by area and seed."""
    RECORD.mkdir(parents=True, exist_ok=True)
    ordered = sorted(mutants, key=lambda m: (AREAS.index(m.area), m.seed, m.file, m.line))
    for path in {record_of(mutant.area) for mutant in ordered}:
        with path.open("w", newline="") as file:
            writer = csv.DictWriter(file, list(Mutant.__dataclass_fields__), lineterminator="\n")
            writer.writeheader()
            writer.writerows(asdict(mutant) for mutant in ordered if record_of(mutant.area) == path)


def run(area: str, options: argparse.Namespace) -> None:
    """Draws mutants of an area and tests each, in place of those recorded for this area and seed."""
    judge_all(area, draw(area, options.seed, options.count, options.skip), options)


def again(area: str, options: argparse.Namespace) -> None:
    """Tests the recorded survivors of an area again."""
    pairs = []
    for mutant in read_record():
        equivalent = (mutant.file, mutant.change) in read_reasons()
        if mutant.area == area and mutant.outcome in ("survived", "slow") and not equivalent:
            before = (ROOT / mutant.file).read_text()
            near = sorted(candidates(before, []), key=lambda c: abs(c.line - mutant.line))
            sources = (source for source in (c.write() for c in near[:2000]) if source != before)
            found = ((change_of(before, source), source) for source in sources)
            pair = next(((line, source) for (line, change), source in found if change == mutant.change), None)
            if pair is None:
                print(f"the code has changed: {mutant.file}:{mutant.line} {mutant.change}")
            else:
                pairs.append((replace(mutant, line=pair[0]), pair[1]))
    judge_all(area, pairs, options)


def at_first(judged: Mutant, recorded: list[Mutant]) -> str:
    """What came of a mutant when it was drawn; empty where only a later outcome is known, perhaps of a new test."""
    if not recorded:
        return judged.outcome
    (old,) = recorded
    return old.at_first or ("" if old.outcome == "killed" else old.outcome)


def judge_all(area: str, pairs: list[tuple[Mutant, str]], options: argparse.Namespace) -> None:
    """Tests mutants and records each as soon as it is known."""
    tree = prepare_tree(options.work)
    for name in WARM:
        importlib.import_module(name)
    reach = Reach(options.work, area)
    control = in_child(tree, reach.affordable(reach.own)[:100] or ["tests/test_build.py"], 600)
    if control is None or control["code"] not in (0, 1):
        raise SystemExit(f"the tests fail without a mutant: {(options.work / 'log.txt').read_text()[-2000:]}")
    for name in control["failed"]:
        print(f"left out, since it fails without a mutant: {name}")
        reach.leave_out(name)
    start = time.monotonic()
    for number, (mutant, source) in enumerate(pairs, 1):
        judged = judge(mutant, source, tree, reach, options.tests)
        same = (mutant.file, mutant.change, mutant.seed)
        with FileLock(Path(tempfile.gettempdir()) / "openbench_mutants.lock"):  # several areas may run at a time
            recorded = read_record()
            kept = [old for old in recorded if (old.file, old.change, old.seed) != same]
            judged = replace(judged, at_first=at_first(judged, [old for old in recorded if old not in kept]))
            write_record([*kept, judged])
        print(f"{number}/{len(pairs)} {time.monotonic() - start:4.0f} s {judged.outcome:8} {mutant.file}:{mutant.line}")
        if judged.outcome != "killed":
            print(mutant.change, flush=True)


# ---------------------------------------------------------------- the page


def report() -> None:
    """Writes the table of areas and the list of survivors."""
    reasons, mutants = read_reasons(), read_record()
    rows = ["| area | seed | drawn | equivalent | slow | killed at first | killed now | survive | killed of changing |"]
    rows += ["|---|---|---|---|---|---|---|---|---|"]
    survivors, same = [], []
    for area in AREAS:
        for seed in sorted({m.seed for m in mutants if m.area == area}):
            drawn = [m for m in mutants if (m.area, m.seed) == (area, seed)]
            alive = [m for m in drawn if m.outcome == "survived"]
            equal = [m for m in alive if (m.file, m.change) in reasons]
            rows.append(row_of(drawn, len(alive) - len(equal), len(equal), area, seed))
            same += [(m, reasons[m.file, m.change]) for m in equal]
            survivors += [m for m in alive if m not in equal]
    page = ["# Mutants that the tests notice", "", (RECORD / "about.md").read_text().strip(), "", *rows, ""]
    page += ["## Survivors", ""] + ([entry(m) for m in survivors] or ["None.", ""])
    page += ["## Equivalent mutants", ""] + [entry(m, reason) for m, reason in same]
    (RECORD / "README.md").write_text("\n".join(page).rstrip() + "\n")


def row_of(drawn: list[Mutant], alive: int, equal: int, area: str, seed: int) -> str:
    """A line of the table: a sample in numbers, when it was drawn and with the tests written since."""
    slow = sum(m.outcome == "slow" for m in drawn)
    changing = len(drawn) - equal - slow
    now = changing - alive
    first = sum(m.at_first == "killed" for m in drawn) if all(m.at_first for m in drawn) else None
    shares = [f"{n / max(changing, 1):.0%}" for n in (first, now) if n is not None]
    cells = (area, seed, len(drawn), equal, slow, "not kept" if first is None else first, now, alive)
    return "| " + " | ".join(map(str, cells)) + f" | {', now '.join(shares)} |"


def entry(mutant: Mutant, reason: str = "") -> str:
    """One mutant of the page: its place, its change, its reason."""
    because = f" {reason}" if reason else ""
    return f"`{mutant.file}:{mutant.line}`{because}\n\n```diff\n{mutant.change}\n```\n"


def main() -> None:
    """Reads the command."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("command", choices=("cover", "run", "again", "report"))
    parser.add_argument("areas", nargs="*", help=f"of {', '.join(AREAS)}")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--count", type=int, default=30, help="mutants per area")
    parser.add_argument("--skip", nargs="*", default=[], help="functions that are left alone, such as __post_init__")
    parser.add_argument("--tests", nargs="*", default=[], help="test files written since `cover`, for `again`")
    parser.add_argument("--work", type=Path, default=Path(tempfile.gettempdir()) / "openbench_mutants")
    options = parser.parse_args()
    options.work = options.work.resolve()
    options.work.mkdir(parents=True, exist_ok=True)
    os.chdir(ROOT)
    if options.command == "report":
        return report()
    for area in options.areas:
        if area not in AREAS:
            parser.error(f"area {area!r} — allowed are {', '.join(AREAS)}")
        if options.command == "cover":
            cover(area, options.work)
        else:
            {"run": run, "again": again}[options.command](area, options)
    return None


if __name__ == "__main__":
    main()
