"""Cluster a matrix: initial centres, bundles of runs, the best partition of every setting.

How the best run is chosen. Runs are compared only within a setting: the same rule, number of clusters and parameters,
so that they differ only in their initial memberships. The lowest objective wins, the earlier run on a tie. Two cases:

- healing gives each run its own beta; they are compared at the beta that they began with, where the objective is
  J(beta_0) = J(beta) - (beta - beta_0)/2 (A - B);
- pcm1 and pcm2 estimate eta from the fcm2 run that they begin with, so that each minimises another function; they are
  compared by the objectives of those fcm2 runs (with eta="overall", or given memberships, by their own).

Objectives of different settings are not comparable: a grid has one best run per setting.

A parameter that is "auto" stands for a ladder of values, from which one is chosen; see `ladder`.
"""

from __future__ import annotations

import warnings
import weakref
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from dasrel.cmeans.bundle import BundleResults, run_bundles
from dasrel.cmeans.ladder import (
    Contest,
    Decision,
    Restarts,
    begins_with_fcm2,
    check_eigenvalue_memory,
    decide,
    first_run,
    needs_threshold,
    packed,
    rungs,
    top_eigenvalue,
    unpacked,
)
from dasrel.cmeans.levels import centres_on_all, decide_all
from dasrel.cmeans.result import Clustering
from dasrel.cmeans.run_state import FinishedRun
from dasrel.cmeans.sample import draw_samples, sample_memory, sample_size, second_that_fits
from dasrel.cmeans.starts import checked_runs, starting_spread, stored_run
from dasrel.engine.checkpoint import Checkpoint, CheckpointWriter, checkpoint_writer
from dasrel.engine.relation import Relation, as_dissimilarity
from dasrel.errors import DasrelWarning
from dasrel.judging.groupings import Grouping
from dasrel.judging.structure import sampled_positions
from dasrel.judging.validity import Validity, compute_indices, joined
from dasrel.names import AUTO
from dasrel.partition.model import Model
from dasrel.partition.result import Ladder, LevelReport, Partition, RunResult, Start
from dasrel.partition.rules import SYMBOLS
from dasrel.partition.run import Run, listed_runs
from dasrel.util import Float, limits, progress
from dasrel.util.text import count_text, some


def cluster(
    matrix: Any,
    runs: Run | int | Sequence[Run] | Sequence[int],
    *,
    kind: str | None = None,
    keep_all: bool = False,
    judge: bool = False,
    memory: int | str | None = None,
    checkpoint: Checkpoint | None = None,
) -> Clustering:
    """Run all runs together, one scan per iteration for all of them, and return the best run of every setting.

    Parameters
    ----------
    matrix
        An open matrix, a store's path or URL, an array with its `kind`, or a `Relation`.
    runs
        From `Run` or `grid`; or a number of clusters, or several of them, for what `dasrel cluster --clusters` does:
        rule "auto", 10 restarts.
    kind
        What the numbers of an array are.
    keep_all
        Whether the memberships of all runs are returned, not only those of the best run of every setting.
    judge
        Whether to compute the validity indices of the best run of every setting (`Clustering.quality`).
    memory
        Memory that may be used on this machine, such as "2GiB"; by default half of the machine's. Runs that do not
        fit into one bundle are split into several, with a warning.
    checkpoint
        Saves the state between scans, to be resumed to the same bits.

    Cost: as many scans as the slowest run has iterations. Before them, at most 10 for entropy_weight="auto" and 2 for
    init="sample"; after them, 1 to judge the values of "auto" and the settings. pcm1 and pcm2 with a parameter that is
    "auto" begin when their fcm2 runs have ended. About 44 n c bytes per run (float32) and 24 n c bytes per result that
    is kept.
    """
    prepared = prepare_clustering(matrix, runs, kind=kind, keep_all=keep_all, judge=judge, memory=memory)
    return prepared.run(checkpoint)


