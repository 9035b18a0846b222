"""Training a model towards another one's predictions."""

import keras
from keras import ops


@keras.saving.register_keras_serializable(package="keras_vit")
class Distiller(keras.Model):
    """A student that learns from labels and from a teacher; `fit` it, then take `.student`.

        distiller = Distiller(student, teacher, hard=True)
        distiller.compile(optimizer, metrics=["accuracy"])
        distiller.fit(images, one_hot_labels)

    The loss is (1 - alpha) * cross-entropy(labels) + alpha * distillation. Hard distillation is the
    cross-entropy to the teacher's best class; soft is temperature^2 times the Kullback-Leibler
    divergence from the teacher's probabilities at the temperature.

    Args:
        student: gives logits (B, classes).
        teacher: gives logits (B, classes); it is frozen, and runs as in evaluation.
        hard: which kind.
        alpha: share of the distillation, in 0..1.
        temperature: of soft distillation, above 0.
        label_smoothing: of the labels' part, in [0, 1).

    Raises:
        ValueError: a number out of its range, or another number of classes.

    Source: Touvron et al. 2021 (arXiv:2012.12877), section 4; facebookresearch/deit losses.py.
    """

    def __init__(
        self, student, teacher, hard=True, alpha=0.5, temperature=1.0, label_smoothing=0.0, **kwargs
    ):
        super().__init__(**kwargs)
        if student.output_shape[-1] != teacher.output_shape[-1]:
            raise ValueError(
                "Student and teacher must have the same classes. Received: "
                f"{student.output_shape[-1]} and {teacher.output_shape[-1]}."
            )
        if not 0 <= alpha <= 1 or not temperature > 0:
            raise ValueError(
                "alpha must be in 0..1 and temperature above 0. "
                f"Received: alpha={alpha}, temperature={temperature}."
            )
        self.student = student
        self.teacher = teacher
        self.teacher.trainable = False
        self.hard = hard
        self.alpha = alpha
        self.temperature = temperature
        self.label_smoothing = label_smoothing

    def call(self, images, training=None):
        return self.student(images, training=training)

    def compute_loss(self, x=None, y=None, y_pred=None, sample_weight=None, training=True):
        """Labels `y` are one-hot (B, classes)."""
        logits = ops.cast(y_pred, "float32")
        labels = keras.losses.categorical_crossentropy(
            y, logits, from_logits=True, label_smoothing=self.label_smoothing
        )
        taught = ops.cast(self.teacher(x, training=False), "float32")
        if self.hard:
            target = ops.argmax(taught, axis=-1)
            distilled = keras.losses.sparse_categorical_crossentropy(
                target, logits, from_logits=True
            )
        else:
            t = self.temperature
            difference = ops.log_softmax(taught / t) - ops.log_softmax(logits / t)
            distilled = t**2 * ops.sum(ops.softmax(taught / t) * difference, axis=-1)
        return ops.mean((1 - self.alpha) * labels + self.alpha * distilled)

    def get_config(self):
        return {
            **super().get_config(),
            "student": keras.saving.serialize_keras_object(self.student),
            "teacher": keras.saving.serialize_keras_object(self.teacher),
            "hard": self.hard,
            "alpha": self.alpha,
            "temperature": self.temperature,
            "label_smoothing": self.label_smoothing,
        }

    @classmethod
    def from_config(cls, config):
        parts = {
            name: keras.saving.deserialize_keras_object(config[name])
            for name in ("student", "teacher")
        }
        return cls(**{**config, **parts})
