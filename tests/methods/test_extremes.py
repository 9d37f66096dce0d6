"""Methods on tiny, huge, signed and dead features: finite scores, or an error that names the method."""

import pytest

from openbench.core.request import Field
from openbench.errors import MethodError

from .discovered import again, reading_columns, scores
from .problems import Problem, changed, fitted_on, problem

SECONDS = {"cblof", "dagmm", "deep_svdd", "hbos", "iforest", "opengan"}  # that a fit takes, or compiling its library
SMALL = {"k": 2, "l": 2, "repeats": 3}  # where a method has them: few samples have few neighbours
METHODS = {
    name: again(method, SMALL)
    for name, method in reading_columns()
    if name not in SECONDS and not method.request.layers and Field.PERTURBED not in method.request.fields
}
# Nothing is classified correctly once features are so small that the bias decides; a residual is rounding where the
# origin lies far from all features; a detector of PyOD divides by the variance of dead features.
REFUSING = {"GROOD", "LibraryDetector", "OpenMax", "PyOD", "ViM"}
UNDERFLOWING = {"klm"}  # its templates hold probabilities of zero, from which others are infinitely far


@pytest.mark.parametrize("scale", [1e-6, 1e4])
@pytest.mark.parametrize("kind", ["rectified", "signed", "dead", "two_classes", "many_classes"])
def test_scores_are_finite_at_every_scale_of_the_features(kind, scale):
    assert len(METHODS) > 70
    data, wrong = problem(kind, n=60), {}
    splits = [(x, scale * x.features) for x in (data.train, data.val, data.test)]
    data = Problem(*(changed(x, features=f, logits=data.head(f)) for x, f in splits), data.head)
    for name, method in METHODS.items():
        own = type(method).__name__
        try:
            found = scores(again(method).fit(fitted_on(method, data), data.head), data.test.without_labels())
            finite = bool(found.isfinite().all())
        except MethodError as error:
            named = str(error).startswith((own, str(method.params().get("detector", own))))
            finite, found = own in REFUSING and named, error
        if not finite and name not in UNDERFLOWING:
            wrong[name] = found
    assert wrong == {}
