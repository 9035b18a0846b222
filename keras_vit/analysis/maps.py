"""The attention maps of a model, block by block, and where their tokens lie in the images."""

import contextlib
import dataclasses
import itertools
import logging
import weakref

import keras
import numpy as np

from keras_vit.layers import PatchEncoder, Patches, TransformerBlock

# What a block makes of its tokens: the tokens after it, and a map.
_KINDS = {
    "softmax": lambda block, tokens: (block(tokens), block.probabilities(tokens)),
    "mixed": lambda block, tokens: block(tokens, return_attention=True),
}


def attention_maps(model, images, blocks=None, *, kind="softmax"):
    """The attention maps of chosen blocks; the model itself stays as it is.

    Args:
        model: a model of this package, or a functional or Sequential one that has it as a layer.
        images: what the model takes, (B, H, W, C).
        blocks: indices of the blocks, from 0; negative ones count from the end. None for all.
        kind: "softmax" for the softmax of each head, whose rows sum to 1; "mixed" for the map that
            meets the values. They differ in blocks with re-attention, whose mixed rows do not sum
            to 1 and may be negative.

    Returns:
        A list of float32 arrays (B, heads, N, N), one a block in the order of `blocks`: of each
        query (row) the attention to each key (column), in the order of the tokens.

    Raises:
        ValueError: a model without attention, index out of range, unknown kind, or images of
            another size than the model takes.
    """
    wanted = _listed(blocks)
    maps = list(iterate_attention_maps(model, images, wanted, kind=kind))
    if wanted is None:
        return maps
    depth = len(_reader(model).blocks)
    indices = [i % depth for i in wanted]
    found = dict(zip(sorted(set(indices)), maps, strict=True))
    return [found[i] for i in indices]


def iterate_attention_maps(model, images, blocks=None, *, kind="softmax"):
    """`attention_maps` one after another, from the first block on, of which only one is held.

    Args:
        model: as in `attention_maps`.
        images: as in `attention_maps`.
        blocks: the blocks whose maps come, whatever their order here; None for all.
        kind: as in `attention_maps`.

    Returns:
        An iterator of float32 arrays (B, heads, N, N).

    Raises:
        ValueError: as `attention_maps`, before the first map.
    """
    if kind not in _KINDS:
        raise ValueError(
            f"Unknown kind of attention map. Received: kind={kind!r}. Available: {list(_KINDS)}."
        )
    reader = _reader(model)
    images = _checked(model, images)
    return reader.maps(images, reader.indices(_listed(blocks)), kind)


def _listed(blocks):
    if isinstance(blocks, int):
        raise ValueError(f"`blocks` must be a list of indices. Received: blocks={blocks}.")
    return None if blocks is None else list(blocks)


@dataclasses.dataclass(frozen=True)
class TokenLayout:
    """Which token of an attention map is what, and where.

    Attributes:
        image: (height, width) of the images in pixels.
        grid: (h, w), the number of patches down and across.
        names: of the tokens before the patches, in order: "class", "distillation", "register".
    """

    image: tuple[int, int]
    grid: tuple[int, int]
    names: tuple[str, ...] = ("class",)

    @property
    def prefix(self):
        """Number of tokens before the patches."""
        return len(self.names)

    @property
    def count(self):
        """Number of all tokens."""
        return self.prefix + self.grid[0] * self.grid[1]

    def centres(self):
        """Centres of the patches in pixels, (h * w, 2): down and across."""
        down, across = (
            (np.arange(count) + 0.5) * (side / count)
            for count, side in zip(self.grid, self.image, strict=True)
        )
        return np.stack(np.meshgrid(down, across, indexing="ij"), axis=-1).reshape(-1, 2)


