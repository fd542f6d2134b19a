"""Principal coordinates of a store, from options, and their result folder.

coordinates.csv    id, axis1, axis2, ...
eigenvalues.csv    axis, eigenvalue, residual, share, cumulative_share
ordination.txt     the same in the format of scikit-bio's OrdinationResults, which QIIME's viewers read
result.json        options, eigenvalues, scans, times, versions
embedding.png      the first axes, coloured by labels or memberships
"""

from __future__ import annotations

import platform
import time
import warnings
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from dasrel import __version__
from dasrel.engine.checkpoint import Checkpoint, watched
from dasrel.errors import DasrelWarning, InputError
from dasrel.geometry.embedding import Colours, Embedding, EmbedJob, prepare_embed
from dasrel.judging.validity import of_labels
from dasrel.options import EmbedOptions
from dasrel.partition.files import read_partition_file
from dasrel.partition.model import mode_labels
from dasrel.store.matrix import open_matrix
from dasrel.util import Names, PathLike
from dasrel.util.files import replacing
from dasrel.util.limits import Cost, Output
from dasrel.util.results import check_out, draw_or_warn, finished_result, job_header, result_folder, write_csv
from dasrel.util.text import count_text, redacted, shown, some

NUMBER_BYTES = 20
"""Characters of a coordinate in a text file, at most, but for a few."""


Draw = Callable[[Embedding, Colours | None, Path], None]


def prepare_embedding(
    store: str,
    options: EmbedOptions | None = None,
    out: PathLike | None = None,
    *,
    force: bool = False,
    resume: bool = False,
) -> EmbeddingJob:
    """Check options, the store, the labels and the result folder.

    Parameters
    ----------
    resume
        If the result folder holds the result of the same job already, `run` returns it.

    Cost: reads the labels, and no tile.
    """
    options = options or EmbedOptions()
    matrix = open_matrix(store)
    prepared = prepare_embed(matrix, options)
    named = options.result or options.labels
    colours = None if named is None else _read_colours(named, matrix.ids)
    header = job_header(store, matrix.identity_digest(), out or "", options)
    finished = finished_result(out, header) if out is not None and resume else None
    if out is not None and finished is None:
        check_out(out, force=force)
    return EmbeddingJob(options, prepared, colours, None if out is None else Path(out), header, force, finished)


def _read_colours(path: str, ids: Names) -> Colours:
    """Read labels or memberships of the objects with these names; see `partition_files`."""
    found = read_partition_file(path)
    values = found.of_objects(ids)
    if values.ndim not in (1, 2) or len(values) != len(ids):
        raise InputError(
            f"{found.where} has labels for {count_text(len(values), 'object')} and the store has {len(ids):,}: give one"
            " for each, in the order of the store, or a column id"
        )
    if values.ndim == 2:
        U = np.asarray(values, dtype=np.float64)
        if not np.isfinite(U).all():
            raise InputError(f"{found.where} has memberships that are not finite numbers")
        labels = mode_labels(U, None if found.model is None else found.model.modes)
        return Colours(labels, tuple(str(k) for k in range(U.shape[1])), U)
    grouping = of_labels(found.where, values)
    return Colours(grouping.labels.astype(np.intp), grouping.clusters or (), None)


