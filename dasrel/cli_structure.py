"""The commands `dasrel spectrum` and `dasrel euclideanize`. As in `cli`: parse, one library call, print."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from dasrel.errors import InputError, count_text, shown
from dasrel.options import WRITING, DryRun, Force, Keeping, OldStore, Place, command, option
from dasrel.talk import Talk
from dasrel.vocabulary import METHODS

SEARCH = "The search for eigenvalues"

MaxScans = Annotated[int, option("--max-scans", "Most scans; then the best so far, with a warning.", SEARCH, min=1)]
SearchMemory = Annotated[
    str | None, option("--memory", "Memory that may be taken; half of the machine's if not given.", SEARCH)
]


@command
def spectrum_command(
    talk: Talk,
    place: Place,
    keeping: Keeping,
    store: OldStore,
    values: Annotated[int, option("--values", "Eigenvalues shown at each end.", SEARCH, metavar="K", min=1)] = 8,
    tol: Annotated[float, option("--tol", "Residual of the outermost, as a fraction of them.", SEARCH)] = 1e-3,
    max_scans: MaxScans = 100,
    memory: SearchMemory = None,
    picture: Annotated[Path | None, option("--picture", "Draw both ends.", WRITING, metavar="OUT.png")] = None,
    force: Force = False,
    dry_run: DryRun = False,
) -> None:
    """Is the matrix of a STORE Euclidean? The ends of its spectrum, by a few scans."""
    from dasrel.checkpoint import watched
    from dasrel.outputs import check_file
    from dasrel.spectrum import spectrum, spectrum_picture

    if picture is not None:
        check_file(picture, force=force)
    if dry_run:
        from dasrel.forecast import forecast_spectrum

        asked: dict[str, Any] = {"n_values": values, "tol": tol, "max_scans": max_scans, "memory": memory}
        talk.forecast(forecast_spectrum(store, picture=picture, **asked))
        return
    checkpoint = keeping.made(force=force)
    with talk.at(place), watched(checkpoint, "spectrum"):
        found = spectrum(store, n_values=values, tol=tol, max_scans=max_scans, memory=memory, checkpoint=checkpoint)
        if picture is not None:
            spectrum_picture(found, picture, title=Path(store).name)
    told = {"store": store, **found.as_dict(), "picture": None if picture is None else str(picture)}
    talk.result({**told, "seconds": talk.seconds}, spectrum_lines(told))
    if checkpoint is not None:
        checkpoint.clear("spectrum")


def spectrum_lines(found: dict[str, Any]) -> list[tuple[str, str]]:
    """A spectrum for people: names and texts."""
    answer = {True: "yes", False: "no", None: "not known: the scans were not enough"}[found["is_euclidean"]]
    if found["is_euclidean"] is False:
        answer += f"; at least {found['n_negative']:,} negative eigenvalues, a spread of {found['spread']:.6g} mends it"
    lines = [
        ("objects", f"{found['n_objects']:,}"),
        ("Euclidean", answer),
        ("lowest", _numbers(found["lowest"], found["lowest_residuals"])),
        ("highest", _numbers(found["highest"], found["highest_residuals"])),
        ("entropy threshold", f"{found['entropy_threshold']:.6g} (fcm2 above it makes all clusters alike)"),
        ("scans", f"{found['scans']}, {found['stopped']}"),
    ]
    return [*lines, ("picture", shown(found.get("picture"), limit=400))] if found.get("picture") else lines


def _numbers(values: Any, residuals: Any) -> str:
    first = f"{values[0]:.6g} +- {residuals[0]:.1g}"
    return "  ".join([first, *(f"{value:.4g}" for value in values[1:])])


@command
def euclideanize_command(
    talk: Talk,
    place: Place,
    keeping: Keeping,
    store: OldStore,
    method: Annotated[str, option("--method", f"Of {', '.join(METHODS)}.", SEARCH)],
    alpha: Annotated[
        float | None, option("--alpha", "Parameter of power, exponential and log; found if not given.", SEARCH)
    ] = None,
    floor_zeros: Annotated[
        float | None,
        option("--floor-zeros", "Raise squared dissimilarities below VALUE to it.", SEARCH, metavar="VALUE"),
    ] = None,
    tol: Annotated[float, option("--tol", "Residual of the eigenvalue, as a fraction of it.", SEARCH)] = 1e-4,
    max_scans: MaxScans = 200,
    memory: SearchMemory = None,
    out: Annotated[
        Path | None, option("--out", "The file to write; STORE.METHOD.npz if not given.", WRITING, metavar="FILE")
    ] = None,
    force: Force = False,
    dry_run: DryRun = False,
) -> None:
    """Find what makes a STORE Euclidean, and write it down as a small file; no new matrix."""
    if method not in METHODS:
        raise typer.BadParameter(f"{method!r} is not one of {', '.join(METHODS)}", param_hint="--method")

    from dasrel.checkpoint import watched
    from dasrel.euclidean import euclideanize
    from dasrel.outputs import check_file

    target = default_file(store, method) if out is None else out
    check_file(target, force=force)
    asked: dict[str, Any] = {
        "method": method, "alpha": alpha, "tol": tol, "floor_zeros": floor_zeros, "max_scans": max_scans,
        "memory": memory,
    }  # fmt: skip
    if dry_run:
        from dasrel.forecast import forecast_euclideanize

        talk.forecast(forecast_euclideanize(store, target, **asked))
        return
    checkpoint = keeping.made(force=force)
    with talk.at(place), watched(checkpoint, "euclideanize"):
        found = euclideanize(store, **asked, checkpoint=checkpoint)
        found.save(target)
    if checkpoint is not None:
        checkpoint.clear("euclideanize")
    told = {"store": store, "out": str(target), **found.report()}
    talk.result({**told, "seconds": talk.seconds}, euclidean_lines(told))


def default_file(store: str, method: str) -> Path:
    """Beside the store, where that is a folder."""
    if "://" in store:
        raise InputError(f"say --out FILE: a file cannot be put beside {shown(store, limit=200)}")
    path = Path(store)
    return path.with_name(f"{path.name.removesuffix('.zarr')}.{method}.npz")


def euclidean_lines(found: dict[str, Any]) -> list[tuple[str, str]]:
    """A Euclideanisation for people: names and texts."""
    lines = [("wrote", shown(found["out"], limit=400)), ("method", found["method"])]
    if found["was_euclidean"]:
        lines.append(("gamma", "0: the matrix is Euclidean already"))
    else:
        lines.append(("gamma", f"{found['gamma']:.8g}"))
    if found["alpha"] is not None:
        limit = "" if found["boundary"] is None else f" (Euclidean up to about {found['boundary']:.4g})"
        lines.append(("alpha", f"{found['alpha']:.6g}{limit}"))
    lines += [
        ("lowest eigenvalue", f"{found['lambda_min']:.8g} +- {found['residual']:.1g}"),
        ("negative", f"{count_text(found['n_negative'], 'eigenvalue')} seen"),
        ("added / D", f"{found['ratio']:.4g} (sum of gamma Delta over the sum of D)"),
        ("stress", f"{found['stress']:.4g}"),
    ]
    if found["merged"]:
        lines.append(("duplicates", f"{found['merged']:,} of the objects, each the same as another"))
    if found["floor_zeros"] is not None:
        lines.append(("floor", f"{count_text(found['floored'], 'pair')} raised to {found['floor_zeros']:g}"))
    return [*lines, ("scans", f"{found['scans']:,}{'' if found['converged'] else ', not converged'}")]
