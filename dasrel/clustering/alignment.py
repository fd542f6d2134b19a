"""Choose the number of clusters and the width of a kernel together: the maximum of their alignment (Q09).

A kernel K(r) = exp(-D / (2 r^2)) and the proximity matrix P(c) of a fuzzy partition into c clusters both say how near
objects are. Where (c, r) fit the structure of the data the two are most alike: A(K, P) of `alignment_scan` is largest.

Partitions for all c come from one bundle of runs, by default of fcm1 with a fuzzifier that is 2, Q09's, wherever that
does not blur clusters. Then the surface A(c, r) is computed, one scan for all partitions and any number of widths:

    grid        a ladder of WIDTHS widths, and a second scan around the best of them
    evolution   SciPy's differential evolution of (c, log r), one scan for each population

What is excluded. A wide kernel is a constant, and so is P where all memberships are 1/c: their alignment is 1 and says
nothing. Hence c >= 2, automatic widths are at most the root mean square distance of objects to their mean,
sqrt(mean D / 2), and partitions with flat, coincident or empty clusters are shown but not chosen, unless there are no
others. The centred alignment, which is given beside A, has no such bias. Where the two disagree, groups of groups are
the usual reason: A prefers the few large ones.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from dasrel.clustering.alignment_scan import Surface, Width, surface
from dasrel.clustering.fit import cluster
from dasrel.clustering.oneclass import check_widths
from dasrel.clustering.runs import Partition, Run, checked_runs, grid, stored_run
from dasrel.clustering.typicality import as_number
from dasrel.engine.checkpoint import Checkpoint, CheckpointWriter, checkpoint_writer, watched
from dasrel.engine.relation import Relation, as_dissimilarity
from dasrel.errors import DasrelWarning, InputError
from dasrel.util import Float, limits, progress
from dasrel.util.text import count_text, did_you_mean, shown, some
from dasrel.vocabulary import RULES, SEARCHES, is_similarity

COMMAND = "align"
MOST_CLUSTERS = 10
"""The largest number of clusters that is tried if none is given."""
N_INIT = 5
"""Runs of each number of clusters."""
WIDTHS = 12
"""Widths of the first scan of a grid, ..."""
NARROWEST = 1 / 16
"""... from this share of the widest."""
FINER = 4
"""Widths on each side of the best one in the second scan, within one step of the first."""


@dataclass(frozen=True)
class Evolution:
    """Settings of the evolutionary search; those of Q09's table 1 by default."""

    population: int = 50
    generations: int = 65
    random_state: int = 0

    def __post_init__(self) -> None:
        for name, least in (("population", 5), ("generations", 1), ("random_state", 0)):
            value = as_number(getattr(self, name))
            if not (value >= least and value % 1 == 0):
                raise InputError(f"{name} is {shown(getattr(self, name))}: give a whole number of at least {least}")


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

    @property
    def sound(self) -> NDArray[np.bool_]:
        """Whether all clusters of each partition are distinct and have objects; others are not chosen."""
        return np.array([one.result.is_sound for one in self.partitions])

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
                "n_clusters": one.result.run.n_clusters, "rule": one.result.run.rule, "width": width,
                "alignment": float(self.values[i, j]), "centred": float(self.centred[i, j]),
                "sound": bool(sound[i]), "best": (i, j) == best,
            }
            for i, one in enumerate(self.partitions)
            for j, width in enumerate(self.widths)
        ]  # fmt: skip

    def by_clusters(self) -> list[dict[str, Any]]:
        """Return a row for each partition: its best width, and the largest alignments over all widths."""
        return [
            {
                "n_clusters": one.result.run.n_clusters, "rule": one.result.run.rule,
                "parameters": one.result.described(), "width": self.widths[int(self.values[i].argmax())],
                "alignment": float(self.values[i].max()), "centred": float(self.centred[i].max()),
                "sound": one.result.is_sound, "converged": one.result.converged,
            }
            for i, one in enumerate(self.partitions)
        ]  # fmt: skip


def align(
    matrix: Any,
    *,
    n_clusters: int | Sequence[int] | None = None,
    width: float | Sequence[float] | Literal["auto"] | None = "auto",
    rule: str | Sequence[Run] = "fcm1",
    search: str | Evolution = "grid",
    kind: str | None = None,
    memory: int | str | None = None,
    checkpoint: Checkpoint | None = None,
) -> Alignment:
    """Find the number of clusters and the width of a Gaussian kernel at which partition and kernel agree best (Q09).

    Parameters
    ----------
    matrix
        An open matrix, a store's path or URL, an array with its `kind`, or a `Relation`.
    n_clusters
        Numbers to try, at least 2; by default 2 to 10, and no more than half of the objects.
    width
        "auto" searches between two bounds; see the module. A number or several are taken as they are. For kinds
        similarity and kernel "auto" is None: the matrix itself is the kernel, and only n_clusters is searched.
    rule
        The rule of the partitions, with its usual parameters, or runs from `grid`, whose numbers of clusters are used.
        The runs of a named rule heal negative distances (K14), so that any matrix can be given.
    search
        "grid"; "evolution", with the population and generations of Q09; or an `Evolution`.
    memory
        Memory that may be used on this machine, such as "2GiB"; by default half of the machine's.
    checkpoint
        Saves the state between scans, to be resumed to the same bits.

    Cost: the scans of `cluster` for these runs. After them one for the bounds of automatic widths, and for "grid" two,
    one if widths are given or the matrix is the kernel; for "evolution" one for each population, at most 66 with its
    default. 32 n bytes for each cluster of all partitions, and 40 n for each width.
    """
    return prepare_alignment(
        matrix, n_clusters=n_clusters, width=width, rule=rule, search=search, kind=kind, memory=memory
    ).run(checkpoint)