def prepare_clustering(
    matrix: Any,
    runs: Run | int | Sequence[Run] | Sequence[int],
    *,
    kind: str | None = None,
    keep_all: bool = False,
    judge: bool = False,
    memory: int | str | None = None,
) -> PreparedClustering:
    """Check the arguments of `cluster` against the matrix. Cost: no tile is read."""
    listed = listed_runs(runs)
    relation = as_dissimilarity(matrix, kind)
    source = relation.matrix
    return PreparedClustering(
        relation, checked_runs(listed, relation.n_objects, source.ids, source.diagonal), keep_all, judge, memory
    )


@dataclass(frozen=True, eq=False)
class PreparedClustering:
    """A clustering with checked arguments, to be run, or to be estimated by `plan_clustering`."""

    relation: Relation
    runs: list[Run]
    keep_all: bool
    judge: bool
    memory: int | str | None
    index: str | None = "fuzzy_silhouette"
    """The validity index that recommends one of several numbers of clusters: "silhouette", "fuzzy_silhouette", or None
    for another one, by which samples cannot decide, so that all of them are iterated on all objects."""

    def run(self, checkpoint: Checkpoint | None) -> Clustering:
        """Run it; see `cluster`."""
        relation, runs, notes = self.relation, self.runs, _Warnings()
        if any(run.rule == "hard" and (run.spread or relation.beta) for run in runs):
            notes.add(
                "the rule hard runs without the spread: its objective is the same, but a spread freezes its steps"
            )
            runs = [run.changed(spread=0.0) if run.rule == "hard" else run for run in runs]
        needs_eigenvalue = any(map(needs_threshold, runs))
        if needs_eigenvalue:
            check_eigenvalue_memory(relation, memory=self.memory)

        def about() -> dict[str, Any]:
            given = [stored_run(run) for run in runs]
            for options in given:
                if options["init"] != "sample":
                    del options["exact"]  # of samples only
            return {"relation": relation.identity(), "keep_all": self.keep_all, "run": given}

        with checkpoint_writer(checkpoint, "cluster", about) as keep:
            first: dict[str, Any] = {"eigenvalue": None, "scans": 0}
            if needs_eigenvalue:
                first = top_eigenvalue(relation, self.memory, keep)
            if needs_eigenvalue and not first["eigenvalue"] > 0:
                notes.add("all objects are equal, so that the automatic entropy weight has no value: 1 was used")
            stages = _Stages(self, first["eigenvalue"], keep, notes)
            winners = stages.run(runs)
            quality = stages.judge_winners(winners, required=self.judge)
            scans, seconds = keep.scans, keep.seconds
            first_scans = first["scans"] + stages.sample_scans

        results = tuple(row for done in stages.done for row in done.results())
        _check_results(
            results, [winner.finished.result for winner in winners], first["eigenvalue"], relation.n_objects, notes
        )
        return Clustering(
            tuple(_partition(relation, winner.finished) for winner in winners),
            tuple(_partition(relation, done.kept[k]) for done in stages.done for k in sorted(done.kept)),
            results, scans=scans, first_scans=first_scans, bundles=sum(done.bundles for done in stages.done),
            columns=tuple(width for done in stages.done for width in done.columns), seconds=seconds,
            update_seconds=sum(done.update_seconds for done in stages.done),
            largest_eigenvalue=first["eigenvalue"], warnings=notes.issue(),
            requested=tuple(winner.run for winner in winners),
            ladders=tuple(winner.ladders for winner in winners),
            restarts=tuple(stages.restarts(winner.run) for winner in winners), sample=stages.sample, quality=quality,
            levels=(*stages.levels, _all_objects(relation.n_objects, stages.done)),
            relation=relation,
        )  # fmt: skip


def _all_objects(n: int, done: Sequence[BundleResults]) -> LevelReport:
    """Return what was done on all objects."""
    rows = [row for bundle in done for row in bundle.results()]
    seconds = sum(bundle.scan_seconds + bundle.update_seconds for bundle in done)
    iterations = sum(len(bundle.columns) for bundle in done)
    return LevelReport(n, len(rows), iterations, sum(map(sum, (bundle.columns for bundle in done))), seconds)


class _Winner(NamedTuple):
    """The best run of a requested setting."""

    run: Run
    """As it was requested."""
    finished: FinishedRun
    ladders: tuple[Ladder, ...]
    """What "auto" tried, one for each automatic parameter."""


