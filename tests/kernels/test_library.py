"""The loading of the compiled library."""

from pathlib import Path

from dasrel import compiled, intake, skinny, spool


def test_a_part_of_another_version_is_not_used() -> None:
    for name in ("dasrel_skinny", "dasrel_intake", "dasrel_pairs"):
        assert compiled.part(name, -1) is None
    assert compiled.part("dasrel_nothing", 1) is None


def test_without_a_library_there_are_no_parts(monkeypatch, tmp_path: Path) -> None:
    monkeypatch.setattr(compiled, "__file__", str(tmp_path / "compiled.py"))
    assert compiled.part.__wrapped__("dasrel_pairs", spool.VERSION) is None
    (tmp_path / "_compiled.so").write_bytes(b"not a library")
    assert compiled.part.__wrapped__("dasrel_pairs", spool.VERSION) is None


def test_where_one_part_is_there_the_others_are() -> None:
    """They are one file; parts for AVX2 may be missing on old processors, but then together."""
    assert (skinny._library() is None) == (intake._library() is None)
    assert spool.library() is not None or intake._library() is None


def test_all_sources_are_compiled() -> None:
    root = Path(__file__).parents[2]
    told = (root / "hatch_build.py").read_text(encoding="utf-8")
    sources = sorted(path.name for path in (root / "dasrel").glob("*.c"))
    assert sources == ["intake.c", "pairs.c", "skinny.c"]
    assert all(f'"dasrel/{name}"' in told for name in sources)
