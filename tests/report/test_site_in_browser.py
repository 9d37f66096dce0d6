"""The site as a reader uses it, in the system's Chromium."""

import csv
import io
from itertools import count

import pytest

from .conftest import HOSTILE, watched

LOADS = count()


@pytest.fixture(scope="module")
def tab(chromium):
    """The one page of these tests, and what is wrong with it; scripts that a page ran before start sooner."""
    context = chromium.new_context()
    yield watched(context)
    context.close()


@pytest.fixture
def view(tab):
    """The page in a low window, which does not reach to the plot, whose library is large."""
    page, complaints = tab
    page.set_viewport_size({"width": 1280, "height": 300})
    yield page
    page.evaluate("0")  # what was said before is here now
    found = complaints.copy()
    complaints.clear()
    assert found == []


def opened(view, site, address=""):
    """Load the page anew."""
    view.goto(f"{(site / 'index.html').as_uri()}?{next(LOADS)}{address}")
    view.locator("#rows tbody tr").first.wait_for()


def turned(view, address):
    """Give the loaded page another address."""
    view.goto(view.url.partition("#")[0] + address)


def shows(view, methods):
    """Wait until the table has these methods in this order; a sorted table is drawn a moment after the click."""
    view.wait_for_function(
        "(wanted) => [...document.querySelectorAll('#rows tbody .open')].map((a) => a.textContent).join() === wanted",
        arg=",".join(methods),
        timeout=120_000,
    )


def test_rows_are_sorted_filtered_and_searched(view, site):
    opened(view, site)
    shows(view, ["knn", "msp", "vim"])
    view.get_by_role("columnheader", name="far AUROC").first.click()
    shows(view, ["msp", "knn", "vim"])
    view.get_by_label("training data").check()
    shows(view, ["msp", "vim"])
    view.get_by_label("all images present").check()
    shows(view, ["msp"])
    view.get_by_role("button", name="Reset").click()
    view.get_by_label("Search").fill("vim")
    shows(view, ["vim"])


def test_the_address_keeps_what_is_shown(view, site):
    opened(view, site)
    view.get_by_label("Inputs").select_option("logits")
    view.locator("#columns summary").click()
    view.get_by_label("near FPR@95", exact=True).uncheck()
    address = view.evaluate("location.hash")
    turned(view, "#board=")
    shows(view, ["knn", "msp", "vim"])
    turned(view, address)
    shows(view, ["msp"])
    assert view.locator("#rows").get_by_role("columnheader", name="near FPR@95").count() == 0
    opened(view, site, address)
    shows(view, ["msp"])


def test_a_row_opens_to_its_record_and_its_address_opens_it_again(view, site):
    opened(view, site)
    view.get_by_role("button", name="vim", exact=True).click()
    dialog = view.get_by_role("dialog")
    dialog.get_by_text("python -m openbench verify").wait_for()
    assert "near/a incomplete" in dialog.inner_text()
    address = view.evaluate("location.hash")
    view.go_back()
    dialog.wait_for(state="hidden")
    view.get_by_role("button", name="knn", exact=True).press("Enter")
    dialog.wait_for()
    view.keyboard.press("Escape")
    dialog.wait_for(state="hidden")
    view.wait_for_function("!location.hash.includes('open')")
    turned(view, address)
    assert "vim on toy" in view.get_by_role("dialog").inner_text()


def test_published_figures_are_columns_with_the_signed_difference(view, more):
    def first_row(view):
        headings = view.locator("#rows thead th").all_inner_texts()
        return dict(zip(headings, view.locator("#rows tbody tr").first.locator("td").all_inner_texts(), strict=True))

    opened(view, more, "#board=toy-toy")
    row = first_row(view)
    assert (row["near, published"], row["near, ours − published"]) == ("91.00", "−1.00")
    turned(view, "#board=toy4-toy4")
    shows(view, ["knn", "msp"])
    row = first_row(view)
    assert row["Published for"] == "another network: big"
    assert row["near, published"] == "(88.00 ±0.50)"
    assert "near, ours − published" not in row
    view.get_by_role("columnheader", name="near, published").click()
    shows(view, ["knn", "msp"])  # what has no figure comes last


