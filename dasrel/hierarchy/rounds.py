"""Exact agglomeration by rounds of reciprocal nearest neighbours, on rows in memory or in a file.

Every cluster has a row with its dissimilarities to all others. In a round, all pairs of clusters that are nearest to
each other are merged. For reducible linkages (single, complete, average, weighted, Ward) the result is that of merging
one nearest pair after the other, because a union is never nearer to a third cluster than the nearer of its parts was.

Work. Only rows are read and written, never columns: a row is updated from its own values when it is read next (see
`kernels.row_linkage`). A round reads the two rows of each merge and writes one. Each cluster has a list of the clusters
nearest to it, and a lower bound of its values to all others. Where two of a list are merged, or one of them with
another, the value to the union is taken from the row of the union; it stays in the list if it is below the bound, as a
union is never nearer than its parts. The first of the list is the nearest neighbour. A cluster whose list is used up is
searched, which reads its row. Searches are put off as far as one round has more than SEARCHES per merge and
MORE_SEARCHES: those of the smallest lower bounds come first. A chain of nearest neighbours is followed beside this, one
cluster at least in each round, so that rounds are never more than 3 n and rows read O(n) in all, also where few pairs
are reciprocal or where many clusters have the same neighbour. A round of one merge reads some three rows; there is no
scan of all rows in any round.

Ties. Pairs are ordered by (value, smallest member of one, smallest member of the other, which is the larger). A slot
holds the cluster whose smallest member is the slot's object, so the first of the smallest values of a row is the one
that the rule wants. The order in which rows are read, on however many threads, changes nothing; nor does it matter when
rows are moved from a file to memory.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from dasrel.errors import StoreError
from dasrel.kernels.linkage_rows import MergeLog, NearLists, RowTask, keys_of, update_rows
from dasrel.util import Array, Float, Index, limits
from dasrel.util.files import write_at
from dasrel.util.text import shown

SEARCHES = 1
"""Searches of a round for each of its merges, ..."""
MORE_SEARCHES = 16
"""... and beyond that."""
BUFFER_BYTES = 16 * 2**20
"""Rows of a file that one thread holds at a time."""
SHARED = 1 << 18
"""Values of a round's rows from which several threads work on them."""
SMALL = 256
"""Slots below which rows in memory are not compacted."""


