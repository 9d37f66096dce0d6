"""OpenGAN against a training in the published form: 1×1 convolutions, sigmoid, binary cross-entropy, labels 1 and 0."""

from itertools import pairwise
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from openbench.core.features import FeatureSet
from openbench.methods import opengan
from openbench.methods.opengan import OpenGAN, _discriminator, _generator, _step

from .problems import given

D, LATENT, BATCH = 10, 7, 16


def features(n: int = 4 * BATCH + 1, shift: float = 0.0) -> FeatureSet:
    drawn = torch.rand(n, D, generator=torch.Generator().manual_seed(1)) + shift
    return given(features=drawn)


def convolutions(d: int, latent: int) -> tuple[nn.Sequential, nn.Sequential]:
    judge: list[nn.Module] = [nn.Conv2d(d, 512, 1, bias=False), nn.LeakyReLU(0.2)]
    for a, b in pairwise((512, 256, 128, 64)):
        judge += [nn.Conv2d(a, b, 1, bias=False), nn.BatchNorm2d(b), nn.LeakyReLU(0.2)]
    judge += [nn.Conv2d(64, 1, 1, bias=False), nn.Sigmoid()]
    forger: list[nn.Module] = []
    for a, b in pairwise((latent, 512, 256, 128, 256)):
        forger += [nn.Conv2d(a, b, 1, bias=False), nn.BatchNorm2d(b), nn.ReLU()]
    return nn.Sequential(*judge), nn.Sequential(*forger, nn.Conv2d(256, d, 1))


def weighed(net: nn.Sequential, source: nn.Sequential) -> nn.Sequential:
    """A net with the weights of another that has matrices for convolutions."""
    own = net.state_dict()
    net.load_state_dict({name: value.reshape(own[name].shape) for name, value in source.state_dict().items()})
    return net


def published_step(real: Tensor, noise: Tensor, nets: tuple[nn.Sequential, ...], optimisers: Any) -> None:
    (judge, forger), (for_judge, for_forger), loss = nets, optimisers, nn.BCELoss()
    ones, zeros = torch.ones(len(real), dtype=real.dtype), torch.zeros(len(real), dtype=real.dtype)
    judge.zero_grad()
    loss(judge(real[:, :, None, None]).view(-1), ones).backward()
    fake = forger(noise[:, :, None, None])
    loss(judge(fake.detach()).view(-1), zeros).backward()
    for_judge.step()
    forger.zero_grad()
    loss(judge(fake).view(-1), ones).backward()
    for_forger.step()


def adams(judge: nn.Module, forger: nn.Module, lr: float) -> tuple[torch.optim.Adam, torch.optim.Adam]:
    pairs = ((judge, lr / 1.5), (forger, lr))
    return tuple(torch.optim.Adam(net.parameters(), lr=rate, betas=(0.5, 0.999)) for net, rate in pairs)


def test_steps_are_those_of_the_published_form() -> None:
    generator = torch.Generator().manual_seed(2)
    ours = _discriminator(D, generator).double(), _generator(LATENT, D, generator).double()
    theirs = tuple(weighed(net.double(), own) for net, own in zip(convolutions(D, LATENT), ours, strict=True))
    rivals, optimisers = tuple(zip(ours, adams(*ours, 1e-3), strict=True)), adams(*theirs, 1e-3)
    for _ in range(6):
        real, noise = (torch.rand(BATCH, d, generator=generator, dtype=torch.float64) for d in (D, LATENT))
        _step(real, noise, *rivals)
        published_step(real, noise, theirs, optimisers)
    for own, net in zip(ours, theirs, strict=True):
        for name, value in net.state_dict().items():
            expected = value.reshape(own.state_dict()[name].shape)
            torch.testing.assert_close(own.state_dict()[name], expected, rtol=1e-6, atol=1e-8)


def test_fit_gives_every_feature_to_a_step_in_every_epoch_in_another_order(monkeypatch: pytest.MonkeyPatch) -> None:
    x, seen = features(), []

    def recording(real: Tensor, latent: Tensor, judge: Any, forger: Any) -> None:
        seen.append((real, latent.shape, *(group["lr"] for _, adam in (judge, forger) for group in adam.param_groups)))
        assert all(adam.param_groups[0]["betas"] == (0.5, 0.999) for _, adam in (judge, forger))

    monkeypatch.setattr(opengan, "_step", recording)
    OpenGAN(epochs=3, epoch=3, batch_size=BATCH, latent=LATENT, lr=0.3).fit(x, None)
    # 65 features: four batches of 16, and one feature left over that makes none.
    assert [shape for _, shape, *_ in seen] == [(BATCH, LATENT)] * 12
    assert {tuple(rates) for _, _, *rates in seen} == {(0.3 * (1 / 1.5), 0.3)}
    epochs = [torch.cat([real for real, *_ in seen[i : i + 4]]) for i in (0, 4, 8)]
    rows = [[int((x.features == f).all(dim=1).nonzero()) for f in epoch] for epoch in epochs]
    assert all(len(set(order)) == 64 for order in rows)
    assert len({tuple(order) for order in rows}) == 3


def test_score_is_minus_the_logit_with_the_statistics_of_training() -> None:
    test = features(40, shift=0.3)
    method = OpenGAN(epochs=3, epoch=3, lr=1e-3, batch_size=BATCH, latent=LATENT).fit(features(), None)
    judge = weighed(convolutions(D, LATENT)[0].double(), method.discriminators_[3]).eval()
    with torch.no_grad():
        expected = -torch.logit(judge(test.features.double()[:, :, None, None]).view(-1))
    torch.testing.assert_close(method.score(test).double(), expected, rtol=1e-4, atol=1e-6)
    assert any(bool(value.any()) for name, value in judge.state_dict().items() if "running_mean" in name)


def test_a_kept_discriminator_is_that_of_a_training_of_its_length() -> None:
    x, test = features(), features(40, shift=0.3)
    long = OpenGAN(epochs=3, epoch=3, every=2, lr=1e-3, batch_size=BATCH, latent=LATENT).fit(x, None)
    assert list(long.discriminators_) == [2, 3]
    for epoch in (2, 3):
        short = OpenGAN(epochs=epoch, epoch=epoch, lr=1e-3, batch_size=BATCH, latent=LATENT).fit(x, None)
        long.epoch = epoch
        assert torch.equal(long.score(test), short.score(test))
    long.epoch = 2
    assert not torch.equal(long.score(test), short.score(test))
