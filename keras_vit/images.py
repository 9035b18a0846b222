"""Image files to uint8 arrays: upright, three channels, never half a picture."""

import contextlib
import glob
import io
import os
import re
import threading
import warnings
from pathlib import Path

import numpy as np
from PIL import Image

EXTENSIONS = (".jpg", ".jpeg", ".jfif", ".png", ".webp", ".bmp", ".gif", ".tif", ".tiff")

_AGAIN = "Copy or download it again, or leave it out"
_CONVERT = "Convert it to JPEG or PNG, or leave it out"
_SIGNATURES = {
    "JPEG": rb"\xff\xd8",
    "PNG": rb"\x89PNG",
    "WEBP": rb"RIFF.{4}WEBP",
    "BMP": rb"BM",
    "GIF": rb"GIF8",
    "TIFF": rb"II\*\0|MM\0\*",
}
# How a refused file begins, what it is, what to do about it; the first match counts.
_CONTENTS = (
    (rb"\Z", "an empty file (0 bytes)", _AGAIN),
    (rb"version https://git-lfs", "a Git LFS pointer, not the picture", "Run `git lfs pull`"),
    (rb"(\xef\xbb\xbf)?\s*<(?i:!doctype html|html)", "an HTML page, not a picture", _AGAIN),
    (rb"(\xef\xbb\xbf)?\s*<(\?xml|svg)", "an SVG or XML document", _CONVERT),
    (rb".{4}ftyp(avif|hei|mif1|msf1)", "a HEIC or AVIF picture, which is not supported", _CONVERT),
    *((start, f"a truncated or damaged {name}", _AGAIN) for name, start in _SIGNATURES.items()),
    (rb"", f"not an image ({', '.join(_SIGNATURES)})", _CONVERT),
)
_ORIENTATION = 0x0112  # EXIF tag
# (row step, column step) of orientations 1-4; 5-8 are the same after a transposition.
_STEPS = ((1, 1), (1, -1), (-1, -1), (-1, 1))
_FILTERS = threading.Lock()


class ImageError(ValueError):
    """An image file that cannot be read, or cannot be found. The message names it."""


def load_image(path):
    """Read one image file into an array, as people see the picture.

    The EXIF orientation is applied. 16-bit grey is rescaled to 8 bits; of 16-bit colour the high
    byte is taken, which is within one level of that. CMYK, palettes and grey become RGB, and
    transparent parts are laid over white. Of an animation or a multi-page file the first frame is
    read. Colour profiles are ignored, as in the pipelines the published weights come from.

    Args:
        path: str, path or binary file object of a JPEG, PNG, WebP, BMP, GIF or TIFF. The contents
            count, not the suffix.

    Returns:
        uint8 array (H, W, 3), RGB, 0..255.

    Raises:
        ImageError: the file is missing, not an image, truncated or damaged; or it has more than
            twice `PIL.Image.MAX_IMAGE_PIXELS` pixels (179 million unless changed); or its pixels
            are 32-bit numbers, whose range the file does not tell.
    """
    if hasattr(path, "read"):
        return _decode(io.BytesIO(path.read()), getattr(path, "name", repr(path)))
    try:
        with Path(path).open("rb") as file:
            return _decode(file, path)
    except OSError as error:
        raise _refusal(path, error.strerror or str(error), "Check the path") from error


def find_images(inputs):
    """List the image files that files, folders and glob patterns stand for.

    Folders, given or matched by a pattern, are searched recursively, linked folders once; hidden
    files and folders in them are passed over. What each input stands for comes in plain string
    order (1, 10, 2), and a file found twice is listed once. A file given by its own name is always
    listed; elsewhere the suffix, in either case, must be one of `EXTENSIONS`.

    Args:
        inputs: one str or path, or an iterable of them.

    Returns:
        (images, skipped): a list of Path, and a list of (Path, reason) for what was left out.

    Raises:
        ImageError: an input does not exist, or matches nothing.
    """
    if isinstance(inputs, (str, os.PathLike)):
        inputs = [inputs]
    images, skipped = {}, {}  # dicts, to keep the order and drop repeats
    for given in inputs:
        if Path(given).is_file():
            images[Path(given)] = None
            continue
        matches = [given] if Path(given).is_dir() else glob.glob(os.fspath(given), recursive=True)
        if not matches:
            raise _refusal(given, "no such file or folder, and no match as a pattern", "Check it")
        files = [file for match in matches for file in _walk(Path(match), skipped)]
        for file in sorted(files, key=os.fspath):
            if file.suffix.lower() in EXTENSIONS:
                images[file] = None
            else:
                skipped[file] = f"suffix {file.suffix!r} is not one of {' '.join(EXTENSIONS)}"
    return list(images), list(skipped.items())


def _walk(path, skipped):
    """The file itself, or all files under the folder; unreadable folders go into `skipped`."""
    if not path.is_dir():
        return [path]

    def unreadable(error):
        skipped[Path(error.filename)] = error.strerror

    files, visited = [], set()
    for folder, subfolders, names in os.walk(path, onerror=unreadable, followlinks=True):
        if os.path.realpath(folder) in visited:  # a link back up would never end
            subfolders.clear()
            continue
        visited.add(os.path.realpath(folder))
        subfolders[:] = sorted(name for name in subfolders if not name.startswith("."))
        files += [Path(folder, name) for name in names if not name.startswith(".")]
    return files


def _decode(file, name):
    start = file.read(64)
    file.seek(0)
    try:
        with _without_warnings():
            image = Image.open(file, formats=tuple(_SIGNATURES))
        image.load()
        with _without_warnings():  # after load, which turns TIFF files and removes their tag
            orientation = image.getexif().get(_ORIENTATION, 1)
        return _upright(_to_rgb(image, name), orientation)
    except (ImageError, MemoryError):
        raise
    except Image.DecompressionBombError as error:
        advice = "Make it smaller, or raise PIL.Image.MAX_IMAGE_PIXELS if you trust it"
        raise _refusal(name, f"too large a picture: {error}", advice) from error
    except Exception as error:  # Pillow raises a dozen types for damaged bytes
        what, advice = next(
            (what, advice)
            for pattern, what, advice in _CONTENTS
            if re.match(pattern, start, re.DOTALL)
        )
        if not isinstance(error, Image.UnidentifiedImageError):
            what = f"{what}: {error}"
        raise _refusal(name, what, advice) from error


@contextlib.contextmanager
def _without_warnings():
    """Silence Pillow about large pictures and odd metadata; call nothing slow inside."""
    # Filters belong to the process: threads must not restore them out of order.
    with _FILTERS, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


def _to_rgb(image, name):
    if image.mode.startswith("I;16"):
        grey = (np.asarray(image).astype("uint32") + 128) // 257  # rounded
        return np.repeat(grey.astype("uint8")[..., None], 3, axis=-1)
    if image.mode in ("I", "F"):
        what = f"32-bit pixels (mode {image.mode!r}), whose range is unknown"
        raise _refusal(name, what, "Scale them to 8 or 16 bits")
    if image.has_transparency_data:
        white = Image.new("RGBA", image.size, "white")
        image = Image.alpha_composite(white, image.convert("RGBA"))
    return np.asarray(image.convert("RGB"))


def _upright(pixels, orientation):
    if orientation not in range(1, 9):
        orientation = 1
    if orientation > 4:
        pixels = pixels.swapaxes(0, 1)
    rows, columns = _STEPS[(orientation - 1) % 4]
    return np.array(pixels[::rows, ::columns], order="C")


def _refusal(name, what, advice):
    return ImageError(f"Cannot read an image: {what}. Received: path='{name}'. {advice}.")