class _Stages:
    """The stages of a clustering: first the runs that wait for no other, then pcm1 and pcm2 from their fcm2 runs."""

    def __init__(
        self, job: PreparedClustering, eigenvalue: float | None, keep: CheckpointWriter, notes: _Warnings
    ) -> None:
        self.relation, self.keep_all, self.memory = job.relation, job.keep_all, job.memory
        self.eigenvalue = eigenvalue
        self.keep, self.notes = keep, notes
        self.positions = sampled_positions(job.relation.n_objects, job.runs[0].random_state) if job.judge else None
        self.index = job.index
        self.sample: dict[str, Any] | None = None
        self.sample_scans = 0
        self.levels: list[LevelReport] = []
        self._decisions: dict[Any, Decision] = {}
        self._unrefined: dict[Any, tuple[RunResult, int, int]] = {}
        """Of settings whose centres are of a sample: the result there, the iterations that were allowed on all objects,
        and the objects of the sample."""
        self.done: list[BundleResults] = []
        self._ladders: dict[Any, list[Run]] = {}
        self._judged: dict[int, tuple[weakref.ref[Float], Validity]] = {}
        """By the identity of memberships, with a reference to them: another array may get the place of one that is
        not kept any more."""

    def run(self, runs: Sequence[Run]) -> list[_Winner]:
        """Return the winner of each setting, in the order in which settings were requested."""
        requested: dict[Any, Run] = {}
        for run in runs:
            requested.setdefault(run.setting, run)
        listed, starts = self._listed([first_run(run) for run in runs])
        finished = self.keep.result("stage")
        if finished is None:
            second = [run.max_iter for run in requested.values() if begins_with_fcm2(run)]
            done = self._stage("bundles", listed, starts, later=2 + max(second, default=0))
            silhouettes = self._silhouettes([first_run(run) for run in requested.values()], done)
        else:
            done = BundleResults.unpacked(finished["state"], listed, self.keep_all)
            silhouettes = {listed[k].setting: value for k, value in finished["silhouettes"]}
        done.change_results(self._as_requested)
        winners = {s: self._winner(run, first_run(run), done, silhouettes) for s, run in requested.items()}
        self.done.append(done)
        later = {s: _after_fcm2(winner) for s, winner in winners.items() if begins_with_fcm2(winner.run)}
        if later:
            if finished is None:
                done.forget_others([winner.finished for winner in winners.values()])
                at = {run.setting: k for k, run in enumerate(listed)}
                pairs = [[at[setting], value] for setting, value in silhouettes.items()]
                self.keep.finish("stage", {"state": done.packed(), "silhouettes": pairs})
            done = self._stage("second", [value for run in later.values() for value in self._values(run)], {}, later=2)
            before = {v.setting: winners[s] for s, run in later.items() for v in self._values(run)}
            done.change_results(lambda result: _after(result, before[result.run.setting]))
            silhouettes = self._silhouettes(list(later.values()), done)
            for s, run in later.items():
                winner = self._winner(requested[s], run, done, silhouettes)
                winners[s] = winner._replace(ladders=(*winners[s].ladders, *winner.ladders))
            self.done.append(done)
        return list(winners.values())

    def restarts(self, requested: Run) -> Restarts | None:
        """Return how the restarts of a setting have ended on the sample, if there was one."""
        decision = self._decisions.get(first_run(requested).setting)
        return None if decision is None else decision.restarts

    def judge_winners(self, winners: Sequence[_Winner], *, required: bool) -> Validity | None:
        """Return the validity indices of the winners, if they are required or known from the choice of their values.

        Cost: no scan where all are known, else one.
        """
        known = [self._known(winner.finished.U) for winner in winners]
        if None not in known:
            return joined([validity for validity in known if validity is not None])
        if not required:
            return None
        groupings = [_grouping(winner.finished) for winner in winners]
        return compute_indices(self.relation, groupings, positions=self.positions, memory=self.memory)

    def _known(self, U: Float) -> Validity | None:
        memberships, validity = self._judged.get(id(U), (None, None))
        return validity if memberships is not None and memberships() is U else None

    def _values(self, run: Run) -> list[Run]:
        """Return the runs of a ladder, or the run itself."""
        if _key(run) not in self._ladders:
            spread = starting_spread(self.relation, run)
            top = 0.0 if self.eigenvalue is None else 2 * (self.eigenvalue + spread / 2) / self.relation.n_objects
            self._ladders[_key(run)] = rungs(run, top)
        return self._ladders[_key(run)]

    def _listed(self, runs: Sequence[Run]) -> tuple[list[Run], dict[int, Start]]:
        """Return the runs that are made on all objects, and the first centres of those that start from samples."""
        others: dict[Any, Run] = {}
        sampled: dict[Any, dict[Any, Run]] = {}
        for run in runs:
            if isinstance(run.init, str) and run.init == "sample":
                sampled.setdefault(run.setting, {}).setdefault(_key(run), run)
            else:
                others.update((_key(value), value) for value in self._values(run))
        listed, starts = list(others.values()), dict[int, Start]()
        if not sampled:
            return listed, starts
        contests = [
            Contest(tuple(each.values()), tuple(self._values(run)), starting_spread(self.relation, run))
            for each in sampled.values()
            for run in [next(iter(each.values()))]
        ]
        decisions, positions = self._decided(contests)
        at = {_key(run): k for k, run in enumerate(listed)}
        for contest, decision in zip(contests, decisions, strict=True):
            self._decisions[contest.runs[0].setting] = decision
            is_raced = contest.is_decided and len(decision.finalists) > 1 and not decision.is_open
            for finalist in decision.finalists:
                run = finalist.result.run.changed(race=finalist.result.run.race or is_raced)
                if not decision.is_refined:
                    objects = len(positions[decision.level])
                    self._unrefined[run.setting] = finalist.result, run.max_iter, objects
                    run = run.changed(max_iter=1)
                if _key(run) not in at:
                    at[_key(run)] = len(listed)
                    starts[len(listed)] = centres_on_all(finalist.V, positions[decision.level], self.relation.n_objects)
                    listed.append(run)
        return listed, starts

    def _decided(self, contests: Sequence[Contest]) -> tuple[list[Decision], list[NDArray[np.intp]]]:
        """Return what samples decide of contests, and the objects of each sample. Cost: that of `draw_samples`."""
        relation, n = self.relation, self.relation.n_objects
        size = sample_size(n, max(contest.runs[0].n_clusters for contest in contests))
        sample_memory(size, limits.memory_limit(self.memory))
        second, left_out = second_that_fits(relation, size, self.memory)
        stored = self.keep.result("sample")
        if stored is None:
            before = self.keep.scans
            samples = draw_samples(relation, size, second, contests[0].runs[0].random_state, memory=self.memory)
            scans = self.keep.scans - before
            decisions, reports = decide_all(samples, contests, self.index, n)
            stored = {
                "decisions": packed(contests, decisions), "positions": [sample.positions for sample in samples],
                "levels": [vars(report) for report in reports], "scans": scans,
            }  # fmt: skip
            self.keep.finish("sample", stored)
        self.sample_scans = stored["scans"]
        self.levels = [LevelReport(**report) for report in stored["levels"]]
        decisions = unpacked(contests, stored["decisions"])
        self.sample = {
            "objects": len(stored["positions"][0]),
            "runs": sum(len(contest.runs) for contest in contests),
            "finalists": sum(len(decision.finalists) for decision in decisions),
            "left_out": left_out,
        }
        return decisions, stored["positions"]

    def _as_requested(self, result: RunResult) -> RunResult:
        """Return the result of a run whose centres are of a sample as such."""
        if result.run.setting not in self._unrefined or result.run.max_iter != 1:
            return result
        before, max_iter, objects = self._unrefined[result.run.setting]
        of_sample = None if objects == self.relation.n_objects else objects
        return replace(
            result, run=result.run.changed(max_iter=max_iter), objects=of_sample,
            converged=before.converged, n_iter=before.n_iter, objective_change=before.objective_change,
            largest_change=before.largest_change,
        )  # fmt: skip

    def _stage(self, phase: str, runs: Sequence[Run], starts: Mapping[int, Start], *, later: int) -> BundleResults:
        """Run a stage, after which `later` scans may follow: silhouettes, the second stage, validity indices."""
        return run_bundles(
            self.relation, runs, phase=phase, keep=self.keep, starts=starts, keep_all=self.keep_all,
            memory=self.memory, warn=self.notes.add, later=later,
        )  # fmt: skip

    def _silhouettes(self, runs: Sequence[Run], done: BundleResults) -> dict[Any, float]:
        """Return the mean silhouette of the best run of every value of a ladder, by its setting.

        Cost: one scan if there is a ladder of several values, for all of them.
        """
        ladders = [self._best_of_values(run, done) for run in runs]
        several = {setting: run for ladder in ladders if len(ladder) > 1 for setting, run in ladder.items()}
        if not several:
            return {}
        progress.current().say("silhouettes")
        groupings = [_grouping(run) for run in several.values()]
        quality = compute_indices(self.relation, groupings, positions=self.positions, memory=self.memory)
        for k, run in enumerate(several.values()):
            self._judged[id(run.U)] = weakref.ref(run.U), quality.take([k])
        values = np.nan_to_num(quality["silhouette"], nan=-1.0).tolist()  # a single cluster has none
        return dict(zip(several, values, strict=True))

    def _best_of_values(self, run: Run, done: BundleResults) -> dict[Any, FinishedRun]:
        """Return the best run of each value of a ladder that was run on all objects, by its setting."""
        settings = [value.setting for value in self._values(run)]
        return {setting: done.best[setting] for setting in settings if setting in done.best}

    def _winner(self, requested: Run, run: Run, done: BundleResults, silhouettes: Mapping[Any, float]) -> _Winner:
        values = [value.setting for value in self._values(run) if value.setting in done.settings()]
        if len(self._values(run)) == 1:
            return _Winner(requested, done.best[values[0]], ())
        decision = self._decisions.get(run.setting)
        if len(values) == 1 and decision is not None:
            return _Winner(requested, done.best[values[0]], decision.ladders)
        results = [done.best_result(v) for v in values]
        of_rules = run.rule == AUTO and len({result.run.rule for result in results}) > 1
        choice = decide(results, [silhouettes.get(v, 0.0) for v in values], rule_is_free=of_rules)
        before = () if decision is None or of_rules or run.rule != AUTO else decision.ladders[:1]
        return _Winner(requested, done.best[values[choice.at]], (*before, *choice.ladders))


