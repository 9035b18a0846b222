"""Image files: every kind that people have, upright and in RGB, or refused by name."""

import io
import os
import struct
import threading
import warnings
import zlib

import numpy as np
import pytest
from PIL import Image, ImageOps

from keras_vit.images import EXTENSIONS, ImageError, find_images, load_image

RED, WHITE = (255, 0, 0), (255, 255, 255)


def photo(height=40, width=60):
    """A picture that no turn or mirroring leaves as it is, smooth enough for JPEG."""
    rows, columns = np.mgrid[:height, :width]
    pixels = np.stack([rows * 255 // height, columns * 255 // width, (rows + columns) // 2], -1)
    return pixels.astype("uint8")


def noise():
    """A picture that hardly compresses, so that any share of the file holds pixels."""
    return np.random.default_rng(0).integers(0, 256, (40, 60, 3)).astype("uint8")


def encoded(image, file_format, **options):
    file = io.BytesIO()
    image.save(file, file_format, **options)
    return file.getvalue()


def png_chunk(kind, data):
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))


def png(width, height, bits, colour_type, rows=b""):
    header = struct.pack(">IIBBBBB", width, height, bits, colour_type, 0, 0, 0)
    return (
        b"\x89PNG\r\n\x1a\n"
        + png_chunk(b"IHDR", header)
        + png_chunk(b"IDAT", zlib.compress(rows))
        + png_chunk(b"IEND", b"")
    )


def test_png_is_read_exactly_from_str_path_and_file_object(tmp_path):
    path = tmp_path / "a.png"
    Image.fromarray(photo()).save(path)
    for source in (path, str(path), io.BytesIO(path.read_bytes())):
        image = load_image(source)
        assert image.dtype == np.uint8 and image.flags.c_contiguous and image.flags.writeable
        np.testing.assert_array_equal(image, photo())


@pytest.mark.parametrize("orientation", range(1, 9))
@pytest.mark.parametrize("file_format", ["JPEG", "PNG", "WEBP", "TIFF"])
def test_every_exif_orientation_is_applied(orientation, file_format):
    exif = Image.Exif()
    exif[0x0112] = orientation
    options = {"JPEG": {"quality": 100}, "WEBP": {"lossless": True}}.get(file_format, {})
    stored = encoded(Image.fromarray(photo()), file_format, exif=exif, **options)
    expected = {
        1: photo(),
        2: photo()[:, ::-1],
        3: photo()[::-1, ::-1],
        4: photo()[::-1],
        5: photo().transpose(1, 0, 2),
        6: np.rot90(photo(), -1),
        7: np.rot90(photo(), 2).transpose(1, 0, 2),
        8: np.rot90(photo()),
    }[orientation]
    image = load_image(io.BytesIO(stored))
    assert image.shape == ((40, 60, 3) if orientation < 5 else (60, 40, 3))
    tolerance = 8 if file_format == "JPEG" else 0
    assert np.abs(image.astype(int) - expected).max() <= tolerance
    other = ImageOps.exif_transpose(Image.open(io.BytesIO(stored))).convert("RGB")
    np.testing.assert_array_equal(image, np.asarray(other))


@pytest.mark.parametrize("orientation", [0, 9])
def test_an_impossible_orientation_changes_nothing(orientation):
    exif = Image.Exif()
    exif[0x0112] = orientation
    stored = encoded(Image.fromarray(photo()), "PNG", exif=exif)
    np.testing.assert_array_equal(load_image(io.BytesIO(stored)), photo())


@pytest.mark.parametrize("metadata", [b"garbagegarbage", b"MM\0*\0\0\0\x08\0\x05"])
def test_damaged_metadata_does_not_refuse_a_good_picture(metadata):
    stored = encoded(Image.fromarray(photo()), "JPEG", quality=100, exif=b"Exif\0\0" + metadata)
    assert load_image(io.BytesIO(stored)).shape == (40, 60, 3)


def test_16_bit_grey_is_rescaled_and_not_clipped(tmp_path):
    grey = np.array([[0, 128, 129, 257, 1000, 32768, 65406, 65407, 65535]], "uint16")
    for name in ("grey.png", "grey.tif"):
        Image.fromarray(grey).save(tmp_path / name)
        image = load_image(tmp_path / name)
        np.testing.assert_array_equal(image[0, :, 0], np.round(grey[0] / 257))
        np.testing.assert_array_equal(image[0, :, 0], [0, 0, 1, 1, 4, 128, 254, 255, 255])
        assert (image == image[..., :1]).all()


def test_16_bit_colour_is_within_one_level_of_rescaling():
    colours = np.random.default_rng(0).integers(0, 65536, (1, 500, 3))
    rows = b"\0" + colours.astype(">u2").tobytes()
    image = load_image(io.BytesIO(png(500, 1, 16, 2, rows)))
    assert np.abs(image - colours / 257).max() <= 1


