"""Name tables: how the arrays of a checkpoint format become the variables of a model."""

import dataclasses
import functools
import re
from collections.abc import Callable

import numpy as np

from keras_vit.resampling import resample_patch_kernel


@dataclasses.dataclass(frozen=True)
class Rule:
    """One line of a name table.

    Attributes:
        target: variable path without the model's prefix, indices in braces: "block_{i}/mlp/hidden/kernel".
        source: name in the file, with the same indices; {i_from_0} is an index i that the target
            counts from 1 and the file from 0.
        transform: pure function (array, context) -> array.
        stacked: the file stacks the arrays of all blocks along a leading axis; `i` picks one.
    """

    target: str
    source: str
    transform: Callable = None
    stacked: bool = False

    @functools.cached_property
    def pattern(self):
        return re.compile(re.sub(r"\\\{(\w+)\\\}", r"(?P<\1>\\d+)", re.escape(self.target)))

    def match(self, path):
        """Indices of `path` under this rule's target, or None."""
        found = self.pattern.fullmatch(path)
        if found is None:
            return None
        index = {key: int(value) for key, value in found.groupdict().items()}
        return index | {f"{key}_from_0": value - 1 for key, value in index.items()}

    def apply(self, array, context):
        """The array of the target variable."""
        if self.stacked:
            array = array[context.index["i"]]
        return self.transform(array, context) if self.transform else array


@dataclasses.dataclass(frozen=True)
class Context:
    """What a transform may know of its target.

    Attributes:
        shape: of the target variable.
        index: values of the indices in the target's path.
        encoder: the model's `PatchEncoder`.
        patch_size: of the model.
        grid: (h, w) of the position table in the file, or None.
        patch_resampling: rule for kernels of another patch size, or None to refuse them.
    """

    shape: tuple
    index: dict
    encoder: object = None
    patch_size: int | None = None
    grid: tuple | None = None
    patch_resampling: str | None = None


def transposed(array, context):
    """Dense kernel (out, in) -> (in, out)."""
    return array.T


def transposed_third(k):
    """Kernel of the k-th of three layers stacked along the rows, (3 * out, in) -> (in, out)."""

    def transform(array, context):
        return _part(array, k, 3).T

    return transform


def third(k):
    """Bias of the k-th of three stacked layers, (3 * out,) -> (out,)."""
    return lambda array, context: _part(array, k, 3)


def transposed_half(k):
    """Kernel of the k-th of two layers stacked along the rows, (2 * out, in) -> (in, out)."""
    return lambda array, context: _part(array, k, 2).T


def half(k):
    """Bias of the k-th of two stacked layers, (2 * out,) -> (out,)."""
    return lambda array, context: _part(array, k, 2)


def _part(array, k, count):
    size = array.shape[0] // count
    return array[k * size : (k + 1) * size]


def join_output_heads(array, context):
    """Kernel (D, heads, d) -> (D, heads * d), or bias (heads, d) -> (heads * d,)."""
    return array.reshape(*array.shape[:-2], -1)


def join_input_heads(array, context):
    """Kernel (heads, d, D) -> (heads * d, D)."""
    return array.reshape(-1, array.shape[-1])


def reshaped(array, context):
    """Adds or drops axes of length 1: tokens are stored as (D,), (1, D) or (1, 1, D)."""
    if [n for n in array.shape if n != 1] == [n for n in context.shape if n != 1]:
        return array.reshape(context.shape)
    return array


def patch_kernel_hwio(array, context):
    """Convolution kernel (P, P, C, D) -> (P * P * C, D), for another number of channels too."""
    patch = context.patch_size
    if context.patch_resampling is not None:
        array = resample_patch_kernel(array, (patch, patch), context.patch_resampling)
    array = _with_channels(array, context.shape[0] // patch**2)
    return array.reshape(-1, array.shape[-1])


def _with_channels(array, wanted):
    """Convolution kernel (h, w, C, D) for `wanted` channels.

    One channel takes the sum over the colours; N take the colours in turn, scaled by C / N, so that
    a grey picture gives the same result either way.
    """
    channels = array.shape[2]
    if wanted == 1 < channels:
        return array.sum(axis=2, keepdims=True)
    if wanted not in (0, channels):
        return array[:, :, np.arange(wanted) % channels] * (channels / wanted)
    return array


def patch_kernel_oihw(array, context):
    """Convolution kernel (D, C, P, P) -> (P * P * C, D)."""
    return patch_kernel_hwio(array.transpose(2, 3, 1, 0), context)


def kernel_oihw(array, context):
    """Convolution kernel (D, C, h, w) -> (h, w, C, D)."""
    return array.transpose(2, 3, 1, 0)


def first_kernel_hwio(array, context):
    """Kernel (h, w, C, D) of a convolution over the image, for another number of channels too.

    Of a standardised kernel the result is standardised again, so that a grey picture gives the same
    result up to the scale of every filter.
    """
    return _with_channels(array, context.shape[2])


def first_kernel_oihw(array, context):
    """`first_kernel_hwio` of a kernel (D, C, h, w)."""
    return first_kernel_hwio(kernel_oihw(array, context), context)


def pointwise_kernel(array, context):
    """Convolution kernel (out, in, 1, 1) -> (in, out)."""
    return array[:, :, 0, 0].T


def positions(array, context):
    """Position table (1, rows, D) or (rows, D) -> (rows', D), resampled to the grid of the model."""
    table = array.reshape(-1, array.shape[-1])
    if context.grid is None:
        return table
    return context.encoder.resampled("positions", table, context.grid)


def own_variable(name):
    """A variable that `PatchEncoder` saved itself, resampled if its size depends on the grid."""

    def transform(array, context):
        if context.grid is None:
            return array
        return context.encoder.resampled(name, array, context.grid)

    return transform
