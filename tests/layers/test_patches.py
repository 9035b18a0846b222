"""Patches, tokens and positions."""

import itertools

import keras
import numpy as np
import pytest
from keras import ops
from numpy_reference import randomise

from keras_vit.layers import PatchEncoder, Patches
from keras_vit.resampling import RULES, resample_positions, sincos_2d

CHANNELS, PATCH = 3, 2
PIXELS = CHANNELS * PATCH**2


def images_of(grid, batch=2):
    shape = (batch, grid[0] * PATCH, grid[1] * PATCH, CHANNELS)
    return np.random.default_rng(0).normal(size=shape).astype("float32")


def array(tensor):
    return ops.convert_to_numpy(tensor)


def built(width, grid, **options):
    """A built encoder with random weights."""
    encoder = PatchEncoder(width, grid, **options)
    encoder.build((None, grid[0] * grid[1], PIXELS))
    return randomise(encoder)


def silent(encoder):
    """The encoder without its projection: what it returns are tokens and positions alone."""
    encoder.projection.set_weights([np.zeros((PIXELS, encoder.width)), np.zeros(encoder.width)])
    return array(encoder(np.zeros((1, encoder.grid[0] * encoder.grid[1], PIXELS), "float32")))[0]


# Patches


def test_patches_of_counted_pixels():
    images = np.arange(4 * 6 * 2, dtype="float32").reshape(1, 4, 6, 2)
    patches = array(Patches(2)(images))
    assert patches.shape == (1, 6, 8)
    np.testing.assert_array_equal(patches[0, 0], [0, 1, 2, 3, 12, 13, 14, 15])
    np.testing.assert_array_equal(patches[0, 1], [4, 5, 6, 7, 16, 17, 18, 19])  # to the right
    np.testing.assert_array_equal(patches[0, 3], [24, 25, 26, 27, 36, 37, 38, 39])  # below


def test_patches_times_kernel_is_a_strided_convolution():
    images = images_of((3, 4))
    kernel = np.random.default_rng(1).normal(size=(PATCH, PATCH, CHANNELS, 5)).astype("float32")
    convolved = array(ops.conv(images, kernel, strides=PATCH, padding="valid"))
    product = array(Patches(PATCH)(images)) @ kernel.reshape(PIXELS, 5)
    np.testing.assert_allclose(product, convolved.reshape(2, 12, 5), atol=1e-5)


@pytest.mark.parametrize(
    ("shape", "message"),
    [
        (
            (30, 32),
            "height must be a multiple of the patch size 16. Received: height=30. Nearest valid height: 16 or 32",
        ),
        (
            (32, 50),
            "width must be a multiple of the patch size 16. Received: width=50. Nearest valid width: 48 or 64",
        ),
        ((7, None), "Received: height=7. Nearest valid height: 16"),
    ],
)
def test_sizes_that_do_not_divide(shape, message):
    with pytest.raises(ValueError, match=message):
        Patches(16)(keras.Input((*shape, 3)))
    if None not in shape:
        with pytest.raises(ValueError, match=message):
            Patches(16)(np.zeros((1, *shape, 3), "float32"))


def test_patches_of_unknown_size():
    assert Patches(2)(keras.Input((None, 8, 3))).shape == (None, None, 12)


# tokens


def test_order_of_tokens():
    encoder = built(8, (1, 2), tokens=("class", "distillation"), registers=2, positions="none")
    encoder.own["class_token"].assign(np.full((1, 1, 8), 1.0))
    encoder.own["distillation_token"].assign(np.full((1, 1, 8), 2.0))
    encoder.own["register_tokens"].assign([[[3.0] * 8, [4.0] * 8]])
    encoder.projection.set_weights([np.ones((PIXELS, 8)), np.zeros(8)])
    patches = np.stack([np.full(PIXELS, 0.5), np.full(PIXELS, 1.0)])[None]
    tokens = array(encoder(patches))[0]
    np.testing.assert_array_equal(tokens, np.repeat([[1.0], [2], [3], [4], [6], [12]], 8, axis=1))
    assert encoder.prefix == 4