def prepare_alignment(
    matrix: Any,
    *,
    n_clusters: int | Sequence[int] | None = None,
    width: float | Sequence[float] | Literal["auto"] | None = "auto",
    rule: str | Sequence[Run] = "fcm1",
    search: str | Evolution = "grid",
    kind: str | None = None,
    memory: int | str | None = None,
) -> PreparedAlignment:
    """Check the arguments of `align` against the matrix. Cost: no tile is read."""
    relation = as_dissimilarity(matrix, kind)
    n, source = relation.n_objects, relation.matrix
    if isinstance(search, str) and search not in SEARCHES:
        raise InputError(f"no search {shown(search)!r}; {did_you_mean(search, SEARCHES)}")
    if not isinstance(search, (str, Evolution)):
        raise InputError(f"search is {shown(search)}: give {' or '.join(SEARCHES)}, or a dasrel.Evolution")
    widths = _checked_widths(width, relation)
    evolution = Evolution() if search == "evolution" else search if isinstance(search, Evolution) else None
    if evolution is not None and widths is not None:
        raise InputError("an evolution searches the width: leave width out", remedy="or say {search=grid}")
    if isinstance(rule, str):
        if rule not in RULES:
            raise InputError(f"no rule {shown(rule)!r}; {did_you_mean(rule, RULES)}")
        runs = grid(rule, numbers_of_clusters(n_clusters, n), n_init=N_INIT, on_negative="heal")
    else:
        if n_clusters is not None:
            raise InputError("runs have their numbers of clusters: leave n_clusters out")
        runs = list(rule)
    runs = checked_runs(runs, n, source.ids, source.diagonal)
    if any(run.n_clusters < 2 for run in runs):
        raise InputError("a partition into one cluster is aligned with any wide kernel: give at least 2 clusters")
    if relation.largest() == 0:
        raise InputError("all objects are equal: there is no structure to align with")
    return PreparedAlignment(relation, runs, widths, evolution, memory)


