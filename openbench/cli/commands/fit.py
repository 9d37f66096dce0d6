"""`fit`: a benchmark's method and network as a detector with a guarantee, in a folder of its own."""

import argparse
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from openbench.cli.process import OK
from openbench.errors import ConfigError, OpenbenchError, did_you_mean
from openbench.paths import writable

# Key → its value where it is left out; the others are overrides of the config.
_OWN: dict[str, Any] = {
    "alpha": 0.05,
    "delta": 0.05,
    "guarantee": "marginal",
    "correction": "monte_carlo",
    "coverage": None,
    "calibration": "id_test",
    "network": "weights",
    "bank": "exact",
    "out": None,
}
_EPILOG = """\
keys of its own, beside the overrides of `run`:
  out=PATH              a new folder, or a file that ends in .zip
  alpha=0.05            share of ID images that may be called OOD
  guarantee=marginal    on average over calibration sets; conditional: for the set at hand, with probability 1 - delta
  delta=0.05            probability that the calibration set is an unlucky one
  correction=monte_carlo  of calibration-conditional p-values
  coverage=null         of prediction sets; null = 1 - alpha
  network=weights       how it is kept; onnx: a graph that onnxruntime runs, for networks whose classifier is text
  bank=exact            of methods that keep training features; float16: half the room; ivf: searched in part, so that
                        one image takes less time; ivf_float16: both. What it changes is measured, told and kept
  calibration=id_test   the ID images to calibrate on; id_val only for what was neither tuned nor fitted on it

  python -m openbench fit +benchmark=cifar10 backbone=resnet20_cifar10 method=knn alpha=0.05 out=detector/
  python -m openbench score detector/ photos/ camera.jpg > scores.parquet
"""


def main(argv: list[str]) -> int:
    """Run the command line `argv` and return its exit code."""
    from openbench.storage.yaml_file import parse_yaml

    words = _parser().parse_args(argv).override
    own, overrides = dict(_OWN), []
    for text in words:
        key, sign, value = text.partition("=")
        if sign and key in _OWN:
            own[key] = value if key == "out" else parse_yaml(value, f"'{text}'")
        else:
            overrides.append(text)
            _refuse_near(key)
    if not own["out"]:
        raise ConfigError("out is not given — say where the detector goes, e.g. out=detector/")
    out = Path(own.pop("out"))
    if out.exists():
        raise ConfigError(
            f"out='{out}' exists — a detector is written to a new place — delete it, or give another path"
        )
    writable(out, "out")
    return _fit(overrides, own, out)


def _fit(overrides: list[str], own: dict[str, Any], out: Path) -> int:
    from openbench.cli.hydra.app import Call
    from openbench.compose.composed import composed
    from openbench.detect.calibration import Terms
    from openbench.detect.from_benchmark import Held, fit_on_benchmark
    from openbench.results.escape import console, console_lines

    places = {key: own.pop(key) for key in ("calibration", "network", "bank")}
    held = Held(Terms(**own), **places)
    job = composed("run", overrides)
    say = Call(job.config, job.runtime).say
    detector, measured = fit_on_benchmark(job.config, job.runtime, held, say)
    digest = detector.save(out, held.network)
    try:
        _check(out)
    except OpenbenchError:
        shutil.rmtree(out, ignore_errors=True)
        out.unlink(missing_ok=True)
        raise
    print(console_lines(detector.promise))
    for name, share in measured.items():
        print(f"of {name}, which it has not seen: {100 * share:.2f} % called OOD")
    for line in _bank_lines(detector.about.get("bank")):
        print(line)
    for part, licence in detector.about["licences"].items():
        print(console_lines(f"licence of the {part}: {licence}"))
    print(f"written {console(str(out))}, digest {digest}")
    return OK


def _bank_lines(change: Mapping[str, Any] | None) -> list[str]:
    """What another bank than the exact one changes."""
    if change is None:
        return []
    used, exact, differ = (100 * change[key] for key in ("auroc", "auroc_exact", "decisions_changed"))
    mean, largest = change["p_value_change"], change["p_value_change_largest"]
    return [
        f"bank={change['bank']}: AUROC on OOD validation {used:.3f} %, with the exact bank {exact:.3f} %",
        f"p-values of {change['images']:,} images: changed by {mean:.2g} on average, by {largest:.2g} at most; "
        f"{differ:.3g} % of decisions differ",
    ]


def _check(out: Path) -> None:
    """Load what was written: one that could not be loaded is of no use."""
    from openbench.detect.saved import load_detector

    load_detector(out)


def _refuse_near(key: str) -> None:
    near = did_you_mean(key, _OWN)
    if near and not key.startswith(("+", "~")) and "." not in key and key not in ("tune", "seed", "runtime", "metrics"):
        raise ConfigError(f"key '{key}' not found{near} (python -m openbench fit --help)")


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m openbench fit",
        description="Fit a method on a benchmark's ID images, calibrate it on held-out ones, and write a detector.",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("override", nargs="+", metavar="KEY=VALUE", help="+benchmark=NAME backbone=NAME method=NAME …")
    return parser
