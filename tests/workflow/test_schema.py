"""Workflow files: checked to the last word before anything is done."""

from pathlib import Path

import pytest

from dasrel.commands.cluster import ClusterOptions
from dasrel.errors import InputError
from dasrel.geometry import euclidean
from dasrel.io.options import Reading
from dasrel.partition import model
from dasrel.store import layout
from dasrel.store.options import Policy, Writing
from dasrel.workflow import status
from dasrel.workflow.schema import read_workflow


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[cluster.k10]\nentropy_wieght = 0.5", "[cluster.k10] entropy_wieght: unknown; did you mean entropy_weight?"),
        ("[clutser.k]", "[clutser]: unknown; did you mean cluster?"),
        ("[shell]\nrun = 'rm'", "[shell]: unknown; known: "),
        ("cluster = 3", "cluster: 3 is no table; write [cluster] and its keys below"),
        ("[cluster.k]\nclusters = '3x'", "[cluster.k] clusters[0]: '3x' should be a valid integer"),
        ("[cluster.k]\nclusters = [2, 0]", "[cluster.k] clusters[1]: 0 should be greater than or equal to 1"),
        ("[cluster.k]\nn_init = true", "[cluster.k] n_init: True should be a valid integer"),
        ("[cluster.k]\nfuzzifier = 1", "[cluster.k] fuzzifier[0]: 1 should be 'auto' or greater than 1"),
        ("[cluster.k]\ntol = inf", "[cluster.k] tol: inf should be a finite number"),
        ("[cluster.k]\nentropy_weight = 'lots'", "'lots' should be 'auto' or a valid number"),
        ("[cluster.k]\nrule = 'fcm3'", "[cluster.k] rule[0]: 'fcm3' should be 'fcm1', 'fcm2'"),
        ("[cluster.k]\nrule = 'hard'", "[cluster.k] clusters: missing"),
        ("[cluster.k]\nrule = 'hard'\nclusters = 2\nfuzzifier = 2", "[cluster.k]: fuzzifier is for fcm1 and pcm1"),
        ("[cluster.k]\nmemory = 'much'", "[cluster.k] memory: 'much' is no amount of memory"),
        ("[euclideanize]\nmethod = 'log'\nalpha = 2", "[euclideanize]: alpha of the method log is above 0 and at most"),
        ("[image]\norder = 'labels'", "[image]: an order by labels, and what memberships say, need a result"),
        ("[image]\nresult = 'k'", "[image.image] result: no step 'k'; there is no step of the kind cluster"),
        ("[tree.'../up']", "[tree.../up]: a name is made of letters, digits, _ and -"),
        ("[tree.x]\n[image.x]", "[image.x]: the name x is taken by [tree.x]; choose another"),
        ("[tree]\nstore = 'matrx'", "[tree.tree] store: no step 'matrx'; did you mean matrix?"),
        ("[spectrum]\nvalues = 3\n[spectrum.b]", "[spectrum] b: unknown; known: store, values"),
        ("[append.x]\nsource = 'a'", "[append.x]: matrix is made by [demo]; append is for import and pairwise"),
        ("[runtime]\ndsk = 'local'", "[runtime] dsk: unknown; did you mean dask?"),
        ("[runtime]\nworkers = 'two'", "[runtime] workers: 'two' should be a valid integer"),
        ("[runtime]\ndask = 'cloud'", "[runtime] dask 'cloud' is unknown; known: local"),
        ('[runtime]\nscheduler = "a\\nb"', "[runtime] scheduler: 'a\\nb' has characters that cannot be printed"),
        ("out = 3", "out: 3 is no folder"),
        ("[report.page]", "report: {'page': {}} is neither true nor false, and no table: write report = true above"),
        ("a = ", "is not TOML: Invalid value"),
    ],
)  # fmt: skip
def test_a_wrong_file_is_refused_with_the_place(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "w.toml"
    top, _, rest = text.partition("\n") if text.startswith("out") else ("", "", text)
    path.write_text(f"{top}\n[demo]\n{rest}" if not rest.startswith(("cluster =", "a =")) else f"{rest}\n[demo]\n")
    with pytest.raises(InputError) as error:
        read_workflow(path)
    assert str(error.value).startswith(str(path))
    assert message in str(error.value)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("~no-such-user/a.npy", "~no-such-user/a.npy: there is no user of this name; write the path of the folder"),
        ("a\\u0000b.npy", r"a\x00b.npy is no path: it has a NUL character"),
    ],
)
def test_paths_that_are_none(tmp_path: Path, source: str, message: str) -> None:
    (tmp_path / "w.toml").write_text(f'[import]\nsource = "{source}"\nkind = "distance"\n')
    with pytest.raises(InputError) as error:
        read_workflow(tmp_path / "w.toml")
    assert message in str(error.value)
    assert "\n" not in str(error.value)


