"""Compiles the small library of C functions, if there is a C compiler; without it dasrel goes its slower ways."""

from __future__ import annotations

import os
import shlex
import subprocess
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface
from packaging.tags import sys_tags

SOURCES = ("dasrel/skinny.c", "dasrel/intake.c", "dasrel/pairs.c")
OUT = "dasrel/_compiled.so"


class CompileLibrary(BuildHookInterface[Any]):
    """Run by hatchling for a wheel, editable or not."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Compile beside the sources, so that a checkout that is tested in place has it as well."""
        out, aside = Path(self.root, OUT), Path(self.root, f"{OUT}.{os.getpid()}")
        compiler = shlex.split(os.environ.get("CC", "cc"))
        sources = [str(Path(self.root, source)) for source in SOURCES]
        try:
            subprocess.run(
                [*compiler, "-O3", "-shared", "-fPIC", "-o", str(aside), *sources],
                check=True,
                capture_output=True,
            )
            aside.replace(out)
        except (OSError, subprocess.CalledProcessError) as error:
            self.app.display_warning(f"no compiled library ({error}): imports and products with few columns are slower")
            out.unlink(missing_ok=True)
            return
        build_data["artifacts"].append(f"/{OUT}")
        build_data["pure_python"] = False
        build_data["tag"] = f"py3-none-{next(iter(sys_tags())).platform}"
