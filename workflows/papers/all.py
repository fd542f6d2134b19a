"""Run the scripts of all five papers, each into a folder of its own, one after the other.

python workflows/papers/all.py OUT [--quick] [--usps FILE] [--gdp194 FILE] [--breast FILE] [--ionosphere FILE]
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from common import arguments, run_script

FILES = {"l7": (), "q09": (), "k14": ("gdp194",), "f09": ("usps",), "f10": ("breast", "ionosphere")}
"""The options for data files of each script."""


def main() -> int:
    """Run the scripts; return 1 if one of them failed."""
    names = {name: f"see `{script}.py --help`" for script, given in FILES.items() for name in given}
    options = arguments(__doc__.splitlines()[0], names)
    failed = 0
    for script, given in FILES.items():
        command = [sys.executable, str(Path(__file__).with_name(f"{script}.py")), str(options.out / script)]
        command += ["--quick"] if options.quick else []
        for name in given:
            if getattr(options, name) is not None:
                command += [f"--{name}", str(getattr(options, name))]
        failed |= subprocess.run(command).returncode
    return int(bool(failed))


if __name__ == "__main__":
    raise SystemExit(run_script(main))
