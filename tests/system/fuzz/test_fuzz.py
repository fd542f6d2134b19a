"""A few hundred seeded cases of damaged inputs; `python -m tests.system.fuzz` runs any number."""

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[3]
HOLD = (
    "npy", "npz", "raw", "csv", "tsv", "gz", "phylip", "mtx", "pairs", "parquet", "qza", "zarr", "store", "model",
    "relation", "checkpoint", "tree", "rows", "state",
)  # fmt: skip
"""The kinds of which every case is refused or right."""


def fuzzed(*arguments: object) -> subprocess.CompletedProcess[str]:
    """Run cases in a process of their own: it forks, which one with threads, as a test's, must not."""
    line = [sys.executable, "-m", "tests.system.fuzz", *map(str, arguments)]
    return subprocess.run(line, cwd=ROOT, capture_output=True, text=True, check=False, timeout=500)


def test_damaged_inputs_are_refused_in_one_line_or_read_rightly() -> None:
    kinds = [word for kind in HOLD for word in ("--kind", kind)]
    done = fuzzed("--cases", 300, "--seed", 0, "--jobs", 2, *kinds)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "300 cases, 0 faults" in done.stdout
