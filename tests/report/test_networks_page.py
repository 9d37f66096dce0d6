"""The page of networks × methods."""

import re
from dataclasses import replace
from pathlib import Path

import pytest

from openbench.core.record import RunIdentity
from openbench.report.site import _networks
from openbench.report.site._networks import networks_page
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
    return networks_page(boards(made), "site")


def test_a_site_of_one_network_has_no_such_page():
    assert networks_page(boards([record("knn", 0.9, 0.9), record("msp", 0.8, 0.9)]), "site") == {}


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


def luminance(colour):
    parts = [c / 255 for c in colour]
    linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in parts]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def rgb(text):
    if "," in text:
        return [int(part) for part in text.split(",")]
    digits = text.lstrip("#")
    digits = "".join(2 * d for d in digits) if len(digits) == 3 else digits
    return [int(digits[at : at + 2], 16) for at in (0, 2, 4)]


@pytest.mark.parametrize("scheme", [0, 1], ids=["light", "dark"])
def test_text_on_the_strongest_colour_has_a_contrast_of_four_and_a_half(scheme):
    css = (Path(_networks.__file__).parent / "templates" / "site.css").read_text()
    ground, text, heat = (rgb(re.findall(rf"--{name}: ([^;]+);", css)[scheme]) for name in ("ground", "text", "heat"))
    share = float(re.search(r"\.heat \{[^}]*calc\(([.\d]+) \*", css)[1])
    mixed = [share * h + (1 - share) * g for h, g in zip(heat, ground, strict=True)]
    low, high = sorted(luminance(colour) for colour in (mixed, text))
    assert (high + 0.05) / (low + 0.05) >= 4.5
