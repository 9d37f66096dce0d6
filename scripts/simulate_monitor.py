"""How often a monitor is wrong, and how soon it is right: on simulated p-values, and on the scores of a published run.

    python scripts/simulate_monitor.py 0f1eaf --lives 1000 --images 20000 --splits 100 --plot drift.png

1. Simulated lives in which nothing changes: the share that ever raises an alarm, against the promised level.
2. The ID scores of the run (validation and test), split at random into a calibration set and a stream, many times: the
   same share on real scores. Beside it the same bets on the p-values of the fixed calibration set as they are, which
   are not independent: why a monitor compares every image also with those before it.
3. A stream of 20,000 ID images, drawn with replacement from the ID scores as the calibration set is, that turns into
   each OOD set: after how many images the alarm is raised.
"""

import argparse
import math
from pathlib import Path

import numpy as np
from scipy.stats import beta

from openbench.detect.monitor.martingale import Martingale
from openbench.detect.monitor.monitor import Monitor
from openbench.results.records.store import RecordStore
from openbench.results.scores.stored import ScoreStore

CALIBRATION, LONG, OOD = 1000, 20_000, 500
BETS = ("mixture", "jumper", "both")


def interval(hits: int, of: int) -> str:
    """A share in % with its exact 95 % interval."""
    low = beta.ppf(0.025, hits, of - hits + 1) if hits else 0.0
    high = beta.ppf(0.975, hits + 1, of - hits) if hits < of else 1.0
    return f"{100 * hits / of:5.1f} % [{100 * low:.1f}, {100 * high:.1f}] of {of}"


def ever(rules: Martingale, p: np.ndarray, level: float) -> np.ndarray:
    """Which gamblers ever reach 1/level; p is (images, lives)."""
    capital = rules.started(p.shape[1:])
    found = np.zeros(p.shape[1:], dtype=bool)
    for row in p:
        capital = rules.after(capital, row)
        found |= rules.log_wealth(capital) >= -math.log(level)
    return found


def simulated(lives: int, images: int, levels: tuple[float, ...]) -> None:
    generator = np.random.default_rng(0)
    for bets in BETS:
        rules, peak = Martingale(bets), np.full(lives, -np.inf)
        capital = rules.started((lives,))
        for _ in range(images):
            capital = rules.after(capital, 1.0 - generator.random(lives))
            peak = np.maximum(peak, rules.log_wealth(capital))
        for level in levels:
            hits = int((peak >= -math.log(level)).sum())
            print(f"{bets:8} level {level:<5}: alarms in {interval(hits, lives)} lives of {images:,} images")


def on_splits(ids: np.ndarray, splits: int, level: float) -> None:
    alarms, as_they_are = 0, 0
    for seed in range(splits):
        mixed = np.random.default_rng(seed).permutation(ids)
        calibration, stream = np.split(mixed, [CALIBRATION])
        alarms += Monitor(calibration, level=level, seed=seed).update_scores(stream)
        at_or_above = CALIBRATION - np.searchsorted(np.sort(calibration), stream, side="left")
        as_they_are += int(ever(Martingale(), ((1 + at_or_above) / (CALIBRATION + 1))[:, None], level)[0])
    print(
        f"monitor, level {level}: alarms in {interval(alarms, splits)} splits, {len(ids) - CALIBRATION:,} images each"
    )
    print(f"the same bets on p-values as they are: alarms in {interval(as_they_are, splits)}")


def delays(ids: np.ndarray, oods: dict[str, np.ndarray], repetitions: int, plot: Path | None) -> None:
    for name, scores in oods.items():
        for bets in BETS:
            false, found = 0, []
            for seed in range(repetitions):
                generator = np.random.default_rng(seed)
                monitor = Monitor(generator.choice(ids, CALIBRATION), bets=bets, seed=seed)
                false += monitor.update_scores(generator.choice(ids, LONG))
                if not monitor.alarm:
                    monitor.update_scores(generator.choice(scores, OOD))
                    found.append(monitor.alarm_at - LONG if monitor.alarm_at else OOD + 1)
                if plot is not None and seed == 0 and bets == "both":
                    monitor.plot().savefig(plot.with_stem(f"{plot.stem}_{name.replace('/', '_')}"), dpi=110)
            if found:
                quantiles = ", ".join(f"{q:.0f}" for q in np.quantile(found, (0, 0.5, 1)))
                print(f"{name:16} {bets:8}: {false} false alarms in {repetitions}; delay min, median, max: {quantiles}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run_id", help="a record with published scores")
    parser.add_argument("--results", type=Path, default=Path("results"))
    parser.add_argument("--lives", type=int, default=1000)
    parser.add_argument("--images", type=int, default=20_000)
    parser.add_argument("--splits", type=int, default=100)
    parser.add_argument("--repetitions", type=int, default=10)
    parser.add_argument("--plot", type=Path)
    arguments = parser.parse_args()
    record, _ = RecordStore(arguments.results).look_up(arguments.run_id, print)
    sets = ScoreStore(arguments.results / "scores").read(record.run_id)
    ids = np.concatenate([s.scores for s in sets if s.role in ("id_val", "id_test")])
    simulated(arguments.lives, arguments.images, (0.01, 0.05, 0.1, 0.5))
    on_splits(ids, arguments.splits, 0.05)
    oods = {f"{s.role}/{s.name}": s.scores for s in sets if s.role in ("near", "far")}
    delays(ids, oods, arguments.repetitions, arguments.plot)


if __name__ == "__main__":
    main()
