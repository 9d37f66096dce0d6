"""A detector from fit to prediction: what it says, in which form images may be given, what it refuses."""

import pickle

import numpy as np
import pytest
import torch
from PIL import Image
from scipy.stats import beta

from openbench.detect.calibration import Calibration, Terms
from openbench.detect.detector import Detector
from openbench.detect.saved import load_detector
from openbench.errors import (
    ConfigError,
    DataError,
    LeakageError,
    MetricError,
    NotApplicableError,
    NotFittedError,
    OpenbenchError,
)
from openbench.methods.cover import CoVer
from openbench.methods.double_score import DoubleScore
from openbench.methods.logits import MLS
from openbench.methods.msp import MSP
from openbench.metrics.conformal.corrections import correction_table

from .tiny import CLASSES, PREPROCESS, calibrated, detector, images, network

NEW = images(40, 2)[0]


def by_hand(method="mls"):
    """The largest logit, negated, of the network itself."""
    x = (torch.from_numpy(NEW).permute(0, 3, 1, 2) / 255 - 0.5) / 0.25
    with torch.no_grad():
        return network()(x)


def test_the_score_is_the_methods_and_the_label_the_networks():
    found, logits = calibrated("mls").predict(NEW), by_hand()
    np.testing.assert_allclose(found.score, -logits.amax(dim=1), rtol=1e-5)
    assert found.label.tolist() == logits.argmax(dim=1).tolist()
    assert found.label_name == tuple(CLASSES[y] for y in found.label)


@pytest.mark.parametrize("method", ["gram", "knn_msp"])
def test_one_pass_of_the_network_serves_scores_and_classes(method):
    backbone = calibrated(method).learnt[0]
    before = backbone.passes
    calibrated(method).predict(NEW)
    assert backbone.passes == before + len(NEW)


def headless():
    return torch.nn.Sequential(network().layer1, torch.nn.AdaptiveAvgPool2d(1), torch.nn.Flatten())


@pytest.mark.parametrize(("method", "read"), [("mls", "logits"), ("vim", "logits, the head"), ("react", "the head")])
def test_a_network_without_a_classifier_is_refused_by_methods_that_read_one(method, read):
    made = Detector(headless(), method, preprocess=PREPROCESS, classes=CLASSES)
    with pytest.raises(NotApplicableError, match=f"'{method}' reads {read}, and model 'sequential' has no classifier"):
        made.fit(images(120, 0))


def test_a_classifier_given_as_arrays_is_that_of_a_network_without_one():
    whole, body = network(), headless()
    arrays = (whole.head.weight.detach().numpy(), whole.head.bias.detach().numpy())
    for head in (whole.head, arrays):
        made = Detector(body, "mls", preprocess=PREPROCESS, classes=CLASSES, head=head)
        found = made.fit(images(120, 0)).calibrate(images(199, 1)).predict(NEW)
        np.testing.assert_allclose(found.score, -by_hand().amax(dim=1), rtol=1e-5)
    with pytest.raises(DataError, match="head is a int — allowed: the name of a module"):
        Detector(body, "mls", preprocess=PREPROCESS, head=3)


def test_p_values_count_the_calibration_scores_that_are_as_large():
    known, found = calibrated("mls").calibration.scores, calibrated("mls").predict(NEW)
    ranks = [1 + sum(known >= score) for score in found.score]
    assert found.p_value.tolist() == [rank / 200 for rank in ranks]
    table = correction_table(199, 0.05, "monte_carlo")
    assert found.p_value_conditional.tolist() == [table[rank - 1] for rank in ranks]
    assert found.is_ood.tolist() == [rank <= 20 for rank in ranks]
    assert found.is_ood.tolist() == (found.score > calibrated("mls").threshold).tolist()


def test_the_conditional_guarantee_decides_by_the_corrected_p_value():
    strict = detector("mls").calibrate(images(199, 1), alpha=0.2, guarantee="conditional")
    found = strict.predict(NEW)
    by_threshold, by_p = found.score > strict.threshold, found.p_value_conditional <= 0.2
    assert found.is_ood.tolist() == by_p.tolist() == by_threshold.tolist()


