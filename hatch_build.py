"""Compile the small library of C functions, if there is a C compiler; without it dasrel takes its slower ways."""

from __future__ import annotations

import os
import platform
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface
from packaging.tags import sys_tags

FOLDER = "dasrel/kernels/csrc"
SOURCES = (
    "library.c",
    "products.c",
    "label_sums.c",
    "within_sums.c",
    "exponential.c",
    "proximity.c",
    "row_linkage.c",
    "checks.c",
    "nearest.c",
    "pair_list.c",
)
OUT = "dasrel/kernels/_native.so"
# A product and a sum are rounded once, together, wherever a processor can: -std=c11 alone would turn that off in GCC,
# and Clang would do it within statements only. Warnings are no errors here, because a newer compiler has new ones and
# would leave its users without the library: the tests compile with -Werror.
FLAGS = ("-std=c11", "-O3", "-ffp-contract=fast", "-Wall", "-Wextra", "-fPIC", "-shared")


class CompileLibrary(BuildHookInterface[Any]):
    """Run by hatchling for a wheel, editable or not."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Compile into the package's folder, so that a checkout that is tested in place has the library as well.

        CC names the compiler, and DASREL_CFLAGS further flags. With DASREL_REQUIRE_NATIVE=1 a library that cannot be
        compiled is an error: wheels for others must have it.
        """
        out, temporary = Path(self.root, OUT), Path(self.root, f"{OUT}.{os.getpid()}")
        compiler = shlex.split(os.environ.get("CC", "cc"))
        flags = [*FLAGS, *shlex.split(os.environ.get("DASREL_CFLAGS", ""))]
        sources = [str(Path(self.root, FOLDER, source)) for source in SOURCES]
        try:
            command = [*compiler, *flags, "-o", str(temporary), *sources]
            subprocess.run(command, check=True, capture_output=True, text=True)
            temporary.replace(out)
        except (OSError, subprocess.CalledProcessError) as error:
            why = f"{error}\n{getattr(error, 'stderr', None) or ''}".strip()
            if os.environ.get("DASREL_REQUIRE_NATIVE", "0") not in ("", "0"):
                raise RuntimeError(f"the C library was not compiled: {why}") from error
            self.app.display_warning(f"no compiled library: imports and products with few columns are slower ({why})")
            out.unlink(missing_ok=True)
            return
        build_data["artifacts"].append(f"/{OUT}")
        build_data["pure_python"] = False
        build_data["tag"] = f"py3-none-{_platform()}"


def _platform() -> str:
    """Name the platform that the library was compiled for, as the file name of a wheel has it."""
    oldest = os.environ.get("MACOSX_DEPLOYMENT_TARGET", "")
    if sys.platform == "darwin" and oldest:  # what the compiler goes by, not the version of this machine
        major, minor = [*oldest.split("."), "0"][:2]
        return f"macosx_{major}_{minor}_{platform.machine()}"
    return next(iter(sys_tags())).platform
