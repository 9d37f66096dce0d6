"""The page of networks × methods."""

import re
from dataclasses import replace

from openbench.core.record import RunIdentity
from openbench.report.site.write import networks_page
from openbench.results.leaderboard.ranking import boards

from .conftest import record


def on(made, network, name="tiny"):
    changed = replace(made, backbone={**made.backbone, "digest": network, "name": name})
    return replace(changed, run_id=RunIdentity.of(changed).run_id)


def page(name="tiny"):
    near = {"knn": (0.9, 0.8), "msp": (0.85, 0.7), "vim": (0.6, 0.75)}
    made = [
        on(record(method, value, 0.9), f"n{at}", name if at else "big")
        for method, line in near.items()
        for at, value in enumerate(line)
    ]
    return networks_page(boards(made))


def test_a_site_of_one_network_has_no_such_page():
    assert networks_page(boards([record("knn", 0.9, 0.9), record("msp", 0.8, 0.9)])) == {}


def test_cells_have_number_rank_and_colour_and_pictures_are_beside_the_page():
    files = page()
    html = files["networks.html"]
    assert set(re.findall(r'src="([^"]+)"', html)) <= files.keys()
    assert sum(name.endswith("mean-ranks.svg") for name in files) == 2  # near and far
    assert "tables/networks.csv" in files
    assert 'style="--share: 1.000">90.00 <small>1</small>' in html
    assert 'style="--share: 0.500">75.00 <small>2</small>' in html
    assert 'style="--share: 0.000">60.00 <small>3</small>' in html
    assert "3 methods on 2 networks. Kendall&#39;s τ" in html


def test_names_in_records_are_text():
    html = page("x" + "<b>")["networks.html"]
    assert "x&lt;b&gt;" in html
    assert "<b>" not in html.replace("<b>Kendall", "").replace("<b>Mean", "")
