"""Search the width at which kernels and partitions are most alike, and its result; see `alignment`.

grid        a ladder of WIDTHS widths, and a second scan around the best of them
evolution   SciPy's differential evolution of (c, log r), one scan for each population
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from dasrel.engine.checkpoint import CheckpointWriter
from dasrel.engine.relation import Relation
from dasrel.errors import InputError
from dasrel.geometry.kernel_width import check_widths
from dasrel.judging.alignment import Surface, Width, surface
from dasrel.partition.result import Partition
from dasrel.partition.run import Run
from dasrel.util import Float, html, progress
from dasrel.util.option_fields import RUNNING, check_fields, option, same
from dasrel.util.text import count_text, shown, time_text

WIDTHS = 12
"""Widths of the first scan of a grid, ..."""
NARROWEST = 1 / 16
"""... from this share of the widest."""
FINER = 4
"""Widths on each side of the best one in the second scan, within one step of the first."""
PHASE = "search"
"""The name of the search in a checkpoint."""


@dataclass(frozen=True)
class Evolution:
    """Settings of the evolutionary search; those of Q09's table 1 by default."""

    population: int = option(50, "Widths of a population of the evolution.", RUNNING, metavar="N", least=5)
    generations: int = option(
        65, "Maximum number of generations of the evolution; a scan each.", RUNNING, metavar="N", least=1
    )
    random_state: int = same(Run, "random_state")

    def __post_init__(self) -> None:
        check_fields(self)


@dataclass(frozen=True, eq=False)
class Alignment:
    """Alignments of kernels with partitions; returned by `align`."""

    partitions: tuple[Partition, ...]
    """By number of clusters."""
    widths: tuple[Width, ...]
    """Increasing; a single None where the matrix itself is the kernel."""
    values: Float
    """A(K, P), (partitions, widths)."""
    centred: Float
    """The alignment of the centred matrices, (partitions, widths)."""
    bounds: tuple[float, float] | None
    """The narrowest and the widest that were allowed, where widths were searched."""
    search: str
    scans: int
    seconds: float
    relation: Relation = field(repr=False)

    def __repr__(self) -> str:
        n = self.relation.n_objects
        width = "" if self.width is None else f", width {self.width:.4g}"
        return f"<Alignment: {count_text(n, 'object')}, {self.n_clusters} clusters{width}: {self.alignment:.4f}>"

    def _repr_html_(self) -> str:
        rows = []
        for k, partition in enumerate(self.partitions):
            at = int(self.values[k].argmax())
            width = "none" if self.widths[at] is None else f"{self.widths[at]:.4g}"
            sound = "yes" if partition.result.is_sound else "no"
            best = "best" if k == self.best()[0] else ""
            rows.append((partition.result.run.n_clusters, width, f"{self.values[k, at]:.4f}", sound, best))
        facts = [("objects", f"{self.relation.n_objects:,}"), ("widths", f"{len(self.widths):,}"),
                 ("scans", f"{self.scans:,} in {time_text(self.seconds)}")]  # fmt: skip
        return html.card("Alignment", facts, html.table(("clusters", "width", "alignment", "distinct", ""), rows))

    @property
    def sound(self) -> NDArray[np.bool_]:
        """Whether all clusters of each partition are distinct and have objects; others are not chosen."""
        return np.array([partition.result.is_sound for partition in self.partitions])

    def best(self, by: Literal["alignment", "centred"] = "alignment") -> tuple[int, int]:
        """Return the positions of the best partition and the best width; the first of equal ones."""
        if by not in ("alignment", "centred"):
            raise InputError(f"by is alignment or centred, not {shown(by)!r}")
        return _best(self.values if by == "alignment" else self.centred, self.sound)

    @property
    def partition(self) -> Partition:
        """The best partition."""
        return self.partitions[self.best()[0]]

    @property
    def n_clusters(self) -> int:
        """c*, its number of clusters."""
        return self.partition.result.run.n_clusters

    @property
    def width(self) -> Width:
        """r*, the best width."""
        return self.widths[self.best()[1]]

    @property
    def alignment(self) -> float:
        """A at (c*, r*)."""
        return float(self.values[self.best()])

    def table(self) -> list[dict[str, Any]]:
        """Return a row for each partition and width, plain values."""
        best, sound = self.best(), self.sound
        return [
            {
                "n_clusters": partition.result.run.n_clusters, "rule": partition.result.run.rule, "width": width,
                "alignment": float(self.values[i, j]), "centred": float(self.centred[i, j]),
                "sound": bool(sound[i]), "best": (i, j) == best,
            }
            for i, partition in enumerate(self.partitions)
            for j, width in enumerate(self.widths)
        ]  # fmt: skip

    def by_clusters(self) -> list[dict[str, Any]]:
        """Return a row for each partition: its best width, and the largest alignments over all widths."""
        return [
            {
                "n_clusters": partition.result.run.n_clusters, "rule": partition.result.run.rule,
                "parameters": partition.result.described(), "width": self.widths[int(self.values[i].argmax())],
                "alignment": float(self.values[i].max()), "centred": float(self.centred[i].max()),
                "sound": partition.result.is_sound, "converged": partition.result.converged,
            }
            for i, partition in enumerate(self.partitions)
        ]  # fmt: skip


