"""The list of models: `variant` is the one statement that declares a model."""

import dataclasses
import fnmatch
import inspect
import sys
from collections.abc import Callable


@dataclasses.dataclass(frozen=True)
class Weights:
    """A published set of weights of one variant.

    Attributes:
        name: what users write in `weights=`.
        url: address of the publisher's file; "package:NAME" is shipped with keras_vit.
        classes: outputs of its head; 0 if it has none.
        image: native image size, (height, width).
        statistics: normalisation, a name in `keras_vit.preprocessing.STATISTICS`.
        crop_fraction: share of the shorter side that the evaluation crop keeps.
        interpolation: of the evaluation resize.
        licence: of the weights.
        origin: paper or repository.
        head_url: address of a separate file with the head.
        sha256: of the file at `url`, if known.
        top1: published ImageNet-1k accuracy in percent, if any.
        labels: class names in order, if they are neither ImageNet-1k's nor ImageNet-21k's.
    """

    name: str
    url: str
    classes: int
    image: tuple
    statistics: str
    licence: str
    origin: str
    crop_fraction: float = 0.9
    interpolation: str = "bicubic"
    head_url: str | None = None
    sha256: str | None = None
    top1: float | None = None
    labels: tuple | None = None


@dataclasses.dataclass(frozen=True)
class Variant:
    """A registered model.

    Attributes:
        name: of the function, such as "ViT_B16".
        family: name of the module that declares it, such as "vit".
        config: its numbers and parts.
        parameters: published number of parameters (see `counted`).
        counted: how the number was counted, in words.
        weights: tuple of `Weights`.
        default: default of the argument `weights`.
        classes: default of the argument `classes`.
        statistics: normalisation of the family, for files that do not tell theirs.
        build: function (variant, ...) -> keras.Model.
        function: the public function.
    """

    name: str
    family: str
    config: object
    parameters: int
    counted: str
    weights: tuple
    default: str | None
    classes: int
    statistics: str
    build: Callable
    function: Callable = None

    @property
    def model_name(self):
        """Default name of the Keras model."""
        return self.name.lower()

    def named(self, name):
        """The `Weights` called `name`, or None."""
        return next((row for row in self.weights if row.name == name), None)


_VARIANTS = {}


def variant(
    name,
    config,
    build,
    *,
    parameters,
    weights=(),
    statistics="half",
    classes=1000,
    counted="with 1,000 classes",
    summary=None,
):
    """Declares a model and returns its function.

    Args:
        name: public name, Family_SizePatch.
        config: numbers and parts, understood by `build`.
        build: function (variant, include_top, weights, ...) -> keras.Model, whose signature and
            docstring become those of the model.
        parameters: published number of parameters, checked by the tests.
        weights: the published sets; the first one is the default.
        statistics: normalisation of the family.
        classes: default number of classes.
        counted: how `parameters` is counted.
        summary: first line of the docstring.

    Raises:
        ValueError: the name is taken, or two sets of weights share a name.
    """
    if name in _VARIANTS:
        raise ValueError(f"A model of this name is registered already. Received: name={name!r}.")
    names = [row.name for row in weights]
    if len(set(names)) != len(names):
        raise ValueError(f"{name}: two sets of weights share a name. Received: {names}.")
    module = sys._getframe(1).f_globals["__name__"]
    row = Variant(
        name,
        module.rpartition(".")[2],
        config,
        parameters,
        counted,
        tuple(weights),
        names[0] if names else None,
        classes,
        statistics,
        build,
    )
    signature = _signature(row)

    def function(*args, **kwargs):
        try:
            bound = signature.bind(*args, **kwargs)
        except TypeError as error:
            raise TypeError(f"{name}(): {error}. The signature is {name}{signature}.") from None
        bound.apply_defaults()
        return build(row, **bound.arguments)

    function.__name__ = function.__qualname__ = name
    function.__module__ = module
    function.__signature__ = signature
    function.__doc__ = _docstring(row, summary)
    row = dataclasses.replace(row, function=function)
    _VARIANTS[name] = row
    return function


def _signature(row):
    defaults = {"weights": row.default, "classes": row.classes, "name": row.model_name}
    _, *parameters = inspect.signature(row.build).parameters.values()
    return inspect.Signature(
        [p.replace(default=defaults.get(p.name, p.default)) for p in parameters]
    )


def _docstring(row, summary):
    sets = "\n".join(
        f"  - {w.name!r}: {w.image[0]}x{w.image[1]}, "
        f"{f'{w.classes:,} classes' if w.classes else 'no head'}, {w.licence}; {w.origin}"
        for w in row.weights
    )
    return (
        f"{summary or row.name}: {row.parameters:,} parameters ({row.counted}).\n\n"
        f"{inspect.cleandoc(row.build.__doc__)}\n\n"
        f"Named weights:\n{sets or '  none: give a file.'}\n"
    )


def get_variant(name):
    """The `Variant` called `name`; letter case matters only where it tells two names apart.

    Raises:
        ValueError: there is none; the message lists those that there are.
    """
    if name in _VARIANTS:
        return _VARIANTS[name]
    for key, row in _VARIANTS.items():
        if key.lower() == str(name).lower():
            return row
    raise ValueError(
        f"There is no such model. Received: model={name!r}. Available: {', '.join(list_models())}."
    )


def list_models(pattern="*"):
    """Names of the models that match a shell pattern such as "ViT_*", in the order of declaration."""
    return [n for n in _VARIANTS if fnmatch.fnmatchcase(n.lower(), pattern.lower())]


def list_weights(model):
    """Names of the published sets of weights of a model, the default first."""
    return [row.name for row in get_variant(model).weights]


def discard(name):
    """Takes a model out of the list; for tests that declare their own."""
    _VARIANTS.pop(name)
