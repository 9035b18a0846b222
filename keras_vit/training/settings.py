"""What a run of fine-tuning is made of."""

import dataclasses

from keras_vit.training.recipes import RECIPES

PROBES = {
    "few-shot": "ridge regression on frozen features (Dosovitskiy et al. 2021, section 4.1)",
    "linear-probe": "logistic regression on frozen features",
    "knn": "vote of the 20 nearest training pictures by frozen features (Wu et al. 2018)",
}
DISTRIBUTE = ("none", "data", "model")
_OF_TRAINING = (
    "epochs",
    "steps",
    "accumulation",
    "learning_rate",
    "layer_decay",
    "frozen_blocks",
    "lora_rank",
    "gradient_checkpointing",
    "distribute",
)
PRECISIONS = {"float32": "float32", "bfloat16": "mixed_bfloat16", "float16": "mixed_float16"}


@dataclasses.dataclass(frozen=True)
class Settings:
    """What a run is made of; kept as its config.json.

    Attributes:
        data: what `open_samples` takes.
        model: name of a registered model.
        recipe: a name in `RECIPES` or `PROBES`.
        weights: named set or file; None for random ones.
        validation: data to validate on; None takes the part of `data` that is called so, else a
            stratified share of it.
        validation_share: that share, in (0, 1).
        image_size: (height, width), None for that of the weights.
        epochs: None for the recipe's.
        steps: instead of epochs.
        batch_size: pictures a step.
        accumulation: steps whose gradients are averaged.
        learning_rate: None for the recipe's.
        layer_decay: None for the recipe's.
        frozen_blocks: how many of the first blocks, and the embedding, are not trained.
        lora_rank: train low-rank updates of this rank alone.
        shots: train on so many pictures a class.
        precision: a key of `PRECISIONS`.
        xla: whether the training step is compiled by XLA; JAX always does, TensorFlow cannot on
            several devices.
        seed: of everything random.
        skip_bad: leave out pictures that cannot be read.
        gradient_checkpointing: see the models.
        distribute: "data" divides every batch among all devices, "model" every block, see
            `keras_vit.distribution`; "none" uses one.
    """

    data: str
    model: str
    recipe: str = "vit-finetune"
    weights: str | None = None
    validation: str | None = None
    validation_share: float = 0.1
    image_size: tuple | None = None
    epochs: int | None = None
    steps: int | None = None
    batch_size: int = 32
    accumulation: int = 1
    learning_rate: float | None = None
    layer_decay: float | None = None
    frozen_blocks: int | None = None
    lora_rank: int | None = None
    shots: int | None = None
    precision: str = "float32"
    xla: bool = False
    seed: int = 0
    skip_bad: bool = False
    gradient_checkpointing: bool = False
    distribute: str = "none"

    def __post_init__(self):
        if self.recipe not in (*RECIPES, *PROBES):
            raise ValueError(
                f"There is no such recipe. Received: recipe={self.recipe!r}. "
                f"Available: {', '.join((*RECIPES, *PROBES))}."
            )
        for field, known in (("precision", PRECISIONS), ("distribute", DISTRIBUTE)):
            if getattr(self, field) not in known:
                raise ValueError(
                    f"{field} must be one of {', '.join(known)}. "
                    f"Received: {field}={getattr(self, field)!r}."
                )
        if self.epochs and self.steps:
            raise ValueError(
                "A training is so many epochs or so many steps. "
                f"Received: epochs={self.epochs}, steps={self.steps}."
            )
        if self.lora_rank and self.frozen_blocks is not None:
            raise ValueError(
                "LoRA freezes everything but its updates and the head. Received: "
                f"lora_rank={self.lora_rank}, frozen_blocks={self.frozen_blocks}. Choose one."
            )
        if self.recipe in PROBES:
            useless = [
                f"{field.name}={getattr(self, field.name)!r}"
                for field in dataclasses.fields(self)
                if field.name in _OF_TRAINING and getattr(self, field.name) != field.default
            ]
            if useless:
                raise ValueError(
                    f"The recipe {self.recipe} trains no weights step by step. "
                    f"Received: {', '.join(useless)}. Leave that out, or choose another recipe."
                )
        if not 0 < self.validation_share < 1:
            raise ValueError(
                "The share to validate on must be above 0 and below 1. "
                f"Received: validation_share={self.validation_share}."
            )
