"""Lists of images, classes and words: what they hold, and a user's own."""

from contextlib import suppress

import pandas as pd
import pytest

from openbench import paths
from openbench.data.manifests import Manifest, load_classes, load_manifest, load_rule, load_words
from openbench.digest import digest
from openbench.errors import DataError
from openbench.paths import manifest_dir


def test_a_list_gives_keys_and_classes_in_its_order_after_its_notes(tmp_path):
    file = tmp_path / "own.csv"
    file.write_text('# pets\n# of a friend\nlabel,path\ndog,b/2.png\n"cat, big",a/1.png\n-,c.png\n')
    found = load_manifest(str(file))
    assert found.keys == ("b/2.png", "a/1.png", "c.png")
    assert found.classes == ("dog", "cat, big", "-")
    assert found.class_names() == ("cat, big", "dog")


def test_a_shipped_list_is_a_table_that_pandas_reads():
    table = pd.read_csv(paths.manifest_dir() / "midog/val.csv.xz", comment="#")
    found = load_manifest("midog/val")
    assert (tuple(table["path"]), tuple(table["label"])) == (found.keys, found.classes)


def test_all_shipped_lists_and_rules_are_those_for_which_records_were_made():
    folder = paths.manifest_dir()
    lists = (str(file.relative_to(folder)).removesuffix(".csv.xz") for file in folder.rglob("*.csv.xz"))
    assert digest({name: load_manifest(name).digest for name in lists}) == "acd77e319842dc21"
    rules = (file.relative_to(folder).with_suffix("").as_posix() for file in folder.rglob("*.toml"))
    found = {}
    for name in (f"{rule}{part}" for rule in rules for part in ("", "/train", "/val", "/test")):
        with suppress(DataError, KeyError):  # it has no such part, or is a table of ADBench
            found[name] = digest(load_rule(name))
    assert digest(found) == "62620d3ac33e355c"


def test_an_unknown_manifest_offers_the_nearest():
    with pytest.raises(DataError, match="did you mean 'cifar10/test'"):
        load_manifest("cifar10/tset")


def test_a_list_that_is_changed_is_read_again(tmp_path):
    file = tmp_path / "own.csv"
    found = []
    for name in ("a", "b"):
        file.write_text(f"path\n{name}/1.png\n")
        found += load_manifest(str(file)).keys
    assert found == ["a/1.png", "b/1.png"]


def test_an_unknown_class_list_is_named():
    with pytest.raises(DataError, match="class list 'cifar11/classes' not found"):
        load_classes("cifar11/classes")


@pytest.mark.parametrize("second", ["cat", "Cat", "cat_"])
def test_a_class_list_that_names_a_class_twice_is_refused(tmp_path, monkeypatch, second):
    (tmp_path / "twice.txt").write_text(f"cat\ndog\n{second}\n")
    monkeypatch.setattr(paths, "manifest_dir", lambda: tmp_path)
    with pytest.raises(DataError, match=r"class list 'twice': several classes have the name .*'cat"):
        load_classes("twice")


def test_content_and_order_change_the_digest():
    base = Manifest("x", ("a", "b"), ("cat", "cat"))
    assert Manifest("y", base.keys, base.classes).digest == base.digest
    for other in (("a", "c"), base.classes), (("b", "a"), base.classes), (base.keys, ("cat", "dog")):
        assert Manifest("x", *other).digest != base.digest


@pytest.mark.parametrize(("name", "count"), [("wordnet_nouns", 67_186), ("wordnet_adjectives", 14_006)])
def test_lists_hold_lower_case_words_once(name, count):
    words = load_words(name)
    assert len(words) == len(set(words)) == count
    assert all(word == word.lower().strip() and "_" not in word and "(" not in word for word in words)


def test_sections_can_be_left_out():
    nouns = load_words("wordnet_nouns", ("animal", "food"))
    assert {"abbey", "abacus"} <= set(nouns)
    assert not {"aardvark", "goulash"} & set(nouns)
    assert "abaxial" in load_words("wordnet_adjectives", ("pert", "ppl"))


def test_a_users_file_may_be_named_by_its_place_below_a_data_root(tmp_path, monkeypatch):
    path = tmp_path / "mine.txt"
    path.write_text("# mine\nred panda\n\nsea slug\nred panda\n", encoding="utf-8")
    monkeypatch.setenv("OPENBENCH_DATA", str(tmp_path))
    assert load_words("mine.txt") == load_words(str(path)) == ("red panda", "sea slug")


def test_errors_name_the_lists_and_sections(tmp_path):
    with pytest.raises(DataError, match=r"'wordnet_noun' not found; did you mean 'wordnet_nouns'\?"):
        load_words("wordnet_noun")
    with pytest.raises(
        DataError, match=r"section 'animals' of word list 'wordnet_nouns' not found; did you mean 'animal'\?"
    ):
        load_words("wordnet_nouns", ("animals",))
    (tmp_path / "empty.txt").write_text("# nothing\n")
    with pytest.raises(DataError, match="has no words"):
        load_words(str(tmp_path / "empty.txt"))
    (tmp_path / "binary.txt").write_bytes(b"\xff\xfe")
    with pytest.raises(DataError, match="cannot be read"):
        load_words(str(tmp_path / "binary.txt"))


def test_wordnets_licence_lies_beside_the_lists():
    assert "WordNet 3.0 Copyright 2006 by Princeton University" in (manifest_dir() / "words" / "LICENSE").read_text()
