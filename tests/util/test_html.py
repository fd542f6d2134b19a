"""Cards for notebooks: well-formed, self-contained, and nothing in them that data brought."""

from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

import dasrel
from dasrel.store.array_matrix import as_matrix
from dasrel.util import html
from dasrel.util.progress import watch
from tests.helpers.matrices import blobs, distances

HOSTILE = [
    "<script>alert(1)</script>",
    '"><img src=x onerror=alert(1)>',
    "'; alert(1); '",
    "a&b",
    "\x1b[31mred\x1b[0m",
    "line\nbreak",
    "</td></table></div><b>",
    "\u202eright to left",
]
ALLOWED = {"div", "table", "tr", "td", "th", "span"}


class Parsed(HTMLParser):
    """The elements of a page, its text, and a failure where elements do not nest."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.tags: set[str] = set()
        self.attributes: set[str] = set()
        self.text = ""
        self._open: list[str] = []
        self.feed(page)
        self.close()
        assert self._open == []

    def handle_starttag(self, tag: str, attrs: Any) -> None:
        self.tags.add(tag)
        self.attributes |= {name for name, _ in attrs}
        self._open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self._open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text += data + "|"


def checked(page: str) -> str:
    """Return the text of a page that has only harmless elements, and attributes that only style them."""
    found = Parsed(page)
    assert found.tags <= ALLOWED
    assert found.attributes <= {"style"}
    assert "http" not in page
    assert "\x1b" not in page
    assert "\n" not in page
    assert "\u202e" not in page
    return found.text


@pytest.fixture(scope="module")
def names() -> list[str]:
    return [f"{HOSTILE[k % len(HOSTILE)]}{k}" for k in range(42)]


@pytest.fixture(scope="module")
def frame(names: list[str]) -> Any:
    return pd.DataFrame(distances(blobs(14, [[0, 0], [6, 1], [2, 7]], 4)), names, names)


@pytest.mark.parametrize("text", HOSTILE)
def test_text_is_escaped_wherever_it_comes(text: str) -> None:
    expected = text.encode("unicode_escape").decode() if not text.isprintable() else text
    for page in (
        html.card(text, []),
        html.card("a", [(text, 1)]),
        html.card("a", [("b", text)]),
        html.table([text], []),
        html.table(["a"], [[text]]),
        html.meter_line(0.5, text),
    ):
        assert expected in checked(page).replace("|", "")


def test_long_text_is_cut_and_passwords_are_hidden() -> None:
    page = html.card("a", [("b", "x" * 5000), ("c", "s3://me:secret@host/a.zarr")])
    assert len(page) < 2500
    assert "secret" not in page


@pytest.mark.parametrize("share", [-1.0, 0.0, 0.5, 1.0, 7.0])
def test_bars_stay_in_their_frame(share: float) -> None:
    width = int(html.bar(share, width=100).split("width:")[-1].split("px")[0])
    assert width == round(100 * min(1.0, max(0.0, share)))


def test_a_matrix(tmp_path: Path, frame: Any) -> None:
    matrix = dasrel.import_matrix(frame, tmp_path / "<b>d.zarr", kind="distance")
    text = checked(matrix._repr_html_())
    for part in ("Matrix", "<b>d.zarr", "42", "distance: ", "float32", "<script>alert(1)</script>0", "and 37 more"):
        assert part in text
    off = frame.to_numpy()[~np.eye(42, dtype=bool)]
    assert f"{off.min():.4g}"[:5] in text
    assert "an array" in checked(as_matrix(frame, kind="distance")._repr_html_())


def test_a_partition(frame: Any, names: list[str]) -> None:
    best = dasrel.cluster(frame, dasrel.Run("fcm2", 3, entropy_weight=1.0), kind="distance").best
    text = checked(best._repr_html_())
    for medoid in best.medoids:
        shown = names[medoid].encode("unicode_escape").decode() if not names[medoid].isprintable() else names[medoid]
        assert shown in text
    for part in ("fcm2, entropy weight 1", "|14|", "yes, "):
        assert part in text
    assert "coincide" not in text


def test_a_clustering(frame: Any) -> None:
    runs = [*dasrel.grid("fcm2", [2, 3], n_init=2, entropy_weight=1.0), *dasrel.grid("hard", [2, 3], n_init=2)]
    plain = dasrel.cluster(frame, runs, kind="distance")
    with watch() as meter:
        text = checked(plain._repr_html_())
    assert meter.scans == 0
    assert "recommended" not in text
    assert f"{len(plain.runs)}; {len(plain.runs)} converged" in text
    assert f"{plain.scans} in " in text
    judged = dasrel.cluster(frame, runs, kind="distance", judge=True)
    with watch() as meter:
        text = checked(judged._repr_html_())
    assert meter.scans == 0
    assert text.count("recommended") == 1
    assert "fuzzy silhouette" in text


@pytest.mark.slow
def test_many_settings_make_a_short_card(frame: Any) -> None:
    found = dasrel.cluster(frame, dasrel.grid("fcm1", 2, fuzzifier=np.linspace(1.1, 2, 60).tolist()), kind="distance")
    page = found._repr_html_()
    assert page.count("<tr>") < 30
    assert "40 settings" in checked(page)


def test_warnings_are_shown(frame: Any) -> None:
    with pytest.warns(dasrel.DasrelWarning):
        found = dasrel.cluster(frame, dasrel.Run("fcm2", 3, max_iter=1, entropy_weight=1.0), kind="distance")
    assert "did not converge" in checked(found._repr_html_())


def test_a_spectrum(frame: Any) -> None:
    D = frame.to_numpy() ** 2
    P = np.eye(42) - 1 / 42
    values = np.linalg.eigvalsh(-0.5 * P @ D @ P)
    text = checked(dasrel.spectrum(frame, kind="distance")._repr_html_())
    assert f"{values[-1]:.6g}"[:5] in text
    assert "Euclidean|yes" in text
    bent = dasrel.spectrum(frame**3, kind="distance")
    assert "Euclidean|no" in checked(bent._repr_html_())
    assert f"{bent.spread:.6g} added to all pairs" in checked(bent._repr_html_())


def test_other_results_have_cards(frame: Any) -> None:
    from scipy.cluster.hierarchy import linkage
    from scipy.spatial.distance import squareform

    D = frame.to_numpy()
    top = linkage(squareform(D, checks=False), "complete")[-1, 2]
    text = checked(dasrel.linkage(frame, method="complete", kind="distance")._repr_html_())
    assert "objects|42|linkage|complete|" in text
    assert f" to {top:g}, " in text
    typical = dasrel.one_class(frame, [dasrel.OneClassRun(1.0), dasrel.OneClassRun(2.0)], kind="distance")
    assert "1|1|" in (text := checked(typical._repr_html_()))
    assert "2|1|" in text
    aligned = dasrel.align(frame, n_clusters=[2, 3], width=[1.0, 3.0], kind="distance")
    text = checked(aligned._repr_html_())
    assert f"{aligned.alignment:.4f}" in text
    assert text.count("best|") == 1
    changed = dasrel.euclideanize(frame**3, method="spread", kind="distance")
    assert f"gamma|{changed.gamma:.6g}|" in checked(changed._repr_html_())
    assert "it was Euclidean" in checked(dasrel.euclideanize(frame, method="spread", kind="distance")._repr_html_())


@pytest.mark.slow
def test_everything_is_short_when_printed(tmp_path: Path, frame: Any) -> None:
    matrix = dasrel.import_matrix(frame, kind="distance")
    runs = dasrel.grid("fcm2", range(2, 6), n_init=100)
    found = dasrel.cluster(matrix, runs)
    tree = dasrel.minimum_spanning_tree(matrix)
    for one in (
        *(matrix, runs, runs[-1], found, found.best, found.best.model, found.runs[0], found.runs[0].run, found.quality),
        *(found.ladders[0], dasrel.spectrum(matrix), dasrel.euclideanize(matrix), tree, dasrel.ultrametric(tree)),
        *(dasrel.relation(matrix), dasrel.plan_clustering(matrix, runs)),
    ):
        assert len(repr(one)) < 800, type(one)
        assert repr(one).count("\n") < 3, type(one)


def test_a_run_is_printed_as_it_is_written() -> None:
    for run in (
        dasrel.Run("fcm1", 3),
        dasrel.Run("fcm1", 3, fuzzifier=np.float64(1.5), stop="memberships", norm=2, tol=0.0),
        dasrel.Run("pcm1", 4, eta_scale=0.5, eta="cut", eta_cut=0.25, eta_refit=True, on_negative="heal"),
        dasrel.Run("fcm2", 2, init="rows", random_state=7, restart=2, spread=0.5, accelerate=False),
    ):
        again = eval(repr(run), {"Run": dasrel.Run})
        assert again.parameters() == run.parameters()
    assert repr(dasrel.Run("fcm1", 3)) == "Run('fcm1', 3)"
