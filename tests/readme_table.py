"""Writes the table of models into README.md, from the registry: python tests/readme_table.py"""

import pathlib

import keras_vit
from keras_vit import registry

README = pathlib.Path(__file__).parents[1] / "README.md"
BEGIN = "<!-- models: written by python tests/readme_table.py -->\n"
END = "<!-- end of models -->"


def table():
    """The table as Markdown."""
    lines = [
        "| model | parameters | pixels a token | width | depth | heads | native size | weights (the first is the default) |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for name in keras_vit.list_models():
        row = registry.get_variant(name)
        config = row.config
        sets = ", ".join(f"`{weights.name}`" for weights in row.weights) or "by file"
        size = f"{config.image[0]}x{config.image[1]}"
        depth, heads = (getattr(config, key, "") for key in ("depth", "heads"))
        lines.append(
            f"| `{name}` | {row.parameters:,} | {config.pixels} | {config.width} | {depth} "
            f"| {heads} | {size} | {sets} |"
        )
    return "\n".join(lines) + "\n"


def updated(text):
    """`text` with the present table between its marks."""
    before, _, rest = text.partition(BEGIN)
    _, _, after = rest.partition(END)
    return before + BEGIN + table() + END + after


if __name__ == "__main__":
    README.write_text(updated(README.read_text()))
