"""Per-sample scores on disk, so that a new metric needs no model.

Beside the scores of a run lie class probabilities and a method's scores by class, of which prediction sets are made.
"""

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from openbench.core.request import Role
from openbench.core.scores import SetScores
from openbench.digest import array_sha256, digest, file_sha256
from openbench.errors import CacheError
from openbench.storage.files import forbidden, replacing

if TYPE_CHECKING:
    import pyarrow as pa

PUBLISHED = "scores"  # folder of published scores, next to `records`
_DIGEST = b"digest"
_NAME = 32  # hexadecimal digits of a digest that name a file
_SUFFIX = ".by_class"
MOST_VALUES = 4_000_000  # of each kind in a run: 10,000 images of 400 classes; more are not stored
_SCORES = b"scores"  # key of the digest of the scores that a file by class belongs to
_PROBABILITIES = "probabilities"  # folder of the network's class probabilities, and key of their digest
# Field of a set's scores → prefix of its columns.
_KINDS = {"probabilities": "p", "class_scores": "s", "class_probabilities": "q"}


def per_set_name(run_id: str, ood_set: str) -> str:
    """Return the name of the scores of a run for one OOD set, where each set has its own scores of the ID side."""
    return f"{run_id}.{ood_set}"


class ScoreStore:
    """One parquet file per run: columns set, role, score, label, prediction, correct; one row per image.

    Rows stand in manifest order, split after split. `correct` is null for OOD images; it and `prediction` are null
    where nothing is classified. Numbers by class lie in a second file; the network's class
    probabilities, which many methods share, in a file that is named by their digest. Scores belong to the cache: they
    can be computed again, so an existing file is replaced.

    Args:
        root: the folder of the files.
    """

    def __init__(self, root: str | Path) -> None:
        self.root = Path(root)

    def path(self, run_id: str) -> Path:
        """Return the file of a run, whether it exists or not."""
        return self.root / f"{run_id}.parquet"

    def by_class(self, run_id: str) -> Path:
        """Return the file of a run's class probabilities, whether it exists or not."""
        return self.root / f"{run_id}{_SUFFIX}.parquet"

    def probabilities(self, content: str) -> Path:
        """Return the file of class probabilities with this digest, whether it exists or not."""
        return self.root / _PROBABILITIES / f"{content}.parquet"

    def state(self, run_id: str) -> str:
        """Return a digest of the files of a run as they are now; empty if there are none."""
        digests = [file_sha256(path) for path in (self.path(run_id), self.by_class(run_id)) if path.is_file()]
        return digest(digests, 32) if digests else ""

    def write(self, run_id: str, scores: Sequence[SetScores]) -> Path:
        """Write the scores of a run and its numbers by class, and return the file of the scores.

        Raises:
            CacheError: the folder cannot be written.
        """
        path, table = self.path(run_id), _table(run_id, scores)
        sets, fields = _with_numbers(scores)
        about: dict[Any, Any] = {"run_id": run_id, _SCORES: table.schema.metadata[_DIGEST]}
        try:
            # Scores of this run never stand next to class probabilities of an earlier one.
            self.by_class(run_id).unlink(missing_ok=True)
            _write(path, table)
            if "probabilities" in fields:  # the network's, unless another run has written them
                fields.remove("probabilities")
                shared = _class_table(sets, ["probabilities"], {})
                about[_PROBABILITIES] = shared.schema.metadata[_DIGEST].decode()[:_NAME]
                if not self.probabilities(about[_PROBABILITIES]).is_file():
                    _write(self.probabilities(about[_PROBABILITIES]), shared)
            if sets:
                _write(self.by_class(run_id), _class_table(sets, fields, about))
        except OSError as error:
            raise CacheError(
                f"scores cannot be written to '{self.root}' ({error.strerror or error}) — choose another cache: "
                "runtime.cache=DIR or OPENBENCH_CACHE"
            ) from error
        return path

    def keep(self, scores: Mapping[str, Sequence[SetScores]]) -> tuple[str, ...]:
        """Write scores by name; return a warning if the folder is read-only, as a shared cache may be.

        Raises:
            CacheError: as for `write`, except for a read-only folder.
        """
        try:
            for name, sets in scores.items():
                self.write(name, sets)
        except CacheError as error:
            if not forbidden(error.__cause__):
                raise
            return (f"WARNING: {error}; the record is complete, but what is made from scores will lack this run",)
        return ()

    def read(self, run_id: str) -> list[SetScores]:
        """Return the scores of a run, split by split, in the order written.

        Raises:
            CacheError: there are none, or the file is not what was written.
        """
        with self._table(run_id, self.path(run_id)) as table:
            return _splits(table)

    def read_whole(self, run_id: str) -> list[SetScores]:
        """Return the scores of a run with the class probabilities of ID val and ID test, if they were stored.

        Raises:
            CacheError: as for `read`, or the class probabilities belong to other scores.
        """
        with self._table(run_id, self.path(run_id)) as table:
            sets, content = _splits(table), table.schema.metadata[_DIGEST]
        if not self.by_class(run_id).is_file():
            return sets
        with self._table(run_id, self.by_class(run_id)) as table:
            sets, shared = _with_classes(sets, table), table.schema.metadata.get(_PROBABILITIES.encode(), b"").decode()
            if table.schema.metadata[_SCORES] != content:
                raise ValueError("class probabilities that belong to other scores")
            if shared and not re.fullmatch(f"[0-9a-f]{{{_NAME}}}", shared):
                raise ValueError(f"'{shared}' is not a digest")
        if not shared:
            return sets
        with self._table(run_id, self.probabilities(shared)) as table:
            if not table.schema.metadata[_DIGEST].startswith(shared.encode()):
                raise ValueError("others")
            return _with_classes(sets, table)

    @contextmanager
    def _table(self, run_id: str, path: Path) -> Iterator["pa.Table"]:
        """Yield the content of a file, and refuse one that is not what was written."""
        import pyarrow as pa
        import pyarrow.parquet as pq

        if not path.is_file():
            raise CacheError(f"scores of run {run_id} not found in '{self.root}' — repeat the run to compute them")
        try:
            with pq.ParquetFile(path, page_checksum_verification=True) as file:  # read_table takes twice as long
                table = file.read()
            stated = (table.schema.metadata or {}).get(_DIGEST, b"")
            if stated.decode(errors="replace") != _content_digest(table):
                raise ValueError("the scores have changed since they were written")
            yield table
        except (OSError, ValueError, KeyError, pa.ArrowException) as error:
            raise CacheError(f"{path}: not the scores of a run ({error}) — delete it and repeat the run") from error


