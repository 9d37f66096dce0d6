"""How quickly the leaderboard's page answers with 10,000 rows, in the system's Chromium.

    python scripts/bench_site.py [--results results] [--rows 10000]

The site of a results folder is written, and the rows of its first board are repeated, each with other numbers. Sorting
by a column and filtering are timed in the page, from the event to the drawn table; the target is 100 ms.
"""

import argparse
import json
import random
import shutil
import statistics
import tempfile
from pathlib import Path

from rich.console import Console
from rich.table import Table

from openbench.report.site.write import write_site

_REPEATS = 9
_ACTIONS = {
    "sort by near AUROC": "(n) => jQuery('#rows').DataTable().order([near, n % 2 ? 'asc' : 'desc']).draw()",
    "sort by method": "(n) => jQuery('#rows').DataTable().order([2, n % 2 ? 'asc' : 'desc']).draw()",
    "search": "(n) => { const box = document.getElementById('search'); box.value = n % 2 ? 'kn' : 'm'; "
    "box.dispatchEvent(new Event('input')); }",
    "filter": "(n) => { const box = document.getElementById('ranked'); box.checked = n % 2; "
    "box.dispatchEvent(new Event('change')); }",
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--results", type=Path, default=Path("results"))
    parser.add_argument("--rows", type=int, default=10_000)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        site = Path(folder, "site")
        write_site(arguments.results, site, {})
        _repeat(site / "assets" / "data.js", arguments.rows)
        found = _timed(site / "index.html")
    table = Table(title=f"{arguments.rows:,} rows, milliseconds over {_REPEATS} repeats (target: < 100)")
    for column in ("action", "median", "slowest"):
        table.add_column(column, justify="left" if column == "action" else "right")
    for action, times in found.items():
        table.add_row(action, f"{statistics.median(times):.0f}", f"{max(times):.0f}")
    Console().print(table)


def _repeat(path: Path, rows: int) -> None:
    """Repeat the rows of the first board of a site until there are so many, each with other numbers and ids."""
    text = path.read_text()
    data = json.loads(text[text.index("(") + 1 : text.rindex(")")])
    board, draw = data["boards"][0], random.Random(0)
    whole = []
    for number in range(rows):
        row = dict(board["rows"][number % len(board["rows"])])
        values = [value[0] if isinstance(value, list) else value for value in row["values"]]
        row["values"] = [value if not isinstance(value, float) else value * draw.random() for value in values]
        whole.append(row | {"rank": number + 1, "tied": False, "runs": [f"{number:016x}"]})
    data["boards"] = [board | {"rows": whole}]
    path.write_text(f"openbench.data({json.dumps(data)});\n")


def _timed(page: Path) -> dict[str, list[float]]:
    """Return {action: milliseconds of each repeat}, the first one left out."""
    from playwright.sync_api import sync_playwright

    browser = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))))
    with sync_playwright() as running:
        chromium = running.chromium.launch(executable_path=browser, args=["--no-sandbox"])
        view = chromium.new_page()
        view.goto(page.as_uri())
        view.locator("#rows tbody tr").first.wait_for()
        found = {}
        for action, script in _ACTIONS.items():
            timed = f"""(n) => {{
                const near = jQuery('#rows').DataTable().column('near.auroc:name').index(), begin = performance.now();
                ({script})(n);
                document.body.offsetHeight;
                return performance.now() - begin;
            }}"""
            found[action] = [view.evaluate(timed, n) for n in range(_REPEATS + 1)][1:]
        chromium.close()
    return found


if __name__ == "__main__":
    main()
