"""The site of a few made-up records, and the system's Chromium to look at it."""

import shutil
from dataclasses import replace

import pytest

from openbench.report.site.facts import MethodFacts
from openbench.report.site.write import write_site
from openbench.results.checks import Check, write_check
from openbench.results.records.store import RecordStore, digest_of

from ..results.records import make_record, metrics  # noqa: TID252 — the tests are no package

HOSTILE = "</script><img src=x onerror=alert(1)><b>bold</b>"
FACTS = {
    "knn": MethodFacts("features", ("training data",), "2022", "Distance to a neighbour."),
    "msp": MethodFacts("logits", (), "2017", HOSTILE),
}


COUNTS = {"near/a": 5, "near/b": 5, "far/c": 9}


NAMES = """kind,published,ours,benchmark,training
method,KNN,knn,,
method,MSP,msp,,
training,CE,cross_entropy,,
backbone,ResNet18,tiny,toy,
backbone,ResNet18,big,toy4,
"""
PAGE = """benchmark,training,postprocessor,architecture,outlier_data,near_auroc,near_std,far_auroc,far_std,id_acc
toy4,CE,KNN,ResNet18,no,88,0.5,96.25,0,90
toy,CE,KNN,ResNet18,no,91,0,,0,90
"""


def record(method, near, far, deviations=(), benchmark="toy", **params):
    """A run with two near sets and one far set, ±1 % around the AUROC of each group."""
    return make_record(
        config={"seed": 0, "method": {"_name_": method, **params}, "tune": {"strategy": "none", "_name_": "none"}},
        benchmark={"name": benchmark, "digest": benchmark, "pristine": not deviations, "deviations": list(deviations)},
        method={"name": method, "version": 1, "reference": "", "params": params},
        metrics=metrics(near, far),
        counts={key: {"n": n, "expected": n + (key == "near/a" and bool(deviations))} for key, n in COUNTS.items()},
        provenance={"utc": "2025-01-01T00:00:00+00:00", "seconds": {"score": 0.019}, "peak_mib": {"score": 100.0}},
    )


def records():
    return [
        record("knn", 0.9, 0.95, k=50),
        record("msp", 0.8, 0.99),
        record("vim", 0.95, 0.9, ("near/a incomplete",), note=HOSTILE),
        record("knn", 0.9, 0.95, benchmark="toy2"),
    ]


@pytest.fixture(scope="session")
def results(tmp_path_factory):
    folder = tmp_path_factory.mktemp("results")
    for record in records():
        RecordStore(folder).write(record)
    return folder


@pytest.fixture(scope="session")
def site(results, tmp_path_factory):
    folder = tmp_path_factory.mktemp("site") / "of records"
    write_site(results, folder, FACTS)
    return folder


RUNS = """training,score,setting,seed,accuracy,near,far,fpr95,run_id
cross_entropy,msp,aaaa,0,0.9,0.7,0.8,0.5,11
cross_entropy,msp,aaaa,1,0.9,0.8,0.8,0.5,12
logitnorm,msp,aaaa,0,0.9,0.9,0.8,0.4,13
logitnorm,msp,aaaa,1,0.9,0.9,0.8,0.4,14
"""


@pytest.fixture(scope="session")
def more(results, tmp_path_factory):
    """The site of records with AUTC, of trainings, and of a record that was checked."""
    folder = tmp_path_factory.mktemp("more")
    shutil.copytree(results, folder / "results")
    (folder / "results" / "trainings").mkdir()
    (folder / "results" / "trainings" / "digits.csv").write_text(RUNS)
    for method, autc in (("gen", 0.3), ("mls", 0.2)):
        made = record(method, 0.8, 0.8, benchmark="toy3")
        near = {**made.metrics["near"], "autc": autc, "aufpr": autc, "aufnr": autc}
        RecordStore(folder / "results").write(replace(made, metrics={**made.metrics, "near": near}))
    for method in ("knn", "msp"):
        RecordStore(folder / "results").write(record(method, 0.9, 0.95, benchmark="toy4"))
    (folder / "results" / "reference").mkdir()
    files = {"names.csv": NAMES, "openood_leaderboard.csv": PAGE}
    for name, text in files.items():
        (folder / "results" / "reference" / name).write_text(text)
    first, second = records()[:2]
    told = ("scores", True, "99 values equal", "openbench 1", "2026-01-02T03:04:05+00:00")
    write_check(folder / "results", Check(first.run_id, digest_of(first), *told))
    write_check(folder / "results", Check(second.run_id, "of another content", *told))
    write_site(folder / "results", folder / "site", FACTS)
    return folder / "site"


@pytest.fixture(scope="session")
def chromium():
    found = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
    if found is None:
        pytest.skip("no Chromium on PATH: pages are not looked at")
    playwright = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
    with playwright.sync_playwright() as running:
        found = running.chromium.launch(executable_path=found, args=["--no-sandbox"])
        yield found
        found.close()


def watched(context):
    """A page, and what is wrong with it: errors of its scripts, messages in the console, requests to a host."""
    page, complaints = context.new_page(), []
    page.on("console", lambda message: complaints.append(f"console: {message.text}"))
    page.on("pageerror", lambda error: complaints.append(f"error: {error}"))
    page.on(
        "request", lambda request: request.url.startswith(("file:", "data:", "blob:")) or complaints.append(request.url)
    )
    return page, complaints


@pytest.fixture
def view(chromium):
    """A page that fails the test if anything is wrong with it."""
    context = chromium.new_context(viewport={"width": 1280, "height": 900})
    page, complaints = watched(context)
    yield page
    context.close()
    assert complaints == []
