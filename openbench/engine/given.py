"""Records of scores that were given: their numbers are computed here, and nobody ran the code that made the scores."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from openbench.config.overrides import NAME
from openbench.core.record import ResultRecord, RunIdentity
from openbench.core.request import Role
from openbench.core.scores import SetScores
from openbench.data.benchmark_config import BenchmarkConfig
from openbench.data.manifests import Manifest
from openbench.digest import digest
from openbench.engine.provenance import WARNINGS, made_here, score_warnings
from openbench.errors import ConfigError, DataError, listed
from openbench.metrics.suite import describe, evaluate
from openbench.public import public
from openbench.results.records.settings import GIVEN, given_of
from openbench.results.records.store import RecordStore
from openbench.results.scores.recompute import options_of
from openbench.results.scores.stored import scores_digest
from openbench.results.submissions import differing_counts

NAMED, NOT_NAMED = "named", "not named"
_PARTS = ("near", "far", "csid")  # groups of sets, which may be missing
_SHOWN = 5
Names = Mapping[str, Sequence[str]]  # `role/set` → the names of its images in the order of the benchmark's list


@dataclass(frozen=True)
class Listed:
    """The sets of a benchmark as its lists have them.

    Args:
        counts: `role/set` → the number of images; only of sets whose number the lists say.
        names: `role/set` → the names of the images.
        identities: `role/set` → digest of its list.
    """

    counts: Mapping[str, int]
    names: Names
    identities: Mapping[str, str]

    @classmethod
    def of(cls, benchmark: BenchmarkConfig) -> "Listed":
        """Return the sets that have scores.

        Raises:
            ConfigError: sets of the benchmark are joined or limited, so that lists do not say which images count.
        """
        counts, names, identities = dict[str, int](), dict[str, Sequence[str]](), dict[str, str]()
        for entry in benchmark.sets:
            config = entry.config
            if entry.role in (Role.ID_TRAIN, Role.OOD_TRAIN):
                continue
            if entry.member or config.limit is not None:
                raise ConfigError(f"benchmark.{entry.path} is joined or limited — scores of such sets cannot be given")
            group, _, name = entry.path.partition(".")
            key, listing = f"{entry.role}/{name if group in _PARTS else config.name}", config.listing()
            identities[key] = config.identity()
            if isinstance(listing, Manifest):
                counts[key], names[key] = len(listing), listing.keys
            elif listing.size is not None:
                counts[key] = listing.size
        return cls(counts, names, identities)


def measured_on(benchmark: str, sets: Sequence[SetScores], records: RecordStore) -> ResultRecord | None:
    """Return a record that was measured here on a benchmark with as many images of each set; None without one.

    Args:
        benchmark: its name.
        sets: scores.
        records: where the record is looked for; of several, one with the benchmark as defined is returned.
    """
    alike = []
    for path in records.paths():
        if path.relative_to(records.folder).parts[0] == benchmark:
            record = records.read(path)
            known = {key: count["n"] for key, count in record.counts.items()}
            if not given_of(record) and not differing_counts(known, sets):
                alike.append(record)
    return max(alike, key=lambda record: bool(record.benchmark.get("pristine")), default=None)


def given_record(
    sets: Sequence[SetScores],
    method: Mapping[str, Any],
    backbone: Mapping[str, Any],
    config: Mapping[str, Any],
    *,
    like: ResultRecord | None,
    names: Names,
) -> tuple[ResultRecord, list[SetScores]]:
    """Return the record of given scores, and the scores in the order of the benchmark's lists where images are named.

    Args:
        sets: the scores.
        method: that made them: `name`, and its `reference`.
        backbone: the network that made them: `name` and `training`.
        config: the plain nodes `benchmark` and `metrics`, and `seed` if records with other seeds are the same method's.
        like: a record with as many images, whose benchmark they are of; None = compare with the lists.
        names: of the images of incomplete sets; those of complete ones are in the lists.

    Raises:
        DataError: counts that are not the benchmark's, or images that are not in its lists.
    """
    benchmark = BenchmarkConfig.parse(config["benchmark"])
    lists = Listed.of(benchmark)
    sets, named = _in_order(sets, {**lists.names, **names})
    sets = _as_stored(sorted(sets, key=lambda s: (s.role, s.name)))
    block = dict(like.benchmark) if like else _compared_with_lists(benchmark, lists, sets)
    images = {key: names for key, names in (block.pop("images", None) or {}).items() if like}
    nodes = {
        **public(config),
        **({"benchmark": like.config.get("benchmark")} if like else {}),
        "backbone": {"name": backbone["name"]},
        "method": {NAME: method["name"]},
        GIVEN: {"sha256": scores_digest(sets), "images": NAMED if named else NOT_NAMED},
    }
    warnings = score_warnings(f"'{method['name']}'", sets)
    record = ResultRecord(
        run_id="",
        config=nodes,
        benchmark=block | ({"images": images} if images else {}),
        backbone=dict(backbone),
        method={"version": 0, "params": {}, **method},
        tuned={},
        trials=[],
        metrics={},
        header="",
        counts={key: {"n": n, "expected": lists.counts.get(key, n)} for key, n in counts_of(sets).items()},
        provenance=made_here() | ({WARNINGS: warnings} if warnings else {}),
        config_digest=digest(nodes),
    )
    options = options_of(record)
    return replace(
        record, run_id=RunIdentity.of(record).run_id, metrics=evaluate(sets, options), header=describe(options)
    ), sets


def _in_order(sets: Sequence[SetScores], names: Names) -> tuple[list[SetScores], bool]:
    """The sets in the order of the lists, and whether all their images are named."""
    ordered = []
    for s in sets:
        key = f"{s.role}/{s.name}"
        if s.images is None or key not in names:
            return list(sets), False
        other = sorted({*s.images} ^ {*names[key]})
        if other or len(s.images) != len(names[key]):
            raise DataError(
                f"images of {key} are not those of the benchmark's list: "
                f"{', '.join(other[:_SHOWN]) or 'an image twice'} — name them as the list does, or leave the column "
                "`image` out"
            )
        place = {name: at for at, name in enumerate(s.images)}
        rows = np.array([place[name] for name in names[key]])
        columns = {
            column: None if (values := getattr(s, column)) is None else values[rows]
            for column in ("scores", "correct", "labels", "probabilities", "predictions")
        }
        ordered.append(replace(s, images=tuple(names[key]), **columns))  # type: ignore[arg-type]
    return ordered, True


def counts_of(sets: Sequence[SetScores]) -> dict[str, int]:
    """Return `role/set` → the number of images."""
    return {f"{s.role}/{s.name}": len(s.scores) for s in sets}


def _as_stored(sets: Sequence[SetScores]) -> list[SetScores]:
    """The sets as files of scores hold them: labels and predictions −1 where unknown, float32 if that is exact."""
    with np.errstate(over="ignore"):
        exact = all(np.array_equal(s.scores.astype(np.float32), s.scores) for s in sets)
    stored = []
    for s in sets:
        predictions = s.predictions
        if predictions is None and s.probabilities is not None:
            predictions = s.probabilities.argmax(axis=1)
        labels, predicted = (
            np.full(len(s.scores), -1, np.int64) if values is None else np.asarray(values, np.int64)
            for values in (s.labels, predictions)
        )
        scores = s.scores.astype(np.float32 if exact else np.float64)
        split = SetScores.of_split(s.name, Role(s.role), scores, labels, predicted)
        # Prediction sets need the true classes.
        stored.append(replace(split, probabilities=None if s.labels is None else s.probabilities))
    return stored


def _compared_with_lists(benchmark: BenchmarkConfig, lists: Listed, sets: Sequence[SetScores]) -> dict[str, Any]:
    """The benchmark of a record, from its lists.

    Raises:
        DataError: other counts, unless the benchmark may be incomplete and there are fewer.
    """
    counts = counts_of(sets)
    expected = {key: lists.counts.get(key, counts.get(key, 1)) for key in lists.identities}
    deviations = [f"{path}: dropped" for path in benchmark.removed]
    if benchmark.incomplete == "allow":
        missing = [key for key in expected if key.startswith(("near/", "far/")) and key not in counts]
        fewer = {key: n for key, n in counts.items() if n < expected.get(key, 0)}
        deviations += [f"{key.replace('/', '.')}: dropped" for key in missing]
        deviations += [f"{key}: {n} of {expected[key]} images" for key, n in fewer.items()]
        expected = {key: fewer.get(key, n) for key, n in expected.items() if key not in missing}
    if problems := differing_counts(expected, sets):
        drop = "leave sets out (~benchmark.far.NAME) or record what is missing (benchmark.incomplete=allow)"
        raise DataError(
            f"scores are not of benchmark '{benchmark.typed}': {listed(problems, _SHOWN, '; ', '; ')}"
            + f" — {drop}" * (benchmark.incomplete != "allow")
        )
    identities = {key: identity for key, identity in lists.identities.items() if key in expected}
    return {
        "name": benchmark.name,
        "digest": digest({"lists": identities, "deviations": deviations}),
        "pristine": not deviations,
        "deviations": deviations,
    }
