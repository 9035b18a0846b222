"""The README says what is."""

import re

from readme_table import README, updated


def test_the_table_of_models_is_current():
    text = README.read_text()
    assert updated(text) == text, "run: python tests/readme_table.py"


def test_links_lead_somewhere():
    for target in re.findall(r"\]\(([^)#]+)\)", README.read_text()):
        assert target.startswith("http") or (README.parent / target).exists(), target
