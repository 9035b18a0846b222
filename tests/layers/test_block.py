"""The encoder block: its formula, its parts, what it refuses."""

import keras
import numpy as np
import pytest
from keras import ops
from numpy_reference import attention, layer_norm, mlp, randomise, weights_of

from keras_vit.layers import Mlp, MultiHeadSelfAttention, ReAttention, SwiGLU, TransformerBlock

WIDTH, HEADS = 8, 2


def block_of(feed_forward=None, dropout=0.0, attention=MultiHeadSelfAttention, **options):
    """A block that is not built yet."""
    return TransformerBlock(
        attention(HEADS, output_dropout=dropout, name="attention"),
        feed_forward or Mlp(6, dropout=dropout, name="mlp"),
        **options,
    )


def built(*args, **options):
    block = block_of(*args, **options)
    block.build((None, None, WIDTH))
    return randomise(block)


def tokens(batch=3, count=5):
    return np.random.default_rng(0).normal(size=(batch, count, WIDTH)).astype("float32")


def model_of(**options):
    inputs = keras.Input((5, WIDTH))
    return keras.Model(inputs, block_of(name="block", **options)(inputs))


@pytest.mark.parametrize("layer_scale", [None, 0.1])
def test_formula(layer_scale):
    block, x = built(layer_scale=layer_scale, epsilon=1e-3), tokens()
    weights = weights_of(block)
    scales = [weights.get(f"{branch}_scale/gamma", 1.0) for branch in ("attention", "mlp")]
    normed = layer_norm(x, weights, "attention_norm", epsilon=1e-3)
    outputs, maps = attention(normed, weights, HEADS, "attention/")
    y = x + scales[0] * outputs
    y = y + scales[1] * mlp(layer_norm(y, weights, "mlp_norm", epsilon=1e-3), weights, "mlp/")
    np.testing.assert_allclose(block(x), y, rtol=1e-5, atol=1e-4)
    both = block(x, return_attention=True)
    np.testing.assert_allclose(both[0], y, rtol=1e-5, atol=1e-4)
    np.testing.assert_allclose(both[1], maps, atol=1e-5)


def test_scale_adjustment():
    block, x = built(scale_adjustment=0.5, epsilon=1e-1), tokens()
    weights = weights_of(block)
    normed = layer_norm(0.5 * x, weights, "attention_norm", epsilon=1e-1)
    y = x + 2 * attention(normed, weights, HEADS, "attention/")[0]
    y = y + 2 * mlp(layer_norm(0.5 * y, weights, "mlp_norm", epsilon=1e-1), weights, "mlp/")
    for outputs in (block(x), block(x, return_attention=True)[0]):
        np.testing.assert_allclose(outputs, y, rtol=1e-5, atol=1e-4)


def test_paths_and_count():
    block = built(layer_scale=0.1)
    assert sorted(weights_of(block)) == [
        "attention/key/bias",
        "attention/key/kernel",
        "attention/output/bias",
        "attention/output/kernel",
        "attention/query/bias",
        "attention/query/kernel",
        "attention/value/bias",
        "attention/value/kernel",
        "attention_norm/beta",
        "attention_norm/gamma",
        "attention_scale/gamma",
        "mlp/hidden/bias",
        "mlp/hidden/kernel",
        "mlp/output/bias",
        "mlp/output/kernel",
        "mlp_norm/beta",
        "mlp_norm/gamma",
        "mlp_scale/gamma",
    ]
    feed_forward = WIDTH * 6 + 6 + 6 * WIDTH + WIDTH
    expected = 4 * (WIDTH**2 + WIDTH) + feed_forward + 4 * WIDTH + 2 * WIDTH
    assert block.count_params() == expected
    assert built().count_params() == expected - 2 * WIDTH


def test_layer_scale_starts_at_its_initial_value():
    block = block_of(layer_scale=0.25)
    block.build((None, None, WIDTH))
    for scale in (block.attention_scale, block.mlp_scale):
        np.testing.assert_array_equal(ops.convert_to_numpy(scale.gamma), np.full(WIDTH, 0.25))
    nothing = block_of(layer_scale=0.0)
    np.testing.assert_array_equal(nothing(tokens()), tokens())


def test_drop_path_leaves_out_each_branch_of_a_sample():
    """Of a block that adds 1 in the first branch and 10 in the second."""
    block = built(drop_path=0.5)
    block.set_weights([np.zeros(w.shape) for w in block.weights])
    block.attention.projection.bias.assign(np.ones(WIDTH))
    block.mlp.projection.bias.assign(np.full(WIDTH, 10.0))
    x = np.zeros((400, 5, WIDTH), "float32")
    np.testing.assert_array_equal(block(x), np.full_like(x, 11))
    outputs = np.array(block(x, training=True))
    assert (outputs == outputs[:, :1, :1]).all()  # one draw per sample
    values, counts = np.unique(outputs[:, 0, 0], return_counts=True)
    np.testing.assert_array_equal(values, [0, 2, 20, 22])
    assert counts.min() > 60


