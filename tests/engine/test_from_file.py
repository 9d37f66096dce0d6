"""The same features by both ways, from the network and from a file, give the same numbers to the bit."""

import numpy as np
import pytest

from openbench.core.request import Field, Request
from openbench.core.runtime import Runtime
from openbench.data.build import build_benchmark
from openbench.engine.prepare import ready_backbone
from openbench.features.store import FeatureStore

from ..prepared import job, run_config  # noqa: TID252 — the tests are no package

QUICK = ["metrics.replicates=0", "metrics.correction=simes", "+metrics.set_splits=0"]


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    return tmp_path_factory.mktemp("file")


def outcome(folders, *words):
    return job(folders, "+benchmark=openset_digits", *QUICK, *words)


@pytest.fixture(scope="module")
def network(folders):
    """The words that choose a network with random weights, whose features of all sets are in a file."""
    import torch

    from openbench.backbones.cifar import resnet
    from openbench.core.preprocess import Preprocess

    made = resnet("resnet8_digits", "resnet8", num_classes=6, preprocess=Preprocess(16, 16))
    torch.save(made.initialise(1).module().state_dict(), folders / "r8.pt")
    words = ["backbone=resnet8_digits", f"backbone.weights='{folders / 'r8.pt'}'", "backbone.num_classes=6"]
    config, runtime = outcome(folders, *words)
    benchmark, setting = build_benchmark(config["benchmark"]), Runtime.from_config(runtime)
    backbone, _ = ready_backbone(config, benchmark, setting)
    store = FeatureStore(setting.features, progress=False)
    both = Request(fields=frozenset({Field.FEATURES, Field.LOGITS}))
    arrays = {"head/weight": backbone.head.weight.numpy(), "head/bias": backbone.head.bias.numpy()}
    rng = np.random.default_rng(0)
    for split in benchmark.splits():
        group = str(split.role) in ("near", "far")
        where, x = f"{split.role}/{split.name}" if group else str(split.role), store.get(backbone, split, both)
        order = rng.permutation(len(split))  # rows are found by their names
        arrays[f"{where}/features"] = x.features.numpy()[order]
        arrays[f"{where}/logits"] = x.logits.numpy()[order]
        arrays[f"{where}/names"] = np.array(list(split.keys))[order]
        if split.role.is_id:
            arrays[f"{where}/labels"] = split.labels[order]
    np.savez(folders / "mine.npz", **arrays)
    return words


@pytest.mark.parametrize("method", ["knn", "msp"])
def test_features_from_a_file_give_the_numbers_of_the_network(method, folders, network):
    path = f"backbone.path='{folders / 'mine.npz'}'"
    by_network = run_config(*outcome(folders, *network, f"method={method}")).record
    by_file = run_config(*outcome(folders, "backbone=features", path, f"method={method}")).record
    assert by_file.metrics == by_network.metrics
    assert by_file.benchmark == by_network.benchmark
    assert by_file.counts == by_network.counts
    assert by_file.run_id != by_network.run_id
    assert by_file.provenance["passes"] == 0