def _key(run: Run) -> tuple[Any, ...]:
    """Return what tells runs apart that are made together: pcm1, pcm2 and fcm2 may want the same fcm2 run."""
    init = run.init if isinstance(run.init, str) else id(run.init)
    how = (run.max_iter, run.tol, run.stop, run.norm, run.accelerate, run.history, run.race)
    return (*run.setting, *how, init, run.random_state, run.restart)


def _after_fcm2(winner: _Winner) -> Run:
    """Return the run of pcm1 or pcm2 that begins at the fcm2 run chosen for it."""
    first = winner.finished
    return winner.run.changed(init=first.U.T, entropy_weight=first.result.entropy_weight)


def _after(result: RunResult, before: _Winner) -> RunResult:
    """Return the result of pcm1 or pcm2 as of the run requested, with the iterations and the score of its fcm2 run."""
    first = before.finished.result
    score = result.score if result.run.eta == "overall" else first.score
    return replace(
        result, run=result.run.changed(init=before.run.init), n_iter=result.n_iter + first.n_iter, score=score,
        converged=result.converged and first.converged, entropy_weight=first.entropy_weight,
    )  # fmt: skip


def _grouping(finished: FinishedRun) -> Grouping:
    run = finished.result.run
    return Grouping.of_memberships(f"run {finished.index}", finished.U, run.theta, finished.result.modes)


