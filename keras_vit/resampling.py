"""Resampling of position grids and patch kernels, one named rule per source of weights.

"Bilinear" and "bicubic" name several functions: each source's own one is written down in `RULES`.
"""

import dataclasses
import math

import numpy as np


@dataclasses.dataclass(frozen=True)
class Resampling:
    """A separable interpolation.

    Attributes:
        kernel: "linear", or "cubic" with the coefficient `a`.
        a: coefficient of the cubic convolution kernel (Keys 1981).
        antialias: widen the kernel by the scale when shrinking, and renormalise at the border.
        align_corners: sample i lies at i * (old - 1) / (new - 1); otherwise pixel centres are aligned.
        offset: added to the new size when coordinates are computed (DINOv2 uses 0.1).
    """

    kernel: str
    a: float = -0.5
    antialias: bool = False
    align_corners: bool = False
    offset: float = 0.0


RULES = {
    # vit_jax/checkpoint.py and big_vision/models/vit.py: scipy.ndimage.zoom(order=1)
    "google": Resampling("linear", align_corners=True),
    # timm/layers/pos_embed.py: antialiased bicubic
    "timm": Resampling("cubic", a=-0.5, antialias=True),
    # dinov2/models/vision_transformer.py, models without registers
    "dinov2": Resampling("cubic", a=-0.75, offset=0.1),
    # dinov2/models/vision_transformer.py, models with registers
    "dinov2-registers": Resampling("cubic", a=-0.5, antialias=True),
    # transformers ViT and Dinov2, deit/main.py: plain bicubic
    "hf": Resampling("cubic", a=-0.75),
}


def rule(name):
    """Returns the `Resampling` called `name`, or raises ValueError listing the known names."""
    if name not in RULES:
        raise ValueError(
            f"Unknown resampling rule. Received: resampling={name!r}. Available: {sorted(RULES)}."
        )
    return RULES[name]


def interpolation_matrix(resampling, old, new, offset=None, xp=np):
    """Matrix (new, old) that resamples a vector of length `old` to length `new`.

    Args:
        resampling: a `Resampling`.
        old: int, size of the source.
        new: size of the result: int, or a scalar integer tensor when `xp` is `keras.ops`.
        offset: overrides `resampling.offset`; may be a scalar tensor.
        xp: the array library: `numpy` (float64) or `keras.ops` (float32, works while tracing).
    """
    dtype = "float64" if xp is np else "float32"
    offset = resampling.offset if offset is None else offset
    size = xp.cast(new, dtype) if xp is not np else float(new)
    index = xp.expand_dims(xp.arange(new, dtype=dtype), 1)  # (new, 1)
    columns = xp.expand_dims(xp.arange(old, dtype=dtype), 0)  # (1, old)
    if resampling.align_corners:
        position = index * (old - 1) / xp.maximum(size - 1.0, 1.0)
        scale = 1.0
    else:
        scale = old / (size + offset)
        position = (index + 0.5) * scale - 0.5
    if resampling.antialias:
        stretch = xp.maximum(scale, 1.0)
        weights = _kernel(resampling, (columns - position) / stretch, xp)
        return weights / xp.sum(weights, axis=1, keepdims=True)
    # Taps beyond the border read the border value: their weights are added up there.
    first = xp.floor(position)
    radius = 2 if resampling.kernel == "cubic" else 1
    total = 0.0
    for tap in range(1 - radius, radius + 1):
        hit = xp.equal(xp.clip(first + tap, 0, old - 1), columns)
        weight = _kernel(resampling, position - (first + tap), xp)
        total = total + xp.where(hit, weight, xp.zeros_like(weight))
    return total


def _kernel(resampling, x, xp):
    x = xp.abs(x)
    zero = xp.zeros_like(x)
    if resampling.kernel == "linear":
        return xp.maximum(1.0 - x, zero)
    a = resampling.a
    near = ((a + 2.0) * x - (a + 3.0)) * x * x + 1.0
    far = ((a * x - 5.0 * a) * x + 8.0 * a) * x - 4.0 * a
    return xp.where(x <= 1.0, near, xp.where(x < 2.0, far, zero))