def test_prediction_sets_hold_the_classes_above_the_conformal_quantile():
    held, labels = images(199, 1)
    found = calibrated("mls").predict(held)
    x = (torch.from_numpy(held).permute(0, 3, 1, 2) / 255 - 0.5) / 0.25
    with torch.no_grad():
        misfit = 1 - torch.softmax(network()(x).double(), dim=1).numpy()
    # The smallest rank with rank/(n+1) ≥ 1 − α, n = 199: the 180-th.
    quantile = np.sort(misfit[np.arange(199), labels])[179]
    sets = [tuple(int(y) for y in np.flatnonzero(row <= quantile + 1e-6)) for row in misfit]
    assert sum(a != b for a, b in zip(found.prediction_set, sets, strict=True)) == 0


@pytest.mark.parametrize(
    "form",
    [
        Image.fromarray(NEW[0]),
        NEW[0],
        torch.from_numpy(NEW[0]).permute(2, 0, 1),
        [Image.fromarray(NEW[0])],
        torch.from_numpy(NEW[:1]).permute(0, 3, 1, 2),
        Image.fromarray(NEW[0]).convert("RGBA"),
    ],
    ids=["PIL", "array", "tensor", "list", "tensors", "RGBA"],
)
def test_an_image_may_be_given_in_any_form(form):
    assert calibrated().predict(form).score.tolist() == calibrated().predict(NEW[0]).score.tolist()
    grey = NEW[0, :, :, 0]
    assert calibrated().predict(grey).score == calibrated().predict(np.stack([grey] * 3, axis=2)).score


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (NEW[0].astype(np.float32), "uint8 pixels"),
        (np.zeros((0, 8, 8, 3), np.uint8), "empty"),
        (np.zeros((2, 8, 8, 5), np.uint8), "shape"),
        (np.moveaxis(NEW[0], 2, 0), r"shape \(3, 8, 8\) of one colour image with its channels first"),
        (torch.from_numpy(NEW[0]), r"shape \(8, 8, 3\) of one colour image with its channels last"),
        (Image.fromarray(np.full((8, 8), 40_000, np.uint16)), "more than 8 bits"),
        (Image.fromarray(np.full((8, 8), 0.5, np.float32)), "more than 8 bits"),
        ("photo.jpg", "is a str"),
        ([NEW[0], "photo.jpg"], "image 1 is a str"),
    ],
)
def test_what_is_no_image_is_refused(given, message):
    with pytest.raises(DataError, match=message):
        calibrated().predict(given)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (pickle.dumps, r"cannot be pickled — .*save\(path\)"),
        (lambda d: d.save(None), "path — found null, allowed: a path"),
        (lambda d: load_detector(None), "path — found null"),
        (lambda d: d.select(NEW, fdr="a"), "out of range: found 'a'"),
        (lambda d: d.calibrate((NEW, ["pink"] * len(NEW))), "'pink' is not a class — allowed: red, green, blue"),
        (lambda d: d.calibrate(images(99, 1), correction="asymptotic"), "monte_carlo, equal_local_level, simes, dkwm"),
        (lambda d: Detector("resnet20_cifar10", "msp", classes=5), "classes — found 5, allowed: "),
        (lambda d: Detector("resnet20_cifar10", "msp", batch_size=0), "batch_size"),
    ],
)
def test_arguments_of_another_kind_are_refused(call, message):
    with pytest.raises(OpenbenchError, match=message):
        call(calibrated())


def test_groups_keep_their_own_thresholds():
    held, _ = images(198, 1)
    both = detector("mls").calibrate(held, alpha=0.1, groups=[7, 8] * 99)
    assert list(both.threshold) == ["7", "8"]
    alone = detector("mls").calibrate(held[1::2], alpha=0.1)
    assert both.threshold["8"] == alone.threshold
    assert both.predict(NEW, groups=8).rows() == both.predict(NEW, groups=["8"] * 40).rows()
    assert both.predict(NEW, groups="8").p_value.tolist() == alone.predict(NEW).p_value.tolist()
    assert both.predict(NEW[:2], groups=["7", "8"]).p_value[1] == alone.predict(NEW[1]).p_value[0]
    for groups in ("9", None):
        with pytest.raises(DataError, match=f"group '{groups}' was not calibrated.*name the group of each image"):
            both.predict(NEW, groups=groups)
    for groups in (7, "predicted", ["predicted_class 0"] * 198):
        with pytest.raises(DataError, match=r"one group per image expected, with .*; or 'predicted_class'"):
            both.calibrate(held, alpha=0.1, groups=groups)