def token_layout(model, images):
    """The layout of the tokens that a model makes of images; nothing is computed.

    Args:
        model: as in `attention_maps`.
        images: what the model takes, (B, H, W, C).

    Returns:
        A `TokenLayout`.

    Raises:
        ValueError: a model without attention, or images of another size than the model takes.
    """
    reader = _reader(model)
    images = _checked(model, images)
    patches, encoder = reader.patches, reader.encoder
    cut = reader.before_patches.compute_output_spec(keras.KerasTensor(images.shape))
    grid = tuple(side // patches.patch_size for side in cut.shape[1:3])
    names = encoder.tokens + ("register",) * encoder.registers
    return TokenLayout(images.shape[1:3], grid, names)


def find_layers(model, kind):
    """The layers of one class in a model of this package, wherever it is nested.

    Raises:
        ValueError: the model has no attention, or two models inside it have.
    """
    return [layer for layer in _path(model)[-1].layers if isinstance(layer, kind)]


def find_layer(model, kind):
    """The only layer of one class, as `find_layers`."""
    found = find_layers(model, kind)
    if len(found) != 1:
        raise ValueError(
            f"One encoder is needed. Received: {model.name} with {len(found)} layers "
            f"{kind.__name__}. Pass the part with one of them."
        )
    return found[0]


def _path(model):
    """The models from `model` to the one inside it, or itself, that has the blocks as layers."""
    paths = list(_paths(model))
    if not paths:
        raise ValueError(
            f"{model.name} has no attention: no layer of it is a TransformerBlock of keras_vit."
        )
    if len(paths) > 1:
        raise ValueError(
            f"{model.name} has {len(paths)} models with a keras_vit TransformerBlock in it; one is "
            "needed to show its attention. Pass that model itself."
        )
    for part in paths[0]:
        if not hasattr(part, "inputs"):
            raise ValueError(
                f"{part.name} must be functional or Sequential, and called once, for its layers to "
                f"be found in order. Received: {type(part).__name__}."
            )
    return paths[0]


def _paths(model):
    if any(isinstance(layer, TransformerBlock) for layer in model.layers):
        yield [model]
    for layer in model.layers:
        if isinstance(layer, keras.Model):
            for path in _paths(layer):
                yield [model, *path]


def _checked(model, images):
    """The images as an array, of a shape that the model takes."""
    images = np.asarray(images)
    shape = model.input_shape
    fits = images.ndim == 4 and all(
        wanted is None or wanted == found
        for wanted, found in zip(shape[1:], images.shape[1:], strict=False)
    )
    if not fits or not len(images):
        raise ValueError(
            f"{model.name} takes one or more images of shape {shape}. "
            f"Received: images.shape={images.shape}."
        )
    return images


class _Step(keras.Model):
    """What is done with one block, as a model, which compiles it."""

    def __init__(self, block, function):
        super().__init__(name=block.name, dtype=block.dtype_policy)
        self.block = block
        self.function = function

    def call(self, tokens):
        return self.function(self.block, tokens)


class _Reader:
    """The parts of a model, ready to run one after another.

    The blocks are a chain, so each one can be run, and its map be given away, before the next.
    """

    def __init__(self, model):
        path = _path(model)
        self.blocks = find_layers(model, TransformerBlock)
        self.patches, self.encoder = (find_layer(model, kind) for kind in (Patches, PatchEncoder))
        for block, following in itertools.pairwise(self.blocks):
            if following.input is not block.output:
                raise ValueError(
                    "The blocks must follow one another directly. Received: "
                    f"{model.name}, where something lies between {block.name} and {following.name}."
                )
        self.variables = _identities(model)
        self.before_patches = _from_images(path, self.patches.input)
        self.before_blocks = _from_images(path, self.blocks[0].input)
        self.steps = {}  # nothing here refers to the model, whose reader goes with it

    def indices(self, blocks):
        """The set of indices from 0 that `blocks` means."""
        depth = len(self.blocks)
        blocks = range(depth) if blocks is None else blocks
        for i in blocks:
            if not -depth <= i < depth:
                raise ValueError(
                    f"Block index out of range: the model has {depth} blocks. Received: {i}."
                )
        return {i % depth for i in blocks}

    def maps(self, images, indices, kind):
        """Yields the maps of the blocks at `indices`, in ascending order."""
        tokens = _run(self.before_blocks, images)
        for i in range(max(indices, default=-1) + 1):
            if i in indices:
                tokens, attention = _run(self.step(i, kind), tokens)
                yield attention.astype("float32")
            else:
                tokens = _run(self.step(i, None), tokens)

    def step(self, i, kind):
        """The compiled block `i`, with its map of a kind, or None for none."""
        if (i, kind) not in self.steps:
            function = _KINDS.get(kind, lambda block, tokens: block(tokens))
            self.steps[i, kind] = _Step(self.blocks[i], function)
        return self.steps[i, kind]


def _from_images(path, tensor):
    """The model from the images to a tensor of the last of nested models."""
    *outer, inner = path
    part = keras.Model(inner.inputs, tensor)
    for model, inside in zip(reversed(outer), reversed(path), strict=False):
        before = _model_before(model, inside)
        part = keras.Model(before.inputs, part(before.output))
    return part


def _model_before(model, inside):
    """The part of a functional or Sequential model from its inputs to what the layer `inside` gets."""
    received = []

    def call(layer, *inputs, **options):
        if layer is inside:
            received.append((*inputs, *options.values())[0])
        return layer(*inputs, **options)

    graph = keras.Model(model.inputs, model.outputs)
    same = keras.models.clone_model(graph, clone_function=lambda x: x, call_function=call)
    return keras.Model(same.inputs, received[0])


_READERS = weakref.WeakKeyDictionary()  # so that a second call need not compile again


def _reader(model):
    """The `_Reader` of a model; a new one if layers of the model got other variables."""
    reader = _READERS.get(model)
    if reader is None or reader.variables != _identities(model):
        reader = _READERS[model] = _Reader(model)
    return reader


def _identities(model):
    return [id(variable) for variable in model.variables]


def _run(model, inputs):
    with _without_retracing_warnings():
        return model.predict_on_batch(inputs)


@contextlib.contextmanager
def _without_retracing_warnings():
    """TensorFlow takes many small models that are compiled once for one that is compiled often."""
    logger = logging.getLogger("tensorflow")

    def is_other(record):
        return "triggered tf.function retracing" not in record.msg

    logger.addFilter(is_other)
    try:
        yield
    finally:
        logger.removeFilter(is_other)
