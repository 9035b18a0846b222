"""Largest difference to the official implementations, for every golden file.

    python benchmarks/parity.py [--out benchmarks/results]

Runs the tests of the official numbers and tabulates what they recorded: the largest |difference| of
logits, tokens after every block, encoded tokens, attention maps and feature maps of residual networks,
over max(1, largest |value|). Expected time on two CPU cores: 3 minutes.
"""

import pathlib
import subprocess
import sys
import tempfile
import xml.etree.ElementTree as xml

import measuring

ROOT = measuring.FOLDER.parent
GOLDENS = ROOT / "tests" / "goldens"


def recorded():
    """(name of the test, largest difference) of every test that recorded one, after a run of them all."""
    with tempfile.TemporaryDirectory() as folder:
        report = pathlib.Path(folder, "report.xml")
        tests = ["tests/models/test_parity.py", "tests/models/test_bit.py"]
        options = ["-k", "official_numbers", "-o", "junit_family=xunit1", f"--junitxml={report}"]
        if subprocess.run([sys.executable, "-m", "pytest", *tests, *options], cwd=ROOT).returncode:
            raise SystemExit("A parity test fails; there is no table of numbers that are wrong.")
        for case in xml.parse(report).iter("testcase"):
            for prop in case.iter("property"):
                if prop.get("name") == "maximum":
                    yield case.get("name"), float(prop.get("value"))


def main():
    arguments = measuring.parser(__doc__).parse_args()
    rows = []
    for name, maximum in recorded():
        stem = name.partition("[")[2][:3]
        (file,) = GOLDENS.glob(f"{stem}_*.npz")
        rows.append({"golden file": file.stem, "largest difference": maximum})
    worst = max(row["largest difference"] for row in rows)
    sections = {
        "Target": [measuring.target("largest difference", worst, 1e-4)],
        f"{len(rows)} golden files": rows,
    }
    measuring.write(arguments.out, "parity", "Parity with the official implementations", sections)


if __name__ == "__main__":
    main()
