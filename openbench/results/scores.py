"""Per-sample scores on disk, so that a new metric needs no model."""

import os
import secrets
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from openbench.core.request import Role
from openbench.core.scores import SplitScores
from openbench.errors import CacheError

if TYPE_CHECKING:
    import pyarrow as pa

COLUMNS = ("set", "role", "score", "label", "prediction", "correct")


def per_set_name(run_id: str, ood_set: str) -> str:
    """Return the name under which scores are kept that a run chose for one OOD set, those of the ID side included."""
    return f"{run_id}.{ood_set}"


class ScoreStore:
    """One parquet file per run: columns set, role, score, label, prediction, correct; one row per image.

    Rows stand in manifest order, split after split. `correct` is null for OOD images. Scores belong to the cache: they
    can be computed again, so an existing file is replaced.

    Args:
        root: the folder of the files.
    """

    def __init__(self, root: str | Path) -> None:
        self.root = Path(root)

    def path(self, run_id: str) -> Path:
        """Return the file of a run, whether it exists or not."""
        return self.root / f"{run_id}.parquet"

    def write(self, run_id: str, scores: Sequence[SplitScores]) -> Path:
        """Write the scores of a run and return the file.

        Raises:
            CacheError: two splits share name and role, there is none, or the folder cannot be written.
        """
        names = [(s.role, s.name) for s in scores]
        if not names or len(set(names)) < len(names):
            raise CacheError(
                f"scores of run {run_id} — found the sets {[f'{r}/{n}' for r, n in names]} — "
                "allowed: at least one, each role and name once"
            )
        import pyarrow.parquet as pq

        path = self.path(run_id)
        temporary = path.with_name(f".{run_id}.{os.getpid()}.{secrets.token_hex(4)}.tmp")
        try:
            self.root.mkdir(parents=True, exist_ok=True)
            pq.write_table(_table(run_id, scores), temporary, compression="zstd", write_page_checksum=True)
            os.replace(temporary, path)
        except OSError as error:
            raise CacheError(
                f"scores cannot be written to '{self.root}' — {error.strerror or error} — choose another cache: "
                "runtime.cache=DIR or OPENBENCH_CACHE"
            ) from error
        finally:
            with suppress(OSError):
                temporary.unlink()
        return path

    def read(self, run_id: str) -> list[SplitScores]:
        """Return the scores of a run, split by split, in the order written.

        Raises:
            CacheError: there are none, or the file is not what was written.
        """
        path = self.path(run_id)
        if not path.is_file():
            raise CacheError(f"scores of run {run_id} not found in '{self.root}' — repeat the run to compute them")
        import pyarrow as pa
        import pyarrow.parquet as pq

        try:
            table = pq.read_table(path, page_checksum_verification=True)
            if tuple(table.column_names) != COLUMNS:
                raise ValueError(f"columns {table.column_names}, expected {list(COLUMNS)}")
            return _splits(table)
        except (OSError, ValueError, pa.ArrowException) as error:
            raise CacheError(f"{path}: not the scores of a run — {error} — delete it and repeat the run") from error


def _table(run_id: str, scores: Sequence[SplitScores]) -> "pa.Table":
    import pyarrow as pa

    def joined(parts: list[np.ndarray]) -> np.ndarray:
        return np.concatenate(parts)

    repeated = [len(s.scores) for s in scores]
    # OOD images have no right class; their `correct` is masked to null.
    correct = joined([np.zeros(len(s.scores), bool) if s.correct is None else s.correct for s in scores])
    unknown = joined([np.full(len(s.scores), s.correct is None) for s in scores])
    columns = {
        "set": pa.array(np.repeat([s.name for s in scores], repeated)).dictionary_encode(),
        "role": pa.array(np.repeat([s.role.value for s in scores], repeated)).dictionary_encode(),
        "score": pa.array(joined([np.asarray(s.scores, np.float32) for s in scores])),
        "label": pa.array(joined([np.asarray(s.labels, np.int64) for s in scores])),
        "prediction": pa.array(joined([np.asarray(s.predictions, np.int64) for s in scores])),
        "correct": pa.array(correct, mask=unknown),
    }
    # `splits` keeps a split that has no rows, and the order.
    order = "\n".join(f"{s.role.value}/{s.name}" for s in scores)
    return pa.table(columns).replace_schema_metadata({"run_id": run_id, "splits": order})


def _splits(table: "pa.Table") -> list[SplitScores]:
    metadata = table.schema.metadata or {}
    names, roles = (table.column(name).to_numpy() for name in ("set", "role"))
    found = []
    for entry in metadata.get(b"splits", b"").decode().split("\n"):
        role, _, name = entry.partition("/")
        rows = (names == name) & (roles == role)
        numbers = {c: table.column(c).to_numpy()[rows] for c in ("score", "label", "prediction")}
        found.append(
            SplitScores(
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
