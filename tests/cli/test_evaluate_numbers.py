"""Every number of `evaluate --json`, from a file as a user has one, against independent computations."""

import json

import numpy as np
import pandas as pd
import pytest
from scipy.stats import beta, norm
from sklearn import metrics as sk

from openbench.__main__ import main

OPTIONS = [
    "--replicates", "0", "--delta", "0.1", "--correction", "dkwm", "--prior", "0.4", "--tpr", "0.7", "--fpr", "0.3",
    "--precision", "0.6", "--recall", "0.5", "--autc-scaling", "pair", "--autc-weight", "0.3", "--fdr", "0.2",
    "--ccr-fprs", "0.1,0.25", "--alphas", "0.1,0.2", "--confidence", "0.9", "--cost-reject-id", "0.3",
    "--cost-accept-ood", "0.9", "--cost-reject-ood", "0.1",
]  # fmt: skip


def frame(seed=0, decimals=1):
    """Scores with ties, ID probabilities over three classes, two near sets and one far set."""
    rng = np.random.default_rng(seed)
    parts = []
    for name, role, shift, n in (
        ("c", "id_test", 0.0, 90), ("c", "id_val", 0.0, 80), ("v", "ood_val", 1.0, 50),
        ("a", "near", 0.7, 60), ("b", "near", 1.2, 40), ("f", "far", 2.0, 70),
    ):  # fmt: skip
        part = pd.DataFrame({"score": rng.normal(shift, 1, n).round(decimals), "set": name, "role": role})
        if role.startswith("id"):
            p = rng.dirichlet([0.5] * 3, n)
            part["label"] = [int(rng.choice(3, p=row)) for row in p]
            part[["p_0", "p_1", "p_2"]] = p
        parts.append(part)
    return pd.concat(parts, ignore_index=True)


TABLE = frame()


def rows(role, name=None):
    chosen = TABLE[(TABLE.role == role) & ((TABLE.set == name) if name else True)]
    return chosen.score.to_numpy()


IDS, VAL, OOD_VAL = rows("id_test"), rows("id_val"), rows("ood_val")
SETS = {"a": rows("near", "a"), "b": rows("near", "b"), "f": rows("far", "f")}
ID_ROWS = TABLE[TABLE.role == "id_test"]
WRONG = (ID_ROWS[["p_0", "p_1", "p_2"]].to_numpy().argmax(1) != ID_ROWS.label).to_numpy()


@pytest.fixture(scope="module")
def values(tmp_path_factory):
    folder = tmp_path_factory.mktemp("evaluate")
    file, out = folder / "scores.csv", folder / "metrics.json"
    TABLE.to_csv(file, index=False)
    assert main(["evaluate", str(file), "--json", str(out), *OPTIONS]) == 0
    return json.loads(out.read_text())


def thresholds(ood):
    return np.concatenate([[-np.inf], np.unique(np.concatenate([IDS, ood]))])


def every_threshold(ood):
    """(share of ID accepted, share of OOD accepted, wrong among all ID accepted) at each λ, by counting."""
    phi = np.array([(t >= IDS).mean() for t in thresholds(ood)])
    rho = np.array([(ood <= t).mean() for t in thresholds(ood)])
    loss = np.array([WRONG[t >= IDS].sum() / IDS.size for t in thresholds(ood)])
    return phi, rho, loss


def ranking(ood):
    truth, pooled = np.repeat([0, 1], [IDS.size, ood.size]), np.r_[IDS, ood]
    fpr, tpr, _ = sk.roc_curve(truth, pooled, drop_intermediate=False)
    fpr_id, tpr_id, _ = sk.roc_curve(1 - truth, -pooled, drop_intermediate=False)
    precision, recall, cut = sk.precision_recall_curve(truth, pooled)
    precision_id, recall_id, _ = sk.precision_recall_curve(1 - truth, -pooled)
    f1 = [sk.f1_score(truth, pooled >= t) for t in cut]
    flagged = pooled >= cut[np.flatnonzero(np.isclose(f1, max(f1)))[-1]]
    return {
        "auroc": sk.roc_auc_score(truth, pooled),
        "ap_out": sk.average_precision_score(truth, pooled),
        "ap_in": sk.average_precision_score(1 - truth, -pooled),
        "aupr_out": sk.auc(recall, precision),
        "aupr_in": sk.auc(recall_id, precision_id),
        "fpr95": fpr[tpr >= 0.95].min(),
        "fpr95_id_positive": fpr_id[tpr_id >= 0.95].min(),
        "detection_error": 0.5 * (fpr + 1 - tpr).min(),
        "f1": max(f1),
        "accuracy": sk.accuracy_score(truth, flagged),
        "precision": sk.precision_score(truth, flagged),
        "recall": sk.recall_score(truth, flagged),
        "f1_threshold": pooled[flagged].min(),
        "n_ood": ood.size,
    }


