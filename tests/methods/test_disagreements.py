"""Public implementations disagree by settings and by state they keep; ours are those of the published tables.

Disagreements by formula are held beside each method: its tests compare with sums written out.
"""

import pytest

from openbench.config.build import build
from openbench.methods.shaping import DICE, ReAct

from .discovered import NODES
from .problems import assert_equal, problem, scores


@pytest.mark.parametrize(
    ("name", "published"),
    [
        ("ash", {"percentile": 90, "variant": "b"}),  # pytorch-ood: s at 65, oodeel: s
        ("dice", {"percentile": 90}),
        ("energy", {"temperature": 1}),
        ("gen", {"gamma": 0.1, "top": 100}),  # pytorch-ood: all classes
        ("gradnorm", {"temperature": 1, "mean": False}),
        ("knn", {"k": 50}),
        ("odin", {"temperature": 1000, "epsilon": 0.0014}),  # oodeel: .014
        ("react", {"percentile": 90}),  # oodeel: 80
        ("she", {"metric": "inner_product"}),
        ("vim", {"dim": "auto"}),  # 256; oodeel: as many as hold 99 % of the variance
    ],
)
def test_settings_are_those_of_the_published_tables(name, published):
    found = build(NODES[name], name).params()
    assert {key: found[key] for key in published} == published


@pytest.mark.parametrize("name", ["mds", "mds_pp", "rmds", "rmds_pp", "she"])
def test_no_input_step_unless_the_method_is_made_of_one(name):
    """oodeel perturbs the input of these by default, at two more passes through the network."""
    assert build(NODES[name], name).request.perturb is None
    assert build(NODES["odin"], "odin").request.perturb is not None


@pytest.mark.parametrize("method", [DICE(90), ReAct(90)])
def test_a_changed_percentile_counts_at_the_next_fit(method):
    """OpenOOD's DICE keeps the mask it made first."""
    data = problem()
    first = scores(method, data)
    method.percentile = 20
    assert_equal(scores(method, data), scores(type(method)(20), data))
    assert abs(first - scores(method, data)).max() > 0.1
