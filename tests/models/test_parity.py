"""The official implementations' own numbers on the same weights."""

import pytest
from golden_files import FOLDER, Golden, compare, config_of, write_checkpoint


@pytest.fixture
def check(declare, tmp_path, record_property):
    """Compares everything that a golden file holds; records and returns the largest difference."""

    def function(stem, **arguments):
        golden = Golden(stem)
        builder = declare("Golden", config_of(golden))
        path = write_checkpoint(tmp_path / "weights.npz", golden.weights)
        worst = max(
            compare(golden, builder, path, key, images, arguments)
            for key, images in golden.inputs.items()
        )
        record_property("maximum", worst)
        return worst

    return function


@pytest.mark.parametrize(
    "stem, arguments",
    [
        ("A01", {}),
        ("A02", {}),
        ("A03", {}),
        ("A04", {"include_top": False}),
        ("A05", {"include_top": False}),
        ("A06", {}),
        ("A07", {}),
        ("A08", {}),
        ("A10", {}),
        ("A11", {"positions": "sincos-2d"}),
        ("A12", {}),
        ("A13", {}),
        ("B01", {}),
        ("B02", {}),
        ("B03", {}),
        ("B04", {}),
        ("B05", {}),
        ("D01", {}),
        ("D02", {}),
        ("D03", {}),
        ("D04", {}),
        ("D05", {}),
        ("D06", {}),
        ("D07", {}),
        ("D08", {}),
        ("E01", {}),
        ("E02", {}),
        ("E03", {}),
        ("E04", {}),
        ("E05", {}),
        ("E06", {}),
        ("E07", {}),
        ("E08", {}),
        ("E09", {}),
        ("E10", {}),
        ("E12", {}),
        ("E13", {}),
        ("E14", {}),
        ("E15", {}),
        ("E16", {}),
        ("E19", {"include_top": False}),
        ("E21", {"classifier": "avgmax"}),
        ("E24", {}),
        ("E50", {}),
        ("F01", {}),
        ("F02", {}),
        ("F03", {}),
        ("F04", {}),
        ("F05", {}),
        ("F10", {}),
        ("F11", {}),
        ("F13", {}),
        ("F14", {}),
        ("F15", {}),
        ("F16", {}),
        ("F17", {}),
    ],
)
def test_official_numbers(check, stem, arguments):
    check(stem, **arguments)


def test_every_golden_file_of_the_families_is_compared():
    marked = {row[0] for row in test_official_numbers.pytestmark[0].args[1]}
    present = {p.name[:3] for p in FOLDER.glob("[ABDEF]*.npz")}
    # A table, compared in test_resampling.py; a loss, in models/test_deepvit.py.
    assert present - marked == {"A14", "D09"}
