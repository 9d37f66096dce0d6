"""Rewrite records of schema 1 as schema 2: classes of ours by public names, run ids that follow, a digest in each.

    python scripts/migrate_records.py results

Every record under `<results>/records` is read, shown to be named by what it says, rewritten, and compared value by
value with what it was: only `schema`, `run_id` and the `_target_`s of `config` may differ. The run ids in
`<results>/trainings/*.csv` follow, and so do the digests of settings there, as far as the records tell.
"""

import argparse
import csv
import json
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

from openbench.cli.config import compose, scientific
from openbench.core.record import SCHEMA, ResultRecord, RunIdentity
from openbench.digest import digest
from openbench.public import TARGET, public
from openbench.results.plain import loads
from openbench.results.store import RecordStore, load


def main() -> None:
    """Migrate a results folder and print what was compared."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("results", type=Path)
    results = parser.parse_args().results
    store, ids, settings, same = RecordStore(results), {}, {}, Counter()
    for path in store.paths():
        old = loads(path.read_text(encoding="utf-8"), str(path))
        old.pop("content_sha256", None)
        if old["schema"] != 1:
            raise SystemExit(f"{path}: schema {old['schema']} — 1 is migrated")
        before = ResultRecord(**old)
        if RunIdentity.of(before).run_id != path.stem:
            raise SystemExit(f"{path}: its run id does not follow from what it says")
        after = replace(before, schema=SCHEMA, config=public(before.config))
        after = replace(after, run_id=RunIdentity.of(after).run_id)
        written = load(store.write(after))
        same.update(compared(old, written.to_dict(), str(path)))
        path.unlink()
        ids[before.run_id] = after.run_id
        settings[setting(before)] = setting(after)
    print(f"{len(ids)} records, {len(set(ids.values()))} new run ids; equal before and after:")
    for name, count in sorted(same.items()):
        print(f"  {name}: {count:,} values")
    for path in sorted((results / "trainings").glob("*.csv")):
        print(f"{path}: {follow(path, ids, settings)}")


def setting(record: ResultRecord) -> str:
    """The column `setting` of results/trainings."""
    return digest([record.config["method"], record.config["tune"]])[:8]


def leaves(node: Any, at: str = "") -> Iterator[tuple[str, Any]]:
    """Every value of a tree with its place."""
    if isinstance(node, dict):
        for key, child in node.items():
            yield from leaves(child, f"{at}/{key}")
    elif isinstance(node, list | tuple):
        for index, child in enumerate(node):
            yield from leaves(child, f"{at}/{index}")
    else:
        yield at, json.dumps(node)


def compared(old: dict[str, Any], new: dict[str, Any], where: str) -> Counter[str]:
    """How many values of each part are equal; the program ends if one is not that must be."""
    equal: Counter[str] = Counter()
    for part in old.keys() | new.keys():
        before, after = dict(leaves(old[part])), dict(leaves(new[part]))
        for at in before.keys() | after.keys():
            moved = part in ("schema", "run_id") or (part == "config" and at.endswith(TARGET))
            if not moved and (at not in before or at not in after or before[at] != after[at]):
                raise SystemExit(f"{where}: {part}{at} was {before.get(at)}, is {after.get(at)}")
            equal[part] += not moved
    return equal


def follow(path: Path, ids: dict[str, str], settings: dict[str, str]) -> str:
    """Rewrite the run ids and settings of one table."""
    with open(path, encoding="utf-8", newline="") as stream:
        rows = list(csv.DictReader(stream))
    known = [row for row in rows if row["run_id"] in ids]
    for training in sorted({row["training"] for row in rows}):
        composed = compose("run", [f"+benchmark={path.stem}", f"training={training}", "+scorer=published"])
        config = scientific(composed, {"tune": "validation"})
        old = [config["method"], config["tune"]]
        settings.setdefault(digest(old)[:8], digest(public(old))[:8])
    unknown = {row["setting"] for row in rows} - set(settings)
    for row in rows:
        row["run_id"] = ids.get(row["run_id"], row["run_id"])
        row["setting"] = settings.get(row["setting"], row["setting"])
    with open(path, "w", encoding="utf-8", newline="") as stream:
        writer = csv.DictWriter(stream, list(rows[0]), lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)
    found = f"{len(known)} of {len(rows)} runs are among the records"
    return f"{found}, settings that nothing gives: {sorted(unknown) or 'none'}"


if __name__ == "__main__":
    main()
