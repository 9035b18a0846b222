"""Picture files decoded in a graph."""

import functools
import io

import numpy as np
import pytest
from picture_files import bad, encode, good, oriented, smooth

from keras_vit.export import decoding
from keras_vit.images import load_image
from keras_vit.preprocessing import Recipe, prepare

tf = pytest.importorskip("tensorflow")

RECIPES = {
    "shorter side": Recipe((48, 48), crop_fraction=0.9),
    "border": Recipe((32, 56), resize="border", interpolation="bilinear", fill=(9, 99, 200)),
    "squash": Recipe((40, 52), resize="squash"),
    "sampled": Recipe(
        (48, 48),
        interpolation="bilinear",
        antialias=False,
        crop_offset="floor",
        crop_fraction=0.875,
    ),
}


@functools.cache
def graph(name):
    """The function of one recipe, traced once."""
    signature = [tf.TensorSpec((None,), tf.string)]
    return tf.function(
        lambda files: decoding.pictures(files, RECIPES[name]), input_signature=signature
    )


def decoded(name, files):
    pixels, status = graph(name)(tf.constant(files, tf.string))
    return pixels.numpy(), [text.decode() for text in status.numpy()]


@pytest.mark.parametrize("name", RECIPES)
def test_pixels_are_those_of_the_python_path(name):
    files = good()
    if name == "squash":
        del files["tall"]  # Pillow 13 shrinks its height first, as no version before did
    pixels, status = decoded(name, list(files.values()))
    assert set(status) == {"ok"}
    for key, file, found in zip(files, files.values(), pixels, strict=True):
        expected = prepare(load_image(io.BytesIO(file)), RECIPES[name]).astype("float32")
        difference = np.abs(found - expected)
        assert difference.max() <= (2 if "transparent" in key else 1), key
        assert difference.mean() < 0.15, key


@pytest.mark.parametrize("byte_order", "<>")
def test_every_exif_orientation(byte_order):
    photo = smooth(60, 84)
    tags = [None, *range(10)]  # 0 and 9 are not valid
    files = [oriented(photo, tag, byte_order) for tag in tags]
    pixels, status = decoded("shorter side", files)
    assert set(status) == {"ok"}
    for tag, file, found in zip(tags, files, pixels, strict=True):
        expected = prepare(load_image(io.BytesIO(file)), RECIPES["shorter side"])
        assert np.abs(found - expected.astype("float32")).max() <= 1, tag
    assert np.abs(pixels[2:10] - pixels[2]).max(axis=(1, 2, 3)).tolist()[1:] > [20.0] * 7


def test_exif_that_is_damaged_or_late_does_no_harm():
    plain = oriented(smooth(60, 84), 6)
    start = plain.index(b"Exif\0\0")
    beyond = plain[: start + 10] + b"\xff\xff\xff\xff" + plain[start + 14 :]
    padded = plain[: start - 4] + b"\xff" + plain[start - 4 :]
    comment = plain[:2] + b"\xff\xfe\x00\x04hi" + plain[2:]
    files = (plain, beyond, plain[: start + 20], padded, comment, b"", b"\xff\xd8\xff\xe1", b"text")
    found = [int(decoding.orientation(tf.constant(file))) for file in files]
    assert found == [6, 1, 1, 6, 6, 1, 1, 1]


def test_one_bad_file_does_not_fail_the_others():
    files = {name: file for name, (file, _) in bad().items()}
    picture = encode(smooth(60, 84), "PNG")
    mixed = [picture, *files.values(), picture]
    pixels, status = decoded("shorter side", mixed)
    assert status == ["ok", *(text for _, text in bad().values()), "ok"]
    assert np.all(pixels[1:-1] == 0)
    np.testing.assert_array_equal(pixels[0], pixels[-1])
    assert pixels[0].max() > 100


def test_no_files():
    pixels, status = decoded("border", [])
    assert pixels.shape == (0, 32, 56, 3)
    assert status == []


def test_the_limit_is_that_of_the_header():
    files = list(good().values())
    sizes = [load_image(io.BytesIO(file)).shape for file in files]
    limit = min(height * width for height, width, _ in sizes)
    _, status = decoding.pictures(tf.constant(files), RECIPES["squash"], max_pixels=limit)
    expected = [b"ok" if h * w == limit else b"too large" for h, w, _ in sizes]
    assert status.numpy().tolist() == expected


def test_damage_anywhere_is_survived():
    random = np.random.default_rng(1)
    files = []
    for file in good().values():
        for _ in range(20):
            copy = bytearray(file)
            for position in random.integers(0, len(copy), 3):
                copy[position] = random.integers(0, 256)
            files.append(bytes(copy[: random.integers(1, len(copy) + 1)]))
    pixels, status = decoded("squash", files)
    assert np.isfinite(pixels).all()
    assert {"ok", "damaged or unsupported"} <= set(status)