def test_cmyk_jpeg_is_not_inverted():
    inks = {(0, 255, 255, 0): RED, (0, 0, 0, 0): WHITE, (0, 0, 0, 255): (0, 0, 0)}
    for ink, colour in inks.items():
        stored = encoded(Image.new("CMYK", (16, 16), ink), "JPEG", quality=100)
        assert Image.open(io.BytesIO(stored)).mode == "CMYK"
        assert np.abs(load_image(io.BytesIO(stored)).astype(int) - colour).max() <= 2


def test_palette_with_and_without_transparency():
    image = Image.fromarray(np.array([[0, 1, 2]], "uint8")).convert("P")
    image.putpalette([255, 0, 0, 0, 255, 0, 0, 0, 255])
    for file_format in ("PNG", "GIF", "BMP"):
        opaque = load_image(io.BytesIO(encoded(image, file_format)))
        assert opaque[0].tolist() == [[255, 0, 0], [0, 255, 0], [0, 0, 255]]
    see_through = load_image(io.BytesIO(encoded(image, "PNG", transparency=bytes([255, 0, 51]))))
    assert see_through[0].tolist() == [[255, 0, 0], [255, 255, 255], [204, 204, 255]]
    see_through = load_image(io.BytesIO(encoded(image, "GIF", transparency=0)))
    assert see_through[0].tolist() == [[255, 255, 255], [0, 255, 0], [0, 0, 255]]


def test_alpha_is_laid_over_white():
    grey = Image.fromarray(np.array([[[0, 0], [0, 255], [100, 51]]], "uint8"))
    assert grey.mode == "LA"
    assert load_image(io.BytesIO(encoded(grey, "PNG")))[0, :, 0].tolist() == [255, 0, 224]
    colour = Image.fromarray(np.array([[[255, 0, 0, 0], [255, 0, 0, 51]]], "uint8"))
    for file_format in ("PNG", "TIFF"):
        image = load_image(io.BytesIO(encoded(colour, file_format)))
        assert image[0].tolist() == [[255, 255, 255], [255, 204, 204]]
    keyed = encoded(Image.new("L", (1, 1), 7), "PNG", transparency=7)
    assert load_image(io.BytesIO(keyed)).tolist() == [[[255, 255, 255]]]


def test_one_bit_and_eight_bit_grey():
    bits = Image.fromarray(np.array([[True, False, True]]))
    assert bits.mode == "1"
    assert load_image(io.BytesIO(encoded(bits, "PNG")))[0, :, 1].tolist() == [255, 0, 255]
    grey = Image.fromarray(np.array([[3, 250]], "uint8"))
    assert load_image(io.BytesIO(encoded(grey, "BMP"))).tolist() == [[[3] * 3, [250] * 3]]


@pytest.mark.parametrize("file_format", ["GIF", "WEBP", "PNG", "TIFF"])
def test_the_first_frame_of_several(file_format):
    frames = [Image.new("RGB", (8, 8), colour) for colour in (RED, (0, 0, 255))]
    options = {"lossless": True} if file_format == "WEBP" else {}
    stored = encoded(frames[0], file_format, save_all=True, append_images=frames[1:], **options)
    assert Image.open(io.BytesIO(stored)).n_frames == 2
    assert (load_image(io.BytesIO(stored)) == RED).all()


def test_a_phone_jpeg_of_several_pictures():
    frames = [Image.fromarray(photo()), Image.new("RGB", (60, 40))]
    stored = encoded(frames[0], "MPO", save_all=True, append_images=frames[1:], quality=100)
    assert np.abs(load_image(io.BytesIO(stored)).astype(int) - photo()).max() <= 8


@pytest.mark.parametrize("kind", ["float32", "int32"])
def test_32_bit_pixels_are_refused(tmp_path, kind):
    path = tmp_path / "depth.tif"
    Image.fromarray(np.ones((2, 2), kind)).save(path)
    with pytest.raises(ImageError, match=r"32-bit pixels .* unknown.*depth\.tif.*8 or 16 bits"):
        load_image(path)


JPEG = encoded(Image.fromarray(noise()), "JPEG")


