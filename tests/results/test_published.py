import csv
from pathlib import Path

import pytest

from openbench.errors import RecordError
from openbench.results.published import SOURCES, Setup, load_published
from openbench.results.table import Estimate

REFERENCE = Path(__file__).parents[2] / "results" / "reference"


def test_table_1_is_read_in_our_names_as_fractions():
    figure = load_published(REFERENCE)[Setup("cifar10", "cross_entropy", "resnet18_cifar", "knn")]
    # Zhang et al., table 1, CIFAR-10, KNN: near 90.64 ± 0.20, far 92.96 ± 0.14, ID accuracy 95.06.
    assert figure.near.value == pytest.approx(0.9064)
    assert figure.near.std == pytest.approx(0.0020)
    assert figure.far.value == pytest.approx(0.9296)
    assert figure.accuracy == pytest.approx(0.9506)
    assert figure.source == "openood_v1.5_table1.csv"


def test_a_paper_is_preferred_to_the_page_that_anyone_can_extend():
    figures = load_published(REFERENCE)
    post_hoc = [s for s, f in figures.items() if f.source == "openood_v1.5_table1.csv"]
    with open(REFERENCE / "openood_leaderboard.csv", newline="") as stream:
        page = {(r["benchmark"], r["postprocessor"]) for r in csv.DictReader(stream) if r["training"] == "CE"}
    assert len(post_hoc) > 60
    assert ("cifar10", "KNN") in page


@pytest.mark.parametrize(
    ("setup", "near"),
    [
        (Setup("imagenet1k", "cross_entropy", "torchvision_swin_t", "msp"), 0.7675),
        (Setup("imagenet1k", "cross_entropy", "torchvision_vit_b_16", "msp"), 0.7352),
    ],
)
def test_an_architecture_of_the_leaderboard_is_not_mistaken_for_another(setup, near):
    assert load_published(REFERENCE)[setup].near.value == pytest.approx(near)


@pytest.mark.parametrize("benchmark", ["imagenet1k", "imagenet1k_fs"])
def test_figures_of_networks_that_torchvision_releases_are_found_for_runs_on_their_weights(benchmark):
    """Such runs train nothing, so their records say `released weights`; the published networks are the same ones."""
    figures = load_published(REFERENCE)
    backbones = {s.backbone for s in figures if s.benchmark == benchmark and s.training == "released weights"}
    assert {"torchvision_resnet50", "torchvision_swin_t", "torchvision_vit_b_16"} <= backbones
    released, trained = (
        figures[Setup(benchmark, training, "torchvision_resnet50", "msp")]
        for training in ("released weights", "cross_entropy")
    )
    assert released == trained
    assert not any(s.training == "released weights" for s in figures if not s.benchmark.startswith("imagenet1k"))


def test_full_spectrum_figures_belong_to_the_full_spectrum():
    figures = load_published(REFERENCE)
    plain = figures[Setup("imagenet1k", "cross_entropy", "torchvision_resnet50", "scale")]
    wide = figures[Setup("imagenet1k_fs", "cross_entropy", "torchvision_resnet50", "scale")]
    assert wide.near.value < plain.near.value - 0.1


def test_no_published_figure_is_outside_0_to_1():
    for setup, figure in load_published(REFERENCE).items():
        for value in (figure.near, figure.far):
            assert value is None or 0 < value.value < 1, setup


def test_a_deviation_of_zero_is_a_single_run():
    assert all(f.near is None or f.near.std != 0 for f in load_published(REFERENCE).values())


def test_every_reference_file_is_described_and_every_name_is_published():
    text = (REFERENCE / "README.md").read_text()
    assert [p.name for p in REFERENCE.glob("*.csv") if f"`{p.name}`" not in text] == []
    assert all((REFERENCE / source).is_file() for source in SOURCES)
    printed = {"method": set(), "training": set(), "backbone": set(), "detector": set()}
    with open(REFERENCE / "conformal_adbench.csv", newline="") as stream:
        printed["detector"] |= {row["detector"] for row in csv.DictReader(stream)}
    with open(REFERENCE / "openood_leaderboard.csv", newline="") as stream:
        for row in csv.DictReader(stream):
            for kind, column in (("method", "postprocessor"), ("training", "training"), ("backbone", "architecture")):
                printed[kind].add(row[column])
    with open(REFERENCE / "openood_v1.5_table1.csv", newline="") as stream:
        printed["method"] |= {row["method"] for row in csv.DictReader(stream)}
    with open(REFERENCE / "names.csv", newline="") as stream:
        assert [r for r in csv.DictReader(stream) if r["published"] not in printed[r["kind"]]] == []


def test_a_results_folder_without_references_has_no_figures(tmp_path):
    assert load_published(tmp_path) == {}


HEADER = "benchmark,training,postprocessor,architecture,outlier_data,near_auroc,near_std,far_auroc,far_std,id_acc\n"
NAMES = "kind,published,ours,benchmark\nmethod,M,m,\nmethod,M,m2,\ntraining,CE,ce,\nbackbone,R,r,cifar10\n"


def write_toy(folder: Path, row: str) -> Path:
    (folder / "names.csv").write_text(NAMES)
    (folder / "openood_leaderboard.csv").write_text(HEADER + row + "\n")
    return folder


def test_one_published_name_can_be_several_of_ours_and_a_slash_is_no_number(tmp_path):
    found = load_published(write_toy(tmp_path, "cifar10,CE,M,R,no,50,0.00,/,,/"))
    assert {setup.method for setup in found} == {"m", "m2"}
    figure = found[Setup("cifar10", "ce", "r", "m")]
    assert (figure.near, figure.far, figure.accuracy) == (Estimate(0.5), None, None)


def test_a_backbone_that_is_ours_on_another_benchmark_only_is_left_out(tmp_path):
    assert load_published(write_toy(tmp_path, "cifar100,CE,M,R,no,50,,50,,50")) == {}


@pytest.mark.parametrize(("row", "said"), [("cifar10,CE,M,R,no,x,,50,,50", "found 'x'"), ("cifar10,CE", "fewer cells")])
def test_a_damaged_reference_file_is_named_with_its_line(tmp_path, row, said):
    with pytest.raises(RecordError, match=rf"openood_leaderboard\.csv, line 2: .*{said}"):
        load_published(write_toy(tmp_path, row))
