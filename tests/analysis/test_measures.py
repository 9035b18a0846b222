"""Measures against sums written out in numpy."""

import keras
import numpy as np
import pytest

import keras_vit
from keras_vit import analysis
from keras_vit.analysis import TokenLayout
from keras_vit.models.deepvit import map_similarity

LAYOUT = TokenLayout((16, 24), (2, 3), ("class", "register"))


def identity(tokens):
    return np.broadcast_to(np.eye(tokens, dtype="float32"), (2, 2, tokens, tokens))


def uniform(tokens):
    return np.full((2, 2, tokens, tokens), 1 / tokens, "float32")


# Rollout -------------------------------------------------------------------------------------


def test_rollout_of_known_maps():
    np.testing.assert_allclose(
        analysis.attention_rollout([identity(5)] * 3), identity(5)[0], atol=0
    )
    mixed = 0.5 * uniform(5)[0] + 0.5 * identity(5)[0]
    np.testing.assert_allclose(
        analysis.attention_rollout([uniform(5)] * 2), mixed @ mixed, atol=1e-6
    )


@pytest.mark.parametrize("fusion", ["mean", "max", "min"])
def test_rollout_written_out(random_maps, fusion):
    maps = random_maps(8)
    found = analysis.attention_rollout(iter(maps), fusion)
    for b in range(2):
        product = np.eye(8)
        for attention in maps:
            heads = attention[b].astype("float64")
            fused = {"mean": heads.sum(0) / 2, "max": np.maximum(*heads), "min": np.minimum(*heads)}
            a = 0.5 * fused[fusion] + 0.5 * np.eye(8)
            product = (a / a.sum(-1, keepdims=True)) @ product  # the first block on the right
        np.testing.assert_allclose(found[b], product, atol=1e-6)
    np.testing.assert_allclose(found.sum(axis=-1), 1, atol=1e-6)
    assert found.dtype == "float32" and found.std() > 0.01


def test_rollout_needs_probabilities(random_maps):
    with pytest.raises(ValueError, match="Received: fusion='median'. Available: .'mean', 'max'"):
        analysis.attention_rollout(random_maps(5), "median")
    with pytest.raises(ValueError, match="Received: no maps"):
        analysis.attention_rollout([])
    for wrong in (2 * uniform(5), 2 * identity(5) - uniform(5)):
        with pytest.raises(ValueError, match="must be probabilities, which sum to 1"):
            analysis.attention_rollout([wrong])


# The class token -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    "names", [("class",), ("class", "distillation"), ("class", *["register"] * 4)]
)
def test_the_class_token_and_the_patches(random_maps, names):
    layout = TokenLayout((16, 24), (2, 3), names)
    attention = random_maps(layout.count)[0]
    grid = analysis.class_attention_grid(attention, layout)
    assert grid.shape == (2, 2, 2, 3)
    np.testing.assert_array_equal(grid[1, 0, 1, 2], attention[1, 0, 0, -1])
    np.testing.assert_array_equal(grid[0, 1, 0, 1], attention[0, 1, 0, len(names) + 1])
    rollout = analysis.attention_rollout([attention])
    np.testing.assert_array_equal(
        analysis.class_attention_grid(rollout, layout).reshape(2, 6), rollout[:, 0, len(names) :]
    )


def test_the_class_token_need_not_come_first(random_maps):
    layout = TokenLayout((16, 24), (2, 3), ("distillation", "class"))
    attention = random_maps(8)[0]
    grid = analysis.class_attention_grid(attention, layout)
    np.testing.assert_array_equal(grid.reshape(2, 2, 6), attention[:, :, 1, 2:])


@pytest.mark.parametrize("names", [(), ("register",)])
def test_without_a_class_token_the_patches_speak(random_maps, names):
    layout = TokenLayout((16, 24), (2, 3), names)
    attention = random_maps(layout.count)[0]
    grid = analysis.class_attention_grid(attention, layout)
    patches = attention[:, :, len(names) :, len(names) :]
    np.testing.assert_allclose(grid.reshape(2, 2, 6), patches.mean(axis=2), atol=1e-7)


def bilinear(grid, size):
    """Between the centres of the cells; beyond the outer ones their own value."""
    rows, columns = (
        np.clip((np.arange(n) + 0.5) * cells / n - 0.5, 0, cells - 1)
        for n, cells in zip(size, grid.shape, strict=True)
    )
    down = np.array([np.interp(rows, np.arange(len(grid)), column) for column in grid.T]).T
    return np.array([np.interp(columns, np.arange(grid.shape[1]), row) for row in down])


def test_enlarged_to_the_image(random_maps):
    attention = random_maps(8)[0]
    grid = analysis.class_attention_grid(attention, LAYOUT)
    image = analysis.class_attention_image(attention, LAYOUT)
    assert image.shape == (2, 2, 16, 24) and image.dtype == "float32"
    np.testing.assert_allclose(image[1, 0], bilinear(grid[1, 0], (16, 24)), atol=1e-6)
    assert analysis.class_attention_image(attention[:, 0], LAYOUT).shape == (2, 16, 24)


def test_another_layout(random_maps):
    for function in (analysis.class_attention_grid, analysis.class_attention_image):
        with pytest.raises(ValueError, match="The layout has 8 tokens: .* of shape .2, 2, 9, 9."):
            function(random_maps(9)[0], LAYOUT)
    with pytest.raises(ValueError, match="The layout has 8 tokens"):
        analysis.attention_distance(random_maps(9), LAYOUT)


