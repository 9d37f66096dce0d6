"""How long 10,000 records take: the leaderboard, the site, and every record as data; and how much memory.

    python scripts/bench_records.py [--results results] [--records 10000] [--keep FOLDER]

Records of a results folder are repeated under other seeds and settings, each with other AUROCs, in a folder of their
own. Every command runs in a process of its own, twice: without the table of records in the cache and with it. Processor
time counts; the targets are 2 s and 300 MB.
"""

import argparse
import json
import os
import random
import subprocess
import sys
import tempfile
from dataclasses import replace
from pathlib import Path

from rich.console import Console
from rich.table import Table

from openbench.core.record import ResultRecord, RunIdentity
from openbench.digest import digest
from openbench.results.records.store import RecordStore, text_of
from openbench.storage.plain_json import plain

_SEEDS = 3
_COMMANDS = {
    "leaderboard": ["leaderboard", "--results", "{results}"],
    "leaderboard --check": ["leaderboard", "--check", "--results", "{results}"],
    "leaderboard --view overview": ["leaderboard", "--view", "overview", "--format", "csv", "--results", "{results}"],
    "leaderboard --site": ["leaderboard", "--site", "{site}", "--results", "{results}"],
    "leaderboard --plots": ["leaderboard", "--plots", "--results", "{results}"],
    "openbench.records()": ["-c", "import openbench; print(len(openbench.records('{results}')))"],
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--results", type=Path, default=Path("results"))
    parser.add_argument("--records", type=int, default=10_000)
    parser.add_argument("--keep", type=Path, help="a folder for the records, which is made once and kept")
    parser.add_argument("--only", default="", help="commands that contain this text")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        made = arguments.keep or Path(folder)
        if not (made / "results").is_dir():
            repeat(list(RecordStore(arguments.results)), made / "results", arguments.records)
        table = Table(title=f"{arguments.records:,} records: processor seconds and peak memory")
        for column in ("command", "without a cache", "MB", "with it", "MB"):
            table.add_column(column, justify="left" if column == "command" else "right")
        for name, words in _COMMANDS.items():
            if arguments.only in name:
                table.add_row(name, *_measured(words, made, Path(folder)))
        Console().print(table)


def repeat(records: list[ResultRecord], folder: Path, count: int) -> None:
    """Write so many records, each one of the given with another seed, setting and AUROC."""
    draw, store = random.Random(0), RecordStore(folder)
    contents = [plain(record.to_dict()) for record in records]
    for number in range(count):
        at, copy = number % len(records), number // len(records)
        first, content = records[at], contents[at]
        params = {"repeated": copy // _SEEDS}
        config = {**content["config"], "seed": copy % _SEEDS, "method": {**content["config"]["method"], **params}}
        method = {**content["method"], "params": {**content["method"].get("params", {}), **params}}
        lower = 1 - 0.2 * draw.random()
        metrics = {
            name: {key: lower * value if _moved(name, key, value) else value for key, value in values.items()}
            for name, values in content["metrics"].items()
        }
        made = replace(first, config=config, method=method, metrics=metrics)
        made = replace(made, run_id=RunIdentity.of(made).run_id)
        changed = {"config": config, "method": method, "metrics": metrics, "run_id": made.run_id}
        if "config_digest" in content:
            changed["config_digest"] = digest(config)
        path = store.path(made)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text_of({**content, **changed}), encoding="utf-8")


def _moved(name: str, key: str, value: object) -> bool:
    return name != "id" and key in ("auroc", "auroc_low", "auroc_high") and isinstance(value, float)


def _measured(words: list[str], made: Path, scratch: Path) -> list[str]:
    """Processor seconds and peak memory without a table in the cache and with the one that the first run left."""
    cells = []
    cache = tempfile.mkdtemp(dir=scratch)
    for _ in range(2):
        filled = [word.format(results=made / "results", site=scratch / "site") for word in words]
        command = [sys.executable, *(filled if filled[0] == "-c" else ["-m", "openbench", *filled])]
        before = os.times()
        environment = {**os.environ, "OPENBENCH_CACHE": cache}
        peak = subprocess.run(
            [sys.executable, "-c", _PEAK, json.dumps(command)], env=environment, check=True, capture_output=True
        )
        after = os.times()
        spent = after.children_user + after.children_system - before.children_user - before.children_system
        cells += [f"{spent:.1f}", f"{int(peak.stdout.split()[-1]) / 1024:.0f}"]
    return cells


# The peak of a process is known to the one that waits for it.
_PEAK = """
import json, resource, subprocess, sys
code = subprocess.run(json.loads(sys.argv[1]), stdout=subprocess.DEVNULL).returncode
print(resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss)
sys.exit(code if code not in (0, 1) else 0)
"""

if __name__ == "__main__":
    main()
