"""Which jobs of a local sweep begin first, and how many run at a time."""

import json

import pytest

from openbench.cli.hydra.launchers import longest_first as launcher
from openbench.cli.hydra.launchers.longest_first import Cost, at_once, cores, free_mib, longest_first, measured, order


def record(results, benchmark, method, seconds, mib, name="a"):
    file = results / "records" / benchmark / "network" / method / f"{name}.json"
    file.parent.mkdir(parents=True, exist_ok=True)
    stages = {"tune": seconds / 2, "fit": seconds / 4, "score": seconds / 4, "metrics": 100.0, "features": 100.0}
    file.write_text(json.dumps({"provenance": {"seconds": stages, "peak_mib": {"fit": mib / 2, "score": mib}}}))
    return file


def job(method, benchmark="digits"):
    return [f"+benchmark={benchmark}", f"method={method}", "seed=1"]


def test_what_a_method_takes_is_read_from_its_records_on_that_benchmark(tmp_path):
    record(tmp_path, "digits", "knn", 8.0, 900.0)
    record(tmp_path, "digits", "knn", 6.0, 700.0, "after nothing larger")
    record(tmp_path, "imagenet1k", "knn", 4000.0, 30000.0)
    record(tmp_path, "digits", "msp", 1.0, 600.0)
    record(tmp_path, "digits", "msp", 1.0, 600.0, "broken").write_text('{"provenance": {"seconds": 3}}')
    record(tmp_path, "digits", "msp", 1.0, 600.0, "cut").write_text("{")
    jobs = [job("knn"), job("msp"), job("mds"), ["seed=1"], job("[k]*")]
    assert measured(tmp_path, jobs) == {("digits", "knn"): Cost(8.0, 700.0), ("digits", "msp"): Cost(1.0, 600.0)}
    assert measured(tmp_path / "none", jobs) == {}


def test_the_longest_begin_first_and_unknown_ones_before_them():
    costs = {("digits", "knn"): Cost(8.0, 1.0), ("digits", "msp"): Cost(1.0, 1.0), ("digits", "gen"): Cost(8.0, 1.0)}
    jobs = [job("msp"), job("gen"), job("new"), job("knn"), job("knn", "letters")]
    assert order(jobs, costs) == [2, 4, 1, 3, 0]


@pytest.mark.parametrize(
    ("cores", "free", "expected"),
    [
        (8, 100_000, 4),  # as many as there are jobs
        (2, 100_000, 2),  # as there are processors
        (8, 6000, 2),  # 3,000 and 2,000 of the 5,400 that may be taken, and not 1,000 more
        (8, 5500, 1),  # of 4,950
        (8, 10, 1),  # one runs in any case
    ],
)
def test_so_many_run_at_a_time_that_the_largest_fit_together(cores, free, expected):
    costs = {("digits", f"m{i}"): Cost(1.0, mib) for i, mib in enumerate((1000.0, 3000.0, 500.0, 2000.0))}
    assert at_once([job(f"m{i}") for i in range(4)], costs, cores, free) == expected


def test_a_method_without_a_record_counts_as_two_gib():
    assert at_once([job("new")] * 8, {}, 8, 3 * 2048 / 0.9 + 1) == 3


@pytest.mark.parametrize(
    ("line", "folder", "limit", "use", "cached"),
    [
        ("0::/job/step", "job", "memory.max", "memory.current", "inactive_file"),
        ("0::/of/the/host", "", "memory.max", "memory.current", "inactive_file"),  # a container sees its own at the top
        ("7:cpu,memory:/job", "memory/job", "memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"),
    ],
)
def test_memory_that_a_batch_job_or_container_may_not_take_is_not_free(
    tmp_path, monkeypatch, line, folder, limit, use, cached
):
    monkeypatch.setattr(launcher, "available", lambda: 4000 << 20)
    (tmp_path / "proc" / "self").mkdir(parents=True)
    assert free_mib(tmp_path) == 4000
    (tmp_path / "proc" / "self" / "cgroup").write_text(f"1:cpu:/other\n{line}\n")
    assert free_mib(tmp_path) == 4000
    group = tmp_path / "sys" / "fs" / "cgroup" / folder
    group.mkdir(parents=True)
    (group / use).write_text(f"{1000 << 20}\n")
    (group / "memory.stat").write_text(f"anon 1\n{cached} {300 << 20}\n")
    for text, free in (("max", 4000), (f"{3000 << 20}", 2300), (f"{1 << 62}", 4000)):
        (group / limit).write_text(f"{text}\n")
        assert free_mib(tmp_path) == free


def test_no_more_processors_count_than_joblib_may_use(monkeypatch):
    joblib = pytest.importorskip("joblib")
    monkeypatch.setenv("LOKY_MAX_CPU_COUNT", "1")
    assert cores() == joblib.effective_n_jobs(-1) == 1


def test_joblibs_launcher_carries_jobs_out_in_that_order_and_returns_results_in_theirs(tmp_path):
    core = pytest.importorskip("hydra_plugins.hydra_joblib_launcher._core")
    joblibs = core.Parallel
    record(tmp_path, "digits", "msp", 1.0, 600.0)
    record(tmp_path, "digits", "knn", 8.0, 600.0)
    begun = []

    def execute(number, overrides):
        begun.append(number)
        return number * 10

    with longest_first(tmp_path, begun.append):
        tasks = [core.delayed(execute)(i, job(m)) for i, m in enumerate(("msp", "knn", "new", "msp"))]
        found = core.Parallel(n_jobs=1, backend="loky")(iter(tasks))
    assert (begun, found) == ([2, 1, 0, 3], [0, 10, 20, 30])
    assert core.Parallel is joblibs