def threshold(ood):
    low, high = np.r_[IDS, ood].min(), np.r_[IDS, ood].max()
    grid = np.linspace(0, 1, 200_001)  # the integral by brute force
    scaled = [np.sort((s - low) / (high - low)) for s in (IDS, ood)]
    above = [1 - np.searchsorted(s, grid, side="right") / s.size for s in scaled]
    aufpr, aufnr = np.trapezoid(above[0], grid), np.trapezoid(1 - above[1], grid)
    at95 = np.quantile(IDS, 0.95, method="inverted_cdf")
    return {
        "aufpr": aufpr,
        "aufnr": aufnr,
        "autc": 0.3 * aufpr + 0.7 * aufnr,
        "fpr@95tnr": (at95 < IDS).mean(),
        "fnr@95tnr": (ood <= at95).mean(),
    }


def selective(ood):
    phi, rho, loss = every_threshold(ood)
    risk = np.divide(loss, phi, out=np.full(phi.size, np.inf), where=phi > 0)
    kappa = np.divide(0.6 * phi, 0.6 * phi + 0.4 * rho, out=np.zeros(phi.size), where=phi + rho > 0)
    bounded, precise = (phi >= 0.7) & (rho <= 0.3), (phi >= 0.5) & (kappa >= 0.6)
    cost = 0.6 * (loss + 0.3 * (1 - phi)) + 0.4 * (0.9 * rho + 0.1 * (1 - rho))
    part = (np.arange(2000)[:, None] + 0.5) / 2000  # of a tie that is accepted: from 0 to 1

    def accuracy(b):
        accepted = (b > IDS) + part * (b == IDS)
        return np.mean(accepted @ ~WRONG / np.maximum(accepted.sum(1), 1e-9))

    right_below = np.mean([(~WRONG & (b > IDS)).mean() + 0.5 * (~WRONG & (b == IDS)).mean() for b in ood])
    return {
        "risk@tpr0.7,fpr0.3": risk[bounded].min() if bounded.any() else "unable",
        "risk@prec0.6,rec0.5": risk[precise].min() if precise.any() else "unable",
        "cost": cost.min(),
        "oscr": right_below,
        "oscr_selective": np.mean([accuracy(b) for b in ood]),
        "ccr@fpr1e-1": (phi - loss)[rho <= 0.1].max(),
        "ccr@fpr0.25": (phi - loss)[rho <= 0.25].max(),
    }


def conformal(ood):
    n, slack = IDS.size, np.sqrt(np.log(2 / 0.1) / (2 * IDS.size))

    def bound(flagged):  # h of the rank flagged + 1
        return min(1.0, (flagged + 1) / n + slack) if flagged < n else 1.0

    cuts = [*np.unique(np.r_[IDS, ood])[::-1], -np.inf]  # flag s > cut, ever more
    points = [(bound(int((t < IDS).sum())), (ood > t).mean()) for t in cuts]
    x, y = np.array(points).T
    at95 = min(int((t < IDS).sum()) for t in cuts if (ood > t).mean() >= 0.95)
    tested = np.r_[IDS, ood]
    p = np.array([(1 + (s <= VAL).sum()) / (VAL.size + 1) for s in tested])
    ranks = np.arange(1, p.size + 1)
    passing = np.sort(p)[np.sort(p) <= 0.2 * ranks / p.size]
    flagged = p <= (passing[-1] if passing.size else -1)
    return {
        "conformal_auroc": np.trapezoid(y, x),
        "conformal_fpr95": bound(at95),
        "bh_power@0.2": flagged[n:].mean(),
        "bh_fdp@0.2": flagged[:n].sum() / max(1, flagged.sum()),
    }


def intervals(ood):
    wins = (ood[:, None] > IDS) + 0.5 * (ood[:, None] == IDS)  # placements by all pairs
    deviation = np.sqrt(wins.mean(0).var(ddof=1) / IDS.size + wins.mean(1).var(ddof=1) / ood.size)
    half = norm.ppf(0.95) * deviation
    return {"auroc_low": max(0, wins.mean() - half), "auroc_high": min(1, wins.mean() + half)}


