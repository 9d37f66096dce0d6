"""The page of a run: the same for the same record, whole in one file, and nothing of a record becomes part of it."""

import re
from collections import Counter
from dataclasses import replace
from html.parser import HTMLParser

import numpy as np
import pytest

from openbench.core.request import Role
from openbench.core.scores import SetScores
from openbench.report.run_page import Picture, Sheet, run_page

from .conftest import HOSTILE, record

PICTURE = Picture("data:image/png;base64,iVBORw0KGgo=", HOSTILE, 1.25, "cat")
SHEETS, CLASSES = [Sheet("flagged first", (PICTURE,))], ("cat", "dog", HOSTILE)


@pytest.fixture(scope="module")
def sets():
    rng, plan = np.random.default_rng(0), [("toy", Role.ID_TEST), ("a", Role.NEAR), ("c", Role.FAR)]
    found = []
    for shift, (name, role) in enumerate(plan):
        labels = np.arange(60) % 3 if role.is_id else np.full(60, -1)
        found.append(SetScores.of_split(name, role, rng.normal(shift, 1, 60).astype("f4"), labels, labels % 3))
    return found


@pytest.fixture(scope="module")
def page(sets):
    made = record("knn", 0.9, 0.95, ("near/a incomplete",), note=HOSTILE)
    return run_page(made, sets, SHEETS, CLASSES, "python -m openbench run")


class Tags(HTMLParser):
    def __init__(self, text):
        super().__init__()
        self.found, self.ids = Counter(), Counter()
        self.feed(text)

    def handle_starttag(self, tag, attributes):
        self.found[tag] += 1
        self.ids.update(value for name, value in attributes if name == "id")


def test_the_numbers_of_the_record_stand_on_the_page(page):
    assert "90.00 [89.00, 91.00]" in page
    assert "near/a incomplete" in page


def test_trials_and_cost_are_told(sets):
    made = record("knn", 0.9, 0.95, k=50)
    trials = [{"params": {"k": k}, "auroc": auroc} for k, auroc in ((50, 0.875), (100, 0.8125))]
    shown = run_page(replace(made, tuned={"k": 50}, trials=trials))
    table = shown[shown.index('id="trials"') :]
    assert "87.50" in table[: table.index("81.25")]
    assert "Scoring takes 1 ms per image" in shown  # 19 ms for 19 images
    assert 'id="trials"' not in run_page(made)


def test_the_page_is_whole_names_are_text_and_ids_are_unique(page):
    tags = Tags(page)
    assert [tags.found[tag] for tag in ("script", "b", "img")] == [0, 0, 1]  # an image of the contact sheet
    assert [name for name, times in tags.ids.items() if times > 1] == []
    links = re.findall(r"""(?:src|href)=["']([^"'#][^"']*)["']""", page)
    assert all(link.startswith("data:") for link in links)
    assert not re.search(r"@import|url\(['\"]?http", page)


def test_equal_arguments_give_an_equal_page(page, sets):
    made = record("knn", 0.9, 0.95, ("near/a incomplete",), note=HOSTILE)
    assert run_page(made, sets, SHEETS, CLASSES, "python -m openbench run") == page


def test_each_class_states_how_many_are_flagged(page, sets):
    (ids, *_) = sets
    limit = np.sort(ids.scores)[int(np.ceil(0.95 * 60)) - 1]
    cats = ids.scores[ids.labels == 0]
    assert re.search(rf">cat</td><td>20</td><td>{100 * np.mean(cats > limit):.2f}</td><td>100.00</td>", page)


def test_without_scores_the_page_says_why_there_are_no_pictures():
    bare = run_page(record("knn", 0.9, 0.95))
    assert "were not saved" in bare
    assert "<svg" not in bare


def test_the_page_prints_on_white_within_its_paper_and_becomes_a_pdf(view, page, tmp_path):
    (tmp_path / "run.html").write_text(page)
    view.set_viewport_size({"width": 718, "height": 1000})  # A4 less its margins
    view.emulate_media(media="print", color_scheme="dark")
    view.goto((tmp_path / "run.html").as_uri())
    widest = (
        "Math.max(...[...document.querySelectorAll('table, pre, svg, p')].map((e) => e.getBoundingClientRect().right))"
    )
    assert view.evaluate(widest) <= 718
    assert view.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(255, 255, 255)"
    assert view.locator("nav").is_hidden()
    printed = view.pdf(format="A4", print_background=True)
    assert printed.startswith(b"%PDF")
    assert 2 <= len(re.findall(rb"/Type\s*/Page\b", printed)) <= 8


def test_on_a_phone_pictures_keep_their_size_and_scroll_alone(view, page, tmp_path):
    (tmp_path / "run.html").write_text(page)
    view.set_viewport_size({"width": 360, "height": 800})
    view.goto((tmp_path / "run.html").as_uri())
    assert view.evaluate("document.documentElement.scrollWidth") == 360
    two = view.locator("figure", has_text="ID test with near OOD").locator("svg").first
    assert two.bounding_box()["width"] > 700  # two panels, each as wide as the window