def test_all_faults_are_counted_and_the_first_few_named(tmp_path: Path) -> None:
    (tmp_path / "w.toml").write_text("[demo]\n" + "".join(f"[tree.t{k}]\nx = 1\n" for k in range(5)))
    with pytest.raises(InputError, match=r"\[tree.t0\] x: .*\[tree.t2\] x: .* and 2 more"):
        read_workflow(tmp_path / "w.toml")


def test_a_workflow_needs_a_matrix(tmp_path: Path) -> None:
    (tmp_path / "w.toml").write_text("[tree]")
    with pytest.raises(InputError, match="there is no matrix"):
        read_workflow(tmp_path / "w.toml")
    (tmp_path / "w.toml").write_text("[store.a]\npath='a'\n[store.b]\npath='b'\n[tree]")
    with pytest.raises(InputError, match="several matrices: a, b"):
        read_workflow(tmp_path / "w.toml")


def test_steps_that_wait_for_each_other_are_refused(tmp_path: Path) -> None:
    one = "rule = 'hard'\nclusters = 2\ninit = "
    (tmp_path / "w.toml").write_text(f"[demo]\n[cluster.a]\n{one}'b'\n[cluster.b]\n{one}'a'")
    with pytest.raises(InputError, match="a -> b -> a wait for each other"):
        read_workflow(tmp_path / "w.toml")


@pytest.mark.parametrize("setting", ["../x", "a/b", "..", ".hidden", ""])
def test_a_setting_does_not_lead_elsewhere(tmp_path: Path, setting: str) -> None:
    text = f"[demo]\n[cluster.a]\nrule = 'hard'\nclusters = 2\n[figure]\nresult = 'a/{setting}'"
    (tmp_path / "w.toml").write_text(text)
    with pytest.raises(InputError, match="is not STEP or STEP/SETTING"):
        read_workflow(tmp_path / "w.toml")


@pytest.mark.parametrize("setting", ["prologue=touch x", "python=/tmp/evil", "directive=--wrap=x"])
def test_a_file_cannot_say_what_a_cluster_runs(tmp_path: Path, setting: str) -> None:
    (tmp_path / "w.toml").write_text(f"[demo]\n[runtime]\ndask = 'slurm:memory=1GB,{setting}'")
    with pytest.raises(InputError, match="which a workflow file may not"):
        read_workflow(tmp_path / "w.toml")


def test_numbers_of_clusters_as_text(tmp_path: Path) -> None:
    (tmp_path / "w.toml").write_text("[demo]\n[cluster]\nclusters = ['3', '5-7', 9]\nrule = 'hard'")
    assert read_workflow(tmp_path / "w.toml").steps["cluster"].table.clusters == [3, 5, 6, 7, 9]


def test_paths_are_relative_to_the_file(tmp_path: Path) -> None:
    (tmp_path / "w.toml").write_text(
        "[import]\nsource = 'x/d.npy'\nkind = 'distance'\nids = '/ids'\n"
        "[runtime]\nscheduler = 'tls://a:1'\ntls_ca = 'ca'\ntls_cert = 'c'\ntls_key = 'k'\nmemory = '2GiB'\n[tree]"
    )
    found = read_workflow(tmp_path / "w.toml")
    assert found.out == tmp_path / "w"
    assert found.steps["matrix"].files == {"source": str(tmp_path / "x/d.npy"), "ids": "/ids"}
    assert found.runtime.tls_ca == str(tmp_path / "ca")
    assert [step.table.memory for step in found.steps.values()] == ["2GiB", "2GiB"]
    assert read_workflow(tmp_path / "w.toml", out=tmp_path / "else").out == tmp_path / "else"


def test_formats_are_those_that_are_written() -> None:
    """When one of them changes, steps are done again."""
    versions = {"store": layout.FORMAT_VERSION, "euclidean": euclidean.FORMAT.version, "model": model.MODEL_VERSION}
    assert {name: status.FORMATS[name] for name in versions} == versions


def test_option_groups_come_out_of_a_table(tmp_path: Path) -> None:
    """Keys that are left out leave the fields at their defaults."""
    (tmp_path / "w.toml").write_text(
        "[import.m]\nsource = 'd.txt'\nkind = 'distance'\ncolumns = ['a', 2, 'v']\nmissing = 'fill=2'\ntile = 7\n"
        "store_dtype = 'float64'\n[cluster]\nrule = 'pcm1'\nclusters = [2, 3]\nentropy_weight = ['auto', 0.5]\nseed = 4"
    )
    steps = read_workflow(tmp_path / "w.toml").steps
    options = steps["m"].table.options()
    assert options.policy == Policy(missing=2.0)
    assert options.writing == Writing(dtype="float64", tile=7, resume=True)  # an interrupted step continues
    assert options.reading == Reading(columns=("a", 2, "v"))
    assert steps["cluster"].table.options() == ClusterOptions(
        rule=["pcm1"], n_clusters=[2, 3], entropy_weight=["auto", 0.5], random_state=4
    )
