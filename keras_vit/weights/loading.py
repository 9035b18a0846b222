"""Checkpoint -> model: everything is planned and checked, then assigned."""

import dataclasses
import logging

import keras
import numpy as np

from keras_vit.weights.formats import Numerics, recognise, source_grid
from keras_vit.weights.readers import read
from keras_vit.weights.rules import Context
from keras_vit.weights.tables import FORMATS
from keras_vit.weights.tables.keras_names import KerasNames

logger = logging.getLogger(__name__)

HEAD_PARTS = ("head/", "pre_logits/", "fc_norm/", "map_pooling/")


@dataclasses.dataclass(frozen=True)
class Report:
    """What a file gave to a model.

    Attributes:
        format: name of the checkpoint format.
        loaded: variable paths that were assigned.
        resampled: those of them whose values were resampled to another grid.
        new: variable paths that kept their initial values on purpose.
        dropped: names in the file that were left out on purpose.
    """

    format: str
    loaded: tuple
    resampled: tuple
    new: tuple
    dropped: tuple

    def __str__(self):
        text = f"{self.format}: {len(self.loaded)} variables loaded"
        if self.resampled:
            text += ", positions resampled"
        if self.new:
            text += f", {len(self.new)} new"
        if self.dropped:
            more = ", ..." if len(self.dropped) > 3 else ""
            names = ", ".join(self.dropped[:3]) + more
            text += f"; {len(self.dropped)} arrays of the file not needed ({names})"
        return text


class Target:
    """A model of this package, as the name tables see it.

    Args:
        model: a Keras model that holds, at any depth, one plain encoder or one residual network.

    Raises:
        ValueError: the model holds none, or more than one.
    """

    def __init__(self, model):
        layers = list(_flat(model))

        def of(kind):
            return [layer for layer in layers if type(layer).__name__ == kind]

        encoders, self.convolutions = of("PatchEncoder"), of("StandardizedConv2D")
        found = encoders or self.convolutions
        if len(found) != 1:
            raise ValueError(
                f"{model.name}: expected a model with one PatchEncoder, or with one residual "
                f"network. Received: {len(found)}."
            )
        self.prefix = found[0].name.removesuffix("patch_encoder").removesuffix("root_conv")
        self.encoder = encoders[0] if encoders else None
        self.patch_size = next((layer.patch_size for layer in of("Patches")), None)
        self.blocks, self.norms = of("TransformerBlock"), of("GroupNorm")
        self.variables = {}
        for layer in layers:
            if layer.name.startswith(self.prefix):
                for variable in layer.weights:
                    self.variables[variable.path.removeprefix(self.prefix)] = variable

    def numerics(self):
        """The `Numerics` that the model was built with; None for what it does not have."""
        encoder, residual = (None, None, None), (None, None)
        if self.encoder is not None:
            block = self.blocks[0]
            encoder = block.epsilon, block.mlp.activation, self.encoder.resampling
        if self.norms:
            residual = self.norms[0].epsilon, self.convolutions[0].standardization
        return Numerics(*encoder, *residual)

    def re_attention(self):
        """Indices of the blocks with re-attention."""
        names = [type(block.attention).__name__ for block in self.blocks]
        return tuple(i for i, name in enumerate(names) if name == "ReAttention")


def _flat(model):
    for layer in model.layers:
        if isinstance(layer, keras.Model):
            yield from _flat(layer)
        else:
            yield layer


def open_source(path, head_path=None):
    """Opens a checkpoint file and recognises its format.

    Args:
        path: file or folder.
        head_path: a second file that holds the linear head alone (DINOv2).

    Returns:
        A `Source`.

    Raises:
        ValueError: not a checkpoint, or of no known format.
    """
    checkpoint = read(path)
    if head_path is not None:
        checkpoint = _WithHead(checkpoint, read(head_path))
    if checkpoint.container == "keras":
        checkpoint = KerasNames(checkpoint)
    return recognise(checkpoint, FORMATS)


class _WithHead:
    """A backbone and its separately published linear head, as one checkpoint."""

    def __init__(self, backbone, head):
        self.path, self.container = backbone.path, backbone.container
        self._parts = {name: (backbone, name) for name in backbone}
        self._parts.update({f"linear_head.{name}": (head, name) for name in head})

    def __iter__(self):
        return iter(self._parts)

    def __getitem__(self, name):
        checkpoint, name = self._parts[name]
        return checkpoint[name]

    def shape(self, name):
        checkpoint, name = self._parts[name]
        return checkpoint.shape(name)


def load(model, path, *, new_head=False, resample_patches=False):
    """Loads a checkpoint file of any known format into a model.

    The model stays untouched unless every variable finds its array and every array its variable.

    Args:
        model: a model built by this package, reloaded, or holding one such model.
        path: an official .npz; a timm, transformers or DINOv2 .safetensors or .pth; .weights.h5;
            .keras; a folder of shards.
        new_head: keep the model's own head and pre-logits layer instead of the file's.
        resample_patches: resample the patch embedding if the file has another patch size.

    Returns:
        A `Report`.

    Raises:
        ValueError: the file cannot be read, is of another architecture, or comes from a source with
            other numerics than the model was built with. The message lists every complaint.
    """
    source = open_source(path)
    return load_source(model, source, new_head=new_head, resample_patches=resample_patches)


