"""Run seeded cases of damaged inputs: `python -m tests.system.fuzz --cases 20000 --seed 1`.

Every case must end with exit code 0, 1 or 2, with one line for an error, within limits of memory and time, and with a
result that is right: equal to that of another reader, or of the undamaged input. A case that does not prints the
command that repeats it. Exit code 1 if there was any.
"""

import argparse
import os
import sys
import tempfile
import time
from pathlib import Path

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")  # before NumPy: a process that is forked has no other threads
os.environ.setdefault("OMP_NUM_THREADS", "1")

from tests.system.fuzz import kinds, runner


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cases", type=int, default=300, help="number of cases, all kinds in turn")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--kind", action="append", help=f"one or more of {', '.join(kinds.NAMES)}; all if not given")
    parser.add_argument("--case", type=int, help="run only the case of this number of the one --kind")
    parser.add_argument("--jobs", type=int, default=1, help="cases that run at the same time")
    parser.add_argument("--folder", type=Path, help="a folder for the inputs, where those of failed cases are kept")
    given = parser.parse_args()
    chosen = given.kind or list(kinds.NAMES)
    if unknown := sorted(set(chosen) - set(kinds.NAMES)):
        parser.error(f"no kind {unknown[0]}; there are: {', '.join(kinds.NAMES)}")
    if given.case is not None:
        cases = [(chosen[0], given.case)]
    else:
        cases = [(chosen[k % len(chosen)], k // len(chosen)) for k in range(given.cases)]
    began, summary = time.monotonic(), runner.Summary()
    with tempfile.TemporaryDirectory(prefix="dasrel-fuzz-") as temporary:
        folder = (given.folder or Path(temporary)).resolve()
        runner.preload(folder / "base")
        generators = kinds.generators(folder / "base")
        for found in runner.run_cases(cases, generators, given.seed, folder, given.jobs, given.folder is not None):
            summary.add(found)
            if given.case is not None:
                print(f"{found.command}\nexit code {found.code}: {found.line}")
            if found.fault:
                again = f"--kind {found.kind} --seed {given.seed} --case {found.number}"
                print(
                    f"FAULT {found.kind} {found.number}: {found.fault}\n  {found.command[:600]}\n  {found.line}\n"
                    f"  again: python -m tests.system.fuzz {again}",
                    flush=True,
                )
    print(f"{'kind':<12}{'cases':>8}{'accepted':>10}{'faults':>8}")
    for kind in chosen:
        faults = len(summary.faults.get(kind, []))
        print(f"{kind:<12}{summary.cases[kind]:>8}{summary.accepted[kind]:>10}{faults:>8}")
    total = sum(map(len, summary.faults.values()))
    seconds = time.monotonic() - began
    print(f"{sum(summary.cases.values())} cases, {total} faults, {seconds:.0f} s")
    return int(total > 0)


if __name__ == "__main__":
    sys.exit(main())
