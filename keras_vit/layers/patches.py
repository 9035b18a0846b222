"""Images to tokens."""

import logging
import math

import keras
import numpy as np
from keras import ops

from keras_vit import resampling as resample
from keras_vit.grids import check_size, grid_of
from keras_vit.layers.block import encoded
from keras_vit.layers.quantized import QuantizedParts

logger = logging.getLogger(__name__)

POSITIONS = ("learned-1d", "learned-2d", "sincos-2d", "none")


@keras.saving.register_keras_serializable(package="keras_vit")
class Patches(keras.layers.Layer):
    """Cuts images into square patches, row by row.

    Shapes: input (B, H, W, C); output (B, h * w, P * P * C) with h = H / P and w = W / P. The values
    of a patch are in the order row, column, channel.

    Args:
        patch_size: P, the side of a patch in pixels.

    Raises:
        ValueError: H or W is known and not a multiple of P.

    Source: ViT paper, section 3.1.
    """

    def __init__(self, patch_size, **kwargs):
        super().__init__(**kwargs)
        self.patch_size = patch_size

    def call(self, images):
        patch, channels = self.patch_size, images.shape[-1]
        check_size(images.shape[1:3], patch, self.name)
        if patch == 1:
            shape = ops.shape(images)
            return ops.reshape(images, (shape[0], shape[1] * shape[2], channels))
        batch, height, width, _ = ops.shape(images)
        h, w = height // patch, width // patch
        x = ops.reshape(images, (batch, h, patch, w, patch, channels))
        x = ops.transpose(x, (0, 1, 3, 2, 4, 5))  # (B, h, w, P, P, C)
        return ops.reshape(x, (batch, h * w, patch * patch * channels))

    def compute_output_shape(self, input_shape):
        batch, height, width, channels = input_shape
        check_size((height, width), self.patch_size, self.name)
        grid = grid_of((height, width), self.patch_size)
        count = None if None in grid else math.prod(grid)
        return (batch, count, self.patch_size**2 * channels)

    def get_config(self):
        return {**super().get_config(), "patch_size": self.patch_size}


def _known(size):
    return all(isinstance(n, int) for n in size)


