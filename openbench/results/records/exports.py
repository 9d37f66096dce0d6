"""A record in the formats of others: Hugging Face's evaluation results, and a row for a paper with its citation."""

import re
from collections.abc import Iterator
from typing import Any

import yaml

from openbench.core.record import ResultRecord
from openbench.errors import ConfigError
from openbench.results.escape import latex, one_line
from openbench.results.records.origin import made_by
from openbench.results.records.settings import hyper_parameters, network_of
from openbench.results.tables.render import Estimate
from openbench.results.tables.views import GROUPS, estimate

EVAL_RESULTS, LATEX_ROW = "eval-results", "latex-row"
_HUB_ID = re.compile(r"[\w.-]+/[\w.-]+")
_ARXIV = re.compile(r"arXiv (\d{4}\.\d{4,5})")
_YEAR = re.compile(r"(?<![\d./])(?:19|20)\d{2}(?![\d.]*\d)")
_YEAR_OF_ID = re.compile(r"\b(\d{2})(?:0[1-9]|1[0-2])\.\d{4,5}\b")
_TITLES = {"auroc": "AUROC", "fpr95": "FPR@95"}


def eval_results(record: ResultRecord, dataset: str, revision: str = "", source: str = "", user: str = "") -> str:
    """Return the YAML of `.eval_results/NAME.yaml` in a model's repository on the Hub.

    An entry for each of near and far AUROC and FPR@95 and for ID accuracy, in percent; its task is e.g. `near_auroc`.

    Args:
        record: any.
        dataset: the benchmark's data set on the Hub, as ORG/NAME.
        revision: commit of that data set; empty if it is not known.
        source: URL of logs or of a paper; empty for none.
        user: the account on the Hub to which the result is attributed; needs a source.

    Raises:
        ConfigError: no data set, or a user without a source.

    Reference: https://huggingface.co/docs/hub/eval-results
    """
    if not _HUB_ID.fullmatch(dataset):
        raise ConfigError(
            f"--format {EVAL_RESULTS}: the data set on the Hub is {dataset or 'missing'} — name it: --dataset ORG/NAME"
        )
    if user and not source:
        raise ConfigError(f"--user {user} needs the address of the result — add --source URL")
    about = {"id": dataset} | ({"revision": revision} if revision else {})
    by = {"url": source, "name": f"openbench record {record.run_id}"} | ({"user": user} if user else {})
    entries = [
        {
            "dataset": {**about, "task_id": f"{name}_{key}"},
            "value": round(100 * value, 4),
            **({"date": str(record.provenance["utc"])} if "utc" in record.provenance else {}),
            **({"source": dict(by)} if source else {}),
            "notes": one_line(_notes(record, name, key)),
        }
        for name, key, value in _numbers(record)
        if isinstance(value, float | int)
    ]
    return str(yaml.safe_dump(entries, sort_keys=False, allow_unicode=True, width=120))


def _notes(record: ResultRecord, name: str, key: str) -> str:
    level = (record.config.get("metrics") or {}).get("confidence", 0.95)
    value, interval = estimate(record.metrics[name], key), []
    if isinstance(value, Estimate) and value.low is not None and value.high is not None:
        interval = [f"{100 * level:g} % interval [{100 * value.low:.2f}, {100 * value.high:.2f}]"]
    settings = hyper_parameters(record.method.get("params") or {})
    deviations = record.benchmark.get("deviations") or ()
    parts = [
        f"percent; {record.method.get('name')}{f' ({settings})' if settings else ''} on {network_of(record)}",
        f"benchmark {record.benchmark.get('name')}, digest {record.benchmark.get('digest')}",
        *interval,
        made_by(record),
        *([f"not the benchmark as defined: {'; '.join(map(str, deviations))}"] if deviations else []),
    ]
    return "; ".join(parts)


def _numbers(record: ResultRecord) -> Iterator[tuple[str, str, Any]]:
    """Set or group, key and value of what a row has; None where there is none."""
    places = [*((name, key) for name in GROUPS for key in _TITLES), ("id", "accuracy")]
    return ((name, key, record.metrics.get(name, {}).get(key)) for name, key in places)


def year_of(reference: str) -> str:
    """Return the year in a reference, else that of its arXiv id; empty if it names none."""
    if match := _YEAR.search(reference):
        return match.group()
    return f"20{match.group(1)}" if (match := _YEAR_OF_ID.search(reference)) else ""


def latex_row(record: ResultRecord) -> str:
    """Return a row of a LaTeX table whose method is cited, below its columns, and the BibTeX entry of the citation.

    Numbers are percent. A method without a reference is not cited.

    Args:
        record: any.
    """
    name, reference = str(record.method.get("name")), str(record.method.get("reference") or "")
    year, arxiv = year_of(reference), _ARXIV.search(reference)
    key = re.sub(r"[^A-Za-z0-9]", "", name) + year
    columns = ["method", *(f"{of} {_TITLES.get(what, what)}".replace("id ", "ID ") for of, what, _ in _numbers(record))]
    cells = [
        "--" if value is None else f"{100 * value:.2f}" if isinstance(value, float | int) else latex(str(value))
        for _, _, value in _numbers(record)
    ]
    cite = rf"~\cite{{{key}}}" if reference else ""
    lines = [f"% {' & '.join(columns)}", rf"{latex(name)}{cite} & {' & '.join(cells)} \\"]
    if reference:
        authors = latex(reference.partition(",")[0].replace(" et al.", " and others").replace(" & ", " and "))
        fields = [
            f"author = {{{authors}}}",
            f"title = {{{{{latex(name)}}}}}",
            *([f"year = {{{year}}}"] if year else []),
            *([f"eprint = {{{arxiv[1]}}}", "archiveprefix = {arXiv}"] if arxiv else []),
            f"note = {{{latex(one_line(reference))}}}",
        ]
        lines += ["", f"@misc{{{key},", *(f"  {line}," for line in fields), "}"]
    return "\n".join(lines) + "\n"
