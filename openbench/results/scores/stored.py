"""Per-sample scores on disk, so that a new metric needs no model."""

import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from openbench.core.request import Role
from openbench.core.scores import SetScores
from openbench.digest import array_sha256, digest, file_sha256
from openbench.errors import CacheError
from openbench.results.scores.classes import (
    PROBABILITIES,
    SCORES,
    SUFFIX,
    by_class_table,
    joined,
    parted,
    repeated_words,
    with_classes,
)
from openbench.storage.files import forbidden, replacing

if TYPE_CHECKING:
    import pyarrow as pa

COLUMNS = ("set", "role", "score", "label", "prediction", "correct")
_DIGEST = b"digest"
_NAME = 32  # hexadecimal digits of a digest that name a file


def per_set_name(run_id: str, ood_set: str) -> str:
    """Return the name under which a run keeps the scores for one OOD set, with its own scores of the ID side."""
    return f"{run_id}.{ood_set}"


class ScoreStore:
    """One parquet file per run: columns set, role, score, label, prediction, correct; one row per image.

    Rows stand in manifest order, split after split. `correct` is null for OOD images; it and `prediction` are null
    where nothing is classified. What prediction sets are made of lies in a file beside it; the network's class
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
        return self.root / f"{run_id}{SUFFIX}.parquet"

    def probabilities(self, content: str) -> Path:
        """Return the file of class probabilities with this digest, whether it exists or not."""
        return self.root / PROBABILITIES / f"{content}.parquet"

    def state(self, run_id: str) -> str:
        """Return a digest of the files of a run as they are now; empty if there are none."""
        found = [file_sha256(path) for path in (self.path(run_id), self.by_class(run_id)) if path.is_file()]
        return digest(found, 32) if found else ""

    def write(self, run_id: str, scores: Sequence[SetScores]) -> Path:
        """Write the scores of a run, and its class probabilities beside them, and return the file of the scores.

        Raises:
            CacheError: two splits share name and role, there are no splits, or the folder cannot be written.
        """
        names = [(s.role, s.name) for s in scores]
        if not names or len(set(names)) < len(names):
            raise CacheError(
                f"scores of run {run_id} — found the sets {[f'{r}/{n}' for r, n in names]} — "
                "allowed: at least one, each role and name once"
            )
        import pyarrow.parquet as pq

        path, table, classes = self.path(run_id), _table(run_id, scores), by_class_table(run_id, scores)
        try:
            # Never scores of this run beside class probabilities of an earlier one.
            self.by_class(run_id).unlink(missing_ok=True)
            with replacing(path) as stream:
                pq.write_table(table, stream, compression="zstd", write_page_checksum=True)
            if classes is not None:
                self._write_classes(run_id, classes, table.schema.metadata[_DIGEST])
        except OSError as error:
            raise CacheError(
                f"scores cannot be written to '{self.root}' — {error.strerror or error} — choose another cache: "
                "runtime.cache=DIR or OPENBENCH_CACHE"
            ) from error
        return path

    def _write_classes(self, run_id: str, classes: "pa.Table", scores: bytes) -> None:
        """Write the numbers by class, and the network's class probabilities unless another run has written them."""
        own, shared = parted(classes)
        about = {**classes.schema.metadata, SCORES: scores}
        if shared is not None:
            shared = _digested(shared)
            content = shared.schema.metadata[_DIGEST].decode()[:_NAME]
            about[PROBABILITIES] = content
            if not self.probabilities(content).is_file():
                _write_table(self.probabilities(content), shared)
        _write_table(self.by_class(run_id), _digested(own.replace_schema_metadata(about)))

    def keep(self, scores: Mapping[str, Sequence[SetScores]]) -> tuple[str, ...]:
        """Write scores by name; return a warning if the folder is read-only, as a shared cache may be.

        Raises:
            CacheError: as for `write`, except for a read-only folder.
        """
        try:
            for name, found in scores.items():
                self.write(name, found)
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
        return self._sets(run_id)[0]

    def read_whole(self, run_id: str) -> list[SetScores]:
        """Return the scores of a run with the class probabilities of ID val and ID test, if those were kept.

        Raises:
            CacheError: as for `read`, or the class probabilities are not those of these scores.
        """
        (sets, table), path = self._sets(run_id), self.by_class(run_id)
        if not path.is_file():
            return sets
        classes = self._table(run_id, path)
        about = classes.schema.metadata or {}
        shared = about.get(PROBABILITIES.encode(), b"").decode(errors="replace")
        try:
            if about.get(SCORES) != (table.schema.metadata or {}).get(_DIGEST):
                raise ValueError("they belong to other scores")
            if shared:
                classes = joined(classes, self._probabilities(run_id, shared))
            return with_classes(sets, classes)
        except ValueError as error:
            raise CacheError(
                f"{path}: not the class probabilities of run {run_id} — {error} — delete it, or repeat the run"
            ) from error

    def _sets(self, run_id: str) -> tuple[list[SetScores], "pa.Table"]:
        table, path = self._table(run_id, self.path(run_id)), self.path(run_id)
        try:
            return _splits(table), table
        except ValueError as error:
            raise CacheError(f"{path}: not the scores of a run — {error} — delete it and repeat the run") from error

    def _probabilities(self, run_id: str, content: str) -> "pa.Table":
        if not re.fullmatch(f"[0-9a-f]{{{_NAME}}}", content):
            raise ValueError(f"'{content}' is not a digest")
        table = self._table(run_id, self.probabilities(content))
        if not (table.schema.metadata or {}).get(_DIGEST, b"").startswith(content.encode()):
            raise ValueError(f"{self.probabilities(content)} holds others")
        return table

    def _table(self, run_id: str, path: Path) -> "pa.Table":
        """The content of a file, checked."""
        if not path.is_file():
            raise CacheError(f"scores of run {run_id} not found in '{self.root}' — repeat the run to compute them")
        import pyarrow as pa
        import pyarrow.parquet as pq

        try:
            with pq.ParquetFile(path, page_checksum_verification=True) as file:  # read_table takes twice as long
                table = file.read()
            if path == self.path(run_id) and tuple(table.column_names) != COLUMNS:
                raise ValueError(f"columns {table.column_names}, expected {list(COLUMNS)}")
            check_unchanged(table)
            return table
        except (OSError, ValueError, pa.ArrowException) as error:
            raise CacheError(f"{path}: not the scores of a run — {error} — delete it and repeat the run") from error