@dataclass
class RowArray:
    """Rows in memory, changed in place."""

    values: Array

    @property
    def wide(self) -> int:
        """Values of a row."""
        return int(self.values.shape[1])

    def chunk(self, count: int) -> int:
        """Return how many of so many rows are worked on together."""
        return max(1, -(-count // (4 * limits.thread_count(waiting=False))))

    def load(self, slots: Sequence[int]) -> list[Array]:
        """Return the rows of some slots, which may be changed."""
        return [self.values[slot] for slot in slots]


@dataclass
class RowFile:
    """Rows in a file, each in a place of its own. A new row never replaces one that a saved state refers to.

    Where no state is saved (`in_place`), the row of a union replaces that of its first part.
    """

    path: Path
    descriptor: int
    wide: int
    dtype: np.dtype[Any]
    places: Index
    """The place of each slot's row in the file."""
    end: int
    """Places of the file, in use or not."""
    in_place: bool = False
    free: list[int] = field(default_factory=list)
    """Places whose rows are not needed any more."""
    released: list[int] = field(default_factory=list)
    """Places whose rows are needed only by the last saved state."""
    buffers: threading.local = field(default_factory=threading.local)
    """The memory of each thread's rows, which is used again: a new one would be filled with zeros each time."""

    @property
    def row_bytes(self) -> int:
        """Bytes of a row."""
        return self.wide * self.dtype.itemsize

    def chunk(self, count: int) -> int:
        """Return how many of so many rows are worked on together."""
        return max(1, min(BUFFER_BYTES // self.row_bytes // 2, -(-count // (4 * limits.thread_count(waiting=False)))))

    def load(self, slots: Sequence[int]) -> list[Array]:
        """Read the rows of some slots. They are valid until this thread reads others."""
        buffer: Array | None = getattr(self.buffers, "rows", None)
        if buffer is None or len(buffer) < len(slots):
            buffer = self.buffers.rows = np.empty((len(slots), self.wide), dtype=self.dtype)
        buffer = buffer[: len(slots)]
        for row, slot in zip(buffer, slots, strict=True):
            rest, at = row.data.cast("B"), int(self.places[slot]) * self.row_bytes
            while len(rest):
                count = os.preadv(self.descriptor, [rest], at)
                if count == 0:
                    raise StoreError(f"{shown(self.path, limit=200)} was shortened while it was read")
                rest, at = rest[count:], at + count
        return list(buffer)

    def keep(self, row: Array, place: int) -> None:
        """Write a row."""
        write_at(self.descriptor, row, place * self.row_bytes)

    def new_places(self, slots: list[int]) -> list[int]:
        """Return places for the new rows of some slots."""
        if self.in_place:
            return [int(place) for place in self.places[slots]]
        count = len(slots)
        more = max(0, count - len(self.free))
        self.free += range(self.end, self.end + more)
        self.end += more
        chosen, self.free = self.free[:count], self.free[count:]
        return chosen

    def replace(self, a: Index, b: Index, places: list[int]) -> None:
        """Let the rows of slots a be in new places; those of slots b are gone."""
        if self.in_place:
            return
        self.released += [*self.places[a].tolist(), *self.places[b].tolist()]
        self.places[a] = places

    def settle(self) -> None:
        """Allow the places of rows that were replaced to be used again: no saved state refers to them."""
        self.free, self.released = sorted(self.free + self.released), []


@dataclass
class Made:
    """The merges of all rounds, in the order in which they count. The cluster of merge k has the number n + k."""

    children: Index
    """(n - 1, 2) numbers of the two parts; the first has the smaller member."""
    members: Index
    """(n - 1, 2) the smallest members of the two parts."""
    heights: Float
    """(n - 1,) values, never below those of the parts."""
    count: int = 0


@dataclass(frozen=True)
class _Unions:
    """The unions of a round that replace their parts in the lists of other clusters, by the merge."""

    slots: Index
    """The clusters whose lists have parts of a union."""
    columns: Index
    """The place of the first of these parts in the list."""
    merges: Index
    """The merge of each, ascending."""
    bounds: Index
    """Where the clusters of each merge begin, and the end of the last."""
    keys: Float
    """Value of each cluster to the union."""

    @staticmethod
    def replacing(near: NearLists, a: Index, b: Index) -> _Unions:
        """Take the slots that are merged, a with b, out of all lists, and empty their own."""
        near.slots[a] = near.slots[b] = -1
        merge = np.zeros(len(near.slots), dtype=np.int64)
        merge[a] = merge[b] = np.arange(len(a))
        touched = np.zeros(len(near.slots) + 1, dtype=bool)  # the last is for empty places, -1
        touched[a] = touched[b] = True
        slots, columns = np.nonzero(touched.take(near.slots, mode="wrap"))
        merges = merge[near.slots[slots, columns]]
        near.slots[slots, columns], near.values[slots, columns] = -1, np.inf
        _, first = np.unique(merges * len(near.slots) + slots, return_index=True)
        merges = merges[first]
        bounds = np.searchsorted(merges, np.arange(len(a) + 1))
        return _Unions(slots[first], columns[first], merges, bounds, np.full(len(first), np.inf))

    def put(self, near: NearLists, union: Index) -> Index:
        """Put the unions, which have these slots, into the lists if they belong there; return the rows of the lists."""
        own = self.keys < near.values[self.slots, -1]
        place = self.slots[own], self.columns[own]
        near.slots[place], near.values[place] = union[self.merges[own]], self.keys[own]
        rows = np.unique(self.slots)
        near.set((rows, slice(-1)), near[rows, :-1].ordered())  # the last is the bound
        return rows

    def take(self, merge: int, method: str, task: RowTask, sizes: Float) -> None:
        """Take the values of the clusters of a merge from the row of the union."""
        own = slice(int(self.bounds[merge]), int(self.bounds[merge + 1]))
        slots = self.slots[own]
        if len(slots):
            self.keys[own] = keys_of(method, task.row[slots], float(sizes[task.slot]), sizes[slots])


class Rounds:
    """An agglomeration in progress.

    Parameters
    ----------
    method
        One of `kernels.row_linkage.METHODS`.
    rows
        The rows of all objects; the value of an object to itself is infinite.
    near
        The nearest clusters of each object. The last value of a list is a lower bound of all that are not in it.
    """

    def __init__(self, method: str, rows: RowArray | RowFile, near: NearLists) -> None:
        n = len(near.slots)
        self.method = method
        self.rows = rows
        self.log = MergeLog.of(np.ones(n))
        near.slots[:, -1] = -1
        self.near = near
        self.nearest: Index = near.slots[:, 0].astype(np.int64)
        """Of each slot; -1 where it is not known: then `values` has a lower bound."""
        self.values: Float = near.values[:, 0].copy()
        self.seen = np.zeros(n, dtype=np.int64)
        """Number of merges that each row has seen."""
        self.alive = np.ones(n, dtype=bool)
        self.members = np.arange(n, dtype=np.int64)
        """The smallest member of each slot's cluster."""
        self.numbers = np.arange(n, dtype=np.int64)
        """The number of each slot's cluster."""
        self.made = Made(np.zeros((n - 1, 2), np.int64), np.zeros((n - 1, 2), np.int64), np.zeros(n - 1))
        self.fresh: Index = np.arange(n, dtype=np.int64)
        """Slots whose neighbours were found in the last round."""
        self.chain: list[int] = []
        self.rounds = 0
        self.rows_read = 0
        self.rows_written = 0

    @property
    def clusters(self) -> int:
        """Number of clusters left."""
        return len(self.made.heights) + 1 - self.made.count

    def run(self, until: int, pool: ThreadPoolExecutor, after_round: Callable[[], None] = lambda: None) -> None:
        """Make rounds until so many clusters are left, and call `after_round` after each.

        Rows in memory are moved together when half of the slots are empty.
        """
        while self.clusters > until:
            self._round(pool)
            if isinstance(self.rows, RowArray) and self.rows.wide > max(SMALL, 2 * self.clusters):
                self.move(self.rows.values, pool)
            after_round()

    # ------------------------------------------------------------------------------------------------------- a round

    def _round(self, pool: ThreadPoolExecutor) -> None:
        self.rounds += 1
        a, b = self._reciprocal()
        first = self.log.count
        self.log.add(a, b, self.values[a])
        self._record(a, b)
        touched = np.zeros(len(self.alive), dtype=bool)
        touched[a] = touched[b] = True
        self.alive[b] = False
        self.nearest[a] = self.nearest[b] = -1
        known = np.flatnonzero(self.alive & (self.nearest >= 0))
        lost = known[touched[self.nearest[known]]]
        self.nearest[lost] = -1
        unions = _Unions.replacing(self.near, a, b)
        searched = self._searched(np.concatenate([a, lost]), len(a), touched)
        merges = list(zip(a.tolist(), range(first, self.log.count), b.tolist(), strict=True))
        self._work(merges, searched.tolist(), unions, pool)
        changed = unions.put(self.near, a)
        self.fresh = np.concatenate([a, searched, self._first_of_lists(changed)])

    def _first_of_lists(self, rows: Index) -> Index:
        """Take the neighbours of some clusters from their lists; return those whose neighbour is another now."""
        slots, values, bounds = self.near.slots[rows, 0], self.near.values[rows, 0], self.near.values[rows, -1]
        before, sure = self.nearest[rows], values < bounds
        self.nearest[rows] = np.where(sure, slots, before)
        self.values[rows] = np.where(sure | (before >= 0), values, bounds)
        used_up = rows[~sure & (before < 0)]
        self.near.slots[used_up] = -1
        another: Index = rows[sure & (slots != before)]
        return another

    def _reciprocal(self) -> tuple[Index, Index]:
        """Return the pairs that are merged now, in the order in which they count."""
        fresh = self.fresh
        partner = self.nearest[fresh]
        mutual = self.nearest[partner] == fresh
        low, high = np.minimum(fresh, partner)[mutual], np.maximum(fresh, partner)[mutual]
        low, first = np.unique(low, return_index=True)
        high = high[first]
        order = np.lexsort((high, low, self.values[low]))
        return low[order], high[order]

    def _record(self, a: Index, b: Index) -> None:
        made, new = self.made, slice(self.made.count, self.made.count + len(a))
        n = len(made.heights) + 1
        made.children[new] = np.column_stack([self.numbers[a], self.numbers[b]])
        made.members[new] = np.column_stack([self.members[a], self.members[b]])
        heights = self.values[a].copy()
        for part in made.children[new].T:  # means of sums that were rounded may be below those of the parts
            inner = part >= n
            heights[inner] = np.maximum(heights[inner], made.heights[part[inner] - n])
        made.heights[new] = heights
        self.numbers[a] = n + np.arange(new.start, new.stop)
        made.count = new.stop

    def _searched(self, but: Index, merges: int, touched: Any) -> Index:
        """Return the clusters, but for these, whose nearest neighbour is looked for in this round of so many merges."""
        unknown = self.alive & (self.nearest < 0)
        unknown[but] = False
        chosen = np.flatnonzero(unknown)
        budget = SEARCHES * merges + MORE_SEARCHES
        if len(chosen) > budget:
            chosen = np.sort(chosen[np.lexsort((chosen, self.values[chosen]))[:budget]])
        last = self._end_of_chain(touched)
        if unknown[last] and last not in chosen:
            chosen = np.append(chosen, last)
        if merges == 0 and len(chosen) == 0:
            # Rounding of sums has made a union nearer than its parts, and neighbours go round in a circle.
            chosen = np.flatnonzero(self.alive)
        return chosen

    def _end_of_chain(self, touched: Any) -> int:
        """Follow the chain of nearest neighbours to a cluster whose neighbour is not known, or to a reciprocal pair."""
        chain = self.chain
        while chain and (touched[chain[-1]] or not self.alive[chain[-1]]):
            chain.pop()
        if not chain:
            chain.append(int(np.argmax(self.alive)))
        added: set[int] = set()  # neighbours may go round in a circle, see `_searched`
        while (after := int(self.nearest[chain[-1]])) >= 0 and after not in chain[-4:] and after not in added:
            chain.append(after)
            added.add(after)
        return chain[-1]

    def _work(
        self, merges: list[tuple[int, int, int]], searched: list[int], unions: _Unions, pool: ThreadPoolExecutor
    ) -> None:
        """Bring the rows of unions (slot, number of the merge, other slot) and of others up to date; search them.

        Clusters that had a part of a union in their list get their values to it.
        """
        rows, log, seen = self.rows, self.log, self.seen
        places = rows.new_places([slot for slot, _, _ in merges]) if isinstance(rows, RowFile) else []
        first = log.count - len(merges)

        def work(part: list[tuple[int, int, int]]) -> NearLists:
            limits.check()
            loaded = rows.load([slot for slot, _, _ in part] + [other for _, k, other in part if k >= 0])
            others = iter(loaded[len(part) :])
            tasks = [
                RowTask(slot, row, int(seen[slot]), k, *((next(others), int(seen[other])) if k >= 0 else ()))
                for (slot, k, other), row in zip(part, loaded, strict=False)
            ]
            lists = update_rows(self.method, tasks, log)
            for task in tasks:
                if task.merge >= 0:
                    unions.take(task.merge - first, self.method, task, log.after)
                    if isinstance(rows, RowFile):
                        rows.keep(task.row, places[task.merge - first])
            return lists

        tasks = merges + [(slot, -1, -1) for slot in searched]
        size = rows.chunk(len(tasks))
        parts = [tasks[k : k + size] for k in range(0, len(tasks), size)]
        results = list((pool.map if len(tasks) * rows.wide >= SHARED else map)(work, parts))
        slots = np.array([slot for slot, _, _ in tasks], dtype=np.int64)
        self.near.set(slots, NearLists.joined(results))
        self.near.slots[slots, -1] = -1
        self.nearest[slots], self.values[slots] = self.near.slots[slots, 0], self.near.values[slots, 0]
        if isinstance(rows, RowFile):
            new = slice(first, log.count)
            rows.replace(log.a[new].astype(np.int64), log.b[new].astype(np.int64), places)
            self.rows_read += 2 * len(merges) + len(searched)
            self.rows_written += len(merges)
            slots = slots[: len(merges)]  # rows that were only searched are as they were
        seen[slots] = log.count

    # ------------------------------------------------------------------------------------------------- moving the rows

    def move(self, target: Array, pool: ThreadPoolExecutor) -> None:
        """Move the rows of the clusters that are left to the upper left corner of an array in memory.

        The array may be that of the rows themselves. Slots are numbered anew, in the same order.
        """
        kept = np.flatnonzero(self.alive)
        wide, size = len(kept), self.rows.chunk(len(kept))
        in_place = isinstance(self.rows, RowArray)

        def shorten(start: int) -> None:
            limits.check()
            slots = kept[start : start + size].tolist()
            loaded = self.rows.load(slots)
            tasks = [RowTask(s, row, int(self.seen[s])) for s, row in zip(slots, loaded, strict=True)]
            update_rows(self.method, tasks, self.log)
            for k, row in enumerate(loaded, start):
                (row if in_place else target[k])[:wide] = row.take(kept)

        list(pool.map(shorten, range(0, wide, size)))
        if in_place:
            for k, slot in enumerate(kept.tolist()):  # in order: no row is overwritten before it is copied
                target[k, :wide] = target[slot, :wide]
        if isinstance(self.rows, RowFile):
            self.rows_read += len(kept)
        number = np.cumsum(self.alive) - 1
        self.nearest = np.where(self.nearest >= 0, number[self.nearest], -1)[kept]
        self.values, self.near = self.values[kept], self.near[kept]
        self.near.slots[:] = np.append(number, -1)[self.near.slots]
        self.members, self.numbers = self.members[kept], self.numbers[kept]
        self.chain = number[self.chain].tolist()
        self.fresh = number[self.fresh]
        self.log = MergeLog.of(self.log.after[kept])
        self.seen = np.zeros(len(kept), dtype=np.int64)
        self.alive = np.ones(len(kept), dtype=bool)
        self.rows = RowArray(target[: len(kept), : len(kept)])

    # ----------------------------------------------------------------------------------------------------- saved states

    def state(self) -> dict[str, Any]:
        """Return all that is needed to resume with the rows of the same file."""
        rows, log, made = self.rows, self.log, self.made
        assert isinstance(rows, RowFile)
        done = slice(0, log.count)
        return {
            "nearest": self.nearest, "values": self.values, "near_slots": self.near.slots,
            "near_values": self.near.values, "seen": self.seen,
            "alive": self.alive, "numbers": self.numbers, "fresh": self.fresh, "chain": list(self.chain),
            "rounds": self.rounds, "rows_read": self.rows_read, "rows_written": self.rows_written,
            "log": {
                "a": log.a[done], "b": log.b[done], "size_a": log.size_a[done], "size_b": log.size_b[done],
                "heights": log.heights[done], "after": log.after, "starts": np.array(log.rounds, dtype=np.int64),
            },
            "made": {"children": made.children[done], "members": made.members[done], "heights": made.heights[done]},
            "places": rows.places, "end": rows.end,
        }  # fmt: skip

    @staticmethod
    def restored(method: str, rows: RowFile, state: dict[str, Any]) -> Rounds:
        """Return the agglomeration of a saved state; `rows` gets the places of its rows."""
        resumed = Rounds(method, rows, NearLists(state["near_slots"], state["near_values"]))
        resumed.nearest, resumed.values = state["nearest"], state["values"]
        resumed.seen, resumed.alive, resumed.numbers = state["seen"], state["alive"], state["numbers"]
        resumed.fresh, resumed.chain, resumed.rounds = state["fresh"], [int(k) for k in state["chain"]], state["rounds"]
        resumed.rows_read, resumed.rows_written = state["rows_read"], state["rows_written"]
        log, made = state["log"], state["made"]
        count = len(log["a"])
        for name in ("a", "b", "size_a", "size_b", "heights"):
            getattr(resumed.log, name)[:count] = log[name]
        resumed.log.after[:] = log["after"]
        resumed.log.before[:] = log["after"]  # only of use within a round
        resumed.log.count, resumed.log.rounds = count, log["starts"].tolist()
        for name in ("children", "members", "heights"):
            getattr(resumed.made, name)[:count] = made[name]
        resumed.made.count = count
        rows.places[:] = state["places"]
        rows.end = state["end"]
        used = set(rows.places[resumed.alive].tolist())
        rows.free = [place for place in range(rows.end) if place not in used]
        return resumed


@contextmanager
def row_threads() -> Iterator[ThreadPoolExecutor]:
    """Yield the threads that work on the rows of a round."""
    with ThreadPoolExecutor(limits.thread_count(waiting=False), thread_name_prefix="dasrel-rows") as pool:
        yield pool