@keras.saving.register_keras_serializable(package="keras_vit")
class PatchEncoder(QuantizedParts):
    """Projects patches to the width of the encoder, adds positions and prepends the extra tokens.

    The order of the tokens is: `tokens` (the class token first), registers, patches. Positions are
    added to the patches and to the first `positioned_tokens` of the extra tokens. The layer saves
    its grid; loaded at another image size it resamples the position table by `resampling`.

    Shapes: input (B, h * w, P * P * C); output (B, tokens + registers + h * w, D). For images of
    dynamic size call it as `layer(patches, images)`: the table is then resampled in the graph, by
    two matrix products, to the grid of the images.

    Args:
        width: D.
        grid: (h, w) of the position table.
        tokens: names of learned tokens, for example ("class",) or ("class", "distillation").
        registers: number of register tokens.
        positions: "learned-1d" (one row per token), "learned-2d" (a half-width row and column
            embedding each), "sincos-2d" (fixed), "none".
        positioned_tokens: number of extra tokens that have a row in the "learned-1d" table;
            None for all of `tokens`.
        resampling: rule for other grids, a name in `keras_vit.resampling.RULES`.
        dropout: rate after the positions were added, in [0, 1).

    Raises:
        ValueError: unknown positions or resampling; more positioned tokens than tokens; a number of
            patches that is not h * w.

    Weights: projection kernel (P * P * C, D) and bias; {name}_token (1, 1, D);
        register_tokens (1, registers, D); positions (positioned_tokens + h * w, D), or
        row_positions (h, D / 2) and column_positions (w, D / 2).
    Source: ViT paper, equation 1 and appendix D.4; registers: Darcet et al. 2024.
    """

    def __init__(
        self,
        width,
        grid,
        tokens=("class",),
        registers=0,
        positions="learned-1d",
        positioned_tokens=None,
        resampling="google",
        dropout=0.0,
        **kwargs,
    ):
        super().__init__(**kwargs)
        if positions not in POSITIONS:
            raise ValueError(
                f"Unknown positions. Received: positions={positions!r}. Available: {POSITIONS}."
            )
        resample.rule(resampling)
        self.width = width
        self.grid = tuple(grid)
        self.tokens = tuple(tokens)
        self.registers = registers
        self.positions = positions
        if positioned_tokens is None:
            positioned_tokens = len(self.tokens)
        self.positioned_tokens = positioned_tokens if positions == "learned-1d" else 0
        if self.positioned_tokens > self.prefix:
            raise ValueError(
                f"positioned_tokens must be at most the number of extra tokens, {self.prefix}. "
                f"Received: positioned_tokens={positioned_tokens}."
            )
        self.resampling = resampling
        self.dropout_rate = dropout
        self.projection = keras.layers.Dense(
            width, kernel_initializer="lecun_normal", dtype=self.dtype_policy, name="projection"
        )
        self.dropout = keras.layers.Dropout(dropout, dtype=self.dtype_policy)

    @property
    def prefix(self):
        """Number of tokens before the patches."""
        return len(self.tokens) + self.registers

    def build(self, patches_shape, images_shape=None):
        if images_shape is None:
            self._check_count(patches_shape[1])
        self.projection.build(patches_shape)
        self.dropout.build(self.compute_output_shape(patches_shape))
        self.own = {}  # name -> variable: what this layer itself saves, by name
        for name in self.tokens:
            self._add(f"{name}_token", (1, 1, self.width), "zeros")
        if self.registers:
            small = keras.initializers.RandomNormal(stddev=1e-6)
            self._add("register_tokens", (1, self.registers, self.width), small)
        normal = keras.initializers.RandomNormal(stddev=0.02)
        if self.positions == "learned-1d":
            rows = self.positioned_tokens + math.prod(self.grid)
            self._add("positions", (rows, self.width), normal)
        elif self.positions == "learned-2d":
            if self.width % 2:
                raise ValueError(
                    f"learned-2d positions need an even width. Received: width={self.width}."
                )
            self._add("row_positions", (self.grid[0], self.width // 2), normal)
            self._add("column_positions", (self.grid[1], self.width // 2), normal)

    def grid_positions(self):
        """The positions of the patches, (h, w, D) with values; None if it adds none."""
        _, positions = self._positions(self.grid)
        return None if positions is None else ops.reshape(positions, (*self.grid, self.width))

    def _add(self, name, shape, initializer):
        self.own[name] = self.add_weight(shape=shape, initializer=initializer, name=name)

    def call(self, patches, images=None, training=None):
        x = self.projection(patches)  # (B, h * w, D)
        prefix_positions, grid_positions = self._positions(self._size(patches, images))
        if grid_positions is not None:
            x = x + ops.cast(grid_positions, x.dtype)
        if self.prefix:
            prefix = ops.concatenate(
                [v for name, v in self.own.items() if name.endswith(("_token", "_tokens"))], axis=1
            )  # (1, prefix, D)
            if prefix_positions is not None:
                rest = self.prefix - self.positioned_tokens
                prefix = prefix + ops.pad(prefix_positions, ((0, rest), (0, 0)))
            prefix = ops.cast(prefix, x.dtype)
            prefix = ops.broadcast_to(prefix, (ops.shape(x)[0], self.prefix, self.width))
            x = ops.concatenate([prefix, x], axis=1)  # (B, prefix + h * w, D)
        return self.dropout(x, training=training)

    def _check_count(self, count):
        """Raises ValueError unless `count` is the number of patches of the grid."""
        if count != math.prod(self.grid):
            raise ValueError(
                f"{self.name}: a grid of {self.grid[0]}x{self.grid[1]} has {math.prod(self.grid)} "
                f"patches. Received: {count} patches. Give another grid, or for images of any size "
                "call the layer as layer(patches, images)."
            )

    def _size(self, patches, images):
        """Grid (h, w) of the patches: ints where the size is known, scalar tensors where it is not."""
        if images is None:
            self._check_count(patches.shape[1])
            return self.grid
        patch = math.isqrt(patches.shape[-1] // images.shape[-1])
        shape = ops.shape(images)
        return shape[1] // patch, shape[2] // patch

    def _positions(self, size):
        """Positions of the extra tokens, (positioned_tokens, D), and of the grid, (h * w, D); or None."""
        height, width = size
        if self.positions == "none":
            return None, None
        if self.positions == "sincos-2d":
            xp = np if _known(size) else ops
            return None, resample.sincos_2d(height, width, self.width, xp=xp)
        matrices = self._matrices(size)
        if self.positions == "learned-2d":
            rows, columns = self.own["row_positions"], self.own["column_positions"]
            if matrices is not None:
                rows, columns = ops.matmul(matrices[0], rows), ops.matmul(matrices[1], columns)
            rows = ops.repeat(rows, width, axis=0)
            columns = ops.tile(columns, (height, 1))
            return None, ops.concatenate([rows, columns], axis=1)
        table = ops.convert_to_tensor(self.own["positions"])
        count = self.positioned_tokens
        positioned, grid = (table[:count], table[count:]) if count else (None, table)
        if matrices is not None:
            grid = ops.reshape(grid, (*self.grid, self.width))
            grid = ops.einsum("ah,hwd->awd", matrices[0], ops.cast(grid, "float32"))
            grid = ops.einsum("bw,awd->abd", matrices[1], grid)
            grid = ops.reshape(grid, (height * width, self.width))
        return positioned, grid

    def _matrices(self, size):
        """Matrices (h, rows) and (w, columns) that resample the table to `size`; None at its own grid."""
        rule = resample.rule(self.resampling)
        if not _known(size):
            same = ops.logical_and(*map(ops.equal, size, self.grid))
            offset, xp = ops.where(same, 0.0, rule.offset), ops
        elif size == self.grid:
            return None
        else:
            offset, xp = rule.offset, np
        return [
            ops.cast(resample.interpolation_matrix(rule, old, new, offset, xp), "float32")
            for old, new in zip(self.grid, size, strict=True)
        ]

    def compute_output_shape(self, patches_shape, images_shape=None):
        count = patches_shape[1]
        return (patches_shape[0], None if count is None else count + self.prefix, self.width)

    def save_own_variables(self, store):
        for name, variable in self.own.items():
            store[name] = ops.convert_to_numpy(variable)
        store["grid"] = np.array(self.grid)
        store["resampling"] = encoded(self.resampling)

    def load_own_variables(self, store):
        values = {name: np.array(store[name]) for name in store.keys()}
        grid = tuple(int(n) for n in values.pop("grid"))
        del values["resampling"]  # the model's own rule holds
        if sorted(values) != sorted(self.own):
            raise ValueError(
                f"{self.name} has the variables {sorted(self.own)}. "
                f"Received: a file with {sorted(values)}."
            )
        if grid != self.grid:
            logger.info(
                "%s: positions resampled from %dx%d to %dx%d by the rule of %s",
                self.name,
                *grid,
                *self.grid,
                self.resampling,
            )
        for name, variable in self.own.items():
            variable.assign(self.resampled(name, values[name], grid))

    def resampled(self, name, value, grid):
        """The value of the own variable `name` of a layer with another `grid`, for the grid of this one."""
        if grid == self.grid:
            return value
        if name == "positions":
            return resample.resample_positions(value, grid, self.grid, self.resampling)
        if name in ("row_positions", "column_positions"):
            size = self.grid[name == "column_positions"]
            rule = resample.rule(self.resampling)
            return resample.interpolation_matrix(rule, len(value), size) @ value
        return value

    def get_config(self):
        return {
            **super().get_config(),
            "width": self.width,
            "grid": list(self.grid),
            "tokens": list(self.tokens),
            "registers": self.registers,
            "positions": self.positions,
            "positioned_tokens": self.positioned_tokens,
            "resampling": self.resampling,
            "dropout": self.dropout_rate,
        }
