"""Self-attention and attention pooling against plain numpy."""

import keras
import numpy as np
import pytest
from keras import ops
from numpy_reference import attend, attention, dense, layer_norm, mlp, randomise, split, weights_of

from keras_vit.layers import AttentionPooling, Mlp, MultiHeadSelfAttention

WIDTH, HEADS = 12, 3


def tokens(batch=2, count=5, width=WIDTH):
    return np.random.default_rng(0).normal(size=(batch, count, width)).astype("float32")


def attention_layer(**options):
    layer = MultiHeadSelfAttention(HEADS, **options)
    layer.build((None, None, WIDTH))
    return randomise(layer)


def test_one_head_by_hand():
    layer = MultiHeadSelfAttention(1, use_bias=False)
    layer.build((None, 2, 4))
    identity = np.eye(4, dtype="float32")
    # a token's logit with itself is side ** 2 / sqrt(4) = ln 3, with the other one 0
    side = np.sqrt(2 * np.log(3.0))
    x = np.array([[[side, 0, 0, 0], [0, side, 0, 0]]], "float32")
    layer.set_weights([identity, identity, identity, 2 * identity, np.ones(4, "float32")])
    outputs, maps = layer(x, return_attention=True)
    np.testing.assert_allclose(maps[0, 0], [[0.75, 0.25], [0.25, 0.75]], atol=1e-6)
    np.testing.assert_allclose(
        outputs[0],
        [[1 + 1.5 * side, 1 + 0.5 * side, 1, 1], [1 + 0.5 * side, 1 + 1.5 * side, 1, 1]],
        atol=1e-6,
    )


@pytest.mark.parametrize("use_bias", [True, False])
def test_against_numpy(use_bias):
    layer, x = attention_layer(use_bias=use_bias), tokens()
    weights = weights_of(layer)
    assert ("query/bias" in weights) == use_bias and "output/bias" in weights
    expected, expected_maps = attention(x, weights, HEADS)
    outputs, maps = layer(x, return_attention=True)
    np.testing.assert_allclose(layer(x), expected, atol=2e-5)
    np.testing.assert_allclose(outputs, expected, atol=2e-5)
    np.testing.assert_allclose(maps, expected_maps, atol=1e-6)


def test_query_and_key_norm():
    layer, x = attention_layer(query_key_epsilon=1e-3), tokens()
    weights = weights_of(layer)
    query, key = (
        layer_norm(split(dense(x, weights, name), HEADS), weights, f"{name}_norm", epsilon=1e-3)
        for name in ("query", "key")
    )
    query, key = (a.transpose(0, 2, 1, 3).reshape(x.shape) for a in (query, key))
    outputs, maps = attend(query, key, dense(x, weights, "value"), HEADS)
    np.testing.assert_allclose(layer(x), dense(outputs, weights, "output"), atol=2e-5)
    np.testing.assert_allclose(layer(x, return_attention=True)[1], maps, atol=1e-6)


@pytest.mark.parametrize("query_key_epsilon", [None, 1e-6])
def test_asking_for_the_map_changes_nothing(query_key_epsilon):
    layer, x = attention_layer(query_key_epsilon=query_key_epsilon), tokens(batch=1, count=50)
    outputs, maps = layer(x, return_attention=True)
    np.testing.assert_allclose(outputs, layer(x), atol=1e-5)
    assert maps.shape == (1, HEADS, 50, 50)
    np.testing.assert_allclose(np.sum(maps, axis=-1), 1.0, atol=1e-5)
    assert np.min(maps) >= 0


def test_the_map_in_a_functional_model():
    layer = attention_layer()
    inputs = keras.Input((5, WIDTH))
    outputs, maps = layer(inputs, return_attention=True)
    assert outputs.shape == (None, 5, WIDTH) and maps.shape == (None, HEADS, 5, 5)
    model = keras.Model(inputs, [outputs, maps])
    for ours, theirs in zip(model(tokens()), layer(tokens(), return_attention=True), strict=True):
        np.testing.assert_array_equal(ours, theirs)


def test_order_of_tokens_does_not_matter():
    layer, x = attention_layer(), tokens()
    order = [3, 0, 4, 1, 2]
    np.testing.assert_allclose(layer(x[:, order]), np.array(layer(x))[:, order], atol=1e-5)


@pytest.mark.parametrize("heads", [5, 0])
def test_heads_must_divide_the_width(heads):
    message = rf"width must be a multiple of the number of heads. Received: width=12, heads={heads}"
    with pytest.raises(ValueError, match=f"some_name: the {message}"):
        MultiHeadSelfAttention(heads, name="some_name").build((None, 5, WIDTH))
    with pytest.raises(ValueError, match=message):
        AttentionPooling(heads, Mlp(4)).build((None, 5, WIDTH))


