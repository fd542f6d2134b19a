"""Find the number of clusters of a STORE, and the width of a Gaussian kernel that shows the same structure.

They are chosen together, by the maximum of their alignment (Q09). A kernel K(r) = exp(-D / (2 r^2)) and the proximity
matrix P(c) of a fuzzy partition into c clusters both say how near objects are. Where (c, r) fit the structure of the
data the two are most alike: A(K, P) of `judging.alignment` is largest.

Partitions for all c come from one bundle of runs, by default of fcm1 with a fuzzifier that is 2, Q09's, wherever that
does not blur clusters, and of fcm2 where the matrix is a kernel. Then the surface A(c, r) is searched
(`alignment_search`), one scan for all partitions and any number of widths.

What is excluded. A wide kernel is a constant, and so is P where all memberships are 1/c: their alignment is 1 and says
nothing. Hence c >= 2, automatic widths are at most the root mean square distance of objects to their mean,
sqrt(mean D / 2), and partitions with flat, coincident or empty clusters are shown but not chosen, unless there are no
others. The centred alignment, which is given beside A, has no such bias. Where the two disagree, groups of groups are
the usual reason: A prefers the few large ones.

result.json      options, results, scans, times, versions
alignment.csv    one line for every partition and width
labels.csv       of the best partition, with memberships.npy and model.npz, as `dasrel cluster` writes them
alignment.png    the alignments, and the kernel in the order of the clusters
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal

import numpy as np

from dasrel.cmeans.fit import cluster
from dasrel.cmeans.plan import plan_clustering
from dasrel.cmeans.starts import checked_runs, stored_run
from dasrel.commands.base import Lines, Operation, PreparedFolder, Result, Target
from dasrel.engine.checkpoint import Checkpoint, checkpoint_writer, watched
from dasrel.engine.relation import Relation, as_dissimilarity
from dasrel.errors import DasrelWarning, InputError
from dasrel.judging.alignment import Width, batches, surface_memory
from dasrel.judging.alignment_search import FINER, WIDTHS, Alignment, Evolution, search_widths
from dasrel.names import RULES, SEARCHES, TAKES, RuleName, SearchName, is_similarity
from dasrel.oneclass.run import OneClassRun
from dasrel.partition.files import save_partition
from dasrel.partition.run import Run, grid
from dasrel.report.page_parts import ResultPart, Section, percent, table
from dasrel.report.pieces import downloads, drawing, scans_fact, store_sections
from dasrel.report.result_reading import Source
from dasrel.report.verdict import alignment_verdict
from dasrel.store.matrix import open_matrix
from dasrel.util import limits, progress
from dasrel.util.limits import Cost, Output, Range
from dasrel.util.option_fields import RUNNING, as_number, memory_option, option, picture_option, same
from dasrel.util.results import draw_or_warn, versions, write_csv
from dasrel.util.text import count_text, did_you_mean, group_sizes, shown, some

COMMAND = "align"
MOST_CLUSTERS = 10
"""The largest number of clusters that is tried if none is given."""
N_INIT = 5
"""Runs of each number of clusters."""
BORDER = 0.9
"""Objects whose largest membership is below this are on a border, as in `dasrel cluster`."""
PICTURE_BYTES = 200_000
OF_RUNS = ("fuzzifier", "n_init", "random_state", "max_iter", "on_negative")
"""Options for the runs of a rule that is named."""
OF_EVOLUTIONS = ("population", "generations")
of_run = partial(same, Run)
of_evolution = partial(same, Evolution)


# ruff: noqa: RUF009 - `option` returns a dataclass field
@dataclass(frozen=True)
class AlignOptions:
    """How to find the number of clusters and the width of a kernel that agree best."""

    n_clusters: list[int] | None = of_run(
        "n_clusters", default=None, least=2,
        help="Numbers of clusters; 2-10 if not given, and no more than half of the objects.",
    )  # fmt: skip
    width: list[Literal["auto", "none"] | float] = same(OneClassRun, "width", listed=True)
    search: SearchName = option(
        "grid", "A grid of widths, refined around the best, or an evolution of populations.", RUNNING
    )
    population: int = of_evolution("population")
    generations: int = of_evolution("generations")
    rule: RuleName | None = of_run(
        "rule", default=None,
        help=f"Rule of the partitions: one of {', '.join(RULES)}; fcm1 if not given, for similarities and kernels"
        " fcm2.",
    )  # fmt: skip
    fuzzifier: float | None = of_run("fuzzifier", help="Fuzzifier m of fcm1, auto if not given, or of pcm1.")
    n_init: int = option(N_INIT, "Restarts of each number of clusters.", RUNNING, metavar="N", least=1)
    random_state: int = of_run("random_state")
    max_iter: int = of_run("max_iter", rare=False)
    on_negative: Literal["error", "heal"] = of_run("on_negative", default="heal")
    picture: bool = picture_option("Draw the alignments, and the kernel in the order of the clusters.", RUNNING)
    memory: int | str | None = memory_option(RUNNING, effort=True)

    def __post_init__(self) -> None:
        if self.fuzzifier is not None and self.rule not in (None, *TAKES["fuzzifier"]):
            raise InputError(f"fuzzifier is for {' and '.join(TAKES['fuzzifier'])}, not {self.rule}")
        for name in OF_EVOLUTIONS:
            if self.search != "evolution" and getattr(self, name) != getattr(Evolution, name):
                raise InputError(
                    f"{name} is for an evolution",
                    remedy=f"leave {{{name}}} out, or say {{search=evolution}}",
                    option=name,
                )
        if len(self.width) > 1 and any(isinstance(width, str) for width in self.width):
            raise InputError("auto and none stand alone", remedy="give one of them as the width, or numbers")


class Align(Operation):
    name = COMMAND
    example = "dasrel align distances.zarr out --clusters 2-10"
    Options = AlignOptions
    saves = ("cluster", COMMAND)
    is_step = True
    summarized = ("n_objects", "converged", "n_clusters", "width", "alignment")
    marks = {"align": frozenset({"alignment", "partitions", "centred_best"})}  # noqa: RUF012

    def prepare(self, source: str, target: Target, options: AlignOptions) -> PreparedAlignment:
        """Check the options, the store and the result folder. Cost: no tile is read."""
        target.check(source)
        matrix = open_matrix(source)
        single = options.width[0]
        width: Any = options.width if not isinstance(single, str) else None if single == "none" else single
        given = {name: getattr(options, name) for name in (*OF_RUNS, *OF_EVOLUTIONS)}
        if options.search != "evolution":
            given = {name: given[name] for name in OF_RUNS}
        job = prepare_alignment(
            matrix, n_clusters=options.n_clusters, width=width, rule=options.rule, search=options.search,
            memory=options.memory, **{name: value for name, value in given.items() if value is not None},
        )  # fmt: skip
        header = target.header(source, matrix.identity_digest(), options)
        return PreparedAlignment(options, job, target=target, header=header)

    def lines(self, result: Result) -> Lines:
        """Return what is printed of an alignment."""
        other, bounds = result["centred_best"], result["width_bounds"]
        lines = [
            ("results", shown(result["out"], limit=400)),
            ("objects", f"{result['n_objects']:,}, kind {result['kind']}"),
            ("scans", f"{result['scans']:,} in {result['seconds']:.1f} s"),
            (
                "clusters",
                f"{result['n_clusters']}, {result['parameters']}, sizes {group_sizes(result['sizes'])}",
            ),
            ("width", _width(result["width"], bounds)),
            ("alignment", f"{result['alignment']:.4f}, centred {result['centred']:.4f}"),
        ]
        if other["n_clusters"] != result["n_clusters"]:
            at = "" if other["width"] is None else f" and width {other['width']:.4g}"
            text = f"is largest at {count_text(other['n_clusters'], 'cluster')}{at}: {other['centred']:.4f}"
            parts = "; groups may be parts of larger groups" if other["n_clusters"] > result["n_clusters"] else ""
            lines.append(("centred", text + parts))
        for row in result["partitions"]:
            at = "" if row["width"] is None else f" at width {row['width']:.4g}"
            sound = "" if row["sound"] else "; not chosen: clusters coincide or are empty"
            text = f"alignment {row['alignment']:.4f}{at}, centred {row['centred']:.4f}{sound}"
            lines.append((count_text(row["n_clusters"], "cluster"), text))
        return lines

    def part(self, source: Source) -> ResultPart:
        """Return what a page says of an alignment. Cost: no scan."""
        result, n = source.values, source.values["n_objects"]
        header = ["clusters", "rule", "parameters", "best width", "alignment", "centred", "distinct", "converged"]
        names = ("n_clusters", "rule", "parameters", "width", "alignment", "centred", "sound", "converged")
        rows = [
            [row[name] for name in names]
            for row in result["partitions"]
        ]  # fmt: skip
        text = "The largest alignment of each number of clusters over all widths. What is not distinct is not chosen."
        sizes = [[k, size, percent(size / n)] for k, size in enumerate(result["sizes"])]
        alt = "Alignment of every number of clusters and width, and the kernel in the order of the best clusters."
        caption = (
            "The brightest field is the number of clusters and the width that agree best. In the kernel dark squares on"
            " the diagonal are clusters."
        )
        sections = [
            Section("Numbers of clusters", [table("partitions", header, rows, text)]),
            Section("Clusters", [table("clusters", ["cluster", "objects", "share"], sizes, "Of the best partition."),
                                 *downloads(source.file("labels.csv"), "labels")]),
            Section("All widths", [*drawing(source, "alignment.png", alt, caption),
                                   *downloads(source.file("alignment.csv"), "alignment")]),
            *store_sections(source),
        ]  # fmt: skip
        headline = f"{count_text(result['n_clusters'], 'cluster')} agree best with a kernel, {count_text(n, 'object')}"
        facts = [("objects", f"{n:,}, kind {shown(result.get('kind', ''))}"),
                 ("widths", f"{result['widths']:,}"), scans_fact(result)]  # fmt: skip
        return ResultPart.of(source, "Alignment", headline, alignment_verdict(result), facts, sections)


def _width(width: float | None, bounds: list[float] | None) -> str:
    if width is None:
        return "none, the matrix is the kernel"
    if bounds is None:
        return f"{width:.6g}"
    text = f"{width:.6g}, searched from {bounds[0]:.4g} to {bounds[1]:.4g}"
    return text + ("; at the bound, prefer the centred alignment" if width >= 0.999 * bounds[1] else "")


@dataclass(eq=False)
class PreparedAlignment(PreparedFolder):
    """An alignment to be found and written."""

    options: AlignOptions
    job: AlignJob

    def compute(self, checkpoint: Checkpoint | None) -> Result:
        """Find the best alignment, and write the result folder. Cost: that of `align`, and one scan for the picture."""
        from dasrel.report.figures.alignment import draw_alignment

        with watched(checkpoint, *OPERATION.saves):
            alignment = self.job.run(checkpoint)
            result = {**self.header, **_summary(alignment)}
            with self.folder(result) as folder:
                rows = alignment.table()
                lines = (list(row.values()) for row in rows)
                write_csv(folder / "alignment.csv", list(rows[0]), lines)
                save_partition(alignment.partition, folder, None, BORDER)
                if self.options.picture:
                    with progress.watch() as counted:
                        draw_or_warn(draw_alignment, alignment, folder)
                    result["scans"] += counted.scans
        return result

    def cost(self) -> Cost:
        """Estimate the cost of `run`; raise `MemoryLimitError` where it would. Cost: a few tiles are read."""
        job, options = self.job, self.options
        plan = plan_clustering(
            job.relation, job.runs, memory=options.memory, workers={"counts": [1]}, probe_seconds=0.01
        )
        count = job.widths_at_once
        widths: list[float | None] = [1.0] * count if job.widths != (None,) else [None]
        divided = len(batches(job.relation, job.clusters, widths, memory=job.room))
        memory = job.held + surface_memory(job.relation, job.clusters, widths, memory=job.room)
        most = 1 if job.widths is not None else 2
        searched = Range(most, most, most)
        if job.evolution is not None:
            searched = Range(2, 15, job.evolution.generations + 1)  # Iris and Gaussian groups: 8 to 20
        each = Range(divided, divided, divided)
        scans = plan.scans + Range(*(getattr(searched, k) * getattr(each, k) for k in ("least", "typical", "most")))
        scans += Range(1, 1, 1) if job.widths is None else Range(0, 0, 0)
        scans += Range(1, 1, 1) if options.picture else Range(0, 0, 0)
        n, partitions = job.relation.n_objects, len(job.clusters) - 1
        tried = count + 12 if job.evolution is None else int(searched.typical) * count
        size = n * (60 + 16 * max(run.n_clusters for run in job.runs)) + 80 * partitions * tried
        outputs = (Output(str(self.out), size + PICTURE_BYTES * options.picture),)
        facts = {"partitions": partitions, "runs": len(job.runs), "widths": count}
        return Cost(COMMAND, n, scans, job.relation.matrix.layout.total_bytes, max(plan.memory, memory), outputs, facts)


def _summary(alignment: Alignment) -> dict[str, Any]:
    """Return an alignment in plain values, for JSON."""
    source = alignment.relation.matrix
    return {
        "n_objects": source.n_objects,
        "kind": source.kind,
        "search": alignment.search,
        **_at(alignment, *alignment.best()),
        "parameters": alignment.partition.result.described(),
        "sizes": alignment.partition.sizes.tolist(),
        "centred_best": _at(alignment, *alignment.best("centred")),
        "width_bounds": None if alignment.bounds is None else list(alignment.bounds),
        "widths": len(alignment.widths),
        "partitions": alignment.by_clusters(),
        "converged": all(partition.result.converged for partition in alignment.partitions),
        "scans": alignment.scans,
        "seconds": round(alignment.seconds, 3),
        "versions": versions(),
    }


def _at(alignment: Alignment, i: int, j: int) -> dict[str, Any]:
    run = alignment.partitions[i].result.run
    return {
        "n_clusters": run.n_clusters, "width": alignment.widths[j], "alignment": float(alignment.values[i, j]),
        "centred": float(alignment.centred[i, j]),
    }  # fmt: skip


# ------------------------------------------------------------------------------------------------------- in Python


def align(
    matrix: Any,
    *,
    n_clusters: int | Sequence[int] | None = None,
    width: float | Sequence[float] | Literal["auto"] | None = "auto",
    rule: str | Sequence[Run] | None = None,
    search: str | Evolution = "grid",
    kind: str | None = None,
    memory: int | str | None = None,
    checkpoint: Checkpoint | None = None,
    **parameters: Any,
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
        The rule of the partitions: by default fcm1, and fcm2 for kinds similarity and kernel (memberships of fcm1 are
        nearly equal where a kernel is narrow). Or runs from `grid`, whose numbers of clusters are used.
    search
        "grid"; "evolution", with the population and generations of Q09; or an `Evolution`.
    memory
        Memory that may be used on this machine, such as "2GiB"; by default half of the machine's.
    checkpoint
        Saves the state between scans, to be resumed to the same bits.
    parameters
        Of the runs of a named rule, as `grid` takes them, such as n_init (by default 5), fuzzifier, random_state and
        max_iter. By default negative distances are healed (on_negative="heal", K14), so that any matrix can be given.
        And population and generations of search "evolution".

    Cost: the scans of `cluster` for these runs. After them one for the bounds of automatic widths, and for "grid" two,
    one if widths are given or the matrix is the kernel; for "evolution" one for each population, at most 66 with its
    default. 32 n bytes for each cluster of all partitions, and 40 n for each width.
    """
    return prepare_alignment(
        matrix, n_clusters=n_clusters, width=width, rule=rule, search=search, kind=kind, memory=memory, **parameters
    ).run(checkpoint)


