"""Re-attention against plain numpy: mixing, normalisation, statistics."""

import keras
import numpy as np
import pytest
from numpy_reference import dense, randomise, softmax, split, weights_of

from keras_vit.layers import MultiHeadSelfAttention, ReAttention

WIDTH, HEADS = 12, 3
KINDS = ("batch", "layer", "none")


def tokens(batch=4, count=5):
    return np.random.default_rng(0).normal(size=(batch, count, WIDTH)).astype("float32")


def built(normalization="batch", **options):
    layer = ReAttention(HEADS, normalization, **options)
    layer.build((None, None, WIDTH))
    return randomise(layer)


def plain_of(layer):
    """The usual attention with the same query, key, value and output."""
    plain = MultiHeadSelfAttention(HEADS)
    plain.build((None, None, WIDTH))
    for name in ("query", "key", "value", "projection"):
        getattr(plain, name).set_weights(getattr(layer, name).get_weights())
    return plain


def mixed(x, weights):
    """The softmax (B, heads, N, N), and what the mixing makes of it."""
    query, key = (split(dense(x, weights, name), HEADS) for name in ("query", "key"))
    maps = softmax(query @ key.swapaxes(-1, -2) / np.sqrt(WIDTH / HEADS))
    kernel, bias = weights["mixing_kernel"], weights["mixing_bias"]
    return maps, np.einsum("bhqk,hg->bgqk", maps, kernel) + bias[:, None, None]


def normalized(x, mean, variance, weights, epsilon=1e-5):
    gamma, beta = (weights[f"norm/{name}"][:, None, None] for name in ("gamma", "beta"))
    return (x - mean) / np.sqrt(variance + epsilon) * gamma + beta


def per_head(values):
    return values[:, None, None]


def expected_map(x, weights, normalization):
    y = mixed(x, weights)[1]
    if normalization == "batch":
        mean, variance = (per_head(weights[f"norm/moving_{n}"]) for n in ("mean", "variance"))
        return normalized(y, mean, variance, weights)
    if normalization == "layer":
        return normalized(y, y.mean(1, keepdims=True), y.var(1, keepdims=True), weights)
    return y


@pytest.mark.parametrize("scale", [1.0, 0.25])
@pytest.mark.parametrize("normalization", KINDS)
def test_against_numpy(normalization, scale):
    layer, x = built(normalization, scale=scale), tokens()
    weights = weights_of(layer)
    maps = scale * expected_map(x, weights, normalization)
    values = split(dense(x, weights, "value"), HEADS)
    y = (maps @ values).transpose(0, 2, 1, 3).reshape(x.shape)
    y = dense(y, weights, "output")
    outputs, ours = layer(x, return_attention=True)
    np.testing.assert_allclose(ours, maps, rtol=1e-4, atol=1e-5)
    size = np.abs(y).max()
    np.testing.assert_allclose(outputs, y, rtol=1e-4, atol=1e-5 * size)
    np.testing.assert_allclose(layer(x), y, rtol=1e-4, atol=1e-5 * size)
    assert not np.allclose(np.sum(ours, axis=-1), 1)


def test_without_mixing_it_is_the_usual_attention():
    layer, x = built("none"), tokens()
    layer.mixing_kernel.assign(np.eye(HEADS))
    layer.mixing_bias.assign(np.zeros(HEADS))
    np.testing.assert_allclose(layer(x), plain_of(layer)(x), atol=2e-5)


@pytest.mark.parametrize("normalization", KINDS)
def test_map_before_the_mixing(normalization):
    layer, x = built(normalization), tokens()
    maps = plain_of(layer)(x, return_attention=True)[1]
    np.testing.assert_allclose(layer.probabilities(x), maps, atol=1e-6)
    np.testing.assert_allclose(plain_of(layer).probabilities(x), maps, atol=1e-6)


def test_training_takes_the_statistics_of_the_batch():
    """Of every head over batch, queries and keys; the moving ones take a tenth of them."""
    layer, x = built(), tokens()
    before = weights_of(layer)
    y = mixed(x, before)[1]
    mean, variance = y.mean((0, 2, 3)), y.var((0, 2, 3))
    maps = layer(x, training=True, return_attention=True)[1]
    expected = normalized(y, per_head(mean), per_head(variance), before)
    np.testing.assert_allclose(maps, expected, rtol=1e-4, atol=1e-4)
    after = weights_of(layer)
    for name, value in (("mean", mean), ("variance", variance)):
        want = 0.9 * before[f"norm/moving_{name}"] + 0.1 * value
        np.testing.assert_allclose(after[f"norm/moving_{name}"], want, rtol=1e-5)