def load_source(model, source, *, new_head=False, resample_patches=False):
    """`load` for a file that is open already."""
    target = Target(model)
    title = f"{source.checkpoint.path} ({source.format.name}) -> {model.name}"
    _check_numerics(source, target, title)
    _check_attention(source, target, title)
    new = [p for p in target.variables if new_head and p.startswith(("head/", "pre_logits/"))]
    takes_head = not new_head and any(path.startswith("head/") for path in target.variables)
    plan, tried, complaints = _plan(source, target, set(new), resample_patches)
    dropped, unknown = [], []
    for name in source.names:
        if name not in tried:
            (dropped if _may_drop(name, source, takes_head) else unknown).append(name)
    complaints += [f"the model has no variable for {name} {source.shape(name)}" for name in unknown]
    if complaints:
        count = len(complaints)
        shown = complaints[:12] + [f"... and {count - 12} more"] * (count > 12)
        raise ValueError(
            f"{title}: {count} problem{'s' if count > 1 else ''}; nothing was loaded.\n  - "
            + "\n  - ".join(shown)
        )
    values = _values(source, plan)
    for (path, _, _), value in zip(plan, values, strict=True):
        target.variables[path].assign(value)
    resampled = tuple(
        path
        for path, _, context in plan
        if path.endswith("positions") and context.grid not in (None, target.encoder.grid)
    )
    report = Report(
        source.format.name,
        tuple(path for path, _, _ in plan),
        resampled,
        tuple(new),
        tuple(sorted(source.names[name] for name in dropped)),
    )
    logger.info("%s -> %s: %s", source.checkpoint.path, model.name, report)
    return report


def _check_numerics(source, target, title):
    wanted, found = source.format.numerics(source), target.numerics()
    differing = []
    for field in dataclasses.fields(Numerics):
        theirs, ours = getattr(wanted, field.name), getattr(found, field.name)
        if theirs != ours and None not in (theirs, ours) and ours != "silu":
            differing.append(f"{field.name} {theirs} (the model has {ours})")
    if differing:
        raise ValueError(
            f"{title}: the weights belong to other numerics than the model was built with: "
            f"{', '.join(differing)}. Nothing was loaded. "
            "Build the model with weights=<this file>: the builder takes the numerics of the file."
        )


def _check_attention(source, target, title):
    theirs, ours = source.re_attention(), target.re_attention()
    if theirs != ours:
        raise ValueError(
            f"{title}: the file has re-attention in {_listed(theirs)}, the model in "
            f"{_listed(ours)}. Nothing was loaded. Files with re-attention belong to the DeepViT "
            "that they were made with, files without it to other models."
        )


def _listed(blocks):
    return f"blocks {', '.join(map(str, blocks))}" if blocks else "no block"


def _plan(source, target, new, resample_patches):
    """For every variable: (path, rule, context); the names in the file that were considered; complaints."""
    plan, tried, complaints = [], set(), []
    try:
        grid = _grid(source, target)
    except ValueError as error:
        grid = None
        complaints.append(str(error))
    patch_rule = target.numerics().resampling if resample_patches else None
    for path, variable in target.variables.items():
        if path in new:
            continue
        matches = [(r, index) for r in source.format.rules if (index := r.match(path)) is not None]
        present = [(r, i) for r, i in matches if r.source.format(**i) in source]
        shape = tuple(variable.shape)
        if not present:
            names = " or ".join(r.source.format(**i) for r, i in matches) or "nothing of this kind"
            complaints.append(f"{path} {shape}: the file has no {names}")
            continue
        rule, index = present[0]
        name = rule.source.format(**index)
        tried.add(name)
        context = Context(shape, index, target.encoder, target.patch_size, grid, patch_rule)
        received = source.shape(name)
        # The shape after the transform, found without reading the data.
        stand_in = np.broadcast_to(np.zeros((), "float32"), received)
        try:
            result = tuple(rule.apply(stand_in, context).shape)
        except (ValueError, IndexError) as error:
            complaints.append(f"{path} {shape}: {name} {received} does not fit: {error}")
            continue
        if result != shape:
            complaints.append(f"{path} {shape}: {name} {received} gives {result}")
            continue
        plan.append((path, rule, context))
    return plan, tried, complaints


def _grid(source, target):
    """(h, w) of the file's position table, or None if it has none that the model could take."""
    if target.encoder is None:
        return None
    found = source.format.structure(source, target.encoder.grid)
    if "grid" in found:
        return found["grid"]
    if target.encoder.positions != "learned-1d" or "rows" not in found:
        return None
    return source_grid(found["rows"] - found["positioned_tokens"], target.encoder.grid)


def _may_drop(name, source, takes_head):
    """Whether an array may be left out: by the format's own list, or as part of a head that is not wanted."""
    if source.is_ignored(name):
        return True
    if takes_head:
        return False
    return any(r.source == name and r.target.startswith(HEAD_PARTS) for r in source.format.rules)


def _values(source, plan):
    """The arrays of the plan, in its order; every array of the file is read once."""
    order = sorted(range(len(plan)), key=lambda k: plan[k][1].source.format(**plan[k][2].index))
    values = [None] * len(plan)
    last, array = None, None
    for k in order:
        _, rule, context = plan[k]
        name = rule.source.format(**context.index)
        if name != last:
            last, array = name, source[name]
        values[k] = rule.apply(array, context)
    return values
