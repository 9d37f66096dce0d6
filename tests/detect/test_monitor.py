"""The monitor against exact arithmetic, enumeration, closed forms and simulated lives."""

import itertools
import math
from fractions import Fraction
from types import SimpleNamespace

import numpy as np
import pytest
from scipy.integrate import quad
from scipy.stats import binom

from openbench.detect.monitor.martingale import Martingale, OnlineRanks, ScoreCells
from openbench.detect.monitor.monitor import CapitalCurve, Monitor, window_of
from openbench.errors import ConfigError, DataError

P_VALUES = (Fraction(1, 8), Fraction(3, 4), Fraction(1, 16), Fraction(1), Fraction(1, 2), Fraction(1, 32))


def log_wealths(rules, p_values):
    """The logarithm of the capital after each of some p-values."""
    capital, found = rules.started(), []
    for p in p_values:
        capital = rules.after(capital, float(p))
        found.append(float(rules.log_wealth(capital)))
    return found


def jumper_by_fractions(p_values, jump):
    """The simple jumper's capital after all p-values, in exact arithmetic."""
    capital = {-1: Fraction(1, 3), 0: Fraction(1, 3), 1: Fraction(1, 3)}
    for p in p_values:
        total = sum(capital.values())
        moved = {side: (1 - jump) * own + jump * total / 3 for side, own in capital.items()}
        capital = {side: own * (1 + side * (p - Fraction(1, 2))) for side, own in moved.items()}
    return sum(capital.values())


def mixture_by_quadrature(p_values):
    """∫ Π κ·p^(κ−1) dκ over (0, 1)."""

    def capital(power):
        return math.prod(power * float(p) ** (power - 1) for p in p_values)

    return quad(capital, 0, 1, epsabs=0, epsrel=1e-12)[0]


@pytest.mark.parametrize("at_start", [0.5, 1.0])
@pytest.mark.parametrize(
    ("bets", "jump"),
    [("mixture", 0), ("jumper", 0), ("jumper", Fraction(1, 100)), ("jumper", Fraction(1, 4)), ("both", Fraction(1, 4))],
)
def test_the_capital_is_exact_arithmetic_and_money_put_in_later_bets_from_then_on(bets, jump, at_start):
    # After t images (1 − at_start)/log₂(t + 1) is kept back; what image k adds is a martingale that starts there.
    def one(values):
        jumper, mixture = float(jumper_by_fractions(values, jump)), mixture_by_quadrature(values)
        return {"jumper": jumper, "mixture": mixture, "both": (jumper + mixture) / 2}[bets]

    kept = [1.0, *((1 - at_start) / math.log2(t + 1) for t in range(1, len(P_VALUES) + 1))]
    expected = kept[-1] + sum((kept[k] - kept[k + 1]) * one(P_VALUES[k:]) for k in range(len(P_VALUES)))
    found = log_wealths(Martingale(bets, float(jump), at_start=at_start), P_VALUES)[-1]
    assert found == pytest.approx(math.log(expected), abs=1e-9)


def test_capital_neither_overflows_nor_runs_dry():
    rules = Martingale()
    assert log_wealths(rules, [1e-12] * 2000)[-1] > 40_000
    assert log_wealths(rules, [1.0] * 2000)[-1] > math.log(0.5 / math.log2(2001))


def ends_of(cells, calibration_cells, stream):
    """The interval in which each p-value lies, by OnlineRanks and by counting; as exact fractions."""
    ends = []
    for draw in (0.0, 1.0):
        ranks = OnlineRanks(cells)
        ranks.random = SimpleNamespace(random=lambda draw=draw: 1.0 - draw)
        ends.append([ranks.next(cell) for cell in stream])
    seen, counted = list(calibration_cells), []
    for cell in stream:
        above, equal = sum(c > cell for c in seen), sum(c == cell for c in seen)
        counted.append((Fraction(above, len(seen) + 1), Fraction(above + equal + 1, len(seen) + 1)))
        seen.append(cell)
    assert [float(low) for low, _ in counted] == ends[0]
    assert [float(high) for _, high in counted] == ends[1]
    return counted


def below(interval, x):
    """P(p ≤ x) for p uniform on an interval."""
    low, high = interval
    return min(max((x - low) / (high - low), Fraction(0)), Fraction(1))


def joint(outcomes, at):
    """P(every p-value ≤ its bound), over equally likely outcomes (calibration scores, stream)."""
    total, count = Fraction(0), 0
    for calibration, stream in outcomes:
        cells = ScoreCells.of_scores(calibration)
        found = ends_of(cells, cells.of(calibration).tolist(), cells.of(stream).tolist())
        total += math.prod((below(one, x) for one, x in zip(found, at, strict=True)), start=Fraction(1))
        count += 1
    return total / count


@pytest.mark.parametrize(
    "outcomes",
    [
        pytest.param([(order[:2], order[2:]) for order in itertools.permutations(range(5))], id="all different"),
        pytest.param([(draw[:2], draw[2:]) for draw in itertools.product((0, 0, 1), repeat=5)], id="many equal"),
    ],
)
def test_online_p_values_are_exactly_independent_and_uniform(outcomes):
    bounds = [Fraction(1, 7), Fraction(2, 5), Fraction(5, 6)]
    for at in itertools.permutations(bounds):
        assert joint(outcomes, at) == math.prod(bounds, start=Fraction(1))


