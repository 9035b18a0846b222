"""Image files -> outputs of a model, batch by batch."""

import itertools

from keras_vit.cli import terminal


def find(inputs):
    """The image files that files, folders and patterns stand for; says what is left out.

    Raises:
        ImageError: an input does not exist, or matches nothing.
        ValueError: there is no image among them.
    """
    from keras_vit.images import find_images

    def reason(skipped):
        return skipped[1]

    images, skipped = find_images(inputs)
    for text, group in itertools.groupby(sorted(skipped, key=reason), key=reason):
        names = [str(path) for path, _ in group]
        more = f" and {len(names) - 5} more" if len(names) > 5 else ""
        terminal.say(f"skipped, {text}: {', '.join(names[:5])}{more}")
    if not images:
        raise ValueError(f"There is no image file in {', '.join(map(repr, inputs))}.")
    return images


def outputs(opened, paths, batch_size, failures):
    """Runs a model on image files, cut by the recipe of its weights.

    Args:
        opened: an `Opened` model.
        paths: of the files.
        batch_size: how many to run at once.
        failures: list to which (path, what is wrong) is added for every file that cannot be read.
            These are named on stderr, too, and counted at the end.

    Yields:
        (path, output of the model (D,) as float32) for every other file, in order.

    Raises:
        ValueError: pictures cannot be cut for the model, or its output is not (B, D).
    """
    import numpy as np

    from keras_vit.images import ImageError, load_image
    from keras_vit.preprocessing import prepare, recipe_of

    model, recipe = opened.model, recipe_of(opened.model)
    if len(model.outputs) != 1 or len(model.outputs[0].shape) != 2:
        raise ValueError(
            "The model must give one vector a picture. "
            f"Received: {opened.title} with outputs {[tuple(x.shape) for x in model.outputs]}."
        )
    terminal.say(f"{opened.title}, {recipe.size[0]}x{recipe.size[1]} pixels")
    with terminal.progress_bar("pictures", len(paths)) as advance:
        for start in range(0, len(paths), batch_size):
            good, batch = [], []
            for path in paths[start : start + batch_size]:
                try:
                    batch.append(prepare(load_image(path), recipe))
                    good.append(path)
                except ImageError as error:
                    failures.append((path, str(error)))
                    terminal.say(error)
                advance()
            if batch:
                results = model.predict_on_batch(np.stack(batch).astype("float32"))
                yield from zip(good, np.asarray(results, "float32"), strict=True)
    if failures:
        terminal.say(f"{len(failures)} of {len(paths)} images could not be read")
