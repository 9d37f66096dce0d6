"""Word lists: what they hold beside what WordNet states of itself, sections, and a user's own file."""

import pytest

from openbench.data.manifests import load_words
from openbench.errors import DataError
from openbench.paths import manifest_dir


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
    with pytest.raises(DataError, match=r"no section 'animals'; did you mean 'animal'\?"):
        load_words("wordnet_nouns", ("animals",))
    (tmp_path / "empty.txt").write_text("# nothing\n")
    with pytest.raises(DataError, match="has no words"):
        load_words(str(tmp_path / "empty.txt"))
    (tmp_path / "binary.txt").write_bytes(b"\xff\xfe")
    with pytest.raises(DataError, match="cannot be read"):
        load_words(str(tmp_path / "binary.txt"))


def test_wordnets_licence_lies_beside_the_lists():
    assert "WordNet 3.0 Copyright 2006 by Princeton University" in (manifest_dir() / "words" / "LICENSE").read_text()
