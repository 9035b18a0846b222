import csv
import json
import pathlib
import sys

import numpy as np
import pytest

FOLDER = pathlib.Path(__file__).parents[2] / "applications" / "deepvit_collapse"


@pytest.fixture
def application(monkeypatch):
    """The modules of the application, forgotten again after the test."""
    names = ("study", "report")
    monkeypatch.syspath_prepend(FOLDER)
    for name in names:
        monkeypatch.delitem(sys.modules, name, raising=False)
    yield lambda name: __import__(name)
    for name in names:
        sys.modules.pop(name, None)


def write_run(folder, depth, cosine):
    """What a run leaves in its own folder: every pair of blocks is equally alike."""
    folder.mkdir()
    found = {"test_accuracy": 0.5, "parameters": 10}
    for kind, value in (("similarity", 0.01), ("softmax", cosine), ("untrained", 0.5)):
        found[kind] = np.full((depth, depth), value).tolist()
    (folder / "run.json").write_text(json.dumps(found))
    (folder / "history.csv").write_text("epoch,loss,accuracy,seconds\n1,1.0,0.5,20.4\n")


def test_runs_are_recorded_once_and_reported(application, tmp_path, capsys):
    study, report = application("study"), application("report")
    results = tmp_path / "results"
    results.mkdir()
    plain, mixed = study.Run("plain", 16, 0), study.Run("re-attention", 16, 0)
    for run, cosine in ((plain, 0.95), (mixed, 0.2)):
        assert not study.is_done(run, results)
        write_run(tmp_path / run.name, 16, cosine)
        for _ in range(2):  # a kill before the last table makes it do so again
            study.record(run, tmp_path, results)
        assert study.is_done(run, results)
    assert not study.is_done(study.Run("plain", 16, 1), results)
    with (results / "similarity.csv").open() as file:
        assert len(list(csv.DictReader(file))) == 2 * 16 * 15 // 2
    report.main(["--results", str(results)])
    lines = capsys.readouterr().out.splitlines()
    cells = [[cell.strip() for cell in line.split("|")] for line in lines[2:]]
    assert [row[5:9] for row in cells] == [  # blocks like the one before, cosines
        ["15", "0.95", "0.50", ""],
        ["0", "0.20", "0.50", "0.01"],
    ]
    assert [row[11:13] for row in cells] == [["78.88", "5"], ["79.10", "0"]]
    assert (results / "similarity.png").stat().st_size > 10_000


def test_the_study_has_two_seeds_at_the_largest_depths(application):
    runs = application("study").STUDY
    assert len(runs) == 12
    for attention in ("plain", "re-attention"):
        depths = sorted(run.depth for run in runs if run.attention == attention)
        assert depths == [8, 16, 24, 24, 32, 32]


def test_models_differ_in_their_attention_alone(application):
    study = application("study")
    plain, mixed = (
        study.untrained(study.Run(attention, 2, 0)) for attention in ("plain", "re-attention")
    )
    added = 2 * (study.HEADS**2 + study.HEADS + 4 * study.HEADS)
    assert mixed.count_params() - plain.count_params() == added


def test_an_unknown_run_is_refused(application, tmp_path, capsys):
    with pytest.raises(SystemExit):
        application("study").main(["--only", "plain-9-seed0", "--out", str(tmp_path)])
    assert "plain-8-seed0" in capsys.readouterr().err
