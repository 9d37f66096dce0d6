"""A detector made of a benchmark's ID images, with the hyper-parameters of the record that it is chosen by."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from types import MappingProxyType
from typing import Annotated, Any, Literal

import numpy as np

from openbench.api.methods import as_node
from openbench.api.models.adopt import Asked
from openbench.config.constraints import Checked, OneOf
from openbench.core.benchmark import Split
from openbench.core.method import Method
from openbench.core.request import Role
from openbench.core.runtime import Runtime
from openbench.core.search import ChosenMethod, with_params
from openbench.detect.calibration import Calibration, Terms
from openbench.detect.detector import Detector
from openbench.detect.network import Network, learns_from
from openbench.detect.saved import check_savable, licences
from openbench.detect.state import refuse_unsavable
from openbench.engine import prepare
from openbench.engine.evaluate import CachedFeatures, Fitting, Scoring, feature_store, fit, score_split
from openbench.engine.provenance import Clock
from openbench.engine.run import RunSpec
from openbench.errors import ConfigError
from openbench.metrics.curve import Floats, auroc
from openbench.results.records.store import RecordStore
from openbench.say import Say, silent

Bank = Literal["exact", "float16", "ivf", "ivf_float16"]
_HALF, _LISTS = {"precision": "float16"}, {"index": "ivf"}
# Bank → the hyper-parameters of a method that keeps one.
BANKS: Mapping[Bank, Mapping[str, Any]] = MappingProxyType(
    {"exact": {}, "float16": _HALF, "ivf": _LISTS, "ivf_float16": {**_LISTS, **_HALF}}
)


@dataclass(frozen=True)
class Sides:
    """The scores of one fitted method on the sets by which two are compared, (n,) each.

    Args:
        held_out: of the images that it is calibrated on.
        others: of other ID images.
        ood: of OOD images.
    """

    held_out: Floats
    others: Floats
    ood: Floats


@dataclass(frozen=True)
class Change:
    """What another bank changes, each being calibrated on scores of its own.

    Args:
        bank: that is used.
        auroc: with it, in [0, 1].
        auroc_exact: with the exact one.
        p_value_change: the mean of the absolute differences of p-values.
        p_value_change_largest: the largest of them.
        decisions_changed: the share of images about which the decision differs.
        images: by which p-values and decisions are compared.
    """

    bank: str
    auroc: float
    auroc_exact: float
    p_value_change: float
    p_value_change_largest: float
    decisions_changed: float
    images: int

    def plain(self) -> dict[str, Any]:
        """For the manifest."""
        return asdict(self)


def with_bank(method: Method, bank: Bank, name: str) -> Method:
    """Return an unfitted method that keeps its training features in another way.

    Args:
        method: unfitted.
        bank: how.
        name: of the method, for messages.

    Raises:
        ConfigError: it keeps no bank, or its config says already how.
    """
    wanted = BANKS[bank]
    if not wanted:
        return method
    given = method.params()
    if not {"index", "precision"} <= set(given):
        raise ConfigError(
            f"bank={bank}: method '{name}' keeps no bank of training features that can be searched so — leave bank "
            "out, or choose method=knn"
        )
    if (given["index"], given["precision"]) != ("exact", "float32"):
        raise ConfigError(
            f"bank={bank}: method.index={given['index']} is given too — leave one of them out; bank also measures "
            "what it changes"
        )
    return with_params(method, dict(wanted))


def change(bank: Bank, exact: Sides, used: Sides, terms: Terms) -> Change:
    """Return what a bank changes.

    Args:
        bank: that is used.
        exact: scores with the exact one.
        used: scores with that one.
        terms: what is promised.
    """
    before, after = (
        Calibration(sides.held_out, terms).judged(np.append(sides.others, sides.ood)) for sides in (exact, used)
    )
    apart = np.abs(after.marginal - before.marginal)
    return Change(
        bank=bank,
        auroc=auroc(used.others, used.ood),
        auroc_exact=auroc(exact.others, exact.ood),
        p_value_change=float(apart.mean()),
        p_value_change_largest=float(apart.max()),
        decisions_changed=float((after.is_ood != before.is_ood).mean()),
        images=apart.size,
    )


HELD_OUT = ("id_test", "id_val")


@dataclass(frozen=True)
class Held(Checked):
    """On which images a detector is calibrated, and what is then promised.

    Args:
        terms: what is promised.
        calibration: the ID split: `id_test`, which nothing has learnt from, or `id_val`.
        network: as what it will be saved: `weights` or `onnx`.
        bank: how a method that keeps training features keeps them: `exact`, `float16` (half the room), `ivf` (searched
            in part) or `ivf_float16`.
    """

    named = "fit"

    terms: Terms
    calibration: Annotated[str, OneOf(HELD_OUT)] = "id_test"
    network: Annotated[str, OneOf(("weights", "onnx"))] = "weights"
    bank: Bank = "exact"


def fit_on_benchmark(
    config: Mapping[str, Any], runtime: Mapping[str, Any], held: Held, say: Say = silent
) -> tuple[Detector, dict[str, float]]:
    """Return a calibrated detector, and the share called OOD of each ID split that neither fit nor calibration saw.

    Hyper-parameters are those of the record of this run, where there is one and it was tuned; else the config's.

    Args:
        config: the scientific nodes.
        runtime: the runtime node.
        held: on which images it is calibrated.
        say: receives a line for everything that takes long.

    Raises:
        ConfigError: calibration on ID validation of a method that was tuned on it or is fitted on it, or another bank
            than the exact one where there is no OOD validation.
        NotApplicableError: a method or a network that cannot be saved; nothing is computed then.
        OpenbenchError: whatever `run` refuses.
    """
    setting = Runtime.from_config(runtime)
    unfitted = prepare.build_method(config["method"])
    refuse_unsavable(unfitted.method)
    with_bank(unfitted.method, held.bank, unfitted.name)  # refused before anything is loaded
    spec = prepare.prepare(config, setting, say, method=unfitted)
    if held.bank != "exact":
        _ood_val(spec, held)  # refused before it is fitted
    check_savable(spec.backbone, held.network)
    existing = RecordStore(setting.records).find(spec.run_id)
    tuned = dict(existing[0].tuned) if existing else {}
    exact = with_params(spec.method, tuned) if tuned else spec.method
    method = with_bank(exact, held.bank, spec.method_name)
    fitted_on = learns_from(method)
    if held.calibration == "id_val" and (tuned or Role.ID_VAL in fitted_on):
        why = "was tuned on it" if tuned else "is fitted on it"
        raise ConfigError(
            f"calibration=id_val: method '{spec.method_name}' {why}, so scores of new images would be larger — use "
            "calibration=id_test"
        )
    if spec.space and spec.tuning.strategy != "none" and not existing:
        say("no record of this run: the hyper-parameters are the config's; `run` tunes them and leaves a record")
    benchmark = spec.benchmark
    chosen = ChosenMethod(spec.method_name, method, as_node(method), {})
    detector = Detector(spec.backbone, chosen, classes=benchmark.classes, batch_size=setting.batch_size)
    detector.about = _about(spec, existing[0].run_id if existing else "", held)
    detector.use(Network(spec.backbone, dict(spec.config["backbone"])), Asked(device=spec.backbone.device))
    source = CachedFeatures(feature_store(setting, say), spec.backbone, Clock(), say)
    train = benchmark.id_train if Role.ID_TRAIN in fitted_on else benchmark.id_val if Role.ID_VAL in fitted_on else None
    detector.fit(train, benchmark.id_val if Role.ID_VAL in fitted_on else None, features=source)
    splits = {"id_test": benchmark.id_test, "id_val": benchmark.id_val}
    if held.bank != "exact":
        say(f"bank={held.bank}: comparing it with the exact one")
        detector.about = {**detector.about, "bank": _change(spec, (exact, detector.learnt.method), held, source)}
    say(f"calibration: {len(splits[held.calibration]):,} images of {held.calibration}")
    terms = held.terms
    detector.calibrate(
        splits.pop(held.calibration),
        terms.alpha,
        delta=terms.delta,
        correction=terms.correction,
        guarantee=terms.guarantee,
        coverage=terms.coverage,
    )
    seen = tuned or Role.ID_VAL in fitted_on
    unseen = {name: split for name, split in splits.items() if not (seen and name == "id_val")}
    return detector, {name: float(detector.judged(split.items).is_ood.mean()) for name, split in unseen.items()}


def _change(spec: RunSpec, methods: tuple[Method, Method], held: Held, source: CachedFeatures) -> dict[str, Any]:
    """What another bank than the exact one changes; of methods, the second is fitted."""
    benchmark, (exact, used) = spec.benchmark, methods
    device = spec.backbone.device
    before = fit(exact, Fitting.of(benchmark, spec.backbone.head), source, device)
    sets = (benchmark.id_test, benchmark.id_val, _ood_val(spec, held))
    if held.calibration == "id_val":
        sets = (benchmark.id_val, benchmark.id_test, sets[2])
    sides = [
        Sides(*(score_split(method, split, Scoring(source, device)).astype(np.float64) for split in sets))
        for method in (before, used)
    ]
    return change(held.bank, sides[0], sides[1], held.terms).plain()


def _ood_val(spec: RunSpec, held: Held) -> Split:
    """The OOD images on which another bank is compared with the exact one."""
    if spec.benchmark.ood_val is None:
        raise ConfigError(
            f"bank={held.bank}: what it changes is measured on OOD validation — benchmark '{spec.benchmark.name}' has "
            "none — leave bank out, or add ood_val"
        )
    return spec.benchmark.ood_val


def _about(spec: RunSpec, run_id: str, held: Held) -> dict[str, Any]:
    """Where a detector comes from, as its manifest tells."""
    found: dict[str, Any] = {
        "benchmark": spec.benchmark.name,
        "benchmark_digest": spec.benchmark.digest,
        "calibrated_on": held.calibration,
        "weights_sha256": spec.backbone.weights_sha256,
        "method_reference": type(spec.method).reference,
        "licences": licences(spec.config["backbone"], spec.benchmark.id_test.name),
    }
    return found | ({"record": run_id} if run_id else {})
