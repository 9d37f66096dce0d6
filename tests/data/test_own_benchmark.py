from collections import Counter

import numpy as np
import pytest

from openbench.data.own.benchmark import OwnBenchmark, OwnSet, mean_and_std, read_id, read_set, split, write
from openbench.errors import ConfigError, DataError, LeakageError

from .conftest import noisy, write_image


def rows(counts):
    return tuple((f"{name}/{i}.png", name) for name, count in counts.items() for i in range(count))


def a_set(tmp_path, counts):
    return OwnSet(tmp_path, rows(counts))


def a_benchmark(tmp_path, **changes):
    parts = {part: a_set(tmp_path, {"cat": 5, "dog": 5}) for part in ("train", "val", "test")}
    given = {"name": "pets", "id_sets": parts, "ood": {"near.birds": a_set(tmp_path, {"bird": 3})}}
    return OwnBenchmark(**{**given, **changes})


def test_a_split_uses_every_image_once_and_keeps_the_shares_in_each_class(tmp_path):
    whole = a_set(tmp_path, {"cat": 100, "dog": 40})
    parts = split(whole, (0.6, 0.1, 0.3), seed=0)
    assert sorted(row for part in parts for row in part.rows) == sorted(whole.rows)
    assert [Counter(label for _, label in part.rows) for part in parts] == [
        {"cat": 60, "dog": 24},
        {"cat": 10, "dog": 4},
        {"cat": 30, "dog": 12},
    ]


def test_a_split_depends_on_the_seed_and_not_on_other_classes(tmp_path):
    def test_cats(counts, seed):
        return [row for row in split(a_set(tmp_path, counts), (0.5, 0.5), seed)[1].rows if row[1] == "cat"]

    assert test_cats({"cat": 30, "dog": 9}, 0) == test_cats({"ant": 4, "cat": 30}, 0)
    assert test_cats({"cat": 30}, 0) != test_cats({"cat": 30}, 1)


def test_every_part_gets_an_image_of_every_class_or_none_is_made(tmp_path):
    parts = split(a_set(tmp_path, {"cat": 3, "dog": 50}), (0.6, 0.1, 0.3), 0)
    assert [Counter(label for _, label in part.rows)["cat"] for part in parts] == [1, 1, 1]
    with pytest.raises(DataError, match="class 'cat' has 2 images"):
        split(a_set(tmp_path, {"cat": 2, "dog": 50}), (0.6, 0.1, 0.3), 0)


def test_a_folder_with_train_and_test_is_taken_as_it_is(tmp_path):
    for part, count in (("train", 20), ("test", 4)):
        for name in ("cat", "dog"):
            for i in range(count):
                write_image(tmp_path / part / name / f"{i}.png", noisy((4, 4), i))
    sets = read_id(str(tmp_path))
    assert {part: len(found.rows) for part, found in sets.items()} == {"train": 36, "val": 4, "test": 8}
    assert sets["val"].at == sets["train"].at == tmp_path / "train"
    assert not set(sets["train"].rows) & set(sets["val"].rows)


def test_mean_and_deviation_are_those_of_all_pixels(tmp_path):
    pixels = [noisy((6, 6, 3), i) // (i + 1) for i in range(4)]
    for i, image in enumerate(pixels):
        write_image(tmp_path / ("cat" if i < 2 else "dog") / f"{i}.png", image)
    sets = {part: read_set(str(tmp_path)) for part in ("train", "val", "test")}
    benchmark = a_benchmark(tmp_path, id_sets=sets, side=6)
    mean, std = mean_and_std(benchmark)
    stacked = np.stack(pixels).reshape(-1, 3) / 255
    assert mean == pytest.approx(stacked.mean(axis=0), abs=1e-4)
    assert std == pytest.approx(stacked.std(axis=0), abs=1e-4)


@pytest.mark.parametrize(
    ("changes", "error", "text"),
    [
        ({"name": "my pets"}, ConfigError, "letters, digits and underscores"),
        ({"name": "null"}, ConfigError, "benchmark name 'null' is read by yaml as a number or another value"),
        ({"name": "digits"}, ConfigError, "openbench ships"),
        ({"ood": {"ood_val": {}}}, ConfigError, "no OOD test set"),
        *(
            ({"ood": {f"near.{name}": {"bird": 3}}}, ConfigError, f"set name '{name}' is read by yaml as")
            for name in ("1e5", "null", "off")
        ),
        ({"ood": {"near.birds": {"bird": 3, "dog": 1}}}, LeakageError, r"near.birds .* share the classes \['dog'\]"),
    ],
)
def test_what_makes_no_benchmark_is_refused(tmp_path, changes, error, text):
    if "ood" in changes:
        changes = {"ood": {where: a_set(tmp_path, counts) for where, counts in changes["ood"].items()}}
    with pytest.raises(error, match=text):
        a_benchmark(tmp_path, **changes)


def test_nothing_is_overwritten(tmp_path):
    for name in ("cat", "dog"):
        for i in range(5):
            write_image(tmp_path / "id" / name / f"{i}.png", noisy((4, 4), i))
    write_image(tmp_path / "ood" / "x.png", noisy((4, 4)))
    sets = read_id(str(tmp_path / "id"))
    benchmark = a_benchmark(tmp_path, id_sets=sets, ood={"far.x": read_set(str(tmp_path / "ood"))}, side=4)
    files = write(benchmark, tmp_path / "configs")
    assert write(benchmark, tmp_path / "configs") == files  # all is as it would be written
    files[1].write_text(files[1].read_text() + "somebody's,x\n")
    before = {file: file.read_bytes() for file in files}
    with pytest.raises(ConfigError, match="nothing was written"):
        write(benchmark, tmp_path / "configs")
    assert {file: file.read_bytes() for file in files} == before
