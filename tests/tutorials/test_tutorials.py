"""The lessons run and arrive at what they say."""

import pathlib
import re
import runpy

LESSONS = pathlib.Path(__file__).parents[2] / "tutorials"


def test_fine_tune(capsys):
    names = runpy.run_path(str(LESSONS / "fine_tune.py"))
    assert abs(names["before"][0] - 0.693) < 0.01
    assert names["after"][1] > 0.9
    assert re.search(r"accuracy .* -> 9\d|100", capsys.readouterr().out)


def test_every_lesson_has_a_test():
    assert {p.name for p in LESSONS.glob("*.py")} == {"fine_tune.py"}