def test_initial_values():
    encoder = PatchEncoder(64, (8, 8), registers=4)
    encoder.build((None, 64, PIXELS))
    assert np.all(array(encoder.own["class_token"]) == 0)
    assert 0 < np.abs(array(encoder.own["register_tokens"])).max() < 1e-5
    assert np.std(array(encoder.own["positions"])) == pytest.approx(0.02, rel=0.05)
    assert [w.path.split("/", 1)[1] for w in encoder.weights] == [
        "class_token",
        "register_tokens",
        "positions",
        "projection/kernel",
        "projection/bias",
    ]


@pytest.mark.parametrize(("positioned", "rows"), [(0, [0, 0, 0]), (1, [1, 0, 0]), (3, [1, 2, 3])])
def test_positioned_tokens(positioned, rows):
    encoder = built(8, (1, 2), registers=2, positioned_tokens=positioned)
    encoder.own["class_token"].assign(np.zeros((1, 1, 8)))
    encoder.own["register_tokens"].assign(np.zeros((1, 2, 8)))
    table = np.repeat(np.arange(1.0, positioned + 3)[:, None], 8, axis=1)
    encoder.own["positions"].assign(table)
    rows = np.array([*rows, positioned + 1, positioned + 2])
    np.testing.assert_array_equal(silent(encoder), np.repeat(rows[:, None], 8, axis=1))


def test_by_default_the_named_tokens_have_positions():
    assert PatchEncoder(8, (1, 2), registers=2).positioned_tokens == 1
    assert PatchEncoder(8, (1, 2), tokens=(), registers=2).positioned_tokens == 0
    assert PatchEncoder(8, (1, 2), tokens=("a", "b")).positioned_tokens == 2
    assert PatchEncoder(8, (1, 2), positions="sincos-2d").positioned_tokens == 0


# positions


def test_learned_2d_joins_row_and_column():
    encoder = built(4, (2, 3), positions="learned-2d", tokens=())
    encoder.own["row_positions"].assign([[1.0, 2], [3, 4]])
    encoder.own["column_positions"].assign([[10.0, 20], [30, 40], [50, 60]])
    expected = [
        [1, 2, 10, 20],
        [1, 2, 30, 40],
        [1, 2, 50, 60],
        [3, 4, 10, 20],
        [3, 4, 30, 40],
        [3, 4, 50, 60],
    ]
    np.testing.assert_array_equal(silent(encoder), expected)


def test_sincos_2d():
    positions = silent(built(8, (2, 3), positions="sincos-2d", tokens=()))
    for row, column in itertools.product(range(2), range(3)):
        # frequencies 1 and 1 / 10,000; the column first
        expected = [
            np.sin(column),
            np.sin(column / 1e4),
            np.cos(column),
            np.cos(column / 1e4),
            np.sin(row),
            np.sin(row / 1e4),
            np.cos(row),
            np.cos(row / 1e4),
        ]
        np.testing.assert_allclose(positions[3 * row + column], expected, atol=1e-6)


def test_the_fixed_table_is_that_of_the_weights_package():
    encoder = built(16, (3, 5), positions="sincos-2d", tokens=())
    np.testing.assert_array_equal(silent(encoder), sincos_2d(3, 5, 16))


def test_no_positions():
    encoder = built(8, (2, 3), positions="none", tokens=())
    assert np.all(silent(encoder) == 0)
    assert [w.name for w in encoder.weights] == ["kernel", "bias"]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            {"positions": "rotary"},
            "Unknown positions. Received: positions='rotary'. Available: .*'sincos-2d'",
        ),
        (
            {"resampling": "nearest"},
            "Unknown resampling rule. Received: resampling='nearest'. Available: .*'google'",
        ),
        (
            {"positioned_tokens": 2},
            "at most the number of extra tokens, 1. Received: positioned_tokens=2",
        ),
    ],
)
def test_arguments_out_of_range(options, message):
    with pytest.raises(ValueError, match=message):
        PatchEncoder(8, (2, 3), **options)


