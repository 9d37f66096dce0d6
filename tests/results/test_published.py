import csv
from pathlib import Path

import pytest

from openbench import paths
from openbench.errors import RecordError
from openbench.results.tables.published import SOURCES, Setup, load_published
from openbench.results.tables.render import Estimate

AUGMENTATIONS = "openood_v1.5_augmentations.csv"
REFERENCE = Path(__file__).parents[2] / "results" / "reference"


def test_table_1_is_read_in_our_names_as_fractions():
    figure = load_published(REFERENCE)[Setup("cifar10", "cross_entropy", "resnet18_cifar", "knn")]
    # Zhang et al., table 1, CIFAR-10, KNN: near 90.64 ± 0.20, far 92.96 ± 0.14, ID accuracy 95.06.
    assert figure.near.value == pytest.approx(0.9064)
    assert figure.near.std == pytest.approx(0.0020)
    assert figure.far.value == pytest.approx(0.9296)
    assert figure.accuracy == pytest.approx(0.9506)
    assert figure.source == "openood_v1.5_table1.csv"
    page = {(r["benchmark"], r["postprocessor"]) for r in rows_of("openood_leaderboard.csv") if r["training"] == "CE"}
    assert ("cifar10", "KNN") in page  # a paper is preferred to the page that anyone can extend


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


def test_figures_are_fractions_and_a_deviation_of_zero_is_a_single_run():
    for setup, figure in load_published(REFERENCE).items():
        for value in filter(None, (figure.near, figure.far)):
            assert 0 < value.value < 1, setup
            assert value.std != 0, setup


def rows_of(name: str) -> list[dict[str, str]]:
    with open(REFERENCE / name, newline="") as stream:
        return list(csv.DictReader(stream))


def printed() -> set[tuple[str, str]]:
    """Every (kind, name) that a reference file prints; a training may be an augmentation, or `TRAINING + AUGMENT`."""
    found = {("detector", row["detector"]) for row in rows_of("conformal_adbench.csv")}
    found |= {("method", row["method"]) for row in rows_of("conformal_openood.csv")}
    for row in rows_of("openood_v1.5_table1.csv"):
        found.add(("method" if row["group"].startswith("Post-hoc") else "training", row["method"]))
    for row in rows_of("openood_v1.5_augmentations.csv"):
        found |= {("method", row["method"]), ("training", row["augmentation"].replace("CrossEntropy", "CE"))}
    for row in rows_of("openood_leaderboard.csv"):
        found |= {("method", row["postprocessor"]), ("backbone", row["architecture"])}
        found |= {("training", part) for part in row["training"].split(" + ")}
    return {(kind, name) for kind, name in found if name}


def test_every_published_name_is_one_of_ours_or_listed_with_the_reason_why_not():
    ours, lacking = rows_of("names.csv"), rows_of("not_here.csv")
    kinds = {"augment": "training"}
    known = {(kinds.get(row["kind"], row["kind"]), row["published"]) for row in ours if row["published"]}
    not_here = {(row["kind"], row["published"]) for row in lacking}
    assert sorted(printed() - known - not_here) == []
    assert sorted((known | not_here) - printed()) == []
    assert sorted(known & not_here) == []
    assert all(row["why"] for row in lacking)


@pytest.mark.parametrize("table", ["reject_option_table2", "rebenchmarking_tables"])
def test_every_method_of_the_tables_with_names_of_their_own_has_one(table):
    known = {row["published"] for row in rows_of("paper_names.csv") if (row["table"], row["kind"]) == (table, "method")}
    assert {row["method"] for row in rows_of(f"{table}.csv")} == known


def test_every_name_of_ours_can_be_typed():
    groups = {"detector": "method"}
    exceptions = {"released weights"}
    assert [
        row["ours"]
        for row in rows_of("names.csv")
        if row["ours"] not in exceptions
        and not (paths.config_dir() / groups.get(row["kind"], row["kind"]) / f"{row['ours']}.yaml").is_file()
    ] == []


def test_every_training_that_is_ours_has_the_score_it_was_published_with():
    trainings = {row["method"] for row in rows_of("openood_v1.5_table1.csv") if row["group"].startswith("Training")}
    assert {row["training"] for row in rows_of("names.csv") if not row["published"]} == trainings


def test_every_reference_file_is_described():
    text = (REFERENCE / "README.md").read_text()
    assert [p.name for p in REFERENCE.glob("*.csv") if f"`{p.name}`" not in text] == []
    assert all((REFERENCE / source).is_file() for source in SOURCES)


@pytest.mark.parametrize(
    ("setup", "near", "source"),
    [
        # Typed by hand from the tables.
        (Setup("imagenet1k", "cross_entropy", "torchvision_swin_t", "msp"), 0.7675, "openood_leaderboard.csv"),
        (Setup("cifar10", "outlier_exposure", "resnet18_cifar", "msp"), 0.9482, "openood_v1.5_table1.csv"),
        (Setup("cifar10", "palm", "resnet18_cifar", "mds_pp"), 0.9032, "openood_leaderboard.csv"),
        (Setup("cifar10", "cross_entropy", "resnet18_cifar", "msp", "pixmix"), 0.9307, "openood_leaderboard.csv"),
        (Setup("cifar10", "rotpred", "resnet18_cifar", "rotpred", "pixmix"), 0.9486, "openood_leaderboard.csv"),
        (Setup("imagenet200", "cross_entropy", "torchvision_resnet18", "ash", "augmix"), 0.8287, AUGMENTATIONS),
        (Setup("imagenet1k_fs", "cross_entropy", "torchvision_resnet50", "she", "regmixup"), 0.6471, AUGMENTATIONS),
    ],
)
def test_trainings_and_augmentations_have_their_figures(setup, near, source):
    figures = load_published(REFERENCE)
    assert figures[setup].source == source
    assert figures[setup].near.value == pytest.approx(near)
    assert {s.method for s in figures if s.training == "palm"} == {"mds_pp"}  # on unit features only


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
    assert load_published(tmp_path) == {}  # without references
    assert load_published(write_toy(tmp_path, "cifar100,CE,M,R,no,50,,50,,50")) == {}


@pytest.mark.parametrize(("row", "said"), [("cifar10,CE,M,R,no,x,,50,,50", "found 'x'"), ("cifar10,CE", "fewer cells")])
def test_a_damaged_reference_file_is_named_with_its_line(tmp_path, row, said):
    with pytest.raises(RecordError, match=rf"openood_leaderboard\.csv, line 2: .*{said}"):
        load_published(write_toy(tmp_path, row))
