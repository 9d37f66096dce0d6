"""The tables of one record: an overview, and one view per family, with the conventions that its numbers depend on."""

import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cache
from math import isqrt
from statistics import fmean
from typing import Any

from openbench.core.names import ATTACKED, FULL_SPECTRUM, is_stream, without_order, without_side
from openbench.core.record import ResultRecord
from openbench.errors import check_choice
from openbench.metrics.keys import higher_is_better
from openbench.results.escape import console
from openbench.results.records.settings import hyper_parameters, network_of
from openbench.results.tables.render import Cell, Column, Estimate, Kind, Table

GROUPS = ("near", "far")
_BITS = 256  # twice those of a root that are exact
MEMBER = "  "  # before the name of a set, below that of its group
SIDES = {"": "", FULL_SPECTRUM: "full spectrum", ATTACKED: "attacked"}
_SHORT = {"": "", FULL_SPECTRUM: "FS ", ATTACKED: "attacked "}

# View → the keys it shows, in this order; a key belongs to the first view that lists it. A key that no view lists
# is shown in `other`.
FAMILIES: dict[str, tuple[str, ...]] = {
    "ranking": (
        "n_ood|n_sets", "auroc", "aupr_in", "aupr_out", "ap_in", "ap_out", "fpr95", "fpr95_id_positive",
        "detection_error", "f1", "f1_threshold", "accuracy|precision|recall",
    ),
    # As in Humblot-Renaux et al. 2023; AUROC is shown here once more.
    "threshold": (
        "auroc", "autc", "aufpr", "aufnr", "fpr@test", "fnr@test", "fpr@95tnr", "fnr@95tnr", "fpr@val", "fnr@val",
    ),
    "selective": ("risk@.+", "cost", "oscr", "oscr_selective", "ccr@.+"),
    "conformal": ("conformal_.+", "bh_.+"),
}  # fmt: skip
_ACRONYM = re.compile(
    r"(?<![a-z])(auroc|aupr|ap|fpr|fnr|tpr|tnr|f1|autc|aufpr|aufnr|oscr|ccr|aurc|augrc|ece|nll|lac|aps|raps|bh|fdp|id|ood)(?![a-z])"
)
_SPELLED = {"e-aurc": "E-AURC", "brier": "Brier", "n_ood": "OOD images", "n_id": "ID images", "n_sets": "sets"}
# Explanations of columns.
_EXPLAINED = {
    "oscr": "area over FPR under the share of all ID that is accepted and correct (Dhamija et al. 2018)",
    "oscr_selective": "area over FPR under the accuracy among the accepted ID (Franc et al. 2023, there called OSCR)",
}
Members = Mapping[str, Sequence[str]]
VIEWS = ("overview", *FAMILIES, "intervals", "prediction_sets", "id", "other", "trials", "counts")
_PREDICTION_SET = re.compile(
    r"(\w+?)_((?:coverage|size)(?:_mean|_std)?|singletons|worst_class)@(\d+(?:\.\d+)?(?:e-?\d+)?)", re.ASCII
)
_TUNED_ON = {
    "held_out_classes": "held-out ID classes",
    "synthetic": "synthetic OOD made of ID validation",
    "oracle": "test data (oracle)",
    "oracle_per_set": "each OOD test set (oracle per set)",
}


def _overview(record: ResultRecord) -> Iterator[Table]:
    """The overview of a run: AUROC and FPR@95 with intervals, AUPR per set and group, on both ID sides."""
    sides = [side for side in SIDES if any((side + name) in record.metrics for name in names_of(record))]
    columns = [*Column.of("set", "role", ("n", "count"))]
    for side in sides:
        bounded = {key for name in names_of(record) for key in record.metrics.get(side + name, ())}
        named = (("AUROC ↑", "auroc_low"), ("FPR@95 ↓", "fpr95_low"))
        titles = [f"{_SHORT[side]}{title}{' [interval]' * (low in bounded)}" for title, low in named]
        titles += [] if side else ["AUPR-in ↑", "AUPR-out ↑"]
        columns += [Column(title, "percent") for title in titles]
    rows = []
    for name in names_of(record):
        cells: list[Cell] = [*_who(record, name), record.metrics.get(name, {}).get("n_ood")]
        for side in sides:
            values = record.metrics.get(side + name, {})
            cells += [estimate(values, "auroc"), estimate(values, "fpr95")]
            cells += [] if side else [values.get("aupr_in"), values.get("aupr_out")]
        rows.append(tuple(cells))
    yield Table(_title(record), tuple(columns), tuple(rows), record.header, deviation_notes(record))