def test_widths_that_positions_do_not_fit():
    with pytest.raises(ValueError, match="even width. Received: width=9"):
        PatchEncoder(9, (2, 3), positions="learned-2d").build((None, 6, PIXELS))
    with pytest.raises(ValueError, match="multiple of 4 and at least 8. Received: width=10"):
        PatchEncoder(10, (2, 3), positions="sincos-2d")(np.zeros((1, 6, PIXELS), "float32"))


def test_other_number_of_patches():
    message = r"a grid of 2x3 has 6 patches. Received: 7 patches. .*layer\(patches, images\)"
    with pytest.raises(ValueError, match=message):
        PatchEncoder(8, (2, 3))(keras.Input((7, PIXELS)))
    with pytest.raises(ValueError, match=message):
        built(8, (2, 3))(np.zeros((1, 7, PIXELS), "float32"))
    with pytest.raises(ValueError, match="Received: None patches"):
        PatchEncoder(8, (2, 3))(keras.Input((None, PIXELS)))


# images of dynamic size

GRIDS = [(3, 4), (4, 3), (3, 7), (2, 6), (12, 1), (9, 11)]


def dynamic_model(options):
    """A model for images of any size, whose position table is 3x4."""
    images = keras.Input((None, None, CHANNELS))
    encoder = PatchEncoder(8, (3, 4), name="encoder", **options)
    return randomise(keras.Model(images, encoder(Patches(PATCH)(images), images)))


def static_model(options, grid):
    """The model for the images of one size."""
    images = keras.Input((grid[0] * PATCH, grid[1] * PATCH, CHANNELS))
    encoder = PatchEncoder(8, grid, name="encoder", **options)
    return keras.Model(images, encoder(Patches(PATCH)(images)))


def traced(model, **options):
    """The model as one graph for all sizes, where the backend has such graphs."""
    if keras.backend.backend() != "tensorflow":
        return model
    import tensorflow as tf

    signature = [tf.TensorSpec((None, None, None, CHANNELS))]
    return tf.function(lambda x: model(x, training=False), input_signature=signature, **options)


@pytest.mark.parametrize(
    "options",
    [
        *({"resampling": rule, "registers": 1} for rule in RULES),
        *({"resampling": rule, "positions": "learned-2d"} for rule in RULES),
        {"positions": "sincos-2d"},
        {"positions": "none"},
    ],
    ids=lambda options: "-".join(map(str, options.values())),
)
def test_dynamic_size_equals_the_model_of_that_size(options, tmp_path):
    dynamic = dynamic_model(options)
    dynamic.save_weights(tmp_path / "a.weights.h5")
    graph = traced(dynamic)
    for grid in GRIDS:
        static = static_model(options, grid)
        static.load_weights(tmp_path / "a.weights.h5")
        images = images_of(grid)
        expected = array(static(images))
        np.testing.assert_allclose(dynamic(images), expected, atol=1e-5, err_msg=f"{grid}")
        np.testing.assert_allclose(graph(images), expected, atol=1e-5, err_msg=f"{grid}")
        if grid == (3, 4) and "resampling" in options:
            np.testing.assert_array_equal(dynamic(images), expected)
            np.testing.assert_array_equal(graph(images), expected)


@pytest.mark.parametrize("rule", RULES)
def test_dynamic_size_compiled(rule):
    model = dynamic_model({"resampling": rule})
    graph = traced(model, jit_compile=True)
    for grid in [(3, 4), (5, 3)]:
        images = images_of(grid)
        np.testing.assert_allclose(graph(images), model(images), atol=1e-5, err_msg=f"{grid}")


def test_predicting_several_sizes_one_after_the_other():
    model = dynamic_model({"resampling": "dinov2"})
    model.compile(jit_compile=True)
    for grid in [(3, 4), (5, 3), (2, 6), (3, 4)]:
        images = images_of(grid)
        outputs = model.predict(images, verbose=0)
        np.testing.assert_allclose(outputs, model(images), atol=1e-5, err_msg=f"{grid}")


def test_a_compiled_model_keeps_its_own_table_bit_for_bit():
    for rule in RULES:
        model = dynamic_model({"resampling": rule, "tokens": ()})
        encoder = model.get_layer("encoder")
        encoder.projection.set_weights([np.zeros((PIXELS, 8)), np.zeros(8)])
        outputs = traced(model, jit_compile=True)(images_of((3, 4), batch=1))
        np.testing.assert_array_equal(outputs[0], array(encoder.own["positions"]), rule)


