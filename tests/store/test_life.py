"""The life of a store in any order: import, append, kills, resume, force, export, against an array in memory.

200 steps are run here; `LIFE_STEPS=10000 python -m pytest tests/store/test_life.py` runs more.
"""

import os
import shutil
import tempfile
from pathlib import Path
from typing import Any

import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import HealthCheck, settings
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

import dasrel
from dasrel import InputError, StoreError, Writing
from dasrel.store.audit import audit_store
from dasrel.store.tile_files import TileFiles
from tests.helpers.faults import Killed
from tests.helpers.matrices import distances, uniform_points
from tests.helpers.stores import files

STEPS = int(os.environ.get("LIFE_STEPS", "200"))
EACH = 20
"""Steps of one store."""
TILE, LARGEST = 4, 40
SIZES = st.integers(2, 12)


class Life(RuleBasedStateMachine):
    """What a store is, by an array, or by nothing while it is not complete."""

    def __init__(self) -> None:
        super().__init__()
        self.folder = Path(tempfile.mkdtemp())
        self.store = self.folder / "s.zarr"
        self.seed = 0
        self.values: Any = None
        """What the store holds; None if it is not there or unfinished."""
        self.begun: Any = None
        """The source of an import that was killed."""
        self.grown: Any = None
        """All values after an append that was killed."""

    def teardown(self) -> None:
        shutil.rmtree(self.folder)

    def fresh(self, n: int) -> Any:
        self.seed += 1
        return distances(uniform_points(n, 3, self.seed), dtype="float32")

    def larger(self, more: int) -> Any:
        """The values with new objects, whose values against the others are no distances of anything."""
        n = len(self.values)
        whole = self.fresh(n + more)
        whole[:n, :n] = self.values
        return whole

    def imported(self, values: Any, **more: Any) -> None:
        dasrel.import_matrix(values, self.store, kind="distance", writing=Writing(tile=TILE, **more))

    @initialize(n=SIZES)
    def begin(self, n: int) -> None:
        self.values = self.fresh(n)
        self.imported(self.values)

    @rule(n=SIZES, compress=st.sampled_from([None, "lz4"]))
    def force(self, n: int, compress: Any) -> None:
        """Replace whatever is there, unfinished or not."""
        self.values = self.fresh(n)
        self.imported(self.values, compress=compress, force=True)
        self.begun = self.grown = None

    @rule(n=SIZES)
    def refuse(self, n: int) -> None:
        """Without force or resume nothing is touched."""
        before = files(self.store)
        with pytest.raises(StoreError, match="exists"):
            self.imported(self.fresh(n))
        assert files(self.store) == before

    @rule(n=SIZES, written=st.integers(0, 5))
    def kill_an_import(self, n: int, written: int) -> None:
        """Remove the store, and begin another that is killed after some tiles."""
        shutil.rmtree(self.store)
        source = self.fresh(n)
        if not dies(written, lambda: self.imported(source)):
            self.values, self.begun = source, None
        else:
            self.values, self.begun = None, source
        self.grown = None

    @precondition(lambda self: self.begun is not None)
    @rule()
    def resume_an_import(self) -> None:
        with pytest.raises(StoreError, match="unfinished"):
            dasrel.open_matrix(self.store)
        self.imported(self.begun, resume=True)
        self.values, self.begun = self.begun, None

    @precondition(lambda self: self.values is not None and self.grown is None and len(self.values) < LARGEST)
    @rule(more=st.integers(1, 6), written=st.integers(0, 12))
    def append(self, more: int, written: int) -> None:
        """Append, and be killed after some tiles, if there are as many."""
        whole, n = self.larger(more), len(self.values)
        if dies(written, lambda: self.appended(whole, n)):
            self.grown = whole
        else:
            self.values = whole

    @precondition(lambda self: self.grown is not None)
    @rule(how=st.sampled_from(["again", "force", "other"]), more=st.integers(1, 6))
    def go_on(self, how: str, more: int) -> None:
        """The same append again resumes; another is refused, and replaces it by force."""
        n = len(self.values)
        if how == "again":
            self.appended(self.grown, n)
            self.values, self.grown = self.grown, None
            return
        whole = self.larger(more)
        if how == "other":
            with pytest.raises(StoreError, match="was begun and not finished"):
                self.appended(whole, n)
            return
        self.appended(whole, n, force=True)
        self.values, self.grown = whole, None

    def appended(self, whole: Any, n: int, **more: Any) -> None:
        names = [f"a{k}" for k in range(n, len(whole))]
        dasrel.append(self.store, whole[n:], ids=names, **more)

    @precondition(lambda self: self.values is not None and self.grown is None)
    @rule()
    def append_what_is_bad(self) -> None:
        n = len(self.values)
        bad = self.larger(2)
        bad[n, 0] = np.nan
        with pytest.raises(InputError, match="missing"):
            self.appended(bad, n)

    @precondition(lambda self: self.values is not None)
    @rule()
    def export(self) -> None:
        out = self.folder / "out.npy"
        dasrel.export_matrix(self.store, out, force=True)
        np.testing.assert_array_equal(np.load(out), self.values)

    @invariant()
    def is_what_it_should_be(self) -> None:
        """Any reader sees all of the model, or that it is unfinished."""
        if self.values is None:
            return
        matrix = dasrel.open_matrix(self.store)
        np.testing.assert_array_equal(matrix.rows(matrix.ids), self.values)
        assert audit_store(self.store, verify=True)["verified"]["bad"] == []


def dies(written: int, work: Any) -> bool:
    """Whether the work was killed: at the tile after so many."""
    plain, count = TileFiles.write, [0]

    def write(self: TileFiles, *tile: Any) -> None:
        if count[0] >= written:
            raise Killed
        count[0] += 1
        plain(self, *tile)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(TileFiles, "write", write)
        try:
            work()
        except Killed:
            return True
    return False


TestLife = pytest.mark.slow(Life.TestCase)
TestLife.settings = settings(
    max_examples=max(1, STEPS // EACH),
    stateful_step_count=EACH,
    deadline=None,
    derandomize=STEPS == 200,
    suppress_health_check=list(HealthCheck),
)
