"""Detectors fitted on the ID images of a benchmark, with the hyper-parameters of a record."""

import logging
from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from openbench.api.methods import as_node
from openbench.core.request import Role
from openbench.core.runtime import Runtime
from openbench.core.search import ChosenMethod, with_params
from openbench.detect.calibration import Terms
from openbench.detect.detector import Detector
from openbench.detect.network import learns_from
from openbench.detect.saved import check_savable, licences, refuse_unsavable
from openbench.engine import prepare
from openbench.engine.evaluate import CachedFeatures
from openbench.errors import ConfigError, check_choice
from openbench.results.records.store import RecordStore

logger = logging.getLogger(__name__)


def fit_on_benchmark(
    config: Mapping[str, Any],
    runtime: Mapping[str, Any],
    terms: Terms,
    calibration: str = "id_test",
    network: str = "weights",
) -> tuple[Detector, dict[str, float]]:
    """Return a calibrated detector, and the share called OOD of each ID split that neither fit nor calibration saw.

    Hyper-parameters are those of the record of this run if it was tuned, else those of the config.

    Args:
        config: the scientific nodes.
        runtime: the runtime node.
        terms: of the guarantee.
        calibration: the ID split to calibrate on: `id_test`, which nothing has learnt from, or `id_val`.
        network: how it will be saved, as `weights` or `onnx`.

    Raises:
        ConfigError: calibration on ID validation of a method that was tuned on it or is fitted on it.
        NotApplicableError: a method or a network that cannot be saved; nothing is computed then.
        OpenbenchError: as `run`.
    """
    check_choice("fit.calibration", calibration, ("id_test", "id_val"))
    check_choice("fit.network", network, ("weights", "onnx"))
    setting = Runtime.from_config(runtime)
    unfitted = prepare.build_method(config["method"])
    refuse_unsavable(unfitted.method)
    spec = prepare.prepare(config, setting, method=unfitted)
    existing = RecordStore(setting.records).find(spec.run_id)
    tuned = dict(existing[0].tuned) if existing else {}
    method = with_params(spec.method, tuned) if tuned else spec.method
    fitted_on = learns_from(method)
    if calibration == "id_val" and (tuned or Role.ID_VAL in fitted_on):
        why = "was tuned on it" if tuned else "is fitted on it"
        raise ConfigError(f"calibration=id_val: method '{spec.method_name}' {why} — use calibration=id_test")
    if spec.space and spec.tuning.strategy != "none" and not existing:
        logger.info("no record of this run: hyper-parameters as in the config; `run` tunes them and writes a record")
    benchmark = spec.benchmark
    chosen = ChosenMethod(spec.method_name, method, as_node(method), {})
    detector = Detector(spec.backbone, chosen, classes=benchmark.classes, batch_size=setting.batch_size)
    data = {"benchmark": benchmark.name, "benchmark_digest": benchmark.digest, "calibrated_on": calibration}
    made_of = {"weights_sha256": spec.backbone.weights_sha256, "method_reference": type(spec.method).reference}
    of_record = {"record": existing[0].run_id} if existing else {}
    licensed = {"licences": licences(spec.config["backbone"], benchmark.id_test.name)}
    detector.about = {**data, **made_of, **licensed, **of_record}
    detector.backbone, detector.node = spec.backbone, dict(spec.config["backbone"])
    check_savable(detector, network)
    source = CachedFeatures.of(spec.backbone, setting)
    train = benchmark.id_train if Role.ID_TRAIN in fitted_on else benchmark.id_val if Role.ID_VAL in fitted_on else None
    detector.fit(train, benchmark.id_val if Role.ID_VAL in fitted_on else None, features=source)
    splits = {"id_test": benchmark.id_test, "id_val": benchmark.id_val}
    logger.info(f"calibration: {len(splits[calibration]):,} images of {calibration}")
    detector.calibrate(splits.pop(calibration), **asdict(terms))
    seen = tuned or Role.ID_VAL in fitted_on
    unseen = {name: split for name, split in splits.items() if not (seen and name == "id_val")}
    return detector, {name: float(detector.predict(split.items).is_ood.mean()) for name, split in unseen.items()}
