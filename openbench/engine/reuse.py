"""What is said about a record that is shown instead of being computed."""

from pathlib import Path

from openbench.core.method import Method
from openbench.core.record import ResultRecord
from openbench.core.source import foreign_classes, foreign_sources, source_of
from openbench.engine.outcome import RunOutcome
from openbench.results.origin import made_by

_VERIFY = "add runtime.on_existing=verify"
METHOD_SOURCE = "method_source"  # key of the provenance: {module: SHA-256 of its file}


def reused(record: ResultRecord, path: Path, method: Method) -> RunOutcome:
    """Return the outcome of a run whose record is there: who made it, and whether a foreign method has changed since.

    Args:
        record: the record that was found.
        path: its file.
        method: as it would be run now.
    """
    notes = [f"reused: nothing was computed — made by {made_by(record)} — to compute it again and compare, {_VERIFY}"]
    warnings: list[str] = []
    then, now = record.provenance.get(METHOD_SOURCE) or {}, foreign_sources(method)
    changed = [cls for cls in foreign_classes(method) if then.get(cls.__module__) != now.get(cls.__module__)]
    name = f"method '{record.method.get('name')}'"
    if not foreign_classes(method):
        pass
    elif not then:
        notes.append(
            f"{name} is not part of openbench, and this record does not say what its source was: edits since then are "
            f"not noticed — after an edit, {_raise_version(foreign_classes(method)[0])}"
        )
    elif changed:
        files = ", ".join(dict.fromkeys(_file(cls) for cls in changed))
        warnings.append(
            f"WARNING: {files} has changed since this record was made: the numbers below are those of the old source\n"
            f"  to compute with the new one, {_raise_version(changed[0])} and run again, which makes another record\n"
            f"  to see whether the old numbers still hold, {_VERIFY}"
        )
    else:
        files = ", ".join(dict.fromkeys(_file(cls) for cls in foreign_classes(method)))
        notes.append(f"{name} is not part of openbench: {files} is as it was; files that it imports are not looked at")
    return RunOutcome(record, path, "skipped", tuple(notes), tuple(warnings))


def _raise_version(cls: type) -> str:
    return f"write `version: ClassVar[int] = {getattr(cls, 'version', 1) + 1}` in class {cls.__name__}"


def _file(cls: type) -> str:
    found = source_of(cls)
    return cls.__module__ if found is None else found.name