def _write_table(path: Path, table: "pa.Table") -> None:
    import pyarrow.parquet as pq

    path.parent.mkdir(parents=True, exist_ok=True)
    with replacing(path) as stream:
        pq.write_table(table, stream, compression="zstd", use_dictionary=["set", "role"], write_page_checksum=True)


def first_with(run_id: str, folders: Iterable[Path]) -> ScoreStore | None:
    """Return the first of some folders that has the scores of a run, or None.

    Args:
        run_id: of the run.
        folders: published scores before kept ones, which may have been made again since.
    """
    return next((store for store in map(ScoreStore, folders) if store.path(run_id).is_file()), None)


def check_unchanged(table: "pa.Table") -> None:
    """Check that a table of kept scores holds what was written.

    Raises:
        ValueError: a value, the name of a set, or their order has changed, or there is no digest to tell by.
    """
    stated = (table.schema.metadata or {}).get(_DIGEST, b"")
    if stated.decode(errors="replace") != _content_digest(table):
        raise ValueError("the scores have changed since they were written")


def _content_digest(table: "pa.Table") -> str:
    """Digest of every value of every column, and of the metadata: page checksums do not cover a file's footer."""
    import pyarrow as pa

    about = {k.decode(errors="replace"): v.decode(errors="replace") for k, v in (table.schema.metadata or {}).items()}
    about.pop(_DIGEST.decode(), None)
    found = {}
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
        found[name] = [*parts, array_sha256(missing)]
    return digest([about, found], 64)


def _table(run_id: str, scores: Sequence[SetScores]) -> "pa.Table":
    import pyarrow as pa

    def joined(parts: list[np.ndarray]) -> np.ndarray:
        return np.concatenate(parts)

    repeated = [len(s.scores) for s in scores]
    # OOD images have no right class; their `correct` is masked to null.
    correct = joined([np.zeros(len(s.scores), bool) if s.correct is None else s.correct for s in scores])
    unknown = joined([np.full(len(s.scores), s.correct is None) for s in scores])
    predicted = joined([np.asarray(s.predictions, np.int64) for s in scores])
    columns = {
        "set": repeated_words([s.name for s in scores], repeated),
        "role": repeated_words([str(s.role) for s in scores], repeated),
        "score": pa.array(joined([np.asarray(s.scores, np.float32) for s in scores])),
        "label": pa.array(joined([np.asarray(s.labels, np.int64) for s in scores])),
        "prediction": pa.array(predicted, mask=predicted < 0),
        "correct": pa.array(correct, mask=unknown),
    }
    # `splits` keeps a split that has no rows, and the order.
    order = "\n".join(f"{s.role}/{s.name}" for s in scores)
    return _digested(pa.table(columns).replace_schema_metadata({"run_id": run_id, "splits": order}))


def _digested(table: "pa.Table") -> "pa.Table":
    return table.replace_schema_metadata({**table.schema.metadata, _DIGEST: _content_digest(table)})


def _splits(table: "pa.Table") -> list[SetScores]:
    metadata = table.schema.metadata or {}
    names, roles = (table.column(name).to_numpy() for name in ("set", "role"))
    found = []
    for entry in metadata.get(b"splits", b"").decode().split("\n"):
        role, _, name = entry.partition("/")
        rows = (names == name) & (roles == role)
        numbers = {c: table.column(c).fill_null(-1).to_numpy()[rows] for c in ("score", "label", "prediction")}
        found.append(
            SetScores.of_split(
                name=name,
                role=Role(role),
                scores=np.asarray(numbers["score"], np.float32),
                labels=np.asarray(numbers["label"], np.int64),
                predictions=np.asarray(numbers["prediction"], np.int64),
            )
        )
    if sum(len(s.scores) for s in found) != table.num_rows:
        raise ValueError(f"{table.num_rows} rows, of which the sets named in its metadata hold fewer")
    return found