def test_dynamic_model_reloads(tmp_path):
    model = dynamic_model({"resampling": "timm"})
    model.save(tmp_path / "a.keras")
    again = keras.saving.load_model(tmp_path / "a.keras")
    images = images_of((5, 3))
    np.testing.assert_array_equal(again(images), model(images))


# loading at another size


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("new", [(14, 28), (28, 14), (7, 9)])
def test_loading_at_another_size(rule, new, tmp_path):
    options = {"resampling": rule, "registers": 2, "positioned_tokens": 1}
    model = randomise(static_model(options, (14, 14)))
    model.save_weights(tmp_path / "a.weights.h5")
    again = static_model(options, new)
    again.load_weights(tmp_path / "a.weights.h5")
    before, after = (m.get_layer("encoder").own for m in (model, again))
    table = array(before["positions"])
    expected = resample_positions(table, (14, 14), new, rule)
    np.testing.assert_array_equal(array(after["positions"]), expected)
    np.testing.assert_array_equal(array(after["positions"])[0], table[0])
    for name in ("class_token", "register_tokens"):
        np.testing.assert_array_equal(array(after[name]), array(before[name]))
    projection = (m.get_layer("encoder").projection.get_weights() for m in (model, again))
    for ours, theirs in zip(*projection, strict=True):
        np.testing.assert_array_equal(ours, theirs)


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("axis", [0, 1], ids=["rows", "columns"])
def test_height_and_width_are_not_mixed_up(rule, axis, tmp_path):
    """A table of its own row (or column) numbers, loaded at twice the width and twice the height."""
    options = {"resampling": rule, "tokens": ()}
    model = static_model(options, (14, 14))
    numbers = np.broadcast_to(np.indices((14, 14))[axis][..., None], (14, 14, 8))
    model.get_layer("encoder").own["positions"].assign(numbers.reshape(196, 8))
    model.save_weights(tmp_path / "a.weights.h5")
    for new in [(14, 28), (28, 14)]:
        again = static_model(options, new)
        again.load_weights(tmp_path / "a.weights.h5")
        table = array(again.get_layer("encoder").own["positions"]).reshape(*new, 8)
        lines = np.moveaxis(table, axis, 0)  # the numbers vary along the first axis alone
        np.testing.assert_allclose(lines, lines[:, :1].repeat(lines.shape[1], axis=1), atol=1e-5)
        assert (np.diff(lines[:, 0, 0]) > 0).all()
        assert len(lines) == new[axis]


def test_loading_learned_2d_at_another_size(tmp_path):
    options = {"positions": "learned-2d", "resampling": "google"}
    model = static_model(options, (2, 3))
    model.get_layer("encoder").own["row_positions"].assign([[0.0] * 4, [6] * 4])
    model.get_layer("encoder").own["column_positions"].assign([[0.0] * 4, [2] * 4, [8] * 4])
    model.save_weights(tmp_path / "a.weights.h5")
    again = static_model(options, (4, 5))
    again.load_weights(tmp_path / "a.weights.h5")
    own = again.get_layer("encoder").own
    np.testing.assert_allclose(array(own["row_positions"])[:, 0], [0, 2, 4, 6], atol=1e-6)
    np.testing.assert_allclose(array(own["column_positions"])[:, 0], [0, 1, 2, 5, 8], atol=1e-6)


@pytest.mark.filterwarnings("ignore:Skipping nested container")  # Keras, beside its error
def test_a_file_of_other_tokens_is_refused(tmp_path):
    static_model({"registers": 1}, (2, 3)).save_weights(tmp_path / "a.weights.h5")
    model = static_model({}, (2, 3))
    before = model.get_weights()
    message = r"has the variables \['class_token', 'positions'\].*with .*'register_tokens'"
    with pytest.raises(ValueError, match=message):
        model.load_weights(tmp_path / "a.weights.h5")
    for value, now in zip(before[:2], model.get_weights()[:2], strict=True):
        np.testing.assert_array_equal(now, value)
