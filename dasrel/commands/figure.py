"""Draw the memberships of a result, and the dissimilarity that they induce: a kind of step."""

from __future__ import annotations

from dataclasses import MISSING, dataclass
from pathlib import Path

from dasrel.commands.base import Operation, Prepared, Reads, Result, Target
from dasrel.engine.checkpoint import Checkpoint
from dasrel.errors import InputError
from dasrel.partition.model import load_memberships
from dasrel.util.option_fields import WRITING, option
from dasrel.util.text import shown


@dataclass(frozen=True)
class FigureOptions:
    """What to draw."""

    result: str = option(MISSING, "The result of a cluster step.", WRITING, reads=Reads(steps=("cluster",)))
    title: str = option("", "The title; the name of the result if not given.", WRITING)


class Figure(Operation):
    name = "figure"
    Options = FigureOptions
    source = None
    is_step = True
    suffixes = (".png",)
    summarized = ("n_objects", "n_clusters")

    def prepare(self, source: None, target: Target, options: FigureOptions) -> PreparedFigure:
        """Return the work: the result is read when it is there."""
        return PreparedFigure(Path(target.path), options)


@dataclass(eq=False)
class PreparedFigure(Prepared):
    """A figure to be drawn."""

    out: Path
    options: FigureOptions

    def run(self, checkpoint: Checkpoint | None = None) -> Result:
        """Draw the figure. Cost: no scan."""
        from dasrel.report.figures.partition import partition_figure

        result = Path(self.options.result)
        is_whole = (result / "result.json").is_file()
        name = result.name if is_whole else f"{result.parent.name}/{result.name}"
        try:
            memberships = load_memberships(result)
        except FileNotFoundError:
            inside = sorted(path.parent.name for path in result.glob("*/memberships.npy"))
            remedy = f"choose one of its settings, such as {name}/{inside[0]}" if inside else None
            raise InputError(f"no memberships in {shown(result, limit=200)}", remedy=remedy) from None
        partition_figure(memberships, self.out, title=self.options.title or name)
        return {"n_objects": len(memberships), "n_clusters": memberships.shape[1]}


OPERATION = Figure()