def test_p_values_and_scores_lead_to_the_same_cells():
    generator = np.random.default_rng(0)
    calibration, stream = generator.normal(size=30), generator.normal(size=200)
    p = [(1 + (calibration >= score).sum()) / 31 for score in stream]
    assert (ScoreCells.of_number(30).of_p_values(p) == ScoreCells.of_scores(calibration).of(stream)).all()
    assert (ScoreCells.of_number(30).of_p_values(np.float32(p)) == ScoreCells.of_number(30).of_p_values(p)).all()


def test_scores_of_a_text_file_meet_the_float32_that_they_were_written_from():
    calibration = np.float32([0.1, 0.2, 0.2, 0.3])
    assert ScoreCells.of_scores(calibration).of([0.1, 0.2, 0.25]).tolist() == [1, 3, 4]


def test_few_monitors_raise_an_alarm_after_a_small_calibration():
    alarms = 0
    for seed in range(40):
        scores = np.random.default_rng(seed).normal(size=420).round(1)  # many are equal
        alarms += Monitor(scores[:20], level=0.1, window=1000, seed=seed).update_scores(scores[20:])
    assert alarms <= binom.ppf(0.9999, 40, 0.1)


@pytest.mark.parametrize("bets", ["mixture", "jumper", "both"])
def test_a_late_change_is_noticed_soon(bets):
    generator = np.random.default_rng(3)
    monitor = Monitor(generator.normal(size=500), level=0.01, bets=bets)
    assert not monitor.update_scores(generator.normal(size=4000))
    assert monitor.update_scores(generator.normal(1.5, size=200))
    assert 4000 < monitor.alarm_at < 4080
    monitor.reset()
    assert (monitor.alarm, monitor.images, monitor.log10_wealth) == (False, 0, 0.0)


def test_a_window_is_compared_with_the_calibration_set():
    calibration, stream = np.array([1.0, 2.0, 2.0, 3.0, 5.0, 8.0, 9.0, 10.0, 11.0]), np.array([2.0, 2.5, 9.5, 12.0])
    cells = ScoreCells.of_scores(calibration)
    found = window_of(11, cells.of(stream), cells, alpha=0.1)
    pairs = [(s > c) + 0.5 * (s == c) for s in stream for c in calibration]
    assert found.auroc == pytest.approx(np.mean(pairs))
    grid = np.concatenate([calibration, stream])
    steps = [abs((stream <= x).mean() - (calibration <= x).mean()) for x in grid]
    assert found.distance == pytest.approx(max(steps))
    assert found.flagged == 0.25  # p = 1/10 for 12.0 alone
    assert (found.first, found.images) == (11, 4)


def test_windows_follow_one_another():
    monitor = Monitor(19, window=3)
    monitor.update([k / 20 for k in (1, 10, 20, 5, 6, 7, 8)])
    assert [(w.first, w.images, w.flagged) for w in monitor.windows] == [(1, 3, 1 / 3), (4, 3, 0.0)]


def test_a_monitor_goes_on_from_its_saved_state_as_if_it_had_not_stopped(tmp_path):
    generator = np.random.default_rng(4)
    calibration, stream = generator.normal(size=50).round(1), generator.normal(0.5, size=300)
    whole, first = Monitor(calibration, window=70, seed=5), Monitor(calibration, window=70, seed=5)
    whole.update_scores(stream)
    first.update_scores(stream[:123])
    first.save(tmp_path / "state")
    second = Monitor.load(tmp_path / "state", calibration)
    second.update_scores(stream[123:])
    assert second.status() == whole.status()
    assert second.curve == whole.curve
    assert second.windows == whole.windows


@pytest.fixture
def state(tmp_path):
    monitor = Monitor(np.arange(20.0))
    monitor.update(1 / 21)
    monitor.save(tmp_path / "state")
    return tmp_path / "state"


def test_a_changed_state_or_one_of_other_calibration_scores_is_refused(state):
    for place, scores, message in (
        (state, np.arange(21.0), "belongs to 20 other calibration scores .found 21"),
        (state, None, "belongs to 20 other calibration scores"),
        (state.with_name("other"), None, "cannot be read"),
    ):
        with pytest.raises(DataError, match=message):
            Monitor.load(place, scores)
    state.write_bytes(state.read_bytes().replace(b'"alarm_at": null', b'"alarm_at": 1234'))
    with pytest.raises(DataError, match="has changed since it was written — restore it, or delete it"):
        Monitor.load(state, np.arange(20.0))


@pytest.mark.parametrize("p", [0.0, 0.123, 1.5, math.nan])
def test_what_a_detector_cannot_have_given_is_refused(p):
    with pytest.raises(DataError, match=r"p-value 1 is .*, but 10 calibration images give K/11 "):
        Monitor(10, alpha=0.1).update([1.0, p])


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda: Monitor([1.0, *[2.0] * 20]).update(1.0), DataError, "1 scores occur more than once among the 21 cal"),
        (lambda: Monitor(30).update_scores(1.0), DataError, "only the number of calibration images is known"),
        (lambda: Monitor(18), ConfigError, r"alpha = 0.05 is below 1/19, .* 18 calibration images .* 19 im"),
    ],
)
def test_what_the_calibration_cannot_tell_is_refused(call, error, message):
    with pytest.raises(error, match=message):
        call()


def test_the_curve_of_a_long_life_stays_short():
    curve = CapitalCurve()
    for images in range(1, 10_001):
        curve.add(images, float(images))
    assert len(curve.log10) < 4096
    assert curve.log10 == [float(at) for at in range(curve.stride, 10_001, curve.stride)]
