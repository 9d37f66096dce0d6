"""A recommendation in words, as tables, and as plain values."""

from typing import Any

from openbench.detect.recommend.choose import GRADIENTS, Advice, Candidate
from openbench.metrics.rank_ranges import RankRange
from openbench.results.tables.render import Cell, Column, Estimate, Table, cell_text

_PERCENT = Column("", "percent")
_SHOWN = 12  # methods beyond the limits that are listed, the best ones
_COLUMNS = (
    Column("method"),
    Column("hyper-parameters"),
    Column("near AUROC ↑", "percent"),
    Column("far AUROC ↑", "percent"),
    Column("ranks near"),
    Column("far"),
    Column("ms per image", "number"),
    Column("learnt (MB)", "number"),
    Column("process (MB)", "number"),
    Column("needs"),
)


def in_words(advice: Advice) -> str:
    """Return what to take and why, in a sentence or two."""
    about = " · ".join(advice.about)
    if not advice.best:
        return f"{about}: no method is within the limits — {_nearest(advice)}"
    take, *others = advice.best
    named = f"{about}: take {take.row.method}"
    if not advice.compared:
        alone = not advice.untested
        why = "the only method within the limits" if alone else "the highest AUROC, but not tested against the others"
        return f"{named}: {why}; {_costs(take)}"
    if advice.near == 1 and _is_first(take.near):
        why = f"surely better than each of the {advice.compared - 1} others compared"
    elif advice.near == 1:
        why = f"of {advice.compared} compared, the only one that none is surely better than"
    elif not others and _is_first(take.far):
        why = (
            f"{advice.near} of {advice.compared} are not separable from the best by near AUROC, and of these it is "
            "surely the best by far AUROC"
        )
    else:
        why = (
            f"the highest AUROC of the {1 + len(others)} that are not separable from the best, of {advice.compared} "
            "compared"
            if others
            else f"of {advice.near} not separable from the best by near AUROC, the only one that none is surely better "
            "than by far AUROC"
        )
    return f"{named}: {why}; {_costs(take)}"


def _is_first(found: RankRange | None) -> bool:
    """Whether a method is surely better than every other; to be worse than none is less."""
    return found is not None and found.best == found.worst == 1


def best_table(advice: Advice) -> Table:
    """Return the methods that no other is surely better than, with what they cost and need."""
    rows = tuple(_row(candidate) for candidate in advice.best)
    notes = [
        f"Ranks that each may have, by paired tests on the same images (family-wise error 5 %): near among the "
        f"{advice.compared} compared, far among those that may be the best by near AUROC. Too little data to tell two "
        "methods apart does not make them equally good."
    ] * bool(advice.compared)
    if advice.untested:
        shown = ", ".join(f"{c.row.method} {_auroc(c)}" for c in advice.untested[:_SHOWN])
        more = f", and {len(advice.untested) - _SHOWN} more" if len(advice.untested) > _SHOWN else ""
        notes.append(
            f"Not tested, as scores on the same images are not published (near AUROC): {shown}{more} — "
            "python -m openbench publish"
        )
    notes.append(
        "ms per image: besides the network's own pass, by the machine of the record; – where the passes that gradients "
        "take were not timed. Learnt: what the method keeps besides the network, measured by fitting it on noise of "
        "the same shape; – where that cannot be. Process: its peak, Python and PyTorch included, and in a sweep the "
        "runs before it: an upper bound."
    )
    if advice.deviations:
        notes.append(f"Not the benchmark as defined: {'; '.join(advice.deviations)}")
    return Table(f"Not separable from the best · {' · '.join(advice.about)}", _COLUMNS, rows, notes=tuple(notes))


def out_table(advice: Advice) -> Table:
    """Return the methods beyond the limits, best first, and why."""
    columns = (Column("method"), Column("near AUROC ↑", "percent"), Column("why not"))
    rows = tuple((c.row.method, c.row.values.get("near auroc"), c.out) for c in advice.out[:_SHOWN])
    more = len(advice.out) - len(rows)
    notes = (f"and {more} more",) if more > 0 else ()
    return Table(f"Beyond the limits · {' · '.join(advice.about)}", columns, rows, notes=notes)


def as_values(advice: Advice) -> dict[str, Any]:
    """Return a recommendation as plain values."""
    return {
        "about": list(advice.about),
        "words": in_words(advice),
        "take": advice.best[0].row.method if advice.best else None,
        "best": [_values(candidate) for candidate in advice.best],
        "compared": advice.compared,
        "untested": [_values(candidate) for candidate in advice.untested],
        "out": [_values(candidate) | {"why": candidate.out} for candidate in advice.out],
        "deviations": list(advice.deviations),
    }


def _row(candidate: Candidate) -> tuple[Cell, ...]:
    row = candidate.row
    return (
        row.method,
        row.settings,
        row.values.get("near auroc"),
        row.values.get("far auroc"),
        _ranks(candidate.near),
        _ranks(candidate.far),
        None if candidate.ms is None else float(f"{candidate.ms:.3g}"),
        None if candidate.learnt_mb is None else float(f"{candidate.learnt_mb:.3g}"),
        None if candidate.mb is None else float(f"{candidate.mb:.0f}"),
        _needs(candidate),
    )


def _ranks(found: RankRange | None) -> str | None:
    return None if found is None else f"{found.best}" if found.best == found.worst else f"{found.best}–{found.worst}"


def _values(candidate: Candidate) -> dict[str, Any]:
    row = candidate.row
    ranks = {"near": candidate.near, "far": candidate.far}
    numbers = {
        key.replace(" ", "_"): value.value if isinstance(value, Estimate) else value
        for key, value in row.values.items()
    }
    return {
        "method": row.method,
        "settings": row.settings,
        **numbers,
        "ranks": {group: None if found is None else [found.best, found.worst] for group, found in ranks.items()},
        "ms_per_image": candidate.ms,
        "memory_mb": candidate.learnt_mb,
        "process_mb": candidate.mb,
        "needs": None if candidate.needs is None else list(candidate.needs),
        "runs": list(row.runs),
    }


def _costs(candidate: Candidate) -> str:
    time = (
        "the time of its extra passes was not measured" if candidate.ms is None else f"{candidate.ms:.3g} ms per image"
    )
    learnt = "" if candidate.learnt_mb is None else f", {candidate.learnt_mb:,.3g} MB learnt"
    return f"{time} besides the network's pass{learnt}, needs {_needs(candidate)}"


def _needs(candidate: Candidate) -> str:
    if candidate.needs is None:
        return "unknown"
    return (
        ", ".join(f"{need} of the input" if need == GRADIENTS else need for need in candidate.needs) or "nothing more"
    )


def _nearest(advice: Advice) -> str:
    """Why the cheapest is out, so that the limits can be set."""
    times = [c.ms for c in advice.out if c.ms is not None]
    sizes = [c.learnt_mb for c in advice.out if c.learnt_mb is not None]
    found = [f"the least time measured is {min(times):.3g} ms per image"] if times else []
    found += [f"the least that is learnt {min(sizes):,.3g} MB"] if sizes else []
    return "; ".join(found) or "nothing is measured"


def _auroc(candidate: Candidate) -> str:
    return cell_text(candidate.row.values.get("near auroc"), _PERCENT).split(" ")[0]
