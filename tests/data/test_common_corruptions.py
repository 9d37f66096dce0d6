from dataclasses import replace

import numpy as np
import pytest

from openbench.core.request import Role
from openbench.data.build import build_benchmark
from openbench.data.dataset import SetConfig, locate, split_of
from openbench.data.manifests import load_classes
from openbench.data.sources.base import ImageFolder
from openbench.data.sources.corruptions import CommonCorruptions
from openbench.data.sources.embedded import SklearnDigits
from openbench.data.sources.imagenet_c import KINDS

from .conftest import noisy, write_image


@pytest.fixture
def source():
    return CommonCorruptions({"installed": SklearnDigits()})


def test_another_seed_and_another_key_draw_otherwise_after_the_geometry(source):
    flat = np.full((16, 16, 3), 100, np.uint8)
    noise = replace(source, kind="gaussian_noise", severity=3)
    assert not np.array_equal(noise.apply(flat, "a"), noise.apply(flat, "b"))
    assert not np.array_equal(noise.apply(flat, "a"), replace(noise, seed=1).apply(flat, "a"))
    sized = replace(source, kind="contrast", severity=1, resize=20, crop=10)
    assert sized.apply(np.full((40, 60, 3), 9, np.uint8), "a").shape == (10, 10, 3)


def test_every_kind_and_severity_is_drawn_about_equally_often(source, monkeypatch):
    drawn = []
    monkeypatch.setattr(
        "openbench.data.sources.corruptions.corrupt",
        lambda image, kind, severity, rng: drawn.append((kind, severity)),
    )
    for number in range(3000):
        source.apply(np.zeros((4, 4), np.uint8), f"key {number}")
    for kind in KINDS:
        assert 150 < sum(k == kind for k, _ in drawn) < 250
    for severity in range(1, 6):
        assert 500 < sum(s == severity for _, s in drawn) < 700
    assert len(set(drawn)) == 75


def test_only_what_the_clean_source_has_is_there(tmp_path, monkeypatch):
    monkeypatch.setenv("OPENBENCH_DATA", str(tmp_path))
    write_image(tmp_path / "pets" / "a.png", noisy((32, 32, 3)))
    source = CommonCorruptions({"first": ImageFolder(at=("nowhere",)), "second": ImageFolder(at=("pets",))})
    has = [f for place in source.places([tmp_path]) if (f := source.find(place, ["a.png", "b.png"])) is not None]
    assert len(has) == 1
    assert has[0].present.tolist() == [True, False]
    assert len(has[0].items) == 1


def test_a_raised_version_of_what_makes_images_makes_another_set(monkeypatch):
    sources = {"made": CommonCorruptions({"digits": SklearnDigits()})}
    config = SetConfig("digits_c", "digits/test", sources)

    def seen():
        return split_of(config, locate(config), Role.CSID, load_classes("digits/classes"), "csid").digest

    first = seen()
    monkeypatch.setattr(CommonCorruptions, "version", 2)
    of_corruption = seen()
    monkeypatch.setattr(SklearnDigits, "version", 2)
    assert len({first, of_corruption, seen()}) == 3


def test_any_benchmark_gains_a_csid_set_from_the_command_line(composed):
    node = composed("+benchmark=digits", "+dataset@benchmark.csid.c=id_corrupted")
    benchmark = build_benchmark(node)
    clean, corrupted = benchmark.id_test, benchmark.csid["c"]
    assert corrupted.role == Role.CSID
    assert corrupted.keys == clean.keys
    assert np.array_equal(corrupted.labels, clean.labels)
    assert corrupted.digest != clean.digest
    changed = [not np.array_equal(corrupted.items[i], clean.items[i]) for i in range(len(clean))]
    assert np.mean(changed) > 0.95
    assert not benchmark.pristine