def _write(path: Path, table: "pa.Table") -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    path.parent.mkdir(parents=True, exist_ok=True)
    # Bytes of the same place of all floats together take a quarter less; hardly any two floats are equal.
    floats = [field.name for field in table.schema if pa.types.is_floating(field.type)]
    words = [name for name in table.column_names if name not in floats]
    options = {"use_dictionary": words, "use_byte_stream_split": floats, "write_page_checksum": True}
    with replacing(path) as stream:
        pq.write_table(table, stream, compression="zstd", **options)


def scores_digest(sets: Sequence[SetScores]) -> str:
    """Return the digest of the scores alone, by which equal scores are found whatever run they are filed under."""
    return digest([[str(s.role), s.name, array_sha256(s.scores)] for s in sets], 64)


def first_with(run_id: str, folders: Iterable[Path]) -> ScoreStore | None:
    """Return the first of some folders that has the scores of a run, or None.

    Args:
        run_id: of the run.
        folders: published scores before cached ones, which may have been computed again since.
    """
    return next((store for store in map(ScoreStore, folders) if store.path(run_id).is_file()), None)


def _content_digest(table: "pa.Table") -> str:
    """Digest of every value of every column, and of the metadata: page checksums do not cover a file's footer."""
    import pyarrow as pa

    about = {k.decode(errors="replace"): v.decode(errors="replace") for k, v in (table.schema.metadata or {}).items()}
    about.pop(_DIGEST.decode(), None)
    digests = {}
    for name in table.column_names:
        column = table.column(name).combine_chunks()
        if pa.types.is_dictionary(column.type):
            column = column.dictionary_decode()
        missing = column.is_null().to_numpy(zero_copy_only=False)
        if pa.types.is_string(column.type):
            values = column.dictionary_encode()
            parts = [values.dictionary.to_pylist(), array_sha256(values.indices.fill_null(-1).to_numpy())]
        else:
            zero = pa.scalar(0).cast(column.type)
            parts = [str(column.type), array_sha256(column.fill_null(zero).to_numpy(zero_copy_only=False))]
        digests[name] = [*parts, array_sha256(missing)]
    return digest([about, digests], 64)


def _table(run_id: str, scores: Sequence[SetScores]) -> "pa.Table":
    import pyarrow as pa

    # OOD images have no right class; their `correct` is masked to null.
    correct = [np.zeros(len(s.scores), bool) if s.correct is None else s.correct for s in scores]
    unknown = np.repeat([s.correct is None for s in scores], [len(s.scores) for s in scores])
    predicted = np.concatenate([np.asarray(s.predictions, np.int64) for s in scores])
    columns = {
        "score": pa.array(np.concatenate([_exact(s.scores) for s in scores])),
        "label": pa.array(np.concatenate([np.asarray(s.labels, np.int64) for s in scores])),
        "prediction": pa.array(predicted, mask=predicted < 0),
        "correct": pa.array(np.concatenate(correct), mask=unknown),
    }
    # `splits` keeps a split that has no rows, and the order.
    order = "\n".join(f"{s.role}/{s.name}" for s in scores)
    return _digested(scores, columns, {"run_id": run_id, "splits": order})


