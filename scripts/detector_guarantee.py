"""How often a detector's promise is kept: false alarms and false discoveries over many calibration draws.

    python scripts/detector_guarantee.py detector/ +benchmark=cifar10 [draws=200] [calibration=1000] [KEY=VALUE …]

All ID test images of the benchmark are scored once, with images of its OOD sets; ID validation images too, unless the
method has learnt from them (also by tuning, which a detector does not tell: give one that was not tuned). Each draw
then calibrates on some of the ID scores and judges the others, for both kinds of p-values, and for Benjamini–Hochberg
on batches of 180 ID and 20 OOD images.
"""

import sys

import numpy as np

import openbench as ob
from openbench.compose.composed import composed
from openbench.core.request import Role
from openbench.data.benchmark_config import BenchmarkConfig
from openbench.data.build import open_benchmark
from openbench.detect.calibration import Calibration, Terms
from openbench.detect.network import learns_from
from openbench.metrics.conformal.p_values import benjamini_hochberg

ALPHAS = (0.01, 0.05, 0.1)
FDR, ID_IN_BATCH, OOD_IN_BATCH, BATCHES = 0.1, 180, 20, 20
MOST_OOD = 1000  # images of each OOD set


def scores_of(detector, splits, most=None):
    """The scores of the first images of some splits, joined."""
    parts = []
    for split in splits:
        images = [split.items[row] for row in range(min(len(split), most or len(split)))]
        parts.append(detector.predict(images).score.astype(np.float64))
    return np.concatenate(parts)


def false_alarms(known, others):
    """{(alpha, kind): (share of `others` called OOD, whether it is above alpha)} after calibration on `known`."""
    found = {}
    for alpha in ALPHAS:
        p = Calibration(known, Terms(alpha=alpha)).judged(others)
        for kind, values in (("marginal", p.marginal), ("conditional", p.conditional)):
            share = float((values <= alpha).mean())
            found[alpha, kind] = share, share > alpha
    return found


def discoveries(calibration, id_scores, ood_scores, rng):
    """(kind, false discovery proportion, share of OOD selected), each a mean over the batches of one draw."""
    rows = {"marginal": [], "conditional": []}
    for _ in range(BATCHES):
        batch = np.append(rng.choice(id_scores, ID_IN_BATCH, False), rng.choice(ood_scores, OOD_IN_BATCH, False))
        p = calibration.judged(batch)
        for kind, values in (("marginal", p.marginal), ("conditional", p.conditional)):
            chosen = benjamini_hochberg(values, FDR)
            rows[kind].append((chosen[:ID_IN_BATCH].sum() / max(1, chosen.sum()), chosen[ID_IN_BATCH:].mean()))
    return {kind: np.mean(pairs, axis=0) for kind, pairs in rows.items()}


def main(argv):
    """Print the tables."""
    own = dict(word.split("=") for word in argv[1:] if word.startswith(("draws=", "calibration=")))
    draws, size = int(own.get("draws", 200)), int(own.get("calibration", 1000))
    detector = ob.load_detector(argv[0])
    words = [word for word in argv[1:] if not word.startswith(("draws=", "calibration="))]
    benchmark = open_benchmark(BenchmarkConfig.parse(composed("run", words).config["benchmark"]), reader="")
    known = Role.ID_VAL in learns_from(detector.chosen.method)
    id_scores = scores_of(detector, [benchmark.id_test] if known else [benchmark.id_test, benchmark.id_val])
    ood_scores = scores_of(detector, [*benchmark.near.values(), *benchmark.far.values()], MOST_OOD)
    print(f"{detector}: {len(id_scores):,} ID and {len(ood_scores):,} OOD scores, {draws} draws of {size} to calibrate")
    alarms, found = [], []
    for draw in range(draws):
        rng = np.random.default_rng(draw)
        order = rng.permutation(id_scores)
        known, others = order[:size], order[size:]
        alarms.append(false_alarms(known, others))
        found.append(discoveries(Calibration(known, Terms()), others, ood_scores, rng))
    print("\nfalse alarms           mean over draws (promise)   standard error   draws above α (promise)")
    for alpha in ALPHAS:
        for kind in ("marginal", "conditional"):
            shares, above = np.array([draw[alpha, kind] for draw in alarms]).T
            limit = "≤ 5 %" if kind == "conditional" else "–"
            error = shares.std(ddof=1) / np.sqrt(draws)
            print(
                f"α = {alpha:<5g} {kind:<12} {100 * shares.mean():6.2f} % (≤ {100 * alpha:g} %)"
                f"{100 * error:18.3f} %{100 * above.mean():15.1f} % ({limit})"
            )
    print(f"\nBenjamini–Hochberg at {FDR:g}, batches of {ID_IN_BATCH} ID and {OOD_IN_BATCH} OOD: per draw")
    for kind in ("marginal", "conditional"):
        fdp, power = np.array([draw[kind] for draw in found]).T
        above = 100 * (fdp > FDR).mean()
        print(
            f"{kind:<12} false discovery proportion {100 * fdp.mean():.2f} % (≤ {100 * FDR:g} %), above it in "
            f"{above:.1f} % of draws; {100 * power.mean():.1f} % of OOD selected"
        )


if __name__ == "__main__":
    main(sys.argv[1:])