def search_widths(
    relation: Relation,
    memberships: list[Float],
    sound: NDArray[np.bool_],
    wanted: tuple[Width, ...] | Evolution | None,
    keep: CheckpointWriter,
    *,
    memory: int,
) -> tuple[list[Width], Surface, tuple[float, float] | None]:
    """Return the widths that were tried, increasing, their surface, and the bounds of automatic ones.

    Parameters
    ----------
    memberships
        Of each partition, (c, n).
    sound
        Which partitions may be chosen.
    wanted
        The widths, an evolution, or None for a grid of automatic widths.
    keep
        Saves what was computed after every scan, and returns it without a scan when the search is resumed.

    Cost: one scan for given widths; else one for the bounds and two for a grid, or one for each population.
    """
    tried = _Tried.unpacked(keep.state(PHASE))

    def evaluate(widths: Sequence[Width], note: str) -> Surface:
        def compute() -> Surface:
            progress.current().say(note)
            return surface(relation, memberships, widths, memory=memory)

        return tried.next(widths, compute, lambda: keep.step(PHASE, tried.packed))

    if isinstance(wanted, tuple):
        values = evaluate(wanted, "alignments")
        given = [w for w in wanted if w is not None]
        check_widths(relation, {w: values.densities[:, j] for j, w in enumerate(given)}, memory=memory)
        return list(wanted), values, None
    widest = tried.bound
    if widest is None:
        progress.current().say("bounds of the widths")
        mean = relation.mean(memory=memory)
        if not mean > 0:
            raise InputError("all objects are equal: there is no structure to align with")
        widest = tried.bound = float(np.sqrt(mean / 2))
        keep.step(PHASE, tried.packed)
    low, high = NARROWEST * widest, widest
    if wanted is not None:
        _evolve(wanted, (low, high), sound, evaluate)
    else:
        ladder = np.geomspace(low, high, WIDTHS)
        first = evaluate(ladder.tolist(), "alignments")
        peaks = {_best(values, sound)[1] for values in (first.alignment, first.centred)}
        evaluate(_around(ladder, sorted(peaks)), "alignments around the best width")
    return *tried.sorted(), (min(low, tried.narrowest), high)


def _best(values: Float, sound: NDArray[np.bool_]) -> tuple[int, int]:
    """Return the position of the largest value among the sound partitions, or among all where none is."""
    among = np.where(sound[:, None], values, -np.inf) if sound.any() else values
    i, j = np.unravel_index(int(among.argmax()), among.shape)
    return int(i), int(j)


def _around(ladder: Float, peaks: Sequence[int]) -> list[float]:
    """Return widths between those beside each peak of a ladder; below its first one, but not above its last."""
    step = ladder[1] / ladder[0]
    powers = np.arange(1, FINER + 1) / (FINER + 1)
    finer = {
        float(ladder[j] * step**power)
        for j in peaks
        for power in (*-powers, *powers)
        if power < 0 or j + 1 < len(ladder)
    }
    return sorted(finer)


class _Tried:
    """The widths that were tried and their alignments, in order: what a checkpoint has, and repeats without a scan."""

    def __init__(self, bound: float | None, done: list[tuple[list[Width], Surface]]) -> None:
        self.bound = bound
        """The widest automatic width."""
        self._done = done
        self._next = 0

    def next(self, widths: Sequence[Width], compute: Callable[[], Surface], after: Callable[[], None]) -> Surface:
        """Return the surface of the next widths: computed, or known from before."""
        if self._next == len(self._done):
            self._done.append((list(widths), compute()))
            after()
        self._next += 1
        return self._done[self._next - 1][1]

    @property
    def narrowest(self) -> float:
        """The least width that was tried."""
        return min(float(w) for widths, _ in self._done for w in widths if w is not None)

    def sorted(self) -> tuple[list[Width], Surface]:
        """Return all widths once, increasing, with their surface."""
        every = np.array([w for widths, _ in self._done for w in widths], dtype=np.float64)
        seen = Surface.joined([values for _, values in self._done])
        widths, first = np.unique(every, return_index=True)
        listed: list[Width] = list(widths.tolist())
        return listed, Surface(*(array[:, first] for array in (seen.alignment, seen.centred, seen.densities)))

    def packed(self) -> dict[str, Any]:
        """Return the state for a checkpoint."""
        done = [{"widths": widths, **vars(values)} for widths, values in self._done]
        return {"bound": self.bound, "done": done}

    @staticmethod
    def unpacked(stored: dict[str, Any] | None) -> _Tried:
        """Return what `packed` returned."""
        if stored is None:
            return _Tried(None, [])
        names = ("alignment", "centred", "densities")
        done = [(record["widths"], Surface(*(record[name] for name in names))) for record in stored["done"]]
        return _Tried(stored["bound"], done)


def _evolve(
    evolution: Evolution,
    bounds: tuple[float, float],
    sound: NDArray[np.bool_],
    evaluate: Callable[[Sequence[Width], str], Surface],
) -> None:
    """Search the largest alignment by differential evolution; every population is one call of `evaluate`.

    The variables are the position among the partitions that may be chosen, a whole number, and the logarithm of the
    width.
    """
    from scipy.optimize import Bounds, differential_evolution

    rows = np.flatnonzero(sound) if sound.any() else np.arange(len(sound))
    generation = 0

    def energies(x: Float) -> Float:
        nonlocal generation
        generation += 1
        widths = np.clip(np.exp(x[-1]), *bounds)
        surface = evaluate(widths.tolist(), f"generation {generation} of at most {evolution.generations + 1}")
        at = rows[np.rint(x[0]).astype(np.intp)] if several else rows[[0] * len(widths)]
        values: Float = -surface.alignment[at, np.arange(len(widths))]
        return values

    least, most = np.log(bounds).tolist()
    several = len(rows) > 1
    search: Any = differential_evolution  # its types do not know of vectorised functions
    search(
        energies,
        Bounds([0.0] * several + [least], [len(rows) - 1.0] * several + [most]),
        integrality=[True] * several + [False],
        maxiter=evolution.generations,
        popsize=-(-evolution.population // (1 + several)),
        vectorized=True,
        updating="deferred",
        polish=False,
        seed=evolution.random_state,
    )
