"""Labelled pictures, and their check."""

import numpy as np
import pytest
from PIL import Image

from keras_vit.training import Samples, check_samples, open_samples


def grey(count=4):
    return np.arange(count * 6).reshape(count, 2, 3).astype("uint8")


def test_pictures_in_memory_become_rgb():
    for images in (grey(), grey()[..., None], np.repeat(grey()[..., None], 3, -1)):
        samples = Samples(images, [0, 1, 0, 1], ("a", "b"))
        image = samples.load(2)
        assert image.shape == (2, 3, 3) and image.dtype == np.uint8
        np.testing.assert_array_equal(image[..., 1], grey()[2])


def test_encoded_pictures_are_named_in_errors():
    samples = Samples([b"<html>"], [0], ("a", "b"), "tfds:x", ["17"])
    with pytest.raises(ValueError, match="HTML page.*tfds:x, picture 17"):
        samples.load(0)


def test_select_keeps_names_and_classes():
    samples = Samples(grey(), [0, 1, 0, 1], ("a", "b")).select([3, 0])
    assert samples.names == ("3", "0") and samples.labels.tolist() == [1, 0]
    np.testing.assert_array_equal(samples.load(0)[..., 0], grey()[3])


@pytest.mark.parametrize(
    "images, labels, message",
    [
        (grey(), [0, 1, 2, 1], "from 0 to 1.* 1 of them outside, such as 2"),
        (grey(), [0, -1, 0, 1], "such as -1"),
        (grey(), [0.0, 1.0, 0.0, 1.0], "whole numbers.*float64"),
        (grey(), [0, 1], r"4 pictures, labels of shape \(2,\)"),
        (grey().astype("float32"), [0, 1, 0, 1], "uint8.*float32"),
        (np.zeros((4, 2, 3, 4), "uint8"), [0, 1, 0, 1], r"shape=\(4, 2, 3, 4\)"),
    ],
)
def test_wrong_arrays_are_refused(images, labels, message):
    with pytest.raises(ValueError, match=message):
        Samples(images, labels, ("a", "b"))


@pytest.fixture
def odd(folder):
    """Two classes with odd files: four that can be read, four that cannot."""
    root = folder({"cat": 3, "dog": 3})
    exif = Image.Exif()
    exif[0x0112] = 6
    Image.new("RGB", (60, 40)).save(root / "cat" / "turned.jpg", exif=exif)
    Image.new("CMYK", (8, 8)).save(root / "cat" / "print.jpg")
    Image.new("I;16", (8, 8)).save(root / "dog" / "deep.png")
    Image.new("P", (8, 8)).save(root / "dog" / "png_named.jpg", "PNG")
    whole = (root / "cat" / "0.jpg").read_bytes()
    (root / "cat" / "half.jpg").write_bytes(whole[: len(whole) // 2])
    (root / "cat" / "nothing.jpg").write_bytes(b"")
    (root / "dog" / "page.jpg").write_text("<!doctype html>")
    (root / "dog" / "tiny.png").write_bytes(b"\x89PNG\r\n\x1a\n" + bytes(32))
    return open_samples(root)


def test_bad_pictures_are_named_before_training(odd):
    with pytest.raises(ValueError) as caught:
        check_samples(odd)
    message = str(caught.value)
    assert "4 of 14 pictures cannot be read" in message and "--skip-bad" in message
    for name in ("half.jpg", "nothing.jpg", "page.jpg", "tiny.png"):
        assert name in message


def test_bad_pictures_can_be_left_out(odd):
    steps = []
    check = check_samples(odd, skip_bad=True, advance=lambda: steps.append(1))
    assert len(steps) == len(odd) == 14
    assert len(check.samples) == 10
    assert check.samples.counts().tolist() == [5, 5]
    assert [name for name, _ in check.bad] == [
        "cat/half.jpg",
        "cat/nothing.jpg",
        "dog/page.jpg",
        "dog/tiny.png",
    ]
    assert "0 bytes" in check.bad[1][1]
    assert check.samples.load(check.samples.names.index("cat/turned.jpg")).shape == (60, 40, 3)


def test_class_without_a_good_picture_is_refused(folder):
    root = folder({"cat": 2, "dog": 1})
    (root / "dog" / "0.jpg").write_bytes(b"")
    with pytest.raises(ValueError, match="no picture of class 'dog' can be read"):
        check_samples(open_samples(root), skip_bad=True)


def test_many_bad_pictures_are_counted(folder):
    root = folder({"cat": 9, "dog": 1})
    for path in (root / "cat").iterdir():
        path.write_bytes(b"")
    with pytest.raises(ValueError, match="9 of 10 pictures.*\n(.*jpg.*\n){5}  and 4 more"):
        check_samples(open_samples(root))
