import pytest

from openbench import paths
from openbench.data.manifests import load_classes, load_manifest, parse
from openbench.errors import DataError


def test_ranges_numbers_and_continued_lines_expand_in_the_order_written():
    text = "# note\nkey: a/{class}/{index:03d}.png\ncat: 7 1-3\n  10\n\ndog: 5\n"
    found = parse(text, "x")
    assert found.keys == (
        "a/cat/007.png",
        "a/cat/001.png",
        "a/cat/002.png",
        "a/cat/003.png",
        "a/cat/010.png",
        "a/dog/005.png",
    )
    assert found.classes == ("cat",) * 5 + ("dog",)


def test_a_sequence_gives_each_number_its_own_class_across_lines():
    found = parse("key: m/{label}_{index}.jpg\nlabels 8: 31\n  4\n", "x")
    assert found.keys == ("m/3_8.jpg", "m/1_9.jpg", "m/4_10.jpg")
    assert found.classes == ("3", "1", "4")


def test_a_sequence_over_a_class_list_names_the_classes():
    found = parse("key: c/{index}_{label}.png\nlabels 0 cifar10/classes: 39\n", "x")
    assert found.keys == ("c/0_3.png", "c/1_9.png")
    assert found.classes == ("cat", "truck")


def test_names_need_no_numbers_and_a_class_may_be_unknown():
    found = parse("key: n/{name}\n-: a1.jpg b-2.jpg\n", "x")
    assert found.keys == ("n/a1.jpg", "n/b-2.jpg")
    assert found.class_names() == ()


@pytest.mark.parametrize(
    "pattern", ["{class}/{{x}}/{index:04d}.png", "{index}/{class}{class}_{index:3}", "a{index:d}{class}"]
)
def test_keys_are_what_format_makes_of_the_pattern(pattern):
    found = parse(f"key: {pattern}\nbig cat: 7 12345 9-10\n", "x")
    assert found.keys == tuple(pattern.format(**{"class": "big cat"}, index=index) for index in (7, 12345, 9, 10))


def test_several_sections_follow_each_other():
    found = parse("key: a/{index}.png\ncat: 1\nkey: b/{index}.png\ncat: 1\n", "x")
    assert found.keys == ("a/1.png", "b/1.png")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("key: a/{index}\ncat: 1 2 1\n", "'a/1' is listed more than once"),
        ("key: a/{index}\ncat: 5-3\n", r"line 2 \(cat\): found '5-3'"),
        ("key: a/{index}\ncat: x\n", "found 'x'"),
        ("key: a/b\ncat: 1\n", "no place for images"),
        ("cat: 1\n", "no place for images"),
        ("key: a/{index}\ncat 1\n", "line 2: found 'cat 1'"),
        ("key: a/{index}\n  1 2\n", "is indented, with no line above to continue"),
    ],
)
def test_a_malformed_manifest_is_refused_by_line(text, message):
    with pytest.raises(DataError, match=message):
        parse(text, "x")


def test_an_unknown_manifest_offers_the_nearest():
    with pytest.raises(DataError, match="did you mean 'cifar10/test'"):
        load_manifest("cifar10/tset")


def test_a_manifest_that_is_changed_is_read_again(tmp_path):
    file = tmp_path / "own.txt"
    found = []
    for name in ("a", "b"):
        file.write_text(f"key: {name}/{{class}}/{{index}}.png\ncat: 1\n")
        found += load_manifest(str(file)).keys
    assert found == ["a/cat/1.png", "b/cat/1.png"]


def test_an_unknown_class_list_is_named():
    with pytest.raises(DataError, match="class list 'cifar11/classes' not found"):
        load_classes("cifar11/classes")


@pytest.mark.parametrize("second", ["cat", "Cat", "cat_"])
def test_a_class_list_that_names_a_class_twice_is_refused(tmp_path, monkeypatch, second):
    (tmp_path / "twice.txt").write_text(f"cat\ndog\n{second}\n")
    monkeypatch.setattr(paths, "manifest_dir", lambda: tmp_path)
    with pytest.raises(DataError, match=r"class list 'twice': two classes .* found .*'cat'.* among 3 class names"):
        load_classes("twice")


def test_layout_does_not_change_the_digest_but_content_and_order_do():
    base = parse("key: a/{index}\ncat: 1-3\n", "x")
    assert parse("# why\nkey: a/{index}\ncat: 1\n  2 3\n", "y").digest == base.digest
    for other in ("cat: 1-4", "cat: 3 2 1", "dog: 1-3"):
        assert parse(f"key: a/{{index}}\n{other}\n", "x").digest != base.digest
