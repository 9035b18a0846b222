"""What the benchmarks share: command line, timing, and the result files."""

import argparse
import importlib.metadata
import inspect
import json
import os
import pathlib
import platform
import time

FOLDER = pathlib.Path(__file__).parent
PACKAGES = (
    "keras",
    "tensorflow",
    "jax",
    "numpy",
    "keras-hub",
    "vit-keras",
    "zeromodels",
    "timm",
    "torch",
)


def parser(doc, rounds=None):
    """The command line of a benchmark, with its docstring as help."""
    result = argparse.ArgumentParser(
        description=inspect.cleandoc(doc), formatter_class=argparse.RawDescriptionHelpFormatter
    )
    if rounds:
        result.add_argument("--rounds", type=int, default=rounds, help=f"default {rounds}")
    result.add_argument("--out", type=pathlib.Path, default=FOLDER / "results", help="folder")
    return result


def minima(functions, rounds, before=lambda: None):
    """Seconds of the fastest call of every function, after one call that is not measured.

    The functions take turns, so that a slow phase of the machine meets all of them alike; `before`
    runs ahead of each of them and does not count.
    """
    best = dict.fromkeys(functions, float("inf"))
    for function in functions.values():
        function()
    for _ in range(rounds):
        for name, function in functions.items():
            before()
            start = time.perf_counter()
            function()
            best[name] = min(best[name], time.perf_counter() - start)
    return best


def compiled(function):
    """`function`, compiled the ordinary way of the Keras backend; a call returns with the result computed."""
    import keras

    if keras.backend.backend() == "jax":
        import jax

        fast = jax.jit(function)
        return lambda *arguments: jax.block_until_ready(fast(*arguments))
    import tensorflow as tf

    tf.get_logger().setLevel("ERROR")  # it warns of retracing, which is meant here
    fast = tf.function(function, jit_compile=False)
    return lambda *arguments: fast(*arguments).numpy()


def device():
    """Kind of device that the Keras backend computes on: "cpu", "gpu" or "tpu"."""
    import keras

    if keras.backend.backend() == "jax":
        import jax

        return jax.default_backend()
    import tensorflow as tf

    return "gpu" if tf.config.list_physical_devices("GPU") else "cpu"


def target(what, measured, limit, at_most=True):
    """One line of the table of targets."""
    met = measured <= limit if at_most else measured >= limit
    return {"target": f"{what} {'≤' if at_most else '≥'} {limit}", "measured": measured, "met": met}


def table(rows):
    """Dicts with the same keys -> a Markdown table; fractions get three significant digits."""

    def text(value):
        if isinstance(value, bool):
            return "yes" if value else "no"
        if isinstance(value, float):
            return f"{value:.0f}" if abs(value) >= 1000 else f"{value:.3g}"
        return "" if value is None else str(value)

    lines = [list(rows[0]), ["---"] * len(rows[0]), *(map(text, row.values()) for row in rows)]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


def write(out, name, title, sections, rounds=None):
    """Writes {name}.json and {name}.md.

    Args:
        sections: dict of heading -> list of dicts with the same keys.
        rounds: how often each function was called, for measurements of time.
    """
    machine = _machine()
    out.mkdir(parents=True, exist_ok=True)
    data = {"title": title, "machine": machine, "rounds": rounds, "sections": sections}
    (out / f"{name}.json").write_text(json.dumps(data, indent=1) + "\n")
    about = "; ".join(f"{key} {value}" for key, value in machine.items())
    minima = f" Minima of {rounds} alternating rounds." if rounds else ""
    parts = [f"# {title}\n", f"{about}.{minima}\n"]
    parts += [f"## {heading}\n\n{table(rows)}" for heading, rows in sections.items()]
    (out / f"{name}.md").write_text("\n".join(parts))
    print((out / f"{name}.md").read_text())


def _machine():
    machine = {
        "processor": _processor(),
        "cores": os.cpu_count(),
        "Python": platform.python_version(),
    }
    for package in PACKAGES:
        try:
            machine[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            machine[package] = "not installed"
    return machine


def _processor():
    try:
        lines = pathlib.Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor()
    return next(line.partition(": ")[2] for line in lines if line.startswith("model name"))
