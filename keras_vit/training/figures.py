"""Pictures of a training: curves, and which classes are taken for which."""

import numpy as np

_MOST_NAMES = 40  # class names that fit beside a matrix


def curves(rows):
    """Loss and accuracy over the epochs.

    Args:
        rows: of a history, see `keras_vit.training.callbacks.read_history`.

    Returns:
        A matplotlib `Figure`.
    """
    from matplotlib.figure import Figure
    from matplotlib.ticker import MaxNLocator

    figure = Figure(figsize=(9, 3.6), layout="constrained")
    epochs = [row["epoch"] for row in rows]
    for axes, name, label in zip(
        figure.subplots(1, 2), ("loss", "accuracy"), ("loss (nats)", "accuracy"), strict=True
    ):
        for key, title in ((name, "training"), (f"val_{name}", "validation")):
            axes.plot(epochs, [row[key] for row in rows], marker="o", markersize=3, label=title)
        axes.set(xlabel="epoch", ylabel=label)
        axes.xaxis.set_major_locator(MaxNLocator(integer=True))
        axes.grid(alpha=0.3)
        axes.legend()
    return figure


def confusion(matrix, class_names):
    """Share of the pictures of each class (row) that are taken for each class (column).

    Args:
        matrix: int (classes, classes), numbers of pictures.
        class_names: in label order; shown for up to 40 classes.

    Returns:
        A matplotlib `Figure`.
    """
    from matplotlib.figure import Figure

    matrix = np.asarray(matrix)
    count = len(matrix)
    named = count <= _MOST_NAMES
    side = 2.5 + 0.35 * min(count, _MOST_NAMES)
    figure = Figure(figsize=(side + 1, side), layout="constrained")
    axes = figure.subplots()
    shares = matrix / np.maximum(matrix.sum(axis=1, keepdims=True), 1)
    image = axes.imshow(shares, cmap="Blues", vmin=0, vmax=1)
    figure.colorbar(image, ax=axes, shrink=0.8, label="share of the row")
    axes.set(xlabel="predicted", ylabel="true")
    if named:
        axes.set_xticks(range(count), class_names, rotation=90)
        axes.set_yticks(range(count), class_names)
    if count <= 15:
        for (row, column), number in np.ndenumerate(matrix):
            if number:
                color = "white" if shares[row, column] > 0.5 else "black"
                axes.text(
                    column, row, f"{number:,}", ha="center", va="center", color=color, fontsize=8
                )
    return figure