class _Warnings:
    """Warnings of a clustering: each is issued once, and returned with the result."""

    def __init__(self) -> None:
        self._notes: list[DasrelWarning] = []

    def add(self, problem: str, *, where: str | None = None, remedy: str | None = None) -> None:
        self._notes.append(DasrelWarning(problem, where=where, remedy=remedy))

    def issue(self) -> tuple[str, ...]:
        for note in self._notes:
            warnings.warn(note, stacklevel=4)  # at the caller of `cluster`
        return tuple(map(str, self._notes))


def _check_results(
    results: Sequence[RunResult], best: Sequence[RunResult], eigenvalue: float | None, n: int, notes: _Warnings
) -> None:
    """Add a warning for each way in which runs ended badly.

    Of a ladder only the runs of the value that was chosen count; the others were meant to be tried. Coincident and
    empty clusters count where the best run has them.
    """
    chosen = {result.run.setting: result for result in best}
    total = sum(result.run.setting in chosen for result in results)

    def tell(which: list[int], text: str, remedy: str | None = None) -> None:
        if which:
            notes.add(f"{len(which)} of {count_text(total, 'run')} {text}", where=f"runs {some(which)}", remedy=remedy)

    def those(test: Any) -> list[int]:
        return [k for k, r in enumerate(results) if r.run.setting in chosen and test(r)]

    def bad(test: Any) -> list[int]:
        return those(lambda r: test(r) and test(chosen[r.run.setting]))

    tell(those(lambda r: not (r.converged or r.stopped_early)), "did not converge", "raise {max_iter} or {tol}")
    if eigenvalue is not None:
        above = those(lambda r: r.run.rule == "fcm2" and r.entropy_weight > 2 * (eigenvalue + r.beta / 2) / n)
        tell(above, "had an entropy weight above the value at which U = 1/c attracts, 2 lambda_max / n")
    fuzzy = bad(lambda r: r.flat and not r.run.is_possibilistic)
    tell(fuzzy, "ended with U = 1/c, which says nothing", "lower {fuzzifier} or {entropy_weight}")
    pairs = bad(lambda r: r.coincident_clusters and r.run.is_possibilistic)
    tell(pairs, "ended with coincident clusters", "lower {eta_scale} or {n_clusters}")
    pairs = bad(lambda r: r.coincident_clusters and not r.flat and not r.run.is_possibilistic)
    tell(pairs, "ended with coincident clusters", "lower {fuzzifier}, {entropy_weight} or {n_clusters}")
    healed = those(lambda r: r.negative_distances and r.run.on_negative == "heal" and r.run.rule != "hard")
    tell(healed, "met negative distances, healed by a spread (beta in the table)")
    left = those(lambda r: r.negative_distances and (r.run.on_negative != "heal" or r.run.rule == "hard"))
    tell(left, "met negative distances: the relation is not Euclidean, and the objective may rise")
    rises = those(lambda r: r.rises and r.run.on_negative != "heal")
    tell(rises, "saw the objective rise: the relation is not Euclidean", "say {on_negative=heal} or {spread=BETA}")
    rises = those(lambda r: r.rises and r.run.on_negative == "heal")
    tell(rises, "saw the objective rise although healed", "say {spread=BETA}, or Euclideanise the matrix")
    empty = bad(lambda r: r.empty and not (r.flat or r.coincident_clusters))
    tell(empty, "ended with clusters without objects", "lower {n_clusters}")


def _partition(relation: Relation, finished: FinishedRun) -> Partition:
    result, source = finished.result, relation.matrix
    run, diagonal = result.run, source.diagonal
    fuzzifier = None if run.fuzzifier is None else float(run.fuzzifier)
    model = Model(
        rule=run.rule, V=finished.V, half=finished.half, kind=source.kind, ids=np.array(source.ids, dtype=object),
        beta=result.beta, fuzzifier=fuzzifier,
        entropy_weight=result.entropy_weight if "lam" in SYMBOLS[run.rule] else None,
        eta=None if result.eta is None else np.array(result.eta), steps=relation.view.steps,
        modes=result.modes,
        diagonal=None if diagonal is None else np.asarray(diagonal), has_terms=bool(relation.terms),
    )  # fmt: skip
    return Partition(result, finished.U.T, finished.d.T, model)
