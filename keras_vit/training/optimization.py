"""Optimizers by recipe, and which weights they train."""

import os
import re
import tempfile

import keras

from keras_vit.layers import TransformerBlock
from keras_vit.layers.preprocessing import Normalize

LORA_TARGETS = ("query", "key", "value", "projection")
_WARM_UP_SHARE = 0.1


def encoder_parts(model):
    """The layers of a plain model by depth, nested models included.

    Returns:
        (layers before the blocks, blocks, layers after them).

    Raises:
        ValueError: the model holds no `TransformerBlock`.
    """
    flat = list(_flattened(model))
    positions = [k for k, layer in enumerate(flat) if isinstance(layer, TransformerBlock)]
    if not positions:
        raise ValueError(
            "Only models of transformer blocks have a depth to freeze or decay by. "
            f"Received: {model.name}."
        )
    return flat[: positions[0]], [flat[k] for k in positions], flat[positions[-1] + 1 :]


def _flattened(model):
    for layer in model.layers:
        if isinstance(layer, keras.Model):
            yield from _flattened(layer)
        else:
            yield layer


def decays(variable):
    """Whether weight decay applies: to kernels; not to biases, norms, positions, tokens or scales."""
    return variable.path.endswith("kernel") or variable.path.endswith("embedding")


def schedule(recipe, batch_size, steps_per_epoch, epochs):
    """Linear warm-up from 0, then a half cosine to the final learning rate.

    Args:
        recipe: a `TrainingRecipe`.
        batch_size: of the training.
        steps_per_epoch: optimizer steps.
        epochs: of the whole training.

    Returns:
        A Keras learning-rate schedule.
    """
    steps = max(1, steps_per_epoch * epochs)
    warm_up = round(min(recipe.warm_up_epochs * steps_per_epoch, _WARM_UP_SHARE * steps))
    peak = recipe.peak_learning_rate(batch_size)
    alpha = recipe.final_learning_rate / peak if peak else 0.0
    if not warm_up:
        return keras.optimizers.schedules.CosineDecay(peak, steps, alpha=min(1.0, alpha))
    return keras.optimizers.schedules.CosineDecay(
        0.0,
        max(1, steps - warm_up),
        alpha=min(1.0, alpha),
        warmup_target=peak,
        warmup_steps=warm_up,
    )


def optimizer_for(model, recipe, batch_size, steps_per_epoch, epochs, accumulation=1):
    """The optimizer of a recipe, for plain `model.compile`.

    With `recipe.layer_decay` the learning rate falls by that factor from each block to the one
    before it; the gradients of every such group are then clipped on their own. For a model with
    layers in mixed_float16 the loss is scaled, whatever the global dtype policy is.

    Args:
        model: whose weights are trained; freeze first.
        recipe: a `TrainingRecipe`.
        batch_size: pictures a step of `fit`.
        steps_per_epoch: steps of `fit`.
        epochs: of the whole training.
        accumulation: steps of `fit` whose gradients are averaged before the weights move.

    Returns:
        A Keras optimizer.

    Raises:
        ValueError: `accumulation` below 1; layer decay for a model without blocks.
    """
    if accumulation < 1:
        raise ValueError(f"accumulation must be at least 1. Received: accumulation={accumulation}.")
    # Keras counts a step a batch for the schedule, also while it accumulates.
    rate = schedule(recipe, batch_size * accumulation, steps_per_epoch, epochs)
    options = {
        "global_clipnorm": recipe.clip_norm,
        "use_ema": recipe.ema_momentum is not None,
        "ema_momentum": recipe.ema_momentum or 0.99,
        "gradient_accumulation_steps": accumulation if accumulation > 1 else None,
    }
    undecayed = [v for v in model.trainable_variables if not decays(v)]
    optimizer = _optimizer(recipe, rate, undecayed, options)
    if recipe.layer_decay:  # what follows the blocks is left to the first optimizer
        groups = _by_depth(model, recipe, rate, undecayed, options)
        optimizer = keras.optimizers.MultiOptimizer(
            keras.optimizers.OptimizerMap(optimizer, groups)
        )
    if any(layer.dtype_policy.name == "mixed_float16" for layer in model.layers):
        optimizer = keras.optimizers.LossScaleOptimizer(optimizer)
    return optimizer