SIDE = np.float32(39.53)  # 64 of its squares are 1e5


def transparent(layer):
    """Query, key, value and output are the identity."""
    layer.build((None, 3, 64))
    for part in (layer.query, layer.key, layer.value, layer.projection):
        part.set_weights([np.eye(64, dtype="float32"), np.zeros(64, "float32")])
    return layer


def attended(policy):
    return lambda x: transparent(MultiHeadSelfAttention(1, dtype=policy))(x)


def attended_with_map(policy):
    layer = transparent(MultiHeadSelfAttention(1, dtype=policy))
    return lambda x: layer(x, return_attention=True)[0]


def pooled(policy):
    layer = transparent(AttentionPooling(1, Mlp(8, dtype=policy), dtype=policy))
    layer.probe.assign(np.full((1, 1, 64), SIDE))
    layer.mlp.set_weights([np.zeros(w.shape) for w in layer.mlp.weights])
    return layer


@pytest.mark.parametrize("layer", [attended, attended_with_map, pooled])
def test_huge_products_in_float16(layer):
    """Query times key is 1e5, which float16 does not hold; scaled before, it is 12,500."""
    x = SIDE * np.ones((1, 3, 64), "float32") * np.array([1, -1, 0.5], "float32")[None, :, None]
    half, full = (
        ops.convert_to_numpy(layer(p)(x)).astype("float32") for p in ("mixed_float16", "float32")
    )
    assert np.isfinite(half).all()
    np.testing.assert_allclose(half, full, rtol=2e-3)


def test_dropout_acts_on_probabilities_in_training_only():
    layer, x = attention_layer(dropout=0.5), tokens()
    _, maps = layer(x, return_attention=True)
    _, dropped = layer(x, training=True, return_attention=True)
    kept = np.array(dropped) != 0
    assert 0.3 < kept.mean() < 0.7
    np.testing.assert_allclose(np.array(dropped)[kept], 2 * np.array(maps)[kept], rtol=1e-5)
    assert not np.allclose(layer(x, training=True), layer(x))
    np.testing.assert_array_equal(layer(x, training=False), layer(x))


def test_dropout_of_the_output():
    layer, x = attention_layer(output_dropout=0.5), tokens()
    outputs, dropped = np.array(layer(x)), np.array(layer(x, training=True))
    kept = dropped != 0
    assert 0.3 < kept.mean() < 0.7
    np.testing.assert_allclose(dropped[kept], 2 * outputs[kept], rtol=1e-5)


def test_paths():
    parts = ("query", "key", "value", "output")
    expected = [f"{part}/{kind}" for part in parts for kind in ("kernel", "bias")]
    assert list(weights_of(attention_layer())) == expected
    normed = attention_layer(query_key_epsilon=1e-6)
    norms = [f"{part}_norm/{kind}" for part in parts[:2] for kind in ("gamma", "beta")]
    assert sorted(weights_of(normed)) == sorted(expected + norms)
    assert normed.count_params() == 4 * (WIDTH**2 + WIDTH) + 4 * WIDTH // HEADS


def test_pooling_against_numpy():
    layer, x = AttentionPooling(HEADS, Mlp(7, name="mlp"), epsilon=1e-3), tokens()
    layer.build(x.shape)
    randomise(layer)
    weights = weights_of(layer)
    probe = np.broadcast_to(weights["probe"], (2, 1, WIDTH))
    parts = [dense(a, weights, name) for a, name in ((probe, "query"), (x, "key"), (x, "value"))]
    y = dense(attend(*parts, HEADS)[0], weights, "output")
    y = y + mlp(layer_norm(y, weights, "norm", epsilon=1e-3), weights, "mlp/")
    np.testing.assert_allclose(layer(x), y[:, 0], rtol=1e-5, atol=1e-4)


def test_pooling_of_equal_tokens_is_the_token():
    """Whatever the probe says, the mean of equal values is that value."""
    layer = AttentionPooling(HEADS, Mlp(7))
    x = np.repeat(tokens(count=1), 4, axis=1)
    layer.build(x.shape)
    randomise(layer)
    layer.projection.set_weights([np.eye(WIDTH), np.zeros(WIDTH)])
    layer.mlp.set_weights([np.zeros(w.shape) for w in layer.mlp.weights])
    np.testing.assert_allclose(layer(x), dense(x, weights_of(layer), "value")[:, 0], atol=1e-5)
