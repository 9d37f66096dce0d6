"""Run detectors of pytorch-ood, OpenOOD and oodeel beside openbench's own and write the table of the manual.

    python scripts/compare_libraries.py                  # CIFAR-10 and its released ResNet-20; all libraries importable
    python scripts/compare_libraries.py --libraries pytorch_ood --images 200

Each detector gets the same hyper-parameters as openbench's method. All but ODIN read the features of one pass over all
images; ODIN runs the network, on the first images of each set. The script writes results/libraries.csv and the table in
docs/do/other_libraries.md.
"""

import argparse
import tempfile
from pathlib import Path
from typing import Any

import pandas as pd

import openbench as ob
from openbench.methods.libraries import LibraryDetector

ROOT = Path(__file__).resolve().parents[1]
CSV, PAGE = ROOT / "results" / "libraries.csv", ROOT / "docs" / "do" / "other_libraries.md"
BEGIN, END = "<!-- begin: results/libraries.csv -->\n", "<!-- end -->\n"
MODULES = {"pytorch_ood": "pytorch_ood.detector", "openood": "openood.postprocessors", "oodeel": "oodeel.methods"}
LIBRARIES = ("openbench", *MODULES)
# Method → detector and arguments, in the order of the libraries.
DETECTORS: dict[str, tuple[tuple[str, dict[str, Any]], ...]] = {
    "msp": (("msp", {}), ("MaxSoftmax", {}), ("BasePostprocessor", {}), ("MLS", {"output_activation": "softmax"})),
    "energy": (("energy", {}), ("EnergyBased", {}), ("EBOPostprocessor", {"temperature": 1}), ("Energy", {})),
    "knn": (("knn", {"k": 50}), ("KNN", {"k": 50}), ("KNNPostprocessor", {"K": 50}), ("DKNN", {"nearest": 50})),
    "mds": (("mds", {}), ("Mahalanobis", {}), ("MDSPostprocessor", {}), ("Mahalanobis", {"eps": 0.0})),
    "vim": (
        *(("vim", {"dim": 32}), ("ViM", {"d": 32}), ("VIMPostprocessor", {"dim": 32})),
        ("VIM", {"princ_dims": 32, "pca_origin": "pseudo"}),
    ),
    "react": (
        *(("react", {"percentile": 90.0}), ("ReAct", {"percentile": 0.9}), ("ReactPostprocessor", {"percentile": 90})),
        ("Energy", {"use_react": True, "react_quantile": 0.9}),
    ),
    "odin": (
        ("odin", {"temperature": 1000.0, "epsilon": 0.0014}),
        ("ODIN", {"temperature": 1000.0, "eps": 0.0014, "norm_std": [0.2470, 0.2435, 0.2616]}),
        ("ODINPostprocessor", {"temperature": 1000.0, "noise": 0.0014}),
        ("ODIN", {"temperature": 1000.0, "eps": 0.0014}),
    ),
}
SETS = ("id.test", "near.cifar100", "near.tin", "far.mnist", "far.texture")


def method(library: str, name: str, arguments: dict[str, Any]) -> Any:
    """The method of openbench, or another library's detector without a search."""
    if library == "openbench":
        return ob.method(name, **arguments)
    return LibraryDetector(f"{MODULES[library]}.{name}", kwargs=arguments, sweep={})


def evaluated(name: str, method: Any, overrides: list[str], results: Path) -> Any:
    """The result of a method on the images of CIFAR-10 that are here."""
    return ob.evaluate(
        "resnet20_cifar10",
        benchmark="cifar10",
        methods={name: method},
        tune="none",
        incomplete="allow",
        overrides=overrides,
        cache=results.parent / "cache" if overrides else None,
        results=results,
    )[name]


def measured(libraries: list[str], images: int) -> pd.DataFrame:
    """A row for each method and library: AUROC in percent, and passes of a scored image beyond its features."""
    rows = []
    live = [f"+benchmark.{name}.limit={images}" for name in SETS]
    with tempfile.TemporaryDirectory() as folder:
        for name, detectors in DETECTORS.items():
            if name == "odin":  # whose passes are counted beyond those that extract features, and not reused
                evaluated("msp", ob.method("msp"), live, Path(folder) / "openbench")
            for library, (detector, arguments) in zip(LIBRARIES, detectors, strict=True):
                if library not in ("openbench", *libraries):
                    continue
                chosen, limits = method(library, detector, arguments), live if name == "odin" else []
                result = evaluated(name, chosen, limits, Path(folder) / library)
                record = result.record
                scored = sum(found["n"] for key, found in record.counts.items() if "_train/" not in key)
                rows.append(
                    {
                        "method": name,
                        "library": library,
                        "detector": detector,
                        "version": {"openbench": ob.__version__, **record.provenance["libraries"]}.get(library, ""),
                        "near": 100 * float(result.metrics["near"]["auroc"]),
                        "far": 100 * float(result.metrics["far"]["auroc"]),
                        "passes": record.provenance["passes"] / scored,
                        "images": scored,
                    }
                )
                print(rows[-1], flush=True)
    return pd.DataFrame(rows).round({"near": 3, "far": 3, "passes": 2})


def as_page(table: pd.DataFrame) -> str:
    """The rows as a table in Markdown, with the difference to openbench's."""
    lines = ["| method | library | detector | near | far | difference | passes |", "| --- " * 7 + "|"]
    for row in table.itertuples():
        (ours,) = table[(table.method == row.method) & (table.library == "openbench")].itertuples()
        gap = "" if row.library == "openbench" else f"{row.near - ours.near:+.2f}, {row.far - ours.far:+.2f}"
        cells = (
            row.method,
            row.library,
            f"`{row.detector}`",
            f"{row.near:.2f}",
            f"{row.far:.2f}",
            gap,
            f"{row.passes:g}",
        )
        lines.append(f"| {' | '.join(map(str, cells))} |")
    return "\n".join(lines) + "\n"


def main() -> None:
    """Measure, and write the file and the page."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--libraries", default=",".join(MODULES), help="comma-separated")
    parser.add_argument("--images", type=int, default=500, help="of each set, for ODIN")
    given = parser.parse_args()
    measured(given.libraries.split(","), given.images).to_csv(CSV, index=False)
    before, _, rest = PAGE.read_text(encoding="utf-8").partition(BEGIN)
    after = rest.partition(END)[2]
    PAGE.write_text(before + BEGIN + as_page(pd.read_csv(CSV)) + END + after, encoding="utf-8")


if __name__ == "__main__":
    main()
