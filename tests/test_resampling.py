"""Resampling against the official implementations, and its own laws."""

import keras
import numpy as np
import pytest
from golden_files import Golden

from keras_vit import resampling
from keras_vit.resampling import Resampling, resample_positions

TORCH = {
    "bicubic_aa": Resampling("cubic", a=-0.5, antialias=True),
    "bicubic_noaa": Resampling("cubic", a=-0.75),
    "bilinear_aa": Resampling("linear", antialias=True),
    "bilinear_noaa": Resampling("linear"),
}


def sizes(text):
    return tuple(int(n) for n in text.split("x"))


def cases():
    for stem, choose in (
        ("C01", lambda rest: "google"),
        ("C02", lambda rest: TORCH["_".join(rest[:2])]),
        (
            "C03",
            lambda rest: {
                "offset0.1_noaa": "dinov2",
                "offset0.0_aa": "dinov2-registers",
                "offset0.0_noaa": "hf",
            }["_".join(rest)],
        ),
        ("C05", lambda rest: "hf"),
    ):
        golden = Golden(stem)
        for name, want in golden.outputs.items():
            source, _, target = name.partition("_to_")
            target, *rest = target.split("_")
            yield name, golden.inputs[source], source, sizes(target), choose(rest), want
    golden = Golden("C04")
    for name, want in golden.outputs.items():
        model, source = name.split("_grid")[0], "grid4x4_prefix1"
        rule = "dinov2-registers" if model == "dinov2_with_registers" else "hf"
        target = sizes(name.rpartition("_to_")[2])
        yield name, golden.inputs[source], source, target, rule, want


@pytest.mark.parametrize(
    "table, source, target, rule, want", [pytest.param(*c[1:], id=c[0]) for c in cases()]
)
def test_official_position_tables(table, source, target, rule, want):
    grid = sizes(source.split("_")[0].removeprefix("grid"))
    got = resample_positions(table[0], grid, target, rule)
    # The DINOv2 code computes coordinates in float32: with the 0.1 offset their rounding shows.
    np.testing.assert_allclose(got, want[0], atol=2e-6 if rule == "dinov2" else 1e-6, rtol=0)
    prefix = len(table[0]) - grid[0] * grid[1]
    np.testing.assert_array_equal(got[:prefix], table[0][:prefix])


@pytest.mark.parametrize("name", list(Golden("C06").outputs))
def test_official_patch_kernels(name):
    golden = Golden("C06")
    _, _, rest = name.partition("_to_")
    size, _, rule = rest.partition("_")
    kernel = golden.inputs["weight"].transpose(2, 3, 1, 0)
    got = resampling.resample_patch_kernel(kernel, sizes(size), TORCH[rule])
    want = golden.outputs[name].transpose(2, 3, 1, 0)
    # timm inverts in float32, we in float64
    np.testing.assert_allclose(got, want, atol=1e-5 * np.abs(want).max())


@pytest.mark.parametrize("name", list(Golden("A14").outputs))
def test_official_sincos_table(name):
    height, width, dim = sizes(name) if name.count("x") == 2 else (*sizes(name), None)
    want = Golden("A14").outputs[name][0]
    got = resampling.sincos_2d(height, width, want.shape[-1])
    np.testing.assert_allclose(got, want, atol=1e-6)
    assert dim in (None, want.shape[-1])


def test_two_cubic_kernels_are_told_apart():
    """A grid with a single 1 at (1, 1), row 1 after 4x4 -> 6x6 (values of PyTorch and of tf.image)."""
    grid = np.zeros((4, 4, 1), "float32")
    grid[1, 1] = 1.0
    matrix = resampling.interpolation_matrix(resampling.RULES["hf"], 4, 6)
    other = resampling.interpolation_matrix(Resampling("cubic", a=-0.5, antialias=True), 4, 6)
    want = np.array([-0.0515, 0.3525, 0.5601, 0.0955, -0.0557, 0.0])
    np.testing.assert_allclose(matrix[1, 1] * matrix[:, 1], want, atol=1e-4)
    want = np.array([-0.0349, 0.2803, 0.4962, 0.0700, -0.0311, 0.0])
    # tf.image looks its kernel up in a table of 1,024 entries
    np.testing.assert_allclose(other[1, 1] * other[:, 1], want, atol=2e-4)


@pytest.mark.parametrize("rule", resampling.RULES)
def test_rows_and_columns_are_not_swapped(rule):
    rows = np.repeat(np.arange(14.0), 14)[:, None].astype("float32")
    wide = resample_positions(rows, (14, 14), (14, 28), rule).reshape(14, 28)
    np.testing.assert_allclose(wide, wide[:, :1].repeat(28, axis=1), atol=1e-4)
    columns = np.tile(np.arange(14.0), 14)[:, None].astype("float32")
    tall = resample_positions(columns, (14, 14), (28, 14), rule).reshape(28, 14)
    np.testing.assert_allclose(tall.T, wide, atol=1e-5)
    assert not np.allclose(wide[0], wide[-1])


@pytest.mark.parametrize("rule", resampling.RULES)
def test_the_own_grid_is_copied_bit_for_bit(rule):
    table = np.random.default_rng(0).normal(size=(17, 8)).astype("float32")
    np.testing.assert_array_equal(resample_positions(table, (4, 4), (4, 4), rule), table)


@pytest.mark.parametrize("rule", resampling.RULES)
@pytest.mark.parametrize("old, new", [(4, 6), (7, 3), (16, 37), (37, 16), (4, 4), (5, 1)])
def test_in_the_graph_as_in_numpy(rule, old, new):
    rule = resampling.RULES[rule]
    want = resampling.interpolation_matrix(rule, old, new)
    got = resampling.interpolation_matrix(rule, old, new, xp=keras.ops)
    np.testing.assert_allclose(keras.ops.convert_to_numpy(got), want, atol=2e-5)
    np.testing.assert_allclose(want.sum(axis=1), 1.0, atol=1e-9)


def test_errors():
    with pytest.raises(ValueError, match="Unknown resampling rule. Received: resampling='bicubic'"):
        resampling.rule("bicubic")
    with pytest.raises(ValueError, match="at least 16 rows. Received: 15 rows"):
        resample_positions(np.zeros((15, 8)), (4, 4), (5, 5), "timm")
    with pytest.raises(ValueError, match="multiple of 4.*width=30"):
        resampling.sincos_2d(2, 2, 30)