def prepare_alignment(
    matrix: Any,
    *,
    n_clusters: int | Sequence[int] | None = None,
    width: float | Sequence[float] | Literal["auto"] | None = "auto",
    rule: str | Sequence[Run] | None = None,
    search: str | Evolution = "grid",
    kind: str | None = None,
    memory: int | str | None = None,
    **parameters: Any,
) -> AlignJob:
    """Check the arguments of `align` against the matrix. Cost: no tile is read."""
    relation = as_dissimilarity(matrix, kind)
    n, source = relation.n_objects, relation.matrix
    if isinstance(search, str) and search not in SEARCHES:
        raise InputError(f"no search {shown(search)!r}", remedy=did_you_mean(search, SEARCHES))
    if not isinstance(search, (str, Evolution)):
        raise InputError(f"search is {shown(search)}", remedy=f"give {' or '.join(SEARCHES)}, or a dasrel.Evolution")
    widths = _checked_widths(width, relation)
    settings = {name: parameters.pop(name) for name in OF_EVOLUTIONS if name in parameters}
    if settings and search != "evolution":
        raise InputError(f"{some(settings)} without an evolution", remedy="say {search=evolution}")
    evolution = search if isinstance(search, Evolution) else None
    if search == "evolution":
        evolution = Evolution(**settings, random_state=parameters.get("random_state", Evolution.random_state))
    if evolution is not None and widths is not None:
        raise InputError(
            "an evolution searches the width, and it is given", remedy="leave {width} out, or say {search=grid}"
        )
    if rule is None:
        rule = "fcm1" if "fuzzifier" in parameters else default_rule(source.kind)
    if isinstance(rule, str):
        if rule not in RULES:
            raise InputError(f"no rule {shown(rule)!r}", remedy=did_you_mean(rule, RULES))
        runs = grid(
            rule,
            numbers_of_clusters(n_clusters, n),
            **{"n_init": N_INIT, "on_negative": "heal", "exact": True, **parameters},
        )
    else:
        if n_clusters is not None:
            raise InputError("runs have their numbers of clusters", remedy="leave {n_clusters} out")
        if parameters:
            raise InputError("runs have their parameters", remedy=f"leave {{{next(iter(parameters))}}} out")
        runs = list(rule)
    runs = checked_runs(runs, n, source.ids, source.diagonal)
    if any(run.n_clusters < 2 for run in runs):
        raise InputError(
            "a partition into one cluster is aligned with any wide kernel", remedy="give at least 2 clusters"
        )
    if relation.largest() == 0:
        raise InputError("all objects are equal: there is no structure to align with")
    return AlignJob(relation, runs, widths, evolution, memory)


