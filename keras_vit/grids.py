"""Sizes: of images in pixels, and of the grids of patches that they are cut into."""

import math


def square_side(count):
    """Side of the square grid of `count` patches, or None if `count` is no square."""
    side = math.isqrt(count)
    return side if side * side == count and count > 0 else None


def grid_of(size, patch):
    """Grid (h, w) of an image of `size` (H, W) in patches of `patch` pixels; None where a side is None."""
    return tuple(None if n is None else n // patch for n in size)


def nearest_sizes(n, patch):
    """The two multiples of `patch` next to `n`, or the one where the other is 0."""
    low = n // patch * patch
    return (low, low + patch) if low else (patch,)


def check_size(size, patch, owner):
    """Raises ValueError unless `patch` divides the known ones of height and width."""
    for name, n in zip(("height", "width"), size, strict=True):
        if n is not None and (n % patch or n < patch):
            nearest = " or ".join(map(str, nearest_sizes(n, patch)))
            raise ValueError(
                f"{owner}: the image {name} must be a multiple of the patch size {patch}. "
                f"Received: {name}={n}. Nearest valid {name}: {nearest}."
            )
