"""Picture files for the tests of the export, made here."""

import io

import numpy as np
from PIL import Image

_RANDOM = np.random.default_rng(0)


def smooth(height, width, channels=3):
    """A picture without hard edges, uint8 (height, width, channels)."""
    coarse = _RANDOM.integers(0, 256, (max(2, height // 9), max(2, width // 9), channels), "uint8")
    return np.asarray(Image.fromarray(coarse.squeeze()).resize((width, height)))


def encode(pixels, format, **options):
    """A file, as bytes."""
    image = pixels if isinstance(pixels, Image.Image) else Image.fromarray(pixels)
    file = io.BytesIO()
    image.save(file, format, **options)
    return file.getvalue()


def oriented(pixels, orientation, byte_order="<"):
    """A JPEG file with an EXIF orientation; None for EXIF without one."""
    exif = Image.Exif()
    exif.endian = byte_order
    exif[0x010F] = "A maker with a name that does not fit into an entry"
    if orientation is not None:
        exif[0x0112] = orientation
    return encode(pixels, "JPEG", exif=exif)


def good():
    """name -> file that TensorFlow and Pillow read alike."""
    photo, noise = smooth(60, 84), _RANDOM.integers(0, 256, (40, 66, 3), "uint8")
    frames = [Image.fromarray(smooth(30, 35)) for _ in range(3)]
    return {
        "jpeg": encode(photo, "JPEG"),
        "progressive": encode(photo, "JPEG", progressive=True),
        "noise": encode(noise, "JPEG", quality=95, subsampling=0),
        "grey": encode(photo[..., 0], "JPEG"),
        "cmyk": encode(Image.fromarray(photo).convert("CMYK"), "JPEG"),
        "png": encode(noise, "PNG"),
        "transparent": encode(smooth(40, 50, 4), "PNG"),
        "palette": encode(Image.fromarray(photo).convert("P"), "PNG"),
        "1 bit": encode(Image.fromarray(photo).convert("1"), "PNG"),
        "16 bit": encode(_RANDOM.integers(0, 65536, (40, 50)).astype("uint16"), "PNG"),
        "webp": encode(photo, "WEBP"),
        "lossless": encode(photo, "WEBP", lossless=True),
        "transparent webp": encode(smooth(40, 50, 4), "WEBP"),
        "gif": encode(photo, "GIF"),
        "animation": encode(frames[0], "GIF", save_all=True, append_images=frames[1:]),
        "bmp": encode(photo, "BMP"),
        "tall": encode(smooth(300, 5), "PNG"),
    }


def bad():
    """name -> (file that cannot be decoded, its status)."""
    photo = smooth(60, 84)
    jpeg, png, gif = (encode(photo, format) for format in ("JPEG", "PNG", "GIF"))
    frame = Image.fromarray(photo)
    animation = encode(frame, "WEBP", save_all=True, append_images=[frame.rotate(180)])
    damaged = "damaged or unsupported"

    def sized(height, width):
        return png[:16] + width.to_bytes(4, "big") + height.to_bytes(4, "big") + png[24:]

    return {
        "empty": (b"", "empty"),
        "text": (b"hello", "not an image"),
        "page": (b"<html>Sign in</html>", "not an image"),
        "start": (b"\xff\xd8", damaged),
        "half a jpeg": (jpeg[: len(jpeg) // 2], damaged),
        "half a png": (png[: len(png) // 2], damaged),
        "wrong checksum": (png[:60] + b"\0\0\0\0" + png[64:], damaged),
        "half a gif": (gif[: len(gif) // 2], damaged),
        "animated webp": (animation, damaged),
        "palette bmp": (encode(frame.convert("P"), "BMP"), damaged),
        "many pixels": (sized(10_000, 10_000), "too large"),
        "long side": (sized(2, 70_000), "too large"),
        "negative": (sized(2**32 - 1, 2**32 - 1), "too large"),
    }
