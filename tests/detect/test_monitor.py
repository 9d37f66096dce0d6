"""The monitor against exact arithmetic, enumeration, closed forms and simulated lives."""

import itertools
import math
from fractions import Fraction
from types import SimpleNamespace

import numpy as np
import pytest
from scipy.integrate import quad
from scipy.stats import binom

from openbench.detect.monitor import Martingale, Monitor, OnlineRanks, Window
from openbench.errors import ConfigError, DataError

P_VALUES = (Fraction(1, 8), Fraction(3, 4), Fraction(1, 16), Fraction(1), Fraction(1, 2), Fraction(1, 32))


def log_wealth(martingale, p_values):
    """The logarithm of the capital after some p-values."""
    for p in p_values:
        martingale.bet(float(p))
    return float(martingale.log_wealth)


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
    found = log_wealth(Martingale(bets, float(jump), at_start=at_start), P_VALUES)
    assert found == pytest.approx(math.log(expected), abs=1e-9)


def test_capital_neither_overflows_nor_runs_dry():
    assert log_wealth(Martingale(), [1e-12] * 2000) > 40_000
    assert log_wealth(Martingale(), [1.0] * 2000) > math.log(0.5 / math.log2(2001))


def ends_of(calibration, stream):
    """The interval in which each p-value lies, by OnlineRanks and by counting; as exact fractions."""
    ends = []
    for draw in (0.0, 1.0):
        ranks = OnlineRanks(calibration)
        ranks.random = SimpleNamespace(random=lambda draw=draw: 1.0 - draw)
        ends.append([ranks.next(cell) for cell in ranks.cells(stream)])
    seen, counted = ranks.cells(calibration).tolist(), []
    for cell in ranks.cells(stream).tolist():
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
        found = ends_of(calibration, stream)
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


def test_scores_of_a_text_file_meet_the_float32_that_they_were_written_from():
    calibration = np.float32([0.1, 0.2, 0.2, 0.3])
    assert OnlineRanks(calibration).cells([0.1, 0.2, 0.25]).tolist() == [1, 3, 4]


def test_few_monitors_raise_an_alarm_after_a_small_calibration():
    alarms = 0
    for seed in range(20):
        scores = np.random.default_rng(seed).normal(size=420).round(1)  # many are equal
        alarms += Monitor(scores[:20], level=0.1, window=1000, seed=seed).update_scores(scores[20:])
    assert alarms <= binom.ppf(0.9999, 20, 0.1)


@pytest.mark.parametrize("bets", ["mixture", "jumper", "both"])
def test_a_late_change_is_noticed_soon(bets):
    generator = np.random.default_rng(3)
    monitor = Monitor(generator.normal(size=500), level=0.01, bets=bets)
    assert not monitor.update_scores(generator.normal(size=1000))
    assert monitor.update_scores(generator.normal(1.5, size=200))
    assert 1000 < monitor.alarm_at < 1080
    monitor.reset()
    assert (monitor.alarm, monitor.images, monitor.log10_wealth) == (False, 0, 0.0)


def test_a_window_is_compared_with_the_calibration_set():
    calibration, stream = np.array([1.0, 2.0, 2.0, 3.0, 5.0, 8.0, 9.0, 10.0, 11.0]), np.array([2.0, 2.5, 9.5, 12.0])
    ranks = OnlineRanks(calibration)
    found = Window.of(11, ranks.cells(stream), ranks.calibration, alpha=0.1)
    pairs = [(s > c) + 0.5 * (s == c) for s in stream for c in calibration]
    assert found.auroc == pytest.approx(np.mean(pairs))
    grid = np.concatenate([calibration, stream])
    steps = [abs((stream <= x).mean() - (calibration <= x).mean()) for x in grid]
    assert found.distance == pytest.approx(max(steps))
    assert found.flagged == 0.25  # p = 1/10 for 12.0 alone
    assert (found.first, found.images) == (11, 4)


def test_windows_follow_one_another():
    monitor = Monitor(range(19), window=3)
    monitor.update_scores([19, 9, -1, 14, 13, 12, 11])
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
    monitor.update_scores(30.0)
    monitor.save(tmp_path / "state")
    return tmp_path / "state"


def test_a_changed_state_or_one_of_other_calibration_scores_is_refused(state):
    for place, scores, message in (
        (state, np.arange(21.0), "belongs to 20 other calibration scores .found 21"),
        (state.with_name("other"), np.arange(20.0), "cannot be read"),
    ):
        with pytest.raises(DataError, match=message):
            Monitor.load(place, scores)
    state.write_bytes(state.read_bytes().replace(b'"alarm_at": null', b'"alarm_at": 1234'))
    with pytest.raises(DataError, match="has changed since it was written — restore it, or delete it"):
        Monitor.load(state, np.arange(20.0))


def test_too_few_calibration_images_for_alpha_say_how_many_are_needed():
    with pytest.raises(ConfigError, match=r"alpha = 0.05 is below 1/19, .* 18 calibration images .* 19 im"):
        Monitor(range(18))


def test_the_curve_of_a_long_life_stays_short():
    monitor, wealth = Monitor(range(19), window=10_000), {}
    for image in range(5000):
        monitor.update_scores(image % 23)
        wealth[image + 1] = monitor.log10_wealth
    assert len(monitor.curve) < 4096
    assert monitor.curve == [wealth[at] for at in range(monitor.stride, 5001, monitor.stride)]