def stream_table(record: ResultRecord) -> Table:
    """Return the overview of the streams of a record: means ± deviations over the orders, and of both quarters."""
    over: dict[str, list[Mapping[str, Any]]] = {}
    for name, values in record.metrics.items():
        over.setdefault(without_order(name), []).extend([values] * is_stream([name]))
    titles = {"auroc": "AUROC ↑", "fpr95": "FPR@95 ↓"}
    titles |= {f"auroc_{end}_quarter": f"AUROC ↑, {end} quarter" for end in ("first", "last")}
    rows = []
    for name in ordered(over, members_of(record)):
        counts = (_from_to([values.get(key) for values in over[name]]) for key in ("n_id", "n_ood"))
        numbers = (_over_orders([values.get(key) for values in over[name]]) for key in titles)
        rows.append((*_who(record, name), *counts, *numbers))
    percents = (Column(title, "percent") for title in titles.values())
    columns = (*Column.of("set", "role", "ID images", "OOD images"), *percents)
    plan = record.method.get("stream")
    streams = hyper_parameters(plan) if isinstance(plan, Mapping) else "not stated"
    notes = (f"Streams: {streams}; mean ± population standard deviation over the orders.", *deviation_notes(record))
    return Table(_title(record), columns, tuple(rows), notes=notes)


def _who(record: ResultRecord, name: str) -> tuple[str, str]:
    """A group or set, indented, and its role."""
    return name if name in GROUPS else f"{MEMBER}{name}", role_in(members_of(record), name)


def _from_to(counts: Sequence[Any]) -> str | None:
    """The smallest and the largest of the counts in each order."""
    known = sorted(count for count in counts if isinstance(count, int))
    return "–".join(f"{count:,}" for count in dict.fromkeys((known[0], known[-1]))) if known else None


def _over_orders(values: Sequence[Any]) -> Estimate | None:
    """Mean and population deviation over orders; None where an order has no value."""
    known = [value for value in values if isinstance(value, float | int)]
    return Estimate(fmean(known), std=deviation(known)) if known and len(known) == len(values) else None