@pytest.mark.parametrize("normalization", KINDS)
def test_a_sample_does_not_depend_on_its_batch(normalization):
    layer, x = built(normalization), tokens()
    whole = np.array(layer(x, training=False))
    np.testing.assert_allclose(
        layer(x[:1], training=False), whole[:1], atol=1e-5 * np.abs(whole).max()
    )


def test_small_variances_keep_their_epsilon():
    """The default epsilon of Keras, 1e-3, would shrink this map to a third."""
    layer, x = built(), tokens()
    layer.norm.set_weights([np.ones(HEADS), np.zeros(HEADS), np.zeros(HEADS), np.full(HEADS, 1e-4)])
    maps = layer(x, return_attention=True)[1]
    y = mixed(x, weights_of(layer))[1]
    np.testing.assert_allclose(maps, y / np.sqrt(1.1e-4), rtol=1e-4, atol=1e-3)


def test_frozen_layer_keeps_its_statistics():
    layer, x = built(), tokens()
    layer.trainable = False
    before = weights_of(layer)
    outputs = layer(x, training=True)
    np.testing.assert_array_equal(outputs, layer(x, training=False))
    for path, value in weights_of(layer).items():
        np.testing.assert_array_equal(value, before[path], path)


def test_dropout_comes_before_the_mixing():
    layer, x = built("none", dropout=0.5), 0.1 * tokens()
    layer.mixing_kernel.assign(np.eye(HEADS))
    layer.mixing_bias.assign(np.full(HEADS, 7.0))
    dropped = np.array(layer(x, training=True, return_attention=True)[1]) == 7.0
    assert 0.3 < dropped.mean() < 0.7
    assert np.min(layer(x, return_attention=True)[1]) > 7.05


@pytest.mark.parametrize("policy", ["mixed_float16", "mixed_bfloat16"])
def test_half_precision_is_close(policy):
    full = built()
    half = ReAttention(HEADS, dtype=policy)
    half.build((None, None, WIDTH))
    half.set_weights(full.get_weights())
    want = np.array(full(tokens(), return_attention=True)[1])
    got = np.array(half(tokens(), return_attention=True)[1]).astype("float32")
    np.testing.assert_allclose(got, want, atol=0.05 * np.abs(want).max())
    half(tokens(), training=True)
    assert {w.dtype for w in half.weights} == {"float32"}


@pytest.mark.parametrize("normalization, more", [("batch", 12), ("layer", 6), ("none", 0)])
def test_paths_and_count(normalization, more):
    layer = built(normalization)
    plain = plain_of(layer)
    extra = set(weights_of(layer)) - set(weights_of(plain))
    norm = {
        "batch": ("gamma", "beta", "moving_mean", "moving_variance"),
        "layer": ("gamma", "beta"),
    }
    names = norm.get(normalization, ())
    assert extra == {"mixing_kernel", "mixing_bias", *(f"norm/{name}" for name in names)}
    assert layer.count_params() == plain.count_params() + HEADS**2 + HEADS + more
    assert len(layer.non_trainable_weights) == (2 if normalization == "batch" else 0)


def test_the_mixing_starts_within_its_bound():
    layer = ReAttention(64)
    layer.build((None, None, 64))
    for weight in (layer.mixing_kernel, layer.mixing_bias):
        assert 0.1 < np.abs(np.array(weight)).max() <= 64**-0.5


def test_in_a_functional_model():
    layer = built()
    inputs = keras.Input((5, WIDTH))
    outputs, maps = layer(inputs, return_attention=True)
    assert outputs.shape == (None, 5, WIDTH) and maps.shape == (None, HEADS, 5, 5)
    both = keras.Model(inputs, [outputs, maps])(tokens())
    for ours, theirs in zip(both, layer(tokens(), return_attention=True), strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-5, atol=1e-5)


def test_messages():
    message = "some_name: unknown normalization.*Received: normalization='group'.*'batch', 'layer'"
    with pytest.raises(ValueError, match=message):
        ReAttention(HEADS, "group", name="some_name")
    with pytest.raises(ValueError, match="multiple of the number of heads"):
        ReAttention(5).build((None, None, WIDTH))
