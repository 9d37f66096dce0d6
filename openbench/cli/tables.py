"""What a finished run shows on the console."""

from openbench.core.record import ResultRecord


def headline(record: ResultRecord) -> str:
    """Return one line for a record: what was run, near and far AUROC in percent."""
    parts = [f"{record.benchmark['name']} {record.method['name']}"]
    for group in ("near", "far"):
        value = record.metrics.get(group, {}).get("auroc")
        if isinstance(value, float | int):
            parts.append(f"{group} AUROC {100 * value:.2f}")
    return ", ".join(parts)