def numbers_of_clusters(n_clusters: Any, n: int) -> list[int]:
    """Return the numbers of clusters to try for n objects, increasing; by default up to `MOST_CLUSTERS`."""
    if n_clusters is None:
        return list(range(2, min(MOST_CLUSTERS, max(2, n // 2)) + 1))
    several = [n_clusters] if np.ndim(n_clusters) == 0 else list(n_clusters)
    if not several:
        raise InputError("n_clusters is empty: give numbers of clusters, such as range(2, 11)")
    wrong = [one for one in several if not (as_number(one) >= 2 and as_number(one) % 1 == 0)]
    if wrong:
        raise InputError(
            f"n_clusters is {some(map(shown, wrong))}: give whole numbers of at least 2; one cluster is aligned with"
            " any wide kernel"
        )
    if max(several) > n:
        raise InputError(f"n_clusters is {max(several)} for {count_text(n, 'object')}: give 2 to {n}")
    return sorted({int(one) for one in several})


def _checked_widths(width: Any, relation: Relation) -> tuple[Width, ...] | None:
    """Return the given widths, increasing, or None where they are searched."""
    similar = is_similarity(relation.matrix.kind)
    if isinstance(width, str) and width == "auto":
        if similar and not (relation.view.steps or relation.beta or relation.terms):
            return (None,)
        relation.gaussian(1.0)  # raises where a kernel cannot follow
        return None
    if width is None:
        if not similar:
            raise InputError(
                f"kind {relation.matrix.kind} is no kernel and needs a width", remedy="say {width=auto} or a number"
            )
        if relation.view.steps or relation.beta or relation.terms:
            raise InputError("a view of a kernel is no kernel: give the matrix itself, or a width")
        return (None,)
    several = [width] if np.ndim(width) == 0 else list(width)
    if not several:
        raise InputError("width is empty: give numbers above 0, or auto")
    wrong = [one for one in several if not 0 < as_number(one) < float("inf")]
    if wrong:
        raise InputError(f"width is {some(map(shown, wrong))}: give numbers above 0, or auto")
    relation.gaussian(1.0)
    return tuple(sorted({float(one) for one in several}))


@dataclass(frozen=True, eq=False)
class PreparedAlignment:
    """An alignment with checked arguments, to be run or estimated."""

    relation: Relation
    runs: list[Run]
    widths: tuple[Width, ...] | None
    """None where they are searched."""
    evolution: Evolution | None
    memory: int | str | None

    @property
    def search(self) -> str:
        """The name of the search."""
        return "grid" if self.evolution is None else "evolution"

    @property
    def clusters(self) -> list[int]:
        """The first cluster of each partition among those of all, and their number."""
        numbers = [key[1] for key in dict.fromkeys(run.setting for run in self.runs)]
        return [0, *np.cumsum(numbers).tolist()]

    @property
    def held(self) -> int:
        """Bytes of the partitions, which are held while alignments are computed."""
        return 24 * self.relation.n_objects * self.clusters[-1]

    @property
    def room(self) -> int:
        """Bytes that are left beside them."""
        return max(1, limits.memory_limit(self.memory) - self.held)

    @property
    def widths_at_once(self) -> int:
        """The most widths that share a scan, if memory allows it."""
        if self.evolution is not None:
            return self.evolution.population + 1
        return max(WIDTHS, 4 * FINER) if self.widths is None else len(self.widths)

    def run(self, checkpoint: Checkpoint | None = None) -> Alignment:
        """Cluster, search, and return the alignments; see `align`."""
        relation = self.relation

        def about() -> dict[str, Any]:
            widths = "auto" if self.widths is None else list(self.widths)
            known = {"relation": relation.identity(), "run": [stored_run(run) for run in self.runs], "width": widths}
            return known | {"search": None if self.evolution is None else vars(self.evolution)}

        with watched(checkpoint, "cluster", COMMAND):
            found = cluster(relation, self.runs, memory=self.memory, checkpoint=checkpoint)
            partitions = tuple(sorted(found.partitions, key=lambda one: one.result.run.n_clusters))
            sound = np.array([one.result.is_sound for one in partitions])
            with checkpoint_writer(checkpoint, COMMAND, about) as keep:
                widths, seen, bounds = self._searched([one.memberships.T for one in partitions], sound, keep)
                scans, seconds = found.scans + keep.scans, found.seconds + keep.seconds
        if not sound.any():
            warnings.warn(
                DasrelWarning(
                    "no partition has distinct clusters that all have objects: alignments say little",
                    remedy="try another {rule}",
                ),
                stacklevel=3,
            )
        return Alignment(
            partitions, tuple(widths), seen.alignment, seen.centred, bounds, self.search, scans, seconds, relation
        )

    def _searched(
        self, memberships: list[Float], sound: NDArray[np.bool_], keep: CheckpointWriter
    ) -> tuple[list[Width], Surface, tuple[float, float] | None]:
        """Return the widths that were tried, increasing, their surface, and the bounds of automatic ones."""
        relation = self.relation
        tried = _Tried.unpacked(keep.state(COMMAND))

        def evaluate(widths: Sequence[Width], note: str) -> Surface:
            def compute() -> Surface:
                progress.current().say(note)
                return surface(relation, memberships, widths, memory=self.room)

            return tried.next(widths, compute, lambda: keep.step(COMMAND, tried.packed))

        if self.widths is not None:
            found = evaluate(self.widths, "alignments")
            given = [w for w in self.widths if w is not None]
            check_widths(relation, {w: found.densities[:, j] for j, w in enumerate(given)}, memory=self.memory)
            return list(self.widths), found, None
        widest = tried.bound
        if widest is None:
            progress.current().say("bounds of the widths")
            mean = relation.left(np.ones((1, relation.n_objects)), memory=self.memory).sum() / relation.n_objects**2
            if not mean > 0:
                raise InputError("all objects are equal: there is no structure to align with")
            widest = tried.bound = float(np.sqrt(mean / 2))
            keep.step(COMMAND, tried.packed)
        low, high = NARROWEST * widest, widest
        if self.evolution is not None:
            _evolve(self.evolution, (low, high), sound, evaluate)
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
        seen = Surface.joined([found for _, found in self._done])
        widths, first = np.unique(every, return_index=True)
        listed: list[Width] = list(widths.tolist())
        return listed, Surface(*(one[:, first] for one in (seen.alignment, seen.centred, seen.densities)))

    def packed(self) -> dict[str, Any]:
        """Return the state for a checkpoint."""
        done = [{"widths": widths, **vars(found)} for widths, found in self._done]
        return {"bound": self.bound, "done": done}

    @staticmethod
    def unpacked(stored: dict[str, Any] | None) -> _Tried:
        """Return what `packed` returned."""
        if stored is None:
            return _Tried(None, [])
        names = ("alignment", "centred", "densities")
        done = [(one["widths"], Surface(*(one[name] for name in names))) for one in stored["done"]]
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
        found = evaluate(widths.tolist(), f"generation {generation} of at most {evolution.generations + 1}")
        at = rows[np.rint(x[0]).astype(np.intp)] if several else rows[[0] * len(widths)]
        values: Float = -found.alignment[at, np.arange(len(widths))]
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