def deviation(numbers: Sequence[float]) -> float:
    """Return the population standard deviation, exact but for its last rounding, as `statistics.pstdev` does.

    That one reckons with fractions; the denominators of floats are powers of two, so that whole numbers will do.
    """
    ratios = [number.as_integer_ratio() for number in numbers]
    unit = max(below for _, below in ratios)
    whole = [above * (unit // below) for above, below in ratios]
    n = len(whole)
    squares = n * sum(number * number for number in whole) - sum(whole) ** 2
    return isqrt(squares << _BITS) / (n * unit << _BITS // 2)


def run_tables(record: ResultRecord, view: str = "overview") -> list[Table]:
    """Return the tables of one view of a run, one for each ID side; a terminal shows a wide one in parts.

    Args:
        record: the run.
        view: one of VIEWS.

    Raises:
        ConfigError: no such view.
    """
    check_choice("view", view, VIEWS)
    if view == "overview" and is_stream(record.metrics):
        return [stream_table(record)]
    own = {"overview": _overview, "trials": _trials, "counts": _counts, "id": _id, "prediction_sets": _prediction_sets}
    families = (table for side in SIDES for table in _family(record, side, view))
    tables = own[view](record) if view in own else families
    return without_repeats(_with_conventions(table, view) for table in tables)


# The keys of views whose column titles are not keys.
_TITLED = {"overview": ("auroc", "fpr95", "aupr_in"), "prediction_sets": ("lac_size@0.1",)}


def _with_conventions(table: Table, view: str) -> Table:
    """The table with the conventions that its numbers depend on."""
    keys = _TITLED.get(view) or [column.name.partition(" ")[0] for column in table.columns]
    intervals = {"overview": ("auroc", "fpr95"), "intervals": keys}.get(view, ())
    return replace(table, header=conventions(table.header, keys, intervals))


def estimate(values: Mapping[str, Any], key: str) -> Estimate | str | None:
    """Return a metric with its interval, if it has one; `unable` as it is, None where the metric is absent."""
    value, low, high = (values.get(name) for name in (key, f"{key}_low", f"{key}_high"))
    if value is None or isinstance(value, str):
        return value
    known = isinstance(low, float | int) and isinstance(high, float | int)
    return Estimate(value, low, high) if known else Estimate(value)


def tuned_on(record: ResultRecord) -> str:
    """Return the data on which a tuned run's hyper-parameters were chosen."""
    tune = record.config.get("tune")
    return tuned_by(str(tune.get("strategy")) if isinstance(tune, Mapping) else "")


def tuned_by(strategy: str) -> str:
    """Return the data on which a strategy chooses hyper-parameters."""
    return _TUNED_ON.get(strategy, "validation")


@cache  # records have many numbers, and few keys
def family_of(key: str) -> str:
    """Return the view in which a metric key of a set or group is shown."""
    return next((f for f, patterns in FAMILIES.items() if any(re.fullmatch(p, key) for p in patterns)), "other")


def shown_in(key: str, view: str) -> bool:
    """Return whether a metric key of a set or group is a column of a view."""
    # The layout of the AUTC paper begins with AUROC.
    return family_of(key) == view or (view == "threshold" and key == "auroc")


def kind_of(key: str) -> Kind:
    """Return how the values of a key are written."""
    if key.startswith("n_"):
        return "count"
    return "number" if re.fullmatch(r"f1_threshold.*|\w+_size@.+|cost|brier|nll", key) else "percent"


def names_of(record: ResultRecord) -> list[str]:
    """Return groups and sets in the order of tables: near, its sets, far, its sets, whatever else was measured."""
    return ordered(record.metrics, members_of(record))


def ordered(measured: Iterable[str], members: Members) -> list[str]:
    """Return the groups and sets among some names of a record's metrics in the order of tables.

    Args:
        measured: names as the metrics of a record have them, ID, full spectrum and the orders of a stream included.
        members: {role: names of its sets}.
    """
    present = {without_side(name) for name in measured if not is_stream([name])} - {"id"}
    order = [name for group in GROUPS for name in (group, *sorted(members.get(group, ()))) if name in present]
    return [*order, *sorted(present - set(order))]


def members_of(record: ResultRecord) -> Members:
    """Return {role: names of its sets} of a record."""
    members: dict[str, list[str]] = {}
    for key in sorted(record.counts):
        role, _, name = key.partition("/")
        members.setdefault(role, []).append(name)
    return members


def role_in(members: Members, name: str) -> str:
    """Return the role of a set, `mean` for a group of sets, – for what else was measured."""
    if name in GROUPS:
        return "mean"
    roles = ((group, role) for group in GROUPS for role in (group, f"{group}_attacked"))
    return next((group for group, role in roles if name in members.get(role, ())), "–")


def _title(record: ResultRecord) -> str:
    params = hyper_parameters(record.method.get("params", {}))
    chosen = f"; tuned on {tuned_on(record)}: {hyper_parameters(record.tuned)}" if record.tuned else ""
    values = {label: record.metrics.get(f"{side}id", {}).get("accuracy") for side, label in SIDES.items()}
    known = {label: value for label, value in values.items() if isinstance(value, float | int)}
    accuracy = [f"{100 * value:.2f} %{f' ({label})' if label else ''}" for label, value in known.items()]
    accuracy += _with_validation(record)
    method = f"{record.method.get('name')}{f'({params})' if params else ''}{chosen}"
    title = f"{record.benchmark.get('name')} · {network_of(record)} · {method}"
    if is_stream(record.metrics):
        return title
    return f"{title} · ID accuracy {', '.join(accuracy) or 'absent: no classifier for these classes'}"


def _with_validation(record: ResultRecord) -> list[str]:
    """Accuracy over ID validation and test together: the official test set, where validation was cut out of it."""
    right, total = 0.0, 0
    for role, key in (("id_val/", "id_val_accuracy"), ("id_test/", "accuracy")):
        n = sum(count["n"] for name, count in record.counts.items() if name.startswith(role))
        value = record.metrics.get("id", {}).get(key)
        if not n or not isinstance(value, float | int):
            return []
        right, total = right + n * value, total + n
    return [f"{100 * right / total:.2f} % (with validation, n = {total})"]


def deviation_notes(record: ResultRecord) -> tuple[str, ...]:
    """Return a note on how the images of a record differ from the benchmark's; none where they do not."""
    if record.benchmark.get("pristine") is True:
        return ()
    deviations = record.benchmark.get("deviations") or ["not stated"]
    return (f"Not the benchmark as defined, so not ranked: {'; '.join(map(str, deviations))}.",)


def _family(record: ResultRecord, side: str, view: str) -> Iterator[Table]:
    """One table of a view: rows are sets, groups and pooled groups; none if the view has nothing on this side."""
    rows: list[tuple[str, str, dict[str, Any]]] = []
    for name in names_of(record):
        own, pooled = dict[str, Any](), dict[str, Any]()
        for key, value in record.metrics.get(side + name, {}).items():
            (pooled if key.startswith("pooled_") else own)[key.removeprefix("pooled_")] = value
        rows += [(name, role_in(members_of(record), name), own), *([(name, "pooled", pooled)] if pooled else [])]
    measured = {key for _, _, values in rows for key in values}
    keys = [key for key in measured if is_column(key, view, measured)]
    if not keys or (view == "threshold" and keys == ["auroc"]):
        return
    ordered = sorted(keys, key=lambda k: key_order(view, k))
    columns = (*Column.of("set", "role"), *map(metric_column, ordered))
    value = estimate if view == "intervals" else dict.get
    shown = [row for row in rows if not row[2].keys().isdisjoint(ordered)]
    cells = tuple((name, role, *(value(values, key) for key in ordered)) for name, role, values in shown)
    title = f"{view}{f' · {SIDES[side]}' if side else ''} · {_title(record)}"
    explained = tuple(f"{title_of(key)[:-2]}: {_EXPLAINED[key]}." for key in ordered if key in _EXPLAINED)
    yield Table(title, columns, cells, record.header, (*deviation_notes(record), *explained))


def without_end(key: str) -> str:
    """Return the metric of a key that may be an end of its interval."""
    return re.sub(r"_(low|high)$", "", key)


def is_column(key: str, view: str, present: Collection[str]) -> bool:
    """Return whether a metric key of a set or group is a column of a view; ends of intervals stand with their value."""
    if view == "intervals":
        return f"{key}_low" in present and f"{key}_high" in present
    return shown_in(key, view) and not _is_end(key, present)


def _is_end(key: str, present: Collection[str]) -> bool:
    return without_end(key) != key and without_end(key) in present


def _natural(text: str) -> list[tuple[float, str]]:
    """Sort key that puts @0.05 before @0.1, 1e-4 before 1e-3."""
    parts = re.split(r"(\d+(?:\.\d+)?(?:e-?\d+)?)", text)
    return [(float(part), "") if index % 2 else (-1.0, part) for index, part in enumerate(parts)]


def key_order(view: str, key: str) -> tuple[int, list[tuple[float, str]]]:
    """Sort key that puts the columns of a view in order."""
    patterns = FAMILIES.get(view, FAMILIES["ranking"])
    return next((i for i, pattern in enumerate(patterns) if re.fullmatch(pattern, key)), len(patterns)), _natural(key)


def arrow(key: str) -> str:
    """Return a key with the direction that is better, as CSVs have it."""
    better = higher_is_better(key)
    return key if better is None else f"{key} {'↑' if better else '↓'}"


def title_of(key: str) -> str:
    """Return a metric as papers write it, e.g. `FPR@95 ↓` for `fpr95`."""
    name = _SPELLED.get(key) or _ACRONYM.sub(lambda word: word[0].upper(), key)
    name = re.sub(r"(AUPR|AP)_(in|out)", r"\1-\2", name).replace("FPR95", "FPR@95").replace("_", " ")
    return name + arrow(key).removeprefix(key)


def metric_column(key: str) -> Column:
    """Return the column of a metric; programs know it by its key."""
    return Column(title_of(key), kind_of(key), name=arrow(key))


def _id(record: ResultRecord) -> Iterator[Table]:
    sides = {side: record.metrics[f"{side}id"] for side in SIDES if f"{side}id" in record.metrics}
    keys = id_keys(key for values in sides.values() for key in values)
    columns = (Column("side"), *map(metric_column, keys))
    rows = tuple((SIDES[side] or "standard", *(estimate(of, key) for key in keys)) for side, of in sides.items())
    notes = (*deviation_notes(record), *not_recorded(keys, record.run_id))
    if keys:
        yield Table(f"id · {_title(record)}", columns, rows, record.header, notes)


def id_keys(measured: Iterable[str]) -> list[str]:
    """Return the keys of the ID side that are columns, sorted: neither prediction sets nor ends of intervals."""
    present = set(measured)
    return sorted(key for key in present if not _PREDICTION_SET.fullmatch(key) and not _is_end(key, present))


def not_recorded(keys: Collection[str], run_id: str = "RUN_ID") -> tuple[str, ...]:
    """Return a note on how to get what older records of classifiers do not have; none where they have it."""
    if "aurc" not in keys or "augrc" in keys:
        return ()
    return (f"AUGRC, ECE, Brier and NLL from the stored scores: python -m openbench verify --scores {run_id}",)


def _prediction_sets(record: ResultRecord) -> Iterator[Table]:
    found: dict[tuple[str, float, str], dict[str, Any]] = {}
    for side in SIDES:
        for key, value in record.metrics.get(f"{side}id", {}).items():
            if match := _PREDICTION_SET.fullmatch(key):
                kind, quantity, alpha = match.groups()
                found.setdefault((kind, float(alpha), side), {})[quantity] = value
    if not found:
        return
    columns = Column.of("sets", "side", ("α", "number"), ("coverage", "percent"), ("size ↓", "number"))
    columns += Column.of(("singletons ↑", "percent"), ("worst class ↑", "percent"))
    over_splits = ["coverage", "size"] * any("size_mean" in values for values in found.values())
    if over_splits:
        columns += Column.of(("coverage over splits", "percent"), ("size over splits ↓", "number"))
    rows: list[tuple[Cell, ...]] = []
    for (kind, alpha, side), values in sorted(found.items()):
        cells = map(values.get, ("coverage", "size", "singletons", "worst_class"))
        rows.append((kind, SIDES[side] or "standard", alpha, *cells, *(_mean_of(values, key) for key in over_splits)))
    kinds = {kind for kind, *_ in found}
    notes = [*deviation_notes(record)]
    notes += ["score: the method's own score s of a class, thresholded as it is."] * ("score" in kinds)
    made_of = "score_…: made of softmax(−s), or of the method's own probabilities if it computes s from them."
    notes += [made_of] * any(kind.startswith("score_") for kind in kinds)
    if over_splits:
        splits = f"{record.metrics.get('id', {}).get('n_set_splits')} random splits of ID validation and test"
        notes.append(f"over splits: mean ± deviation over {splits}, the calibration part as large as validation.")
    yield Table(f"prediction sets · {_title(record)}", columns, tuple(rows), record.header, tuple(notes))


def _mean_of(values: Mapping[str, Any], quantity: str) -> Cell:
    mean, std = values.get(f"{quantity}_mean"), values.get(f"{quantity}_std")
    return Estimate(mean, std=std) if isinstance(mean, float | int) and isinstance(std, float | int) else mean


def _trials(record: ResultRecord) -> Iterator[Table]:
    """What each setting came to and which was chosen: by the AUROC, or where there are risks, by these."""
    trials, on = record.trials, tuned_on(record)
    data = "test" if "test" in on else "validation" if on == "validation" else "proxy"
    of_set, by_risk, infeasible = (any(key in trial for trial in trials) for key in ("set", "risk", "infeasible"))
    columns = {"set": Column("set")} if of_set else {}
    columns |= {"risk": Column(f"{data} risk ↓", "percent", 3), "threshold": Column("λ", "number")} if by_risk else {}
    columns["auroc"] = Column(f"{data} AUROC ↑", "percent")
    rows = []
    for trial in trials:
        cells = [trial.get(key, "unable" if "infeasible" in trial else None) for key in columns]
        chosen, reason = "yes" * _is_chosen(trial, record), [str(trial.get("infeasible", ""))] * infeasible
        rows.append((hyper_parameters(trial.get("params", {})), *cells, chosen, *reason))
    last = Column.of("chosen", *["infeasible"] * infeasible)
    rule = "least selective risk, of equal ones the largest AUROC" if by_risk else "largest AUROC"
    notes = (f"Chosen on {on}: {rule}.", *deviation_notes(record))
    if rows:
        every = (Column("hyper-parameters"), *columns.values(), *last)
        yield Table(f"trials · {_title(record)}", every, tuple(rows), notes=notes)


def _is_chosen(trial: Mapping[str, Any], record: ResultRecord) -> bool:
    """Whether a trial's setting is the one that the run went on with, on its set where each set has its own."""
    chosen = record.tuned
    if "set" in trial:
        chosen = {k: of.get(trial["set"]) if isinstance(of, Mapping) else None for k, of in record.tuned.items()}
    return bool(chosen) and trial.get("params") == chosen


def _counts(record: ResultRecord) -> Iterator[Table]:
    named = [(*key.partition("/")[::2], count) for key, count in sorted(record.counts.items())]
    rows = tuple((name, role, count.get("n"), count.get("expected")) for role, name, count in named)
    columns = Column.of("set", "role", ("n", "count"), ("as defined", "count"))
    if rows:
        yield Table(f"images · {_title(record)}", columns, rows, notes=deviation_notes(record))


# Beginning of a clause of the header → the keys that depend on it; what is not listed is always shown.
_DEPENDING: tuple[tuple[str, str], ...] = (
    (r"FPR@95: ", r"(conformal_)?fpr95.*"),
    (r"AUPR by ", r"(aupr|ap)_(in|out)"),
    (r"AUTC: ", r"autc|aufpr|aufnr"),
    (r"risk: TPR ", r"risk@tpr.*"),
    (r"precision ", r"risk@prec.*"),
    (r"costs ", r"cost"),
    (r"conformal: ", r"(conformal|bh)_.+"),
    (r"prediction sets: ", r"\w+_(coverage|size|singletons|worst_class).*@.+"),
)
_RISK = "risk: "
_INTERVALS = re.compile(r"[\d.]+ % intervals: ")
_BOOTSTRAP = re.compile(r", stratified bootstrap[^(]*\([^)]*\)")
_OTHER_SIDE = re.compile(r" \(fpr95_id_positive: [^)]*\)")


def conventions(header: str, keys: Collection[str], intervals: Collection[str] = ()) -> str:
    """Return the part of a record's header that a table needs.

    Args:
        header: clauses divided by ` · ` and `; `, as `metrics.describe` writes them.
        keys: of the metrics that the table shows.
        intervals: keys that it shows with their intervals.
    """
    base = {key.removeprefix("pooled_") for key in keys}
    parts = []
    for part in header.split(" · "):
        clauses = [text for clause in part.split("; ") if (text := _needed(clause, base, intervals))]
        if clauses and part.startswith(_RISK) and not clauses[0].startswith(_RISK):
            clauses[0] = _RISK + clauses[0]
        parts += ["; ".join(clauses)] * bool(clauses)
    return " · ".join(parts)


def explained(header: str) -> str:
    """Return all of a record's conventions, one on a line."""
    return "\n".join(["conventions:", *(f"  {console(part)}" for part in header.split(" · ") if part)])


def without_repeats(tables: Iterable[Table]) -> list[Table]:
    """Return the tables of a view, each convention and note under the last table that has it."""
    shown_tables, headers, notes = [], set[str](), set[str]()
    for table in reversed(list(tables)):
        new_notes = tuple(note for note in table.notes if note not in notes)
        shown_tables.append(replace(table, header="" if table.header in headers else table.header, notes=new_notes))
        headers.add(table.header)
        notes |= set(table.notes)
    return shown_tables[::-1]


def _needed(clause: str, keys: Collection[str], intervals: Collection[str]) -> str:
    """A clause, or as much of it as the keys need."""
    if _INTERVALS.match(clause):
        if not intervals:
            return ""
        return clause if set(intervals) - {"auroc"} else _BOOTSTRAP.sub("", clause)
    patterns = [pattern for start, pattern in _DEPENDING if clause.startswith(start)]
    if patterns and not any(re.fullmatch(pattern, key) for pattern in patterns for key in keys):
        return ""
    return clause if "fpr95_id_positive" in keys else _OTHER_SIDE.sub("", clause)