def _exact(scores: np.ndarray) -> np.ndarray:
    """Scores as float32, in which runs compute them; given ones may need float64."""
    narrow = np.asarray(scores, np.float32)
    return narrow if np.array_equal(narrow, scores) else np.asarray(scores, np.float64)


def _digested(sets: Sequence[SetScores], columns: Mapping[str, Any], about: Mapping[Any, Any]) -> "pa.Table":
    """A table of columns with the set and the role of each row, and the digest of all that."""
    import pyarrow as pa

    counts = [len(s.scores) for s in sets]
    words = {"set": [s.name for s in sets], "role": [str(s.role) for s in sets]}
    places = {
        name: pa.array(np.repeat(np.array(each, object), counts), pa.string()).dictionary_encode()
        for name, each in words.items()
    }
    table = pa.table({**places, **columns}).replace_schema_metadata(about)
    return table.replace_schema_metadata({**about, _DIGEST: _content_digest(table)})


def _with_numbers(scores: Sequence[SetScores]) -> tuple[list[SetScores], list[str]]:
    """The sets that have numbers by class, and the kinds that all of these have; no kind if there are too many."""
    sets = [s for s in scores if s.probabilities is not None or s.class_scores is not None]
    fields = [field for field in _KINDS if sets and all(getattr(s, field) is not None for s in sets)]
    sizes = [sum(getattr(s, field).size for s in sets) for field in fields]
    return (sets, fields) if fields and max(sizes) <= MOST_VALUES else ([], [])


def _class_table(sets: Sequence[SetScores], fields: Sequence[str], about: Mapping[Any, Any]) -> "pa.Table":
    """The numbers by class of some kinds, a row per image; float32 and float64 stay what they are."""
    import pyarrow as pa

    numbers = {_KINDS[field]: np.concatenate([np.asarray(getattr(s, field)) for s in sets]) for field in fields}
    columns = {f"{kind}_{k}": pa.array(column) for kind, rows in numbers.items() for k, column in enumerate(rows.T)}
    return _digested(sets, columns, about)


def _with_classes(scores: Sequence[SetScores], table: "pa.Table") -> list[SetScores]:
    """Return sets with the numbers by class that a table of `_class_table` has of them.

    Raises:
        ValueError: rows do not fit the sets.
        KeyError: a column is missing.
    """
    numbers, rows_of = dict[str, Any](), _rows_of(table)
    for field, prefix in _KINDS.items():
        if count := sum(name.startswith(f"{prefix}_") for name in table.column_names):
            numbers[field] = np.stack([table.column(f"{prefix}_{k}").to_numpy() for k in range(count)], axis=1)
    sets, used = [], 0
    for s in scores:
        rows = rows_of(str(s.role), s.name)
        if rows.any() and int(rows.sum()) != len(s.scores):
            raise ValueError(f"{int(rows.sum())} rows of {s.role}/{s.name}, which has {len(s.scores)} images")
        used += int(rows.sum())
        sets.append(replace(s, **{field: values[rows] for field, values in numbers.items()}) if rows.any() else s)
    if used != table.num_rows:
        raise ValueError(f"{table.num_rows} rows, of which {used} belong to sets of the run")
    return sets


def _splits(table: "pa.Table") -> list[SetScores]:
    metadata, rows_of = table.schema.metadata or {}, _rows_of(table)
    scores, *classes = (table.column(c).fill_null(-1).to_numpy() for c in ("score", "label", "prediction"))
    labels, predictions = (np.asarray(column, np.int64) for column in classes)
    splits = []
    for entry in metadata.get(b"splits", b"").decode().split("\n"):
        role, _, name = entry.partition("/")
        rows = rows_of(role, name)
        splits.append(SetScores.of_split(name, Role(role), scores[rows], labels[rows], predictions[rows]))
    if sum(len(s.scores) for s in splits) != table.num_rows:
        raise ValueError(f"{table.num_rows} rows, of which the sets named in its metadata hold fewer")
    return splits


def _rows_of(table: "pa.Table") -> Callable[[str, str], NDArray[np.bool_]]:
    """What returns whether a row belongs to a set (n,), given its role and name; texts are compared once each."""
    columns = [table.column(name).dictionary_encode().combine_chunks() for name in ("role", "set")]
    texts = [column.dictionary.to_pylist() for column in columns]
    role_of, set_of = (column.indices.to_numpy(zero_copy_only=False) for column in columns)

    def rows(role: str, name: str) -> NDArray[np.bool_]:
        here = [place.index(text) if text in place else -1 for place, text in zip(texts, (role, name), strict=True)]
        return np.asarray((role_of == here[0]) & (set_of == here[1]))

    return rows
