"""Checkpoint formats: recognised by names and shapes, never by the name of the file."""

import dataclasses
import re
from collections.abc import Callable

from keras_vit.grids import square_side


@dataclasses.dataclass(frozen=True)
class Numerics:
    """What belongs to the source of weights, not to the architecture.

    Attributes:
        epsilon: of every LayerNormalization.
        activation: form of the GELU, "gelu" or "gelu_tanh".
        resampling: rule for other grids, a name in `keras_vit.resampling.RULES`.
        group_epsilon: of every GroupNorm.
        standardization: of the kernels between them, see `StandardizedConv2D`.

    What a source has no example of is None.
    """

    epsilon: float | None
    activation: str | None
    resampling: str | None
    group_epsilon: float | None = None
    standardization: str | None = None

    def known(self):
        """Those that are not None, by name."""
        return {k: v for k, v in dataclasses.asdict(self).items() if v is not None}


@dataclasses.dataclass(frozen=True)
class Format:
    """A checkpoint format.

    Attributes:
        name: for messages.
        anchor: name, without a prefix, that every file of this format holds.
        evidence: further names, without a prefix, one of which tells it from its relatives.
        prefixes: what may stand before every name.
        rules: the name table.
        numerics: of the source.
        structure: function `Source` -> dict of `Config` fields, and "classes".
        ignored: regular expressions of names that are dropped on purpose.
        statistics: normalisation of the source, a name in `keras_vit.preprocessing.STATISTICS`;
            None if the names do not tell.
        re_attention: name that a block with re-attention holds, its index in braces; or None.
    """

    name: str
    anchor: str
    evidence: tuple
    prefixes: tuple
    rules: tuple
    numerics: Callable
    structure: Callable
    ignored: tuple = ()
    statistics: str | None = None
    re_attention: str | None = None

    def prefix_of(self, names):
        """The prefix under which `names` are of this format, or None."""
        for prefix in self.prefixes:
            if prefix + self.anchor in names and any(prefix + e in names for e in self.evidence):
                return prefix
        return None


class Source:
    """A checkpoint seen through its format: names without the prefix.

    Args:
        checkpoint: a `Checkpoint`.
        kind: its `Format`.
        prefix: what stands before its names.
    """

    def __init__(self, checkpoint, kind, prefix):
        self.checkpoint = checkpoint
        self.format = kind
        self.names = {}
        for name in checkpoint:
            self.names[name.removeprefix(prefix) if prefix else name] = name

    def __contains__(self, name):
        return name in self.names

    def __getitem__(self, name):
        return self.checkpoint[self.names[name]]

    def shape(self, name):
        """Shape of the array `name`, without reading it."""
        return tuple(self.checkpoint.shape(self.names[name]))

    def indices(self, pattern):
        """Values of the index in a name, sorted: `indices("blocks.{i}.norm1.weight")`."""
        expression = re.compile(re.escape(pattern).replace(r"\{i\}", r"(\d+)"))
        found = (expression.fullmatch(name) for name in self.names)
        return tuple(sorted({int(m[1]) for m in found if m}))

    def count(self, pattern):
        """Number of values of the index in a name."""
        return len(self.indices(pattern))

    def stages(self, pattern, first):
        """Number of units of every residual stage: `stages("block{s}/unit{u}/conv1/kernel", 1)`.

        Args:
            pattern: a name that every unit holds, the stage as {s}, the unit as {u}.
            first: the number of the first stage.
        """
        counts = []
        while count := self.count(pattern.format(s=first + len(counts), u="{i}")):
            counts.append(count)
        return tuple(counts)

    def re_attention(self):
        """Indices of the blocks with re-attention."""
        return self.indices(self.format.re_attention) if self.format.re_attention else ()

    def is_ignored(self, name):
        """Whether the format drops `name` on purpose."""
        return any(re.fullmatch(pattern, name) for pattern in self.format.ignored)


def positioned(rows, candidates, grid):
    """Number of extra tokens that a position table of `rows` rows covers.

    Args:
        rows: rows of the table.
        candidates: possible numbers, the likeliest first.
        grid: (h, w) of the model if it is known, else None.

    Raises:
        ValueError: no candidate leaves the model's own grid or a square one.
    """
    for count in candidates:
        if grid is not None and rows - count == grid[0] * grid[1]:
            return count
    for count in candidates:
        if square_side(rows - count):
            return count
    raise ValueError(
        f"The position table has {rows} rows, which is no square grid after any of "
        f"{tuple(candidates)} extra tokens. Give input_shape the image size of the file."
    )


def source_grid(rows, grid):
    """(h, w) of `rows` patch positions: the model's own grid if it fits, else the square one.

    Raises:
        ValueError: neither fits.
    """
    if grid is not None and rows == grid[0] * grid[1]:
        return tuple(grid)
    side = square_side(rows)
    if side is None:
        raise ValueError(
            f"The file holds positions of {rows} patches, which is no square grid, and not the "
            f"grid {grid[0]}x{grid[1]} of the model. Load the file at its own image size first."
        )
    return side, side


def recognise(checkpoint, formats):
    """Finds the `Format` of a checkpoint.

    Args:
        checkpoint: a `Checkpoint`.
        formats: the known formats.

    Returns:
        A `Source`.

    Raises:
        ValueError: none fits; the message shows the first names of the file.
    """
    names = set(checkpoint)
    for kind in formats:
        prefix = kind.prefix_of(names)
        if prefix is not None:
            return Source(checkpoint, kind, prefix)
    shown = ", ".join(sorted(names)[:5])
    raise ValueError(
        f"{checkpoint.path}: none of the known checkpoint formats. "
        f"Received: {len(names)} arrays, the first ones {shown}. "
        f"Known: {', '.join(kind.name for kind in formats)}."
    )