def test_a_row_says_when_it_was_checked(view, more):
    opened(view, more, "#board=toy-toy")
    view.get_by_role("button", name="knn", exact=True).click()
    view.get_by_text("on 2026-01-02, recomputed from its published scores: 99 values equal").wait_for()
    view.keyboard.press("Escape")
    view.get_by_role("button", name="msp", exact=True).click()
    view.get_by_text("no (verify --keep saves a check)").wait_for()
    view.keyboard.press("Escape")
    picture = view.locator("#difference_picture")
    picture.scroll_into_view_if_needed()
    view.wait_for_function("document.getElementById('difference_picture').naturalWidth > 100")


DRAWN = """(names) => {
    const plot = document.getElementById('pareto'), points = plot.data?.filter((one) => one.mode === 'markers') ?? [];
    const drawn = plot.querySelectorAll('.points path').length, text = points.flatMap((one) => one.text).sort().join();
    return plot.data && text === names && drawn === points.flatMap((one) => one.x).length;
}"""
ITS_WIDTH = "document.querySelector('#pareto .main-svg').clientWidth === document.getElementById('pareto').clientWidth"


def test_score_against_cost_is_drawn_of_what_is_shown_once_a_reader_comes_near(view, more):
    def draws(names):
        view.wait_for_function(DRAWN, arg=names, timeout=120_000)

    opened(view, more, "#board=toy-toy")
    assert view.locator("[src*=plotly]").count() == 0
    view.locator("#pareto").scroll_into_view_if_needed()
    draws("knn,msp,vim")
    view.get_by_label("Search").fill("m")
    draws("msp,vim")
    turned(view, "#board=toy3-toy3")
    draws("gen,mls")
    for title, names in (("toy2 (1)", "knn"), ("digits: training methods (2)", "")):
        view.get_by_label("Benchmark").select_option(label=title)
        draws(names)  # the second knows no cost
    turned(view, "#board=toy4-toy4")
    draws("knn,msp")
    for width in (1440, 800, 360):
        view.set_viewport_size({"width": width, "height": 300})
        view.wait_for_function(ITS_WIDTH, timeout=120_000)
        assert view.evaluate("document.documentElement.scrollWidth") <= width


def test_selected_rows_are_compared(view, site):
    opened(view, site)
    view.get_by_label("Select knn").check()
    view.get_by_label("Select msp").check()
    view.get_by_role("button", name="Compare").click()
    line = view.locator("#comparison tr", has_text="near AUROC").first
    assert line.locator("td").all_inner_texts() == ["90.00", "80.00 −10.00"]


def test_what_is_shown_is_saved_with_full_values(view, site):
    opened(view, site)
    view.get_by_label("Search").fill("msp")
    with view.expect_download() as download:
        view.get_by_role("button", name="Save table").click()
    (row,) = csv.DictReader(io.StringIO(download.value.path().read_text()))
    assert (row["method"], row["near.auroc"], row["near.auroc low"]) == ("msp", "0.8", "0.79")


def test_names_are_shown_as_text(view, site):
    opened(view, site, "#cols=settings|near.auroc")
    assert HOSTILE in view.locator("#rows").inner_text()
    view.get_by_role("button", name="msp", exact=True).click()
    assert HOSTILE in view.get_by_role("dialog").inner_text()
    assert view.locator("#rows b, dialog b, [onerror]").count() == 0


def test_controls_are_reached_by_the_keyboard_and_have_names(view, site):
    opened(view, site)
    unnamed = view.evaluate(
        """[...document.querySelectorAll('main input, main select, main button')].filter(
            (one) => !one.labels?.length && !one.getAttribute('aria-label') && !one.textContent.trim()).length"""
    )
    assert unnamed == 0
    view.keyboard.press("Tab")
    assert view.evaluate("document.activeElement.textContent") == "Skip to the table"
    view.keyboard.press("Enter")
    assert view.evaluate("document.activeElement.id") == "table"
    shows(view, ["knn", "msp", "vim"])
