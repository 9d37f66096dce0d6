"""Test martingales: the capital of a gambler who bets against p-values being uniform and independent."""

import math
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

from openbench.config.constraints import Checked, Probability, Share

Bets = Literal["mixture", "jumper", "both"]
Floats = NDArray[np.float64]
_NODES, _WEIGHTS = np.polynomial.legendre.leggauss(16)
POWERS, SHARES = (_NODES + 1) / 2, _WEIGHTS / 2  # κ in (0, 1), and the share of the capital on each; they sum to 1
_SIDES = np.array([-1.0, 0.0, 1.0])  # ε


@dataclass(frozen=True)
class Martingale(Checked):
    """A gambler's rules; the capital starts at 1 and is a martingale as long as p-values are uniform and independent.

    `mixture` bets κ·p^(κ−1), a share of the capital on each power κ in (0, 1): it grows where p-values are small.
    `jumper` bets 1 + ε·(p − ½) for ε in {−1, 0, 1} and moves a share `jump` of its capital between them before every
    bet: it grows where p-values are small or large. `both` puts half on each.

    A share `at_start` of the capital is bet from the first image on. The rest is put in little by little: after t
    images (1 − at_start)/log₂(t + 1) of it is still kept back. A gambler who bets everything at once loses, slowly but
    surely, as long as nothing changes, and needs ever longer to notice a late change; fresh money notices it after a
    delay that grows with the logarithm of the time only.

    By Ville's inequality the capital ever reaches 1/level with probability at most `level`, over a whole life.

    Args:
        bets: `mixture`, `jumper` or `both`.
        jump: share of the jumper's capital that is moved per image.
        at_start: share of the capital that is bet from the first image on; 1 gives the martingales of the papers.

    Raises:
        ConfigError: a value that is not allowed.

    Reference: Vovk, Nouretdinov, Gammerman, Testing exchangeability on-line, ICML 2003 (power and simple mixture; the
        integral over κ is here the 16-point Gauss–Legendre rule, itself a martingale); Vovk et al., Retrain or not
        retrain: conformal test martingales for change-point detection, COPA 2021, arXiv 2102.10439 (simple jumper).
    """

    bets: Bets = "both"
    jump: Probability = 0.01
    at_start: Share = 0.5

    def started(self, streams: tuple[int, ...] = ()) -> "Capital":
        """Return the capital before the first image, of so many gamblers side by side.

        Args:
            streams: shape of the side by side streams; empty for one.
        """
        return Capital(np.full((*streams, POWERS.size + _SIDES.size), -np.inf), 0)

    def after(self, capital: "Capital", p: ArrayLike) -> "Capital":
        """Return the capital after one more image.

        Args:
            capital: before.
            p: p-value in (0, 1], one per stream.
        """
        values = np.asarray(p, dtype=np.float64)[..., None]
        of_powers, of_jumps = np.split(capital.log_staked, [POWERS.size], axis=-1)
        of_jumps = _jumped(of_jumps, self.jump)
        staked, t = self.kept(capital.images) - self.kept(capital.images + 1), capital.images + 1
        on_mixture = {"mixture": 1.0, "both": 0.5, "jumper": 0.0}[self.bets]
        with np.errstate(divide="ignore"):
            of_powers = np.logaddexp(of_powers, np.log(staked * on_mixture * SHARES))
            of_jumps = np.logaddexp(of_jumps, np.log(staked * (1 - on_mixture) / _SIDES.size))
        of_powers = of_powers + np.log(POWERS) + (POWERS - 1) * np.log(values)
        of_jumps = of_jumps + np.log1p(_SIDES * (values - 0.5))
        return Capital(np.concatenate([of_powers, of_jumps], axis=-1), t)

    def kept(self, images: int) -> float:
        """Return the share of the first capital that is not yet bet after so many images."""
        return 1.0 if images == 0 else (1.0 - self.at_start) / math.log2(images + 1)

    def log_wealth(self, capital: "Capital") -> Floats:
        """Return the natural logarithm of all capital, bet or kept back, one per stream."""
        kept = self.kept(capital.images)
        bet = np.logaddexp.reduce(capital.log_staked, axis=-1)
        return np.asarray(np.logaddexp(bet, math.log(kept)) if kept > 0 else bet)


@dataclass(frozen=True)
class Capital:
    """What a gambler has.

    Args:
        log_staked: (…, 19) logarithms of the capital on each power and on each ε.
        images: how many bets were made.
    """

    log_staked: Floats
    images: int


def _jumped(log_capital: Floats, jump: float) -> Floats:
    """Move a share of each of the last axis' capitals to all of them in equal parts; logarithms, (…, 3)."""
    if jump == 0:
        return log_capital
    total = np.logaddexp.reduce(log_capital, axis=-1, keepdims=True)
    with np.errstate(divide="ignore"):
        stays = log_capital + np.log1p(-jump) if jump < 1 else np.full_like(log_capital, -np.inf)
    return np.asarray(np.logaddexp(stays, total + math.log(jump / _SIDES.size)))