def resample_grid(grid, size, resampling):
    """Resamples a numpy array (h, w, D) to `size` (new_h, new_w); float32, a copy of the input if nothing changes."""
    height, width = grid.shape[:2]
    if (height, width) == tuple(size):
        return np.array(grid, dtype="float32")
    rows = interpolation_matrix(resampling, height, size[0])
    columns = interpolation_matrix(resampling, width, size[1])
    result = np.einsum("ah,bw,hwd->abd", rows, columns, grid.astype("float64"), optimize=True)
    return result.astype("float32")


def resample_positions(table, old_grid, new_grid, resampling):
    """Resamples a position table to another grid.

    Args:
        table: numpy array (prefix + h * w, D); the prefix rows are copied bit for bit.
        old_grid: (h, w) of the table.
        new_grid: (h, w) of the result.
        resampling: a name in `RULES`, or a `Resampling`.

    Returns:
        float32 array (prefix + new_h * new_w, D).

    Raises:
        ValueError: the table has fewer rows than `old_grid` has patches.
    """
    resampling = rule(resampling) if isinstance(resampling, str) else resampling
    prefix = len(table) - math.prod(old_grid)
    if prefix < 0:
        raise ValueError(
            f"A position table of {old_grid[0]}x{old_grid[1]} patches has at least "
            f"{math.prod(old_grid)} rows. Received: {len(table)} rows."
        )
    grid = np.reshape(table[prefix:], (*old_grid, table.shape[-1]))
    grid = resample_grid(grid, new_grid, resampling)
    return np.concatenate(
        [table[:prefix].astype("float32"), np.reshape(grid, (-1, table.shape[-1]))]
    )


def resample_patch_kernel(kernel, size, resampling="timm"):
    """Resamples a patch embedding kernel to another patch size, by pseudo-inverse.

    The new kernel answers to a resized patch as the old one to the original.

    Args:
        kernel: numpy array (P, P, C, D).
        size: (new_P, new_P).
        resampling: a name in `RULES`, or a `Resampling`: how the patches would be resized.

    Returns:
        float32 array (new_P, new_P, C, D).

    Source: FlexiViT (Beyer et al. 2023), section 3.4.
    """
    resampling = rule(resampling) if isinstance(resampling, str) else resampling
    if kernel.shape[:2] == tuple(size):
        return np.array(kernel, dtype="float32")
    rows = interpolation_matrix(resampling, kernel.shape[0], size[0])
    columns = interpolation_matrix(resampling, kernel.shape[1], size[1])
    inverse = np.linalg.pinv(np.kron(rows, columns).T)  # (new, old)
    flat = np.reshape(kernel, (-1, kernel.shape[2] * kernel.shape[3])).astype("float64")
    return np.reshape(inverse @ flat, (*size, *kernel.shape[2:])).astype("float32")


def sincos_2d(height, width, dim, xp=np):
    """Fixed sine-cosine positions, (height * width, dim), in the order sin x, cos x, sin y, cos y.

    Source: big_vision/models/vit.py, posemb_sincos_2d (after MoCo v3); temperature 10,000.

    Raises:
        ValueError: `dim` is not a multiple of 4, or smaller than 8.
    """
    if dim % 4 or dim < 8:
        raise ValueError(
            f"sincos-2d positions need a width that is a multiple of 4 and at least 8. Received: width={dim}."
        )
    dtype = "float64" if xp is np else "float32"
    quarter = dim // 4
    omega = 1.0 / 10_000.0 ** (np.arange(quarter) / (quarter - 1))
    omega = xp.expand_dims(xp.array(omega, dtype=dtype), 0)
    y = xp.expand_dims(xp.repeat(xp.arange(height, dtype=dtype), width), 1) * omega
    x = xp.expand_dims(xp.tile(xp.arange(width, dtype=dtype), (height,)), 1) * omega
    table = xp.concatenate([xp.sin(x), xp.cos(x), xp.sin(y), xp.cos(y)], axis=1)
    return table.astype("float32") if xp is np else table