def test_parts_receive_training():
    block, x = built(dropout=0.5), tokens()
    assert not np.allclose(block(x, training=True), block(x))
    np.testing.assert_array_equal(block(x, training=False), block(x))
    with_map = block(x, training=True, return_attention=True)[0]
    assert not np.allclose(with_map, block(x))


def trained(gradient_checkpointing, **options):
    """All variables of a block, those of the random generators too, after two steps."""
    keras.utils.set_random_seed(3)
    model = model_of(gradient_checkpointing=gradient_checkpointing, layer_scale=1.0, **options)
    model.compile(keras.optimizers.SGD(0.1), "mse")
    model.fit(tokens(8), -tokens(8), batch_size=4, shuffle=False, epochs=1, verbose=0)
    return [ops.convert_to_numpy(v) for v in model.variables]


@pytest.mark.parametrize("policy", ["float32", "mixed_bfloat16"])
@pytest.mark.parametrize(
    "options", [{}, {"drop_path": 0.5, "dropout": 0.5}, {"attention": ReAttention, "dropout": 0.5}]
)
def test_gradient_checkpointing_trains_alike(options, policy):
    """The recomputation draws the very same masks and moves the statistics once."""
    keras.config.set_dtype_policy(policy)
    # The compiler fuses, and so rounds, the two graphs differently.
    atol = 1e-6 if policy == "float32" else 1e-3
    for ours, theirs in zip(trained(True, **options), trained(False, **options), strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=0, atol=atol)


def test_gradient_checkpointing_acts_in_training_only(monkeypatch):
    calls, remat = [], keras.remat
    monkeypatch.setattr(keras, "remat", lambda f: calls.append(f) or remat(f))
    block = built(gradient_checkpointing=True)
    block(tokens())
    block(tokens(), training=False)
    assert not calls
    np.testing.assert_allclose(block(tokens(), training=True), block(tokens()), atol=1e-5)
    assert len(calls) == 1


@pytest.mark.parametrize("attention", [MultiHeadSelfAttention, ReAttention])
def test_frozen_block_with_gradient_checkpointing(attention):
    keras.config.set_dtype_policy("mixed_bfloat16")
    block = built(gradient_checkpointing=True, drop_path=0.5, attention=attention)
    block.trainable = False
    before = block.get_weights()
    block(tokens(), training=True)
    for ours, theirs in zip(block.get_weights(), before, strict=True):
        np.testing.assert_array_equal(ours, theirs)


# what a file says about numerics


@pytest.mark.parametrize("file", ["a.weights.h5", "a.keras"])
def test_same_numerics_load(file, tmp_path):
    model = randomise(model_of(epsilon=1e-5))
    if file.endswith(".keras"):
        model.save(tmp_path / file)
    else:
        model.save_weights(tmp_path / file)
    again = model_of(epsilon=1e-5)
    again.load_weights(tmp_path / file)
    np.testing.assert_array_equal(again(tokens()), model(tokens()))


@pytest.mark.filterwarnings("ignore:Skipping nested container")  # Keras, beside its error
@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"epsilon": 1e-5}, "written by a model with epsilon=1e-06, this one has epsilon=1e-05"),
        ({"feed_forward": "gelu_tanh"}, "with activation=gelu, this one has activation=gelu_tanh"),
        (
            {"scale_adjustment": 0.5},
            "with scale_adjustment=None, this one has scale_adjustment=0.5",
        ),
    ],
)
def test_other_numerics_are_refused(options, message, tmp_path):
    model_of().save_weights(tmp_path / "a.weights.h5")
    if "feed_forward" in options:
        options = {"feed_forward": Mlp(6, activation=options["feed_forward"], name="mlp")}
    with pytest.raises(ValueError, match=message):
        model_of(**options).load_weights(tmp_path / "a.weights.h5")


def test_reloaded_block_has_its_own_parts():
    block = block_of(SwiGLU(6, name="mlp"), layer_scale=0.1, drop_path=0.2, name="block")
    block.build((None, None, WIDTH))
    again = TransformerBlock.from_config(block.get_config())
    assert isinstance(again.mlp, SwiGLU) and isinstance(again.attention, MultiHeadSelfAttention)
    assert not again.mlp.built and not again.attention.built
    again.build((None, None, WIDTH))
    assert [w.path for w in again.weights] == [w.path for w in block.weights]
    assert again.attention is not block.attention