@pytest.mark.parametrize(
    ("name", "contents", "message"),
    [
        ("half.jpg", JPEG[: len(JPEG) // 2], "truncated or damaged JPEG: image file is truncated"),
        ("end.jpg", JPEG[:-2], "truncated or damaged JPEG"),
        ("empty.jpg", b"", "an empty file .0 bytes.*download it again"),
        ("page.jpg", b"\n<!DOCTYPE html>\n<html><body>404</body></html>", "an HTML page"),
        ("page2.png", b"\xef\xbb\xbf<html>", "an HTML page"),
        ("drawing.png", b"<svg xmlns='http://www.w3.org/2000/svg'/>", "an SVG or XML document"),
        ("cut.png", encoded(Image.fromarray(photo()), "PNG")[:40], "truncated or damaged PNG"),
        ("lfs.jpg", b"version https://git-lfs.github.com/spec/v1\n", "LFS pointer.*git lfs pull"),
        ("phone.jpg", b"\0\0\0\x18ftypheic\0\0\0\0", "HEIC or AVIF.*Convert it"),
        ("text.jpg", b"hello world", "not an image .JPEG, PNG, WEBP, BMP, GIF, TIFF"),
        ("other.jpg", encoded(Image.fromarray(photo()), "PPM"), "not an image"),
    ],
)
def test_what_is_no_whole_picture_is_refused_by_name(tmp_path, name, contents, message):
    path = tmp_path / name
    path.write_bytes(contents)
    with pytest.raises(ImageError, match=message) as caught:
        load_image(path)
    assert f"path='{path}'" in str(caught.value)


@pytest.mark.parametrize("file_format", ["JPEG", "PNG", "WEBP", "BMP", "GIF", "TIFF"])
@pytest.mark.parametrize("share", [0.3, 0.6, 0.95])
def test_truncated_files_are_refused_in_every_format(file_format, share):
    stored = encoded(Image.fromarray(noise()), file_format)
    with pytest.raises(ImageError, match=f"truncated or damaged {file_format}"):
        load_image(io.BytesIO(stored[: int(len(stored) * share)]))


def test_a_flipped_byte_in_a_png_is_refused():
    stored = bytearray(encoded(Image.fromarray(noise()), "PNG"))
    stored[-40] ^= 0xFF
    with pytest.raises(ImageError, match="damaged PNG: broken data stream"):
        load_image(io.BytesIO(stored))


def test_missing_file_and_folder_are_refused(tmp_path):
    with pytest.raises(ImageError, match=r"No such file.*absent\.jpg"):
        load_image(tmp_path / "absent.jpg")
    with pytest.raises(ImageError, match="Is a directory"):
        load_image(tmp_path)


def test_decompression_bombs_are_refused_without_a_warning():
    with pytest.raises(ImageError, match="too large a picture.*400000000 pixels.*MAX_IMAGE_PIXELS"):
        load_image(io.BytesIO(png(20_000, 20_000, 8, 2)))
    # Pillow warns from 89 million pixels on; this one is within the limit, but has no pixels
    with warnings.catch_warnings(record=True) as caught, pytest.raises(ImageError, match="PNG"):
        warnings.simplefilter("always")
        load_image(io.BytesIO(png(10_000, 10_000, 8, 2)))
    assert not caught


def test_threads_leave_the_warning_filters_as_they_were():
    stored = encoded(Image.fromarray(photo(200, 300)), "PNG")
    before = list(warnings.filters)
    threads = [
        threading.Thread(target=lambda: [load_image(io.BytesIO(stored)) for _ in range(20)])
        for _ in range(4)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert warnings.filters == before


def touch(folder, *names):
    for name in names:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(b"")


def test_find_images_in_a_folder(tmp_path):
    good = ["10.jpg", "2.JPG", "1.Tiff", "a/1.png", *(f"b/x{suffix}" for suffix in EXTENSIONS)]
    touch(tmp_path, *good, "notes.txt", "a/noext", ".hidden.jpg", ".cache/1.jpg")
    images, skipped = find_images(tmp_path)
    assert images == [tmp_path / name for name in sorted(good)]
    assert [path for path, _ in skipped] == [tmp_path / "a/noext", tmp_path / "notes.txt"]
    assert skipped[1][1].startswith("suffix '.txt' is not one of .jpg .jpeg")


def test_find_images_of_files_and_patterns(tmp_path, monkeypatch):
    touch(tmp_path, "10.jpg", "2.jpg", "odd.txt", "deep/er/3.jpg", "[1].jpg")
    monkeypatch.chdir(tmp_path)
    names = lambda *inputs: [image.as_posix() for image in find_images(inputs)[0]]  # noqa: E731
    assert names("2.jpg", "10.jpg", "./2.jpg") == ["2.jpg", "10.jpg"]
    assert names("odd.txt") == ["odd.txt"]
    assert names("[1].jpg") == ["[1].jpg"]
    assert names("?.jpg", "1*.jpg") == ["2.jpg", "10.jpg"]
    assert names("**/*.jpg") == ["10.jpg", "2.jpg", "[1].jpg", "deep/er/3.jpg"]
    assert names("d*") == ["deep/er/3.jpg"]
    assert find_images(["*.txt"])[0] == [] and find_images(["*.txt"])[1][0][0].name == "odd.txt"


def test_find_images_follows_links_but_not_in_circles(tmp_path):
    touch(tmp_path, "store/1.jpg", "data/2.jpg")
    os.symlink(tmp_path / "store", tmp_path / "data/linked")
    os.symlink(tmp_path / "data", tmp_path / "data/circle")
    images, _ = find_images(tmp_path / "data")
    assert images == [tmp_path / "data/2.jpg", tmp_path / "data/linked/1.jpg"]


@pytest.mark.parametrize("missing", ["absent.jpg", "absent/*.jpg", "absent"])
def test_find_images_names_what_matches_nothing(tmp_path, missing):
    touch(tmp_path, "1.jpg")
    with pytest.raises(ImageError, match="no such file or folder") as caught:
        find_images([tmp_path / "1.jpg", tmp_path / missing])
    assert f"path='{tmp_path / missing}'" in str(caught.value)
