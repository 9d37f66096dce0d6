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

from openbench.detect.monitor import Martingale, Monitor, OnlineRanks
from openbench.results.records.store import RecordStore
from openbench.results.scores.stored import ScoreStore

CALIBRATION, LONG, OOD = 1000, 20_000, 500
LEVEL = 0.01
BETS = ("mixture", "jumper", "both")


def interval(hits: int, of: int) -> str:
    """A share in % with its exact 95 % interval."""
    low = beta.ppf(0.025, hits, of - hits + 1) if hits else 0.0
    high = beta.ppf(0.975, hits + 1, of - hits) if hits < of else 1.0
    return f"{100 * hits / of:5.1f} % [{100 * low:.1f}, {100 * high:.1f}] of {of}"


def alarms_at(bets: str, p: np.ndarray, level: float) -> np.ndarray:
    """After how many images each gambler reaches 1/level, 0 = never; p is (images, lives)."""
    martingale = Martingale(bets, streams=p.shape[1:])
    found = np.zeros(p.shape[1:], dtype=np.int64)
    for row in p:
        martingale.bet(row)
        reached = martingale.log_wealth >= -math.log(level)
        found[reached & (found == 0)] = martingale.images
    return found


def ranked(calibration: np.ndarray, stream: np.ndarray, seed: int) -> np.ndarray:
    """The values that a monitor bets on, (images,)."""
    ranks = OnlineRanks(calibration, seed)
    return np.array([ranks.next(cell) for cell in ranks.cells(stream).tolist()])


def simulated(lives: int, images: int, levels: tuple[float, ...]) -> None:
    for bets in BETS:
        generator = np.random.default_rng(0)
        martingale, peak = Martingale(bets, streams=(lives,)), np.full(lives, -np.inf)
        for _ in range(images):
            martingale.bet(1.0 - generator.random(lives))
            peak = np.maximum(peak, martingale.log_wealth)
        for level in levels:
            hits = int((peak >= -math.log(level)).sum())
            shown = f"{bets:8} level {level:<5}: alarms in {interval(hits, lives)} lives of {images:,} images"
            print(shown, flush=True)


def on_splits(ids: np.ndarray, splits: int, level: float) -> None:
    ranks, as_they_are = [], []
    for seed in range(splits):
        calibration, stream = np.split(np.random.default_rng(seed).permutation(ids), [CALIBRATION])
        ranks.append(ranked(calibration, stream, seed))
        at_or_above = CALIBRATION - np.searchsorted(np.sort(calibration), stream, side="left")
        as_they_are.append((1 + at_or_above) / (CALIBRATION + 1))
        if seed == 0:
            monitor = Monitor(calibration, level=level, seed=seed)
            monitor.update_scores(stream)
    found = alarms_at("both", np.stack(ranks, axis=1), level)
    if (monitor.alarm_at or 0) != found[0]:
        raise SystemExit(f"the monitor's alarm is at {monitor.alarm_at}, that of the bets made here at {found[0]}")
    alarms = int((found > 0).sum())
    print(
        f"monitor, level {level}: alarms in {interval(alarms, splits)} splits, {len(ids) - CALIBRATION:,} images each"
    )
    alarms = int((alarms_at("both", np.stack(as_they_are, axis=1), level) > 0).sum())
    print(f"the same bets on p-values as they are: alarms in {interval(alarms, splits)}", flush=True)


def delays(ids: np.ndarray, oods: dict[str, np.ndarray], repetitions: int, plot: Path | None) -> None:
    for name, scores in oods.items():
        streams = []
        for seed in range(repetitions):
            generator = np.random.default_rng(seed)
            calibration = generator.choice(ids, CALIBRATION)
            stream = np.append(generator.choice(ids, LONG), generator.choice(scores, OOD))
            streams.append(ranked(calibration, stream, seed))
            if plot is not None and seed == 0:
                monitor = Monitor(calibration, seed=seed)
                monitor.update_scores(stream)
                monitor.plot().savefig(plot.with_stem(f"{plot.stem}_{name.replace('/', '_')}"), dpi=110)
        p = np.stack(streams, axis=1)
        for bets in BETS:
            found = alarms_at(bets, p, LEVEL)
            false = int(((found > 0) & (found <= LONG)).sum())
            late = np.where(found == 0, LONG + OOD + 1, found)[(found == 0) | (found > LONG)] - LONG
            if late.size:
                quantiles = ", ".join(f"{q:.0f}" for q in np.quantile(late, (0, 0.5, 1)))
                shown = f"{name:16} {bets:8}: {false} false alarms in {repetitions}"
                print(f"{shown}; delay min, median, max: {quantiles}", flush=True)


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
    record, _ = RecordStore(arguments.results).look_up(arguments.run_id)
    sets = ScoreStore(arguments.results / "scores").read(record.run_id)
    ids = np.concatenate([s.scores for s in sets if s.role in ("id_val", "id_test")])
    simulated(arguments.lives, arguments.images, (0.01, 0.05, 0.1, 0.5))
    on_splits(ids, arguments.splits, 0.05)
    oods = {f"{s.role}/{s.name}": s.scores for s in sets if s.role in ("near", "far")}
    delays(ids, oods, arguments.repetitions, arguments.plot)


if __name__ == "__main__":
    main()