def default_rule(kind: str) -> str:
    """Return the rule of partitions if none is given.

    Measured on 2 to 6 Gaussian groups and Iris, given as kernels of a fifth and of half of the root mean square
    distance: fcm2 found the number of groups in 7 of 10 cases, fcm1 in 3.
    """
    return "fcm2" if is_similarity(kind) else "fcm1"


def numbers_of_clusters(n_clusters: Any, n: int) -> list[int]:
    """Return the numbers of clusters to try for n objects, increasing; by default up to `MOST_CLUSTERS`."""
    if n_clusters is None:
        return list(range(2, min(MOST_CLUSTERS, max(2, n // 2)) + 1))
    several = [n_clusters] if np.ndim(n_clusters) == 0 else list(n_clusters)
    if not several:
        raise InputError(
            "n_clusters is empty", remedy="give numbers of clusters, such as range(2, 11)", option="n_clusters"
        )
    wrong = [count for count in several if not (as_number(count) >= 2 and as_number(count) % 1 == 0)]
    if wrong:
        raise InputError(
            f"n_clusters is {some(map(shown, wrong))}",
            remedy="give whole numbers of at least 2; one cluster is aligned with any wide kernel",
            option="n_clusters",
        )
    if max(several) > n:
        raise InputError(
            f"n_clusters is {max(several)} for {count_text(n, 'object')}", remedy=f"give 2 to {n}", option="n_clusters"
        )
    return sorted({int(count) for count in several})


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
            raise InputError("a view of a kernel is no kernel", remedy="give the matrix itself, or a width")
        return (None,)
    several = [width] if np.ndim(width) == 0 else list(width)
    if not several:
        raise InputError("width is empty", remedy="give numbers above 0, or auto", option="width")
    wrong = [number for number in several if not 0 < as_number(number) < float("inf")]
    if wrong:
        raise InputError(f"width is {some(map(shown, wrong))}", remedy="give numbers above 0, or auto", option="width")
    relation.gaussian(1.0)
    return tuple(sorted({float(number) for number in several}))


@dataclass(frozen=True, eq=False)
class AlignJob:
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
            clustering = cluster(relation, self.runs, memory=self.memory, checkpoint=checkpoint)
            partitions = tuple(sorted(clustering.partitions, key=lambda partition: partition.result.run.n_clusters))
            sound = np.array([partition.result.is_sound for partition in partitions])
            with checkpoint_writer(checkpoint, COMMAND, about) as keep:
                widths, seen, bounds = search_widths(
                    relation, [partition.memberships.T for partition in partitions], sound,
                    self.widths or self.evolution, keep, memory=self.room,
                )  # fmt: skip
                scans, seconds = clustering.scans + keep.scans, clustering.seconds + keep.seconds
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


OPERATION = Align()