# Distance ------------------------------------------------------------------------------------


def test_distance_of_known_maps():
    only = TokenLayout((16, 24), (2, 3), ())
    assert analysis.attention_distance([identity(6)], only).tolist() == [[0, 0]]
    across = np.zeros((1, 1, 6, 6), "float32")  # every patch looks at the one at the top left
    across[..., 0] = 1
    want = np.mean([0, 8, 16, 8, np.hypot(8, 8), np.hypot(8, 16)])
    np.testing.assert_allclose(analysis.attention_distance([across], only), [[want]], rtol=1e-6)
    wide = TokenLayout((16, 48), (2, 3), ())  # patches of 8x16 pixels
    want = np.mean([0, 16, 32, 8, np.hypot(8, 16), np.hypot(8, 32)])
    np.testing.assert_allclose(analysis.attention_distance([across], wide), [[want]], rtol=1e-6)


def test_distance_written_out(random_maps):
    maps = random_maps(8)
    found = analysis.attention_distance(iter(maps), LAYOUT)
    assert found.shape == (3, 2) and found.dtype == "float32"
    places = [(8 * i + 4, 8 * j + 4) for i in range(2) for j in range(3)]
    for block in range(3):
        for head in range(2):
            means = []
            for b in range(2):
                for q in range(6):
                    row = maps[block][b, head, 2 + q, 2:].astype("float64")
                    lengths = [np.hypot(places[q][0] - y, places[q][1] - x) for y, x in places]
                    means.append((row / row.sum() * lengths).sum())
            np.testing.assert_allclose(found[block, head], np.mean(means), rtol=1e-5)


def test_distance_needs_probabilities():
    with pytest.raises(ValueError, match="must be probabilities"):
        analysis.attention_distance([-identity(8)], LAYOUT)


# Similarity ----------------------------------------------------------------------------------


def cosine(a, b):
    a, b = a.astype("float64"), b.astype("float64")
    return a @ b / np.linalg.norm(a) / np.linalg.norm(b)


def test_block_similarity_written_out(random_maps):
    maps = random_maps(5)
    found = analysis.block_similarity(maps)
    assert found.shape == (3, 3) and found.dtype == "float32"
    for p in range(3):
        for q in range(3):
            want = np.mean(
                [
                    cosine(maps[p][b, h, :, t], maps[q][b, h, :, t])
                    for b in range(2)
                    for h in range(2)
                    for t in range(5)
                ]
            )
            np.testing.assert_allclose(found[p, q], want, atol=1e-6)
    np.testing.assert_allclose(np.diagonal(found), 1, atol=1e-6)


def test_similarity_of_mixed_maps(random_maps):
    maps = [attention - 0.3 for attention in random_maps(5)]  # rows do not sum to 1
    found = analysis.block_similarity([maps[0], -maps[0], 3 * maps[0]])
    np.testing.assert_allclose(found[0], [1, -1, 1], atol=1e-6)


def test_head_similarity_written_out(random_maps):
    maps = random_maps(5)
    found = analysis.head_similarity(iter(maps))
    assert found.shape == (3, 2, 2) and found.dtype == "float32"
    for p in range(3):
        want = np.mean(
            [cosine(maps[p][b, 0, :, t], maps[p][b, 1, :, t]) for b in range(2) for t in range(5)]
        )
        np.testing.assert_allclose(found[p], [[1, want], [want, 1]], atol=1e-6)


def test_similar_blocks():
    similarity = np.eye(4)
    similarity[0, 1], similarity[1, 2], similarity[2, 3], similarity[0, 2] = 0.95, 0.9, 0.91, 0.99
    assert analysis.similar_blocks(similarity) == (2, 0.5)  # above 0.9, and neighbours alone
    assert analysis.similar_blocks(similarity, threshold=0.94).count == 1
    assert analysis.similar_blocks(similarity, threshold=1).ratio == 0
    for threshold in (-0.1, 1.1, float("nan")):
        message = f"`threshold` must be in .0, 1.. Received: threshold={threshold}"
        with pytest.raises(ValueError, match=message):
            analysis.similar_blocks(similarity, threshold)


def test_a_collapsed_model_is_counted(random_maps):
    first, second, _ = random_maps(5)
    noise = np.random.default_rng(3).uniform(0, 0.02, first.shape)
    similarity = analysis.block_similarity([first, second, second + noise, second])
    assert analysis.similar_blocks(similarity) == (2, 0.5)


def test_feature_similarity(make, images):
    model = make()
    features = keras_vit.feature_extractor(model, layout="tokens", normalize=False)
    features = list(features.predict_on_batch(images).values())
    found = analysis.feature_similarity(features)
    assert found.shape == (1,) and found.dtype == "float32"
    for i in range(1):
        before, after = features[i].reshape(-1, 16), features[i + 1].reshape(-1, 16)
        want = np.mean([cosine(a, b) for a, b in zip(before, after, strict=True)])
        np.testing.assert_allclose(found[i], want, atol=1e-6)


def test_the_loss_of_deepvit_is_another_measure(random_maps):
    """It compares the heads of one query and key, which keeps its own name and place."""
    maps = random_maps(5)
    loss = keras.ops.convert_to_numpy(map_similarity(maps))
    assert abs(loss - np.diagonal(analysis.block_similarity(maps), 1).mean()) > 0.01
