import json
from pathlib import Path

import pytest

from openbench.cli.leaderboard import main
from openbench.core.record import ResultRecord
from openbench.errors import RecordError
from openbench.results.store import RecordStore


def record(run_id: str, near: float) -> ResultRecord:
    return ResultRecord(
        run_id=run_id,
        config={"seed": 0},
        benchmark={"name": "toy", "digest": "aaaa", "pristine": True, "deviations": []},
        backbone={"name": "tiny", "digest": run_id, "training": "cross_entropy"},
        method={"name": f"m{run_id}", "version": 1, "reference": "", "params": {}},
        tuned={},
        trials=[],
        metrics={"near": {"auroc": near}, "far": {"auroc": near}, "id": {"accuracy": 0.5}},
        header="",
        counts={},
    )


@pytest.fixture
def results(tmp_path, monkeypatch) -> Path:
    monkeypatch.setenv("OPENBENCH_RESULTS", str(tmp_path))
    for run_id, near in (("1", 0.6), ("2", 0.8)):
        RecordStore(tmp_path).write(record(run_id, near))
    return tmp_path


def test_it_writes_the_pages_once_and_is_then_up_to_date(results, capsys):
    assert main([]) == 0
    assert capsys.readouterr().out.count("wrote ") == 3
    assert main([]) == 0
    assert capsys.readouterr().out == "up to date\n"
    page = (results / "leaderboard" / "toy.md").read_text()
    assert page.index("| m2 |") < page.index("| m1 |")


def test_check_fails_without_writing_until_the_pages_are_there(results, capsys):
    assert main(["--check"]) == 1
    assert f"outdated: {results / 'leaderboard' / 'toy.md'}" in capsys.readouterr().out
    assert not (results / "leaderboard").exists()
    main([])
    assert main(["--check"]) == 0


def test_check_notices_an_edited_page(results):
    main([])
    page = results / "leaderboard" / "toy.md"
    page.write_text(page.read_text().replace("80.00", "90.00"))
    assert main(["--check"]) == 1


def test_the_results_folder_can_be_given(results, tmp_path, monkeypatch):
    monkeypatch.setenv("OPENBENCH_RESULTS", "nowhere")
    assert main(["--results", str(results)]) == 0


def test_a_folder_that_is_not_there_is_an_error(tmp_path):
    with pytest.raises(RecordError, match=r"results folder '.*none' not found — give one with --results DIR"):
        main(["--results", str(tmp_path / "none")])


def test_a_damaged_record_stops_it_before_anything_is_written(results):
    broken = next((results / "records").rglob("1.json"))
    broken.write_text(json.dumps({}))
    with pytest.raises(RecordError, match=r"1\.json: not a result record"):
        main([])
    assert not (results / "leaderboard").exists()


def test_it_answers_without_torch_and_at_less_cost_than_loading_torch(results, processor_seconds):
    answer = (
        "import sys\nfrom openbench.cli.leaderboard import main\ncode = main([])\nprint('torch' in sys.modules, code)"
    )
    cost, printed = processor_seconds("-c", answer)
    assert printed.splitlines()[-1] == "False 0"
    assert cost < processor_seconds("-c", "import torch")[0]


def test_plots_are_drawn_beside_the_tables(results, capsys):
    assert main(["--results", str(results), "--plots"]) == 0
    drawn = sorted(p.name for p in (results / "leaderboard").glob("*.png"))
    assert drawn
    assert all((results / "leaderboard" / name).read_bytes().startswith(b"\x89PNG") for name in drawn)
