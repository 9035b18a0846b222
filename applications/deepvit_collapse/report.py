"""Draws the figure of the study and writes its table, from the runs that are done.

    python applications/deepvit_collapse/report.py

Reads runs.csv and similarity.csv of --results; writes similarity.png and table.md beside them.
"""

import argparse
import os
import pathlib

import numpy as np
from study import ATTENTIONS, RESULTS, read_rows

from keras_vit import analysis

THRESHOLD = 0.9
PAPER = {  # Zhou et al. 2021, table 4: ImageNet top-1, number of similar blocks
    ("plain", 16): (78.88, 5),
    ("plain", 24): (79.35, 11),
    ("plain", 32): (79.27, 15),
    ("re-attention", 16): (79.10, 0),
    ("re-attention", 24): (79.99, 0),
    ("re-attention", 32): (80.90, 0),
}


KINDS = ("cosine", "softmax_cosine", "untrained_cosine")


def read_runs(results):
    """The runs, each with its similarities as arrays (depth, depth), by the column they are in."""
    runs = read_rows(results / "runs.csv")
    for run in runs:
        run.update({kind: np.eye(int(run["depth"])) for kind in KINDS})
    by_key = {(run["attention"], run["depth"], run["seed"]): run for run in runs}
    for row in read_rows(results / "similarity.csv"):
        run = by_key.get((row["attention"], row["depth"], row["seed"]))
        if run:
            p, q = int(row["block"]), int(row["other_block"])
            for kind in KINDS:
                run[kind][p, q] = run[kind][q, p] = float(row[kind])
    return runs


def table(runs):
    """A row for every attention and depth, the mean over its seeds, as Markdown."""
    lines = [
        "| attention | depth | seeds | test accuracy, % | blocks like the one before | mean cosine of "
        "neighbours: softmax | before training | mixed | parameters | CPU seconds | paper: ImageNet "
        "top-1 | paper: similar blocks |",
        "|---|---|---|---|---|---|---|---|---|---|---|---|",
    ]
    for attention in ATTENTIONS:
        depths = sorted({int(run["depth"]) for run in runs if run["attention"] == attention})
        for depth in depths:
            group = [r for r in runs if (r["attention"], int(r["depth"])) == (attention, depth)]
            accuracy = [100 * float(run["test_accuracy"]) for run in group]
            counts = [
                analysis.similar_blocks(run["softmax_cosine"], THRESHOLD).count for run in group
            ]
            mixed, softmax, untrained = (
                _several([np.diagonal(run[kind], 1).mean() for run in group], "z.2f")
                for kind in KINDS
            )
            top1, similar = PAPER.get((attention, depth), (None, ""))
            lines.append(
                f"| {attention} | {depth} | {len(group)} | {_several(accuracy, '.2f')} | "
                f"{_several(counts, 'd')} | {softmax} | {untrained} | "
                f"{mixed if attention == 're-attention' else ''} | "
                f"{int(group[0]['parameters']):,} | "
                f"{_several([int(run['cpu_seconds']) for run in group], ',d')} | "
                f"{'' if top1 is None else f'{top1:.2f}'} | {similar} |"
            )
    return "\n".join(lines) + "\n"


def _several(values, form):
    return ", ".join(format(value, form) for value in values)


def figure(runs):
    """Similarity of every block with the one before, a panel for each kind of map."""
    from matplotlib.figure import Figure

    drawn = Figure(figsize=(14, 4), layout="constrained")
    depths = sorted({int(run["depth"]) for run in runs})
    panels = {
        "plain attention": ("plain", "softmax_cosine"),
        "re-attention, softmax": ("re-attention", "softmax_cosine"),
        "re-attention, mixed and normalised": ("re-attention", "cosine"),
    }
    subplots = drawn.subplots(1, 3, sharey=True)
    for axes, (title, (attention, kind)) in zip(subplots, panels.items(), strict=True):
        for run in runs:
            if run["attention"] == attention:
                depth = int(run["depth"])
                axes.plot(
                    range(2, depth + 1),
                    np.diagonal(run[kind], 1),
                    marker=".",
                    color=f"C{depths.index(depth)}",
                    linestyle="-" if run["seed"] == "0" else "--",
                    label=f"{depth} blocks, seed {run['seed']}",
                )
        axes.axhline(THRESHOLD, color="grey", linestyle=":")
        axes.set(title=title, xlabel="block", ylim=(-0.5, 1.02))
        axes.grid(alpha=0.3)
        if axes.lines[1:]:
            axes.legend(fontsize="small")
    drawn.axes[0].set_ylabel("cosine with the attention of the block before")
    return drawn


def main(argv=None):
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--results", type=pathlib.Path, default=RESULTS)
    args = parser.parse_args(argv)
    runs = read_runs(args.results)
    if not runs:
        parser.error(f"there is no finished run in {args.results}")
    partial = args.results / "partial.png"
    figure(runs).savefig(partial, dpi=120)
    os.replace(partial, args.results / "similarity.png")
    (args.results / "table.md").write_text(table(runs))
    print(table(runs), end="")


if __name__ == "__main__":
    main()
