from openbench.engine.evaluate import for_layers
from openbench.methods.double_score import DoubleScore
from openbench.methods.knn import KNN
from openbench.methods.maps import Gram, RankFeat
from openbench.methods.msp import MSP

THREE = ("stage1", "stage2", "stage3", "confidence")


def test_every_stage_means_those_that_the_backbone_has():
    found = for_layers(Gram(powers=3), THREE)
    assert found.params() == {**Gram(powers=3).params(), "layers": ["stage1", "stage2", "stage3"]}
    assert found.request.layers == ("stage1", "stage2", "stage3")


def test_parts_of_a_composite_are_looked_into():
    found = for_layers(DoubleScore(MSP(), Gram(), mu=2.0), THREE)
    assert (found.mu, found.ood.layers, found.risk) == (2.0, ["stage1", "stage2", "stage3"], MSP())


def test_named_layers_and_methods_that_read_none_stay():
    for method in (Gram(["stage4"]), KNN(7), RankFeat()):
        assert for_layers(method, THREE) is method
