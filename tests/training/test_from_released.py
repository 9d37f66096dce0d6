"""Fine-tunings on a network that is a trained classifier: they go on from its weights at once."""

from dataclasses import replace
from pathlib import Path

import torch
from safetensors.torch import load_file

from openbench.backbones.network import NetworkBackbone, finetuned
from openbench.training._job import TrainingJob
from openbench.training.loop._loop import train
from openbench.training.loop.weights import obtain
from openbench.training.methods.cross_entropy import CrossEntropy
from openbench.training.methods.csi import CSI
from openbench.training.methods.fine_tuning import FineTuning
from openbench.training.methods.ish import ISH

from .training_toys import PREPROCESS, QUIET, RECIPE, backbone, benchmark

METHOD = ISH(RECIPE, FineTuning(epochs=1, lr=1e-9))


def classifier(head: str) -> NetworkBackbone:
    start = backbone().initialise(9)
    start.load_state(start.module().state_dict(), "own")
    return finetuned("toy_finetuned", start, head=head, num_classes=start.num_classes, preprocess=PREPROCESS)


def test_no_other_training_comes_before_it(tmp_path: Path) -> None:
    made = TrainingJob.of(classifier("kept"), benchmark(), METHOD, 0)
    assert made.initial is None
    checkpoint = obtain(made, tmp_path, lambda folder: train(made, folder, QUIET))
    assert [p.name for p in tmp_path.iterdir() if p.is_dir()] == [made.digest]
    # At that rate the weights stay where they were: at those of the network that it starts from.
    found, start = load_file(checkpoint.weights), backbone().initialise(9).module().state_dict()
    torch.testing.assert_close(found["fc.weight"], start["fc.weight"], atol=1e-6, rtol=0)
    torch.testing.assert_close(found["conv.weight"], start["conv.weight"], atol=1e-6, rtol=0)


def test_a_new_head_is_trained_first_and_so_is_a_contrastive_network() -> None:
    assert TrainingJob.of(classifier("new"), benchmark(), METHOD, 0).initial.method == CrossEntropy(RECIPE)
    contrastive = CSI(replace(RECIPE, warmup_epochs=0), tuning=FineTuning(epochs=1))
    assert TrainingJob.of(classifier("kept"), benchmark(), contrastive, 0).initial is not None