@dataclass(frozen=True, eq=False)
class EmbeddingJob:
    """Principal coordinates to be computed and written; see `prepare_embedding`."""

    options: EmbedOptions
    prepared: EmbedJob
    colours: Colours | None
    out: Path | None
    header: dict[str, Any]
    """What identifies the job in its result.json."""
    force: bool
    finished: dict[str, Any] | None = None
    """The content of result.json where the same job has written its result already."""

    def run(
        self,
        *,
        checkpoint: Checkpoint | None = None,
        about: dict[str, Any] | None = None,
        draw: Draw | None = None,
    ) -> dict[str, Any]:
        """Compute the axes, write the result folder, and return the contents of its result.json.

        Parameters
        ----------
        about
            Added to what result.json says of store, out and options.
        draw
            Draws a picture into the folder.

        Cost: that of `embed`.
        """
        assert self.out is not None
        if self.finished is not None:
            return self.finished
        began, matrix = time.perf_counter(), self.prepared.given.matrix
        with watched(checkpoint, "embed"):
            found = self.prepared.run(checkpoint)
            summary = {
                **self.header, **redacted(about or {}),
                "kind": matrix.kind, **found.report(),
                "seconds": round(time.perf_counter() - began, 3),
                "versions": {"dasrel": __version__, "python": platform.python_version(), "numpy": np.__version__},
            }  # fmt: skip
            with result_folder(self.out, summary, force=self.force) as folder:
                names = [str(name) for name in matrix.ids]
                _write_tables(found, names, folder)
                _write_ordination(found, names, folder / "ordination.txt")
                if draw is not None:
                    draw_or_warn(draw, found, self.colours, folder)
        return summary

    def cost(self) -> Cost:
        """Estimate the cost of `run`; raise `MemoryLimitError` where `run` would."""
        n, axes = self.prepared.given.n_objects, self.prepared.search.highest
        size = 2 * n * (8 + NUMBER_BYTES * axes) + 200_000 * self.options.picture
        return self.prepared.cost(() if self.out is None else (Output(str(self.out), size),))


def _write_tables(found: Embedding, names: list[str], folder: Path) -> None:
    rows = zip(names, found.coordinates.tolist(), strict=True)
    header = ["id", *(f"axis{k + 1}" for k in range(found.n_components))]
    write_csv(folder / "coordinates.csv", header, ([name, *row] for name, row in rows))
    values = zip(
        range(1, found.n_components + 1), found.eigenvalues.tolist(), found.residuals.tolist(), found.shares.tolist(),
        found.shares.cumsum().tolist(), strict=True,
    )  # fmt: skip
    write_csv(folder / "eigenvalues.csv", ["axis", "eigenvalue", "residual", "share", "cumulative_share"], values)


def _write_ordination(found: Embedding, names: list[str], path: Path) -> None:
    """Write the text format of scikit-bio, whose readers cut lines at tabs and strip names of blanks."""
    broken = [name for name in names if not name.isprintable() or name != name.strip()]
    if broken:
        problem = (
            f"ordination.txt is not written: {some([shown(name) for name in broken], total=len(broken))} cannot be"
        )
        problem += " names in it, because of tabs, line breaks or blanks at an end"
        warnings.warn(DasrelWarning(problem), stacklevel=3)
        return

    def line(values: Iterable[float]) -> str:
        return "\t".join(map(repr, values)) + "\n"

    k = found.n_components
    with replacing(path) as part, part.open("w", encoding="utf-8", newline="") as file:
        file.write(f"Eigvals\t{k}\n{line(found.eigenvalues.tolist())}\n")
        file.write(f"Proportion explained\t{k}\n{line(found.shares.tolist())}\n")
        file.write(f"Species\t0\t0\n\nSite\t{len(names)}\t{k}\n")
        file.writelines(f"{name}\t{line(row.tolist())}" for name, row in zip(names, found.coordinates, strict=True))
        file.write("\nBiplot\t0\t0\n\nSite constraints\t0\t0\n")


def embedding_lines(result: dict[str, Any]) -> list[tuple[str, str]]:
    """Return the lines that print a result."""
    shares, n_components = result["shares"], result["n_components"]
    listed = " ".join(f"{share:.1%}" for share in shares[:10]) + (" ..." if n_components > 10 else "")
    lines = [
        ("results", shown(result["out"], limit=400)),
        ("objects", f"{result['n_objects']:,}, kind {result['kind']}"),
        ("axes", f"{n_components}, {sum(shares):.1%} of the positive eigenvalues"),
        ("shares", listed),
    ]
    if result["spread"]:
        lines.append(("spread", f"{result['spread']:.6g} added to all pairs; no eigenvalue is negative"))
    elif result["n_negative"]:
        least = result["negative_share_least"]
        text = (
            f"about {result['negative_share']:.1%} of all eigenvalues by size, at least {least:.1%}: no axis shows it"
        )
        lines.append(("negative", text))
    worst = max(r / v for r, v in zip(result["residuals"], result["eigenvalues"], strict=True))
    lines.append(("residuals", f"at most {worst:.1g} of the eigenvalue"))
    suffix = "" if result["converged"] else ", not converged"
    return [*lines, ("scans", f"{result['scans']:,} in {result['seconds']:.1f} s{suffix}")]