def _by_depth(model, recipe, rate, undecayed, options):
    """Optimizers of the embedding and the blocks, by the pattern of the paths of their variables."""
    groups = _layer_groups(model)
    return {
        "|".join(map(re.escape, paths)): _optimizer(
            recipe,
            ScaledSchedule(rate, recipe.layer_decay ** (len(groups) - depth)),
            undecayed,
            options,
        )
        for depth, paths in enumerate(groups)
        if paths
    }


def _optimizer(recipe, rate, undecayed, options):
    if recipe.optimizer == "sgd":
        optimizer = keras.optimizers.SGD(
            rate, momentum=recipe.momentum, weight_decay=recipe.weight_decay or None, **options
        )
    else:
        optimizer = keras.optimizers.AdamW(
            rate, beta_1=recipe.momentum, epsilon=1e-8, weight_decay=recipe.weight_decay, **options
        )
    optimizer.exclude_from_weight_decay(var_list=undecayed)
    return optimizer


def _layer_groups(model):
    """Paths of the trainable variables: of the embedding, and of each block."""
    before, blocks, _ = encoder_parts(model)
    return [
        [v.path for layer in layers for v in layer.trainable_variables]
        for layers in (before, *([block] for block in blocks))
    ]


@keras.saving.register_keras_serializable(package="keras_vit")
class ScaledSchedule(keras.optimizers.schedules.LearningRateSchedule):
    """A learning-rate schedule times a constant factor."""

    def __init__(self, schedule, factor):
        self.schedule = schedule
        self.factor = factor

    def __call__(self, step):
        return self.schedule(step) * self.factor

    def get_config(self):
        return {
            "schedule": keras.saving.serialize_keras_object(self.schedule),
            "factor": self.factor,
        }

    @classmethod
    def from_config(cls, config):
        return cls(keras.saving.deserialize_keras_object(config["schedule"]), config["factor"])


def freeze(model, blocks=None):
    """Takes the embedding and the first blocks out of training. Call it before `compile`.

    Args:
        model: a plain model, changed in place.
        blocks: how many; None for all of them, so that the final norm and the head are left.

    Raises:
        ValueError: `blocks` is not in 0..depth; the model has no blocks.
    """
    before, all_blocks, _ = encoder_parts(model)
    count = len(all_blocks) if blocks is None else blocks
    if not 0 <= count <= len(all_blocks):
        raise ValueError(
            f"{model.name} has {len(all_blocks)} blocks to freeze. Received: blocks={blocks}."
        )
    for layer in [*before, *all_blocks[:count]]:
        if not isinstance(layer, Normalize | keras.layers.InputLayer):
            layer.trainable = False


def train_head_only(model):
    """Freezes everything but the last layer with weights."""
    weighted = [layer for layer in model.layers if layer.weights]
    for layer in weighted[:-1]:
        layer.trainable = False


def add_lora(model, rank, targets=("query", "value")):
    """Trains low-rank updates of attention matrices, by Keras' own `enable_lora`, and the head.

    Everything else is frozen. Call it before `compile`.

    Args:
        model: a plain model, changed in place.
        rank: of the updates, at least 1.
        targets: which matrices: "query", "key", "value", "projection".

    Raises:
        ValueError: unknown target, rank below 1, or no blocks.

    Source: Hu et al. 2022 (arXiv:2106.09685), section 4.2.
    """
    unknown = set(targets) - set(LORA_TARGETS)
    if unknown or not targets:
        raise ValueError(
            f"targets must be some of {', '.join(LORA_TARGETS)}. Received: targets={targets}."
        )
    if rank < 1:
        raise ValueError(f"The rank must be at least 1. Received: rank={rank}.")
    _, blocks, after = encoder_parts(model)
    kept = {id(variable) for variable in _head_variables(after)}
    for variable in model.trainable_variables:
        variable.trainable = id(variable) in kept
    for block in blocks:
        norm = getattr(block.attention, "norm", None)  # of re-attention: its statistics stay
        if norm is not None:
            norm.trainable = False
        for name in targets:
            getattr(block.attention, name).enable_lora(rank)


def _head_variables(layers):
    """Weights of the last layer that has some."""
    return next((layer.variables for layer in reversed(layers) if layer.weights), [])


def merge_lora(model):
    """Adds the low-rank updates to their matrices, for export or further training.

    Args:
        model: a model of `add_lora`.

    Returns:
        A new model of the same configuration with plain matrices and the same outputs.
    """
    merged = keras.models.clone_model(model)
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "merged.weights.h5")
        model.save_weights(path)  # Keras writes the sum
        merged.load_weights(path)
    return merged
