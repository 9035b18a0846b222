"""Published training recipes: the numbers with which `keras-vit finetune` and `optimizer_for` train."""

import dataclasses

from keras_vit.training.augmentation import Augmentation

LOSSES = ("softmax", "sigmoid")
OPTIMIZERS = ("sgd", "adamw")


@dataclasses.dataclass(frozen=True)
class TrainingRecipe:
    """Numbers of a training.

    Attributes:
        name: what users write in `--recipe`.
        summary: what it is for, in a line.
        source: paper section or repository file of the numbers.
        optimizer: "sgd" (with momentum) or "adamw".
        learning_rate: peak; linear warm-up to it, then a half cosine to `final_learning_rate`.
        reference_batch: batch size that `learning_rate` belongs to, the rate being proportional to
            the batch size; None if it holds for every batch size.
        batch_size: published one.
        epochs: published number, or a sensible one where the source counts steps.
        warm_up_epochs: length of the warm-up, at most a tenth of the training.
        momentum: of SGD, or beta_1 of AdamW.
        final_learning_rate: at the end.
        weight_decay: times the learning rate, on kernels alone.
        clip_norm: largest global norm of the gradients, or None.
        loss: "softmax" or "sigmoid" cross-entropy.
        head_bias: initial bias of the head.
        label_smoothing: in [0, 1).
        dropout_rate: see the models.
        drop_path_rate: see the models.
        layer_decay: factor on the learning rate from a block to the one before it, or None.
        ema_momentum: of the averaged weights that are kept in the end, or None for no averaging.
        augmentation: of the training pictures.

    Raises:
        ValueError: a number out of its range.
    """

    name: str
    summary: str
    source: str
    optimizer: str
    learning_rate: float
    batch_size: int
    epochs: int
    reference_batch: int | None = None
    warm_up_epochs: float = 0.0
    momentum: float = 0.9
    final_learning_rate: float = 0.0
    weight_decay: float = 0.0
    clip_norm: float | None = None
    loss: str = "softmax"
    head_bias: float = 0.0
    label_smoothing: float = 0.0
    dropout_rate: float = 0.0
    drop_path_rate: float = 0.0
    layer_decay: float | None = None
    ema_momentum: float | None = None
    augmentation: Augmentation = Augmentation()

    def __post_init__(self):
        for field, valid in (("optimizer", OPTIMIZERS), ("loss", LOSSES)):
            if getattr(self, field) not in valid:
                raise ValueError(
                    f"{field} must be one of {', '.join(valid)}. "
                    f"Received: {field}={getattr(self, field)!r}."
                )
        for field, low, high in (
            ("learning_rate", 0.0, float("inf")),
            ("layer_decay", 0.0, 1.0),
            ("ema_momentum", 0.0, 1.0),
            ("label_smoothing", 0.0, 1.0),
            ("weight_decay", 0.0, float("inf")),
        ):
            value = getattr(self, field)
            if value is not None and not low <= value <= high:
                raise ValueError(
                    f"{field} must be in {low:g}..{high:g}. Received: {field}={value}."
                )

    def peak_learning_rate(self, batch_size):
        """The peak learning rate at a batch size."""
        return self.learning_rate * (
            batch_size / self.reference_batch if self.reference_batch else 1
        )


_DEIT = TrainingRecipe(
    name="deit-scratch",
    summary="from scratch on ImageNet-1k alone, with strong augmentation",
    source="Touvron et al. 2021, table 9; facebookresearch/deit main.py",
    optimizer="adamw",
    learning_rate=5e-4,
    reference_batch=512,
    batch_size=1024,
    epochs=300,
    warm_up_epochs=5,
    final_learning_rate=1e-5,
    weight_decay=0.05,
    label_smoothing=0.1,
    drop_path_rate=0.1,
    ema_momentum=0.99996,
    augmentation=Augmentation(
        crop_area=(0.08, 1.0), rand_augment=(2, 9), mix_up=0.8, cut_mix=1.0, erasing=0.25
    ),
)

RECIPES = {
    recipe.name: recipe
    for recipe in (
        TrainingRecipe(
            name="vit-finetune",
            summary="fine-tune all weights of a pre-trained model, often at a higher resolution",
            source="Dosovitskiy et al. 2021, table 4; vit_jax configs/common.py",
            optimizer="sgd",
            learning_rate=0.01,
            batch_size=512,
            epochs=20,
            warm_up_epochs=2,
            clip_norm=1.0,
            augmentation=Augmentation(crop_area=(0.05, 1.0)),
        ),
        TrainingRecipe(
            name="augreg-scratch",
            summary="from scratch, with the medium regularisation of AugReg",
            source="Steiner et al. 2021; big_vision configs/vit_i1k.py",
            optimizer="adamw",
            learning_rate=1e-3,
            batch_size=4096,
            epochs=300,
            warm_up_epochs=30,
            weight_decay=0.1,
            clip_norm=1.0,
            loss="sigmoid",
            head_bias=-6.9,
            dropout_rate=0.1,
            drop_path_rate=0.1,
            augmentation=Augmentation(crop_area=(0.05, 1.0), rand_augment=(2, 15), mix_up=0.2),
        ),
        _DEIT,
        dataclasses.replace(
            _DEIT,
            name="deepvit-scratch",
            summary="from scratch, as the DeepViTs",
            source="Zhou et al. 2021; dvit_repo scripts/deepvit_*.yaml",
            reference_batch=None,
            batch_size=256,
            drop_path_rate=0.2,
        ),
    )
}


def get_recipe(name):
    """The `TrainingRecipe` called `name`.

    Raises:
        ValueError: there is none; the message lists those that there are.
    """
    if name not in RECIPES:
        raise ValueError(
            f"There is no such recipe. Received: recipe={name!r}. Available: {', '.join(RECIPES)}."
        )
    return RECIPES[name]