def test_predicted_classes_may_be_the_groups():
    by_class = detector("mls").calibrate(images(199, 1), alpha=0.1, groups="predicted_class")
    held = calibrated("mls")
    found, label = held.predict(NEW), held.predict(images(199, 1)[0]).label
    for row, (y, score) in enumerate(zip(found.label, found.score, strict=True)):
        same = held.calibration.scores[label == y]
        assert by_class.predict(NEW).p_value[row] == (1 + sum(same >= score)) / (1 + len(same))


def test_conditional_p_values_of_all_groups_hold_together():
    # Two groups are both lucky with probability 1 − δ if each is with √(1 − δ), since they share no image.
    n, delta = 400, 0.19
    scores, codes = np.arange(2.0 * n), np.arange(2 * n) % 2
    terms = Terms(alpha=0.1, delta=delta, guarantee="conditional")
    both = Calibration(scores, terms, ("a", "b"), codes)
    alone = Calibration(scores[::2], Terms(alpha=0.1, delta=0.1, guarantee="conditional"))
    assert both.thresholds["a"] == alone.thresholds[""]
    # Above the k-th largest of n scores lies a share with the law Beta(k, n + 1 − k).
    k = [int((scores[codes == code] >= both.thresholds[name]).sum()) for code, name in enumerate("ab")]
    assert np.prod([beta.cdf(0.1, rank, n + 1 - rank) for rank in k]) >= 1 - delta


def test_weights_are_asked_for_where_there_were_some():
    held = images(99, 1)[0]
    shifted = detector("mls").calibrate(held, alpha=0.1, weights=np.ones(99))
    plain = detector("mls").calibrate(held, alpha=0.1)
    np.testing.assert_allclose(shifted.predict(NEW, weights=1.0).p_value, plain.predict(NEW).p_value, rtol=1e-12)
    assert np.isnan(shifted.predict(NEW, weights=1.0).p_value_conditional).all()
    assert plain.predict(NEW).prediction_set is None  # without labels
    with pytest.raises(DataError, match="calibrated with weights"):
        shifted.predict(NEW)
    with pytest.raises(DataError, match="calibrated without weights"):
        plain.predict(NEW, weights=1.0)
    with pytest.raises(ConfigError, match="without weights"):
        shifted.select(NEW)
    for odd in ([1.0, 2.0], ["heavy"] * 40, -1.0):
        with pytest.raises(MetricError, match="weights"):
            shifted.predict(NEW, weights=odd)


def test_selection_is_benjamini_hochbergs():
    found = calibrated("mls").predict(NEW)
    for p, guarantee in ((found.p_value, "marginal"), (found.p_value_conditional, "conditional")):
        # Step up, by hand: the largest k with at least k p-values ≤ fdr·k/m.
        counts = [k for k in range(1, 41) if sum(p <= 0.5 * k / 40) >= k]
        cut = 0.5 * max(counts, default=0) / 40
        chosen = calibrated("mls").select(NEW, fdr=0.5, guarantee=guarantee)
        assert chosen.tolist() == (p <= cut).tolist()
        assert calibrated("mls").select(found, fdr=0.5, guarantee=guarantee).tolist() == chosen.tolist()


def test_too_few_images_for_alpha_say_how_many_are_needed():
    with pytest.raises(DataError, match=r"calibration has 98 images.* reaches α = 0.01 — give at least 99"):
        detector("mls").calibrate(images(98, 1), alpha=0.01)
    assert detector("mls").calibrate(images(99, 1), alpha=0.01).alpha == 0.01
    with pytest.raises(DataError, match=r"group 'b' has 3 images.*at least 9 in each group"):
        detector("mls").calibrate(images(30, 1), alpha=0.1, groups=["a"] * 27 + ["b"] * 3)
    with pytest.raises(DataError, match=r"at least \d\d+, or"):
        detector("mls").calibrate(images(30, 1), alpha=0.1, guarantee="conditional")


