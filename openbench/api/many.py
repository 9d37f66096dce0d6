"""The results of several models: what each gives, and one table of them all."""

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from openbench.api.result import Results

if TYPE_CHECKING:
    import pandas as pd


class ModelResults(Mapping[str, Results]):
    """The results of several models on one benchmark, in the order in which they were given."""

    def __init__(self, results: Mapping[str, Results]) -> None:
        self._results = dict(results)

    def __getitem__(self, model: str) -> Results:
        return self._results[model]

    def __iter__(self) -> Iterator[str]:
        return iter(self._results)

    def __len__(self) -> int:
        return len(self._results)

    def table(self) -> "pd.DataFrame":
        """Return the tables of all models as one, with the model as the first level of the rows."""
        import pandas as pd

        results: dict[str, Any] = dict(self._results)
        return pd.concat({name: pd.DataFrame(one.table()) for name, one in results.items()}, names=["model"])

    def _repr_html_(self) -> str:
        return str(self.table()._repr_html_())  # type: ignore[operator]

    def __repr__(self) -> str:
        return f"ModelResults of {', '.join(self)}: each a mapping from methods to results; .table() shows them all"
