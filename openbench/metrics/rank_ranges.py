"""Rank ranges of methods by paired tests on the same images, and mean ranks over data sets."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from openbench.errors import MetricError
from openbench.metrics.curve import Floats, as_scores, check_rate, placements

# Scores of one network: of the ID images (n,), and of each OOD set (m_s,).
NetworkScores = tuple[ArrayLike, Sequence[ArrayLike]]
_LEAST_FREEDOM = 1.0


class RankRange(NamedTuple):
    """The ranks that a method may have at the family-wise level: 1 + the number of better ones, to all but the worse.

    `value` is the mean AUROC over OOD sets and networks. `best` and `worst` hold for other trainings and images;
    `on_networks` is the same range for other images and the same networks. `groups` are the numbers of a method's
    groups: two methods share one if and only if they are not separable on other images.
    """

    value: float
    best: int
    worst: int
    on_networks: tuple[int, int] | None = None
    groups: tuple[int, ...] = ()


class PairedAreas(NamedTuple):
    """Mean AUROCs of k methods, and how their differences vary.

    `values` (k,); `images` (k, k): covariance through the draw of test images; `networks` (k, k): covariance of the
    mean through the draw of trainings, zero where there was one; `draws`: how many networks.
    """

    values: Floats
    images: Floats
    networks: Floats
    draws: int


def paired_areas(methods: Sequence[Sequence[NetworkScores]]) -> PairedAreas:
    """Return the AUROCs of methods on the same images and networks, averaged over OOD sets and networks.

    An AUROC is the mean of placements: of an ID image the share u of OOD above it, of an OOD image the share v of ID
    below it, ties counted ½. Averaged over networks and, for u, over sets, they give the covariance through images,
    S(u)/n + Σ_s S(v_s)/(m_s q²) with q sets (DeLong); the spread of the AUROCs over r networks gives S(AUROC)/r.

    Args:
        methods: for each method, its scores by each network, in the same order of networks, sets and images.

    Raises:
        MetricError: nothing to compare, or sides of different size; NaN.

    Reference: DeLong, DeLong, Clarke-Pearson, Biometrics 44 (1988), equations 5 and 6 for several correlated areas.
    """
    _check_sizes(methods)
    draws, sets = len(methods[0]), len(methods[0][0][1])
    areas = np.zeros((len(methods), draws))
    of_id = np.zeros((len(methods), np.size(methods[0][0][0])))
    covariance = np.zeros((len(methods), len(methods)))
    for at in range(sets):
        of_ood = np.zeros((len(methods), np.size(methods[0][0][1][at])))
        for row, networks in enumerate(methods):
            for draw, (ids, oods) in enumerate(networks):
                u, v = placements(as_scores(ids, "ID scores"), as_scores(oods[at], "OOD scores"))
                of_id[row] += u / (sets * draws)
                of_ood[row] += v / draws
                areas[row, draw] += v.mean() / sets
        covariance += _covariance(of_ood) / of_ood.shape[1] / sets**2
    covariance += _covariance(of_id) / of_id.shape[1]
    return PairedAreas(areas.mean(axis=1), covariance, _covariance(areas) / draws, draws)


def rank_ranges(methods: Sequence[Sequence[NetworkScores]], level: float = 0.95) -> list[RankRange]:
    """Return the ranks that each method may have, best mean AUROC first counting as rank 1.

    Every pair is tested two-sided: t = difference / √(image variance + network variance / networks), with the degrees
    of freedom of Satterthwaite's approximation. Two or three networks say little about how a difference varies with
    the training, but all pairs together show what is usual: variances are moderated, i.e. drawn towards the common one
    as far as their spread allows. Holm's procedure keeps the chance of any false difference at 1 − level. Methods that
    are not separable share their ranks and a group.

    Args:
        methods: as for `paired_areas`.
        level: one minus the family-wise error rate, in (0, 1).

    Raises:
        MetricError: as `paired_areas`, or level out of range.

    Reference: Holm, Scandinavian Journal of Statistics 6 (1979); Satterthwaite, Biometrics Bulletin 2 (1946); Smyth,
        Statistical Applications in Genetics and Molecular Biology 3 (2004), section 6, for moderated variances.
    """
    check_rate(level, "level", closed=False)
    areas = paired_areas(methods)
    on_networks = _separable(areas._replace(networks=np.zeros_like(areas.networks)), level)
    ranks, same = (_rank_ends(separable, areas.values) for separable in (_separable(areas, level), on_networks))
    columns = zip(areas.values.tolist(), ranks, same, groups_of(on_networks, areas.values), strict=True)
    return [RankRange(value, *ends, on_same, groups) for value, ends, on_same, groups in columns]


def groups_of(separable: NDArray[np.bool_], values: Floats) -> list[tuple[int, ...]]:
    """Return the numbers of each method's groups: two methods share one if and only if they are not separable.

    This is the compact letter display. From the best method on, each inseparable pair without a common group starts
    one, and methods that are separable from none of its members join it. There are at most as many groups as such
    pairs; a method that is separable from all others is a group of its own.

    Args:
        separable: (k, k) symmetric; whether two methods differ.
        values: (k,) larger = better; the best method's group is number 0.

    Reference: Piepho, Journal of Computational and Graphical Statistics 13 (2004), for the display; its algorithm may
        make exponentially many groups, where a few close methods differ surely and most others do not.
    """
    order = [int(at) for at in np.argsort(-values, kind="stable")]
    covered = np.eye(len(order), dtype=bool)
    groups: list[list[int]] = []
    for rank, first in enumerate(order):
        for second in order[rank + 1 :]:
            if covered[first, second] or separable[first, second]:
                continue
            members = [first, second]
            # The candidate with most members that it shares no group with yet joins first.
            while candidates := [o for o in order if o not in members and not separable[o, members].any()]:
                members.append(max(candidates, key=lambda other: int((~covered[other, members]).sum())))
            covered[np.ix_(members, members)] = True
            groups.append(members)
    groups += [[method] for method in set(order).difference(*groups)]
    groups.sort(key=lambda members: sorted(map(order.index, members)))
    return [tuple(at for at, members in enumerate(groups) if method in members) for method in range(len(order))]


def _separable(areas: PairedAreas, level: float) -> NDArray[np.bool_]:
    """Return (k, k), whether two methods differ."""
    pairs = np.triu_indices(areas.values.size, 1)
    separable = np.zeros(areas.images.shape, dtype=bool)
    separable[pairs] = holm(_p_values(areas)[pairs], 1.0 - level)
    return np.asarray(separable | separable.T)


def _rank_ends(separable: NDArray[np.bool_], values: Floats) -> list[tuple[int, int]]:
    """Return the best and the worst rank of each method."""
    higher = values[:, None] > values[None, :]
    better, worse = ((separable & than).sum(axis=1).tolist() for than in (higher.T, higher))
    return [(1 + b, values.size - w) for b, w in zip(better, worse, strict=True)]


def moderated(variances: Floats, freedom: int) -> tuple[Floats, float]:
    """Return sample variances drawn towards their common value, and the degrees of freedom that they then have.

    True variances are taken to scatter as s₀²·d₀/χ²(d₀); d₀ and s₀² follow from mean and variance of the logarithms of
    the samples, and each becomes (d₀s₀² + d·s²)/(d₀ + d) with d₀ + d degrees of freedom. Where the samples spread no
    more than chance makes them, d₀ is infinite and all are equal. Zeros, where nothing differs, stay zero.

    Args:
        variances: any shape, each from d + 1 observations.
        freedom: d; with 0 there are no variances.

    Reference: Smyth, Statistical Applications in Genetics and Molecular Biology 3 (2004), section 6.2.
    """
    from scipy.optimize import brentq  # which takes long to load
    from scipy.special import digamma, polygamma

    positive = variances > 0
    if freedom < 1 or positive.sum() < 2:
        return variances, float(freedom)
    d = float(freedom)
    e = np.log(variances[positive]) - digamma(d / 2) + np.log(d / 2)
    spread = float(np.var(e, ddof=1)) - float(polygamma(1, d / 2))
    if spread <= 0:
        return np.where(positive, np.exp(e.mean()), 0.0), np.inf
    # The inverse of trigamma, which falls from infinity to zero.
    log = brentq(lambda log: float(polygamma(1, np.exp(log))) - spread, -18.0, 18.0, xtol=1e-12)
    prior = 2.0 * float(np.exp(log))
    common = float(np.exp(e.mean() + digamma(prior / 2) - np.log(prior / 2)))
    return np.where(positive, (prior * common + d * variances) / (prior + d), 0.0), prior + d


def holm(p: ArrayLike, level: float) -> NDArray[np.bool_]:
    """Return (h,) bool, the hypotheses that Holm's step-down procedure rejects.

    Args:
        p: (h,) p-values.
        level: the family-wise error rate.

    Reference: Holm, Scandinavian Journal of Statistics 6 (1979).
    """
    values = np.asarray(p, dtype=np.float64)
    order = np.argsort(values, kind="stable")
    passed = values[order] <= level / np.arange(values.size, 0, -1)
    rejected = np.zeros(values.size, dtype=bool)
    rejected[order] = np.logical_and.accumulate(passed)
    return rejected


def _p_values(areas: PairedAreas) -> Floats:
    """Return (k, k) two-sided p of every pair; 1 where nothing differs, 0 where a difference has no variance."""
    from scipy.special import stdtr  # which takes long to load

    images, networks = (_difference_variances(covariance) for covariance in (areas.images, areas.networks))
    pairs = np.triu_indices(areas.values.size, 1)
    moderate, of_networks = moderated(networks[pairs], areas.draws - 1)
    networks = np.zeros_like(networks)
    networks[pairs] = moderate
    networks += networks.T
    variance = images + networks
    difference = np.abs(areas.values[:, None] - areas.values[None, :])
    with np.errstate(divide="ignore", invalid="ignore"):
        freedom = np.where(networks > 0, of_networks * (variance / networks) ** 2, np.inf)
        t = difference / np.sqrt(variance)
        p = 2.0 * stdtr(np.maximum(freedom, _LEAST_FREEDOM), -t)
    return np.where(variance > 0, p, np.where(difference > 0, 0.0, 1.0))


def _difference_variances(covariance: Floats) -> Floats:
    """Return (k, k) the variance of every difference, Var(a) + Var(b) − 2 Cov(a, b); rounding errors become 0."""
    of_one = np.diag(covariance)
    of_both = of_one[:, None] + of_one[None, :]
    variances = np.maximum(of_both - 2.0 * covariance, 0.0)
    return np.where(variances > np.finfo(float).eps * of_both, variances, 0.0)


def _covariance(rows: Floats) -> Floats:
    """Return the unbiased covariance (k, k) of rows (k, n); zero for a single column."""
    if rows.shape[1] < 2:
        return np.zeros((len(rows), len(rows)))
    centred = rows - rows.mean(axis=1, keepdims=True)
    return np.asarray(centred @ centred.T / (rows.shape[1] - 1))


def _check_sizes(methods: Sequence[Sequence[NetworkScores]]) -> None:
    sizes = [[(np.size(ids), *map(np.size, oods)) for ids, oods in networks] for networks in methods]
    if not sizes or not sizes[0] or len(sizes[0][0]) < 2 or any(other != sizes[0] for other in sizes):
        different = " and ".join(sorted({str(one) for one in sizes})[:2])
        raise MetricError(f"ranks need scores of the same images and networks by every method (found {different or 0})")


class MeanRanks(NamedTuple):
    """Ranks of k methods, averaged over N sets, rank 1 the best.

    `ranks` (k,); two methods differ if the difference of their ranks exceeds `critical`; `p` is Friedman's, for all
    methods being equal; `sets` is N.
    """

    ranks: Floats
    critical: float
    p: float
    sets: int


def mean_ranks(values: ArrayLike, level: float = 0.95) -> MeanRanks:
    """Return the mean ranks of methods over sets, ties sharing the mean of their ranks.

    Critical difference: q·√(k(k + 1) / 6N), with q the studentized range of k means with infinite degrees of freedom at
    the level, divided by √2. Friedman: χ² = 12N/(k(k + 1)) · (Σ R² − k(k + 1)²/4), with k − 1 degrees of freedom.

    The sets count as a sample of all possible sets, so this says what to expect on another set; `rank_ranges` says how
    certain an order is on these sets.

    Args:
        values: (k, N) larger = better.
        level: one minus the family-wise error rate, in (0, 1).

    Raises:
        MetricError: fewer than two methods or sets, or NaN.

    Reference: Demšar, Journal of Machine Learning Research 7 (2006), sections 3.2.2 and 3.2.4.
    """
    check_rate(level, "level", closed=False)
    table = np.asarray(values, dtype=np.float64)
    if table.ndim != 2 or min(table.shape) < 2 or np.isnan(table).any():
        raise MetricError(f"mean ranks need a number for each of ≥ 2 methods on each of ≥ 2 sets (found {table.shape})")
    k, n = table.shape
    from scipy.stats import chi2, rankdata, studentized_range  # which take long to load

    ranks = rankdata(-table, axis=0).mean(axis=1)
    q = float(studentized_range.ppf(level, k, np.inf)) / np.sqrt(2.0)
    statistic = 12.0 * n / (k * (k + 1)) * (float((ranks**2).sum()) - k * (k + 1) ** 2 / 4)
    return MeanRanks(ranks, q * float(np.sqrt(k * (k + 1) / (6.0 * n))), float(chi2.sf(statistic, k - 1)), n)


def bars(mean: MeanRanks) -> list[list[int]]:
    """Return the bars of a critical-difference diagram: maximal groups of methods within the critical difference.

    Groups of one, and groups within another, are left out.
    """
    order = [int(at) for at in np.argsort(mean.ranks, kind="stable")]
    groups: list[list[int]] = []
    for start, first in enumerate(order):
        group = [at for at in order[start:] if mean.ranks[at] - mean.ranks[first] <= mean.critical]
        if len(group) > 1 and not (groups and set(group) <= set(groups[-1])):
            groups.append(group)
    return groups


def kendall_taus(values: ArrayLike, level: float = 0.95, replicates: int = 1000, seed: int = 0) -> Floats:
    """Return (N, N, 3) Kendall's τ-b between the orders of k methods on N networks, with the ends of its interval.

    τ = Σ sign(x_i − x_j)·sign(y_i − y_j) / √(pairs that differ in x · pairs that differ in y), NaN where one order has
    ties only. The interval is of percentiles over methods drawn with replacement: it says what to expect of methods
    like these. A pair of a method and itself counts as tied.

    Args:
        values: (k, N) larger = better.
        level: of the intervals.
        replicates: how often the methods are drawn.
        seed: of the draws.

    Reference: Kendall, Biometrika 33 (1945), for ties; Efron and Tibshirani, "An introduction to the bootstrap", 1993.
    """
    table = np.asarray(values, dtype=np.float64)
    k, n = table.shape
    signs = np.sign(table[:, None, :] - table[None, :, :])
    drawn = np.random.default_rng(seed).multinomial(k, np.full(k, 1 / k), replicates)
    weights = np.vstack([np.ones(k), drawn])

    def total(of: Floats) -> Floats:
        return np.asarray(((weights @ of) * weights).sum(axis=1))

    differ = [total(np.abs(signs[:, :, at])) for at in range(n)]
    taus = np.ones((n, n, 3))
    for a in range(n):
        for b in range(a):
            with np.errstate(invalid="ignore", divide="ignore"):
                found = total(signs[:, :, a] * signs[:, :, b]) / np.sqrt(differ[a] * differ[b])
            ends = np.nanquantile(found, [(1 - level) / 2, (1 + level) / 2]) if np.isfinite(found[0]) else [np.nan] * 2
            taus[a, b] = taus[b, a] = found[0], *ends
    return taus