def test_calibration_with_a_training_image_is_refused():
    (train, _), (held, labels) = images(120, 0), images(50, 1)
    held = np.concatenate([held, train[7:8]])
    with pytest.raises(LeakageError, match=r"1 of 51 images were given to fit \(first: image 50\)"):
        detector("mls").calibrate((held, np.append(labels, 0)), alpha=0.1)


def test_the_order_of_calls_is_told():
    new, both = (Detector(network(), of, preprocess=PREPROCESS) for of in ("knn", DoubleScore(MSP(), MLS())))
    for call, error, message in (
        (lambda: new.calibrate(images(30, 1)), NotFittedError, r"call fit\(train\) first"),
        (new.fit, DataError, "learns from ID images"),
        (lambda: new.predict(NEW), NotFittedError, "before calibrate"),
        # A method that puts scores in one unit learns it from images, whatever its parts do.
        (both.fit, DataError, "learns from ID images"),
    ):
        with pytest.raises(error, match=message):
            call()
    # A method that learns nothing needs no training images.
    plain = Detector(network(), "msp", preprocess=PREPROCESS)
    assert plain.calibrate(images(30, 1)).predict(NEW).is_ood.shape == (40,)
    assert [repr(each).rpartition(", ")[2] for each in (new, plain.fit(images(9, 2)))] == ["unfitted)", "fitted)"]
    with pytest.raises(NotFittedError, match="before calibrate"):  # which fitting again has forgotten
        plain.predict(NEW)


def test_classes_are_named_by_the_data_unless_they_were_given():
    class Photos(list):
        classes = ("a", "b", "c")

    photos = Photos(zip(*images(30, 1), strict=True))
    named = [Detector(network(), "msp", preprocess=PREPROCESS, classes=given) for given in ((), CLASSES)]
    assert [each.calibrate(photos).class_names for each in named] == [Photos.classes, CLASSES]


def test_a_score_that_ties_with_calibration_scores_is_no_further_out_than_they_are():
    judged = Calibration(np.array([0.0, *[1.0] * 3, *range(2, 17)]), Terms(alpha=0.05)).judged(np.array([1, 16, 16.5]))
    assert judged.marginal.tolist() == [19 / 20, 2 / 20, 1 / 20]
    assert judged.is_ood.tolist() == [False, False, True]


def test_a_model_that_does_not_fit_is_refused():
    named = Detector(network(), "msp", preprocess=PREPROCESS, classes=("a", "b"))
    for _ in range(2):
        with pytest.raises(DataError, match="3 output classes, and there are 2"):
            named.calibrate(images(30, 1)[0])
    with pytest.raises(ConfigError, match="did you mean 'resnet20_cifar10'"):
        Detector("resnet20_cifar11", "msp").fit()
    with pytest.raises(NotApplicableError, match="a detector has only ID ones"):
        detector("knn_mfs")
    with pytest.raises(NotApplicableError, match="corrupted copies"):
        Detector(network(), CoVer(MSP()), preprocess=PREPROCESS).fit(images(60, 0))
    with pytest.raises(NotApplicableError, match="features"):
        Detector(lambda x: network()(x), "knn", preprocess=PREPROCESS).fit(images(60, 0))


@pytest.mark.parametrize("method", ["react", "vim", "odin", "combood", "dropout", "gram"])
def test_methods_of_every_kind_can_be_asked(method):
    found = calibrated(method).predict(NEW)
    assert found.score.shape == (40,)
    one = calibrated(method).predict(NEW[3])
    np.testing.assert_allclose(one.score, found.score[3:4], rtol=1e-4)


@pytest.mark.parametrize(("n", "alpha"), [(99, 0.1), (500, 0.05), (1000, 0.01)])
def test_the_true_false_alarm_rate_has_the_law_of_an_order_statistic(n, alpha):
    # Above the k-th largest of n scores lies a share of the population with the law Beta(k, n + 1 − k).
    scores = np.arange(n) / n
    k = n - round(Calibration(scores, Terms(alpha=alpha)).thresholds[""] * n)
    assert k / (n + 1) <= alpha < (k + 1) / (n + 1)  # the mean of that law: the marginal promise
    strict = Calibration(scores, Terms(alpha=max(alpha, 0.05), delta=0.1, guarantee="conditional"))
    k = n - round(strict.thresholds[""] * n)
    assert beta.sf(max(alpha, 0.05), k, n + 1 - k) <= 0.1  # above α with probability δ at most