FAMILIES = {f.__name__: f for f in (ranking, threshold, selective, conformal, intervals)}


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("name", SETS)
def test_numbers_of_a_set(values, name, family):
    for key, expected in FAMILIES[family](SETS[name]).items():
        by_grid = key in ("autc", "aufpr", "aufnr", "oscr_selective")
        assert values[name][key] == pytest.approx(expected, abs=1e-5 if by_grid else 1e-12), key


def test_no_number_of_a_set_is_left_unchecked(values):
    checked = {key for family in FAMILIES.values() for key in family(SETS["a"])}
    # Where FPR equals FNR is checked by its definition below.
    assert set(values["a"]) - checked == {"fpr@test", "fnr@test", "fpr@val", "fnr@val"}


@pytest.mark.parametrize("name", SETS)
def test_balanced_thresholds_make_both_errors_as_equal_as_they_can_be(values, name):
    def gap(ids, ood, t):
        return abs((ids > t).mean() - (ood <= t).mean())

    ood = SETS[name]
    least = min(gap(IDS, ood, t) for t in thresholds(ood))
    assert abs(values[name]["fpr@test"] - values[name]["fnr@test"]) == pytest.approx(least, abs=1e-12)
    best = min(np.unique(np.r_[VAL, OOD_VAL]), key=lambda t: gap(VAL, OOD_VAL, t))
    found = values[name]["fpr@val"], values[name]["fnr@val"]
    assert found == pytest.approx(((best < IDS).mean(), (ood <= best).mean()))


def test_group_values_are_means_and_pooled_values_those_of_all_rows(values):
    for key, expected in ranking(np.r_[SETS["a"], SETS["b"]]).items():
        if key != "n_ood":
            assert values["near"][f"pooled_{key}"] == pytest.approx(expected), key
            if key != "f1_threshold":
                assert values["near"][key] == pytest.approx((values["a"][key] + values["b"][key]) / 2), key


def test_values_of_the_id_side(values):
    order = np.argsort(IDS, kind="stable")
    # A tie counts with its mean loss, whatever the order within it.
    smooth = np.array([WRONG[s == IDS].mean() for s in IDS[order]])
    area = (np.cumsum(smooth) / np.arange(1, 91)).mean()
    perfect = (np.cumsum(np.sort(WRONG)) / np.arange(1, 91)).mean()
    assert values["id"]["accuracy"] == pytest.approx(1 - WRONG.mean())
    assert values["id"]["aurc"] == pytest.approx(area)
    assert values["id"]["e-aurc"] == pytest.approx(area - perfect)
    cuts = [values[name]["f1_threshold"] for name in SETS]
    assert values["id"]["f1_threshold_std"] == pytest.approx(np.std(cuts) / IDS.std())
    assert values["id"]["f1_threshold_range"] == pytest.approx(np.ptp(cuts) / IDS.std())


@pytest.mark.parametrize("alpha", [0.1, 0.2])
def test_prediction_sets_cover_as_computed_by_hand(values, alpha):
    val = TABLE[TABLE.role == "id_val"]
    own = np.sort(1 - val[["p_0", "p_1", "p_2"]].to_numpy()[np.arange(80), val.label.astype(int)])
    sets = 1 - ID_ROWS[["p_0", "p_1", "p_2"]].to_numpy() <= own[int(np.ceil(81 * (1 - alpha))) - 1]
    covered = sets[np.arange(90), ID_ROWS.label.astype(int)]
    classes = ID_ROWS.label.to_numpy()
    assert values["id"][f"lac_coverage@{alpha}"] == pytest.approx(covered.mean())
    assert values["id"][f"lac_size@{alpha}"] == pytest.approx(sets.sum(1).mean())
    assert values["id"][f"lac_singletons@{alpha}"] == pytest.approx((sets.sum(1) == 1).mean())
    worst = min(covered[classes == c].mean() for c in range(3))
    assert values["id"][f"lac_worst_class@{alpha}"] == pytest.approx(worst)
    # APS and RAPS draw uniforms; coverage then follows a beta law around 1 − α.
    low, high = beta.ppf([1e-4, 1 - 1e-4], np.ceil(81 * (1 - alpha)), 81 - np.ceil(81 * (1 - alpha)))
    noise = 4 * np.sqrt(alpha * (1 - alpha) / 90)
    for kind in ("aps", "raps"):
        assert low - noise < values["id"][f"{kind}_coverage@{alpha}"] < high + noise
