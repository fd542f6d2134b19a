"""What to run: `Run`, one optimisation with its rule, parameters and start, and `grid`, many of them.

All of it is checked before a tile is read. The fields of `Run` are the only place where the parameters of a run have
their defaults, bounds and help; commands, workflow files and estimators take them from here. Neither NumPy nor Dask is
imported, so that the command line starts quickly.
"""

from __future__ import annotations

import copy
import itertools
import math
import numbers
from collections.abc import Sequence
from dataclasses import MISSING, dataclass, fields
from functools import partial
from typing import Any, Literal

from dasrel.errors import InputError
from dasrel.names import AUTO, INITS, OTHER_RULES, PARAMETERS, RULES, TAKES, RuleName
from dasrel.util.option_fields import RUNNING, check_choice, check_fields, check_number, option
from dasrel.util.text import count_text, shown, some

MOST_RUNS = 100_000
"""Runs that `grid` makes: the memory of their descriptions alone is about 100 MB."""
LARGEST_EXPONENT = 700.0
"""exp(-700) is still a normal number in float64."""
N_INIT = 10
"""Restarts of a setting in commands and estimators."""
ETA_CUT = 0.5
"""`eta_cut` for eta="cut" where none is given."""
TOLERANCES = {"objective": 1e-6, "memberships": 1e-5, "weights": 1e-5}
"""`tol` where none is given, by what is compared."""
SETTING = ("rule", "n_clusters", *TAKES, "spread", "on_negative")
"""The fields of a run that make objectives comparable."""

_run = partial(option, panel=RUNNING)
_rare = partial(_run, rare=True)


# ruff: noqa: RUF009 - `option` returns a dataclass field
@dataclass(frozen=True, eq=False)
class Run:
    """A rule, its parameters and initial memberships. A parameter that the rule lacks is an error.

    It is one optimisation, or one for each value of a ladder where a parameter is "auto"; see `cmeans.ladder`.

    >>> Run("fcm2", 3).entropy_weight
    'auto'
    >>> Run("fcm1", 3, fuzzifier=1)
    Traceback (most recent call last):
    dasrel.errors.InputError: fuzzifier is 1; give a finite number above 1, or "auto"
    """

    rule: RuleName = _run(MISSING, f"{', '.join(RULES)}, or auto: fcm1 or fcm2.")
    n_clusters: int = _run(
        MISSING, "Number of clusters; 2-10 tries them all and recommends one.", name="clusters", metavar="C", least=1
    )
    fuzzifier: float | Literal["auto"] | None = _run(
        None, "Fuzzifier of fcm1 (default auto), pcm1 (1.2).", metavar="M", above=1
    )
    """m of fcm1 and pcm1. For fcm1 "auto", the default: the largest of a ladder that costs nothing; for pcm1 1.2
    by default: with 2 most objects of real data are so typical of every cluster that clusters coincide."""
    entropy_weight: float | Literal["auto"] | None = _run(
        None, "lambda of fcm2, and of the fcm2 runs that initialise pcm; auto if not given.", metavar="LAMBDA", above=0
    )
    """lambda of fcm2 and of the fcm2 run that pcm1 and pcm2 start from; "auto", the default, is the largest of a ladder
    that costs nothing."""
    eta_scale: float | Literal["auto"] | None = _rare(
        None, "Factor on the cluster widths of pcm; auto if not given.", above=0
    )
    """gamma of pcm1 and pcm2: the clusters' spreads eta are multiplied by it; "auto", the default, is the largest of a
    ladder at which clusters do not coincide."""
    eta: Literal["mean", "cut", "overall"] | None = _rare(
        None, "How the cluster widths of pcm are estimated; mean if not given."
    )
    """How pcm1 and pcm2 estimate eta: the mean of the distances weighted by memberships (F09 D.24); their mean over
    the members above `eta_cut` (L7; the weighted mean where there is none); or the mean squared distance to the grand
    mean over q sqrt(c) (L7), q the fuzzifier, 1 for pcm2."""
    eta_cut: float | None = _rare(
        None, f"Membership above which members count for cut; {ETA_CUT} if not given.", least=0, below=1
    )
    eta_refit: bool | None = _rare(None, "Estimate the widths of pcm again at every iteration.")
    """Whether eta is estimated again at every iteration; else once, at the start."""
    init: Any = _rare("sample", f"{', '.join(INITS)}, a model (.npz) or memberships (.npy).")
    """"sample": centres found on some of the objects, on small matrices "k-means++"; "k-means++": objects far from each
    other; "random": memberships drawn for each object; "rows": rows of D with sum 1 (K14); memberships (n, c); or a
    `Model`, of this matrix or of fewer of its objects. From a named `init`, pcm1 and pcm2 first run fcm2."""
    random_state: int = _run(0, "Seed of random numbers.", name="seed", least=0)
    restart: int = _run(0, "Number of this restart.", least=0)
    """Random numbers come from (random_state, restart)."""
    spread: float = _rare(0.0, "Constant added to squared dissimilarities between objects.", metavar="BETA", least=0)
    on_negative: Literal["error", "heal"] = _run(
        "error", "Stop at negative squared distances to centres, or heal: add a constant."
    )
    """What to do about negative distances: "error" as in RFCM, or "heal" as in NERFCM: beta grows just enough."""
    max_iter: int = _rare(300, "Maximum number of iterations.", least=1)
    """Those of the fcm2 run before pcm1 or pcm2 are counted separately."""
    tol: float | None = _rare(
        None,
        "Converged when the change is below this; if not given, 1e-6 of the objective, 1e-5 of memberships or weights."
        " For hard, where memberships are compared, also when fewer than this share of the objects change their cluster"
        " in three iterations one after the other.",
        least=0,
    )
    """A run has converged when the change that `stop` names is below this; 0 runs all iterations. If none is given, it
    is 1e-6 for the objective and 1e-5 for memberships and weights. For hard with stop="memberships" it is a share of
    the objects: converged when no object changes its cluster, or when fewer than this share of all objects do in each
    of `run_state.STEADY_STEPS` = 3 iterations one after the other."""
    stop: Literal["objective", "memberships", "weights"] = _rare(
        "objective",
        "What is compared: the objective, relative, over two iterations; memberships; or weights of the centres.",
    )
    """What is compared: the relative change of the objective over two iterations (F09, before 22), U, or the weights V
    of the centres (K14), from one iteration to the next. The objective ends a run before the last few memberships stand
    still; the papers compare memberships. With `eta_refit`, whose objective is another at every iteration,
    "objective" means "memberships"."""
    norm: float = _rare(
        math.inf,
        "p-norm of the change of memberships or weights; the largest change if not given.",
        metavar="P",
        least=1,
        infinite=True,
    )
    """The p-norm of the change of memberships or weights (F09 22); the largest change by default."""
    accelerate: bool = _rare(True, "Accelerate the iteration: fewer scans, other intermediate results.")
    """Ten plain steps, then SQUAREM with the objective as safeguard: fewer iterations, other intermediate values. False
    reproduces the papers step by step; with `eta_refit` there is none."""
    history: bool = _rare(
        False, "Write the largest change of a membership at each iteration of every run: history.csv."
    )
    """Whether max |U - U'| (F09 42) of every iteration is kept in the result (`RunResult.changes`); no scan."""
    exact: bool = _rare(
        False, "Decide automatic parameters and rules on all objects, and iterate every number of clusters on them."
    )
    """Whether values of automatic parameters that are good on the sample are all iterated on all objects, and decided
    there, and so is every number of clusters; else samples decide, and all objects see one or two finalists. It makes
    a difference with init="sample" only: from other starts everything is done on all objects."""
    race: bool = _rare(False, "Stop runs early that, as they fall, cannot become the best of their setting any more.")
    """Whether the run stops early when it cannot win any more: another run of its setting is racing too, or has
    converged with sound clusters, and this one's objective is above that one's by more than ten times what it is still
    expected to fall. The expectation is a geometric series from its last ten iterations. This is safe, that is, the
    same run wins, where the objective falls geometrically, as it does near a fixed point of a Euclidean relation. It is
    not where a run lingers at a saddle and then falls again, which is why it is off by default, except between two
    finalists of a sample. Runs that were healed, reseeded, or whose objective rose are never stopped. pcm1 and pcm2
    stop when the fcm2 run that they are compared by has ended worse."""

    def __post_init__(self) -> None:
        called = OTHER_RULES.get(str(self.rule).lower())
        if called is not None:
            raise InputError(f"the rule {shown(self.rule)} is called {called} here")
        check_choice("rule", self.rule, (*RULES, AUTO))
        self._fill()
        if self.eta_refit and self.stop == "objective":
            object.__setattr__(self, "stop", "memberships")
        check_fields(self)
        if self.tol is None:
            object.__setattr__(self, "tol", TOLERANCES[self.stop])
        if self.stop == "objective" and not math.isinf(self.norm):
            raise InputError(
                "norm is of memberships or weights, and the objective is compared", remedy="say {stop=memberships}"
            )
        if self.fuzzifier == "auto" and self.rule == "pcm1":
            raise InputError('fuzzifier is "auto", which pcm1 does not have', remedy="give a number above 1")
        most = LARGEST_EXPONENT / math.log(max(self.n_clusters, 2))
        if self.theta > most:
            raise InputError(
                f"fuzzifier is {self.theta:g}: memberships of 1/{max(self.n_clusters, 2)} to this power are 0"
                " for a computer", remedy=f"give at most {most:.3g}",
            )  # fmt: skip
        if isinstance(self.init, str):
            check_choice("init", self.init, INITS, "memberships (n, c), or a model")

    def _fill(self) -> None:
        """Set the parameters that are not given to the defaults of the rule; raise for those that it does not have."""
        filled = {} if self.rule == AUTO else dict(PARAMETERS[self.rule])
        if self.eta == "cut":
            filled["eta_cut"] = ETA_CUT
        for name in TAKES:
            if getattr(self, name) is None:
                object.__setattr__(self, name, filled.get(name))
            elif name not in filled:
                other = " unless eta='cut'" if name == "eta_cut" and "eta" in filled else ""
                raise InputError(f"the rule {self.rule} takes no {name}{other}")

    def changed(self, **values: Any) -> Run:
        """Return the run with other values, which are not checked again."""
        run = copy.copy(self)
        vars(run).update(values)
        return run

    def __repr__(self) -> str:
        usual = {f.name: f.default for f in fields(self)} | dict.fromkeys(TAKES) | PARAMETERS.get(self.rule, {})
        usual["tol"] = TOLERANCES[self.stop]
        given = {name: value for name, value in self.parameters().items() if name not in ("rule", "n_clusters", "norm")}
        if not math.isinf(self.norm):
            given["norm"] = float(self.norm)
        others = [f", {name}={value!r}" for name, value in given.items() if value != usual[name]]
        return f"Run({self.rule!r}, {self.n_clusters}{''.join(others)})"

    @property
    def is_possibilistic(self) -> bool:
        """Whether the rule is pcm1 or pcm2."""
        return self.rule in ("pcm1", "pcm2")

    @property
    def most_iterations(self) -> int:
        """Most iterations, with those of the fcm2 run that pcm1 and pcm2 begin with."""
        return self.max_iter * (2 if self.is_possibilistic and isinstance(self.init, str) else 1)

    @property
    def theta(self) -> float:
        """Exponent of the memberships; 1 as long as it is "auto", which is replaced before a run begins."""
        return 1.0 if self.fuzzifier is None or isinstance(self.fuzzifier, str) else float(self.fuzzifier)

    @property
    def setting(self) -> tuple[Any, ...]:
        """The values that make objectives comparable: runs of one setting differ only in their initial memberships."""
        return tuple(getattr(self, name) for name in SETTING)

    def parameters(self) -> dict[str, Any]:
        """Return the fields as plain values, for tables and files; a given `init` as "model" or "memberships"."""
        values = {f.name: getattr(self, f.name) for f in fields(self) if getattr(self, f.name) is not None}
        if not isinstance(self.init, str):
            values["init"] = "model" if hasattr(self.init, "n_clusters") else "memberships"
        values["norm"] = "inf" if math.isinf(self.norm) else float(self.norm)
        return {name: value.item() if hasattr(value, "item") else value for name, value in values.items()}


class Runs(list[Run]):
    """A list of runs that is short when it is printed."""

    def __repr__(self) -> str:
        return f"<{count_text(len(self), 'run')}: {some(self)}>"


def grid(
    rule: str | Sequence[str],
    n_clusters: int | Sequence[int],
    *,
    n_init: int | None = None,
    random_state: int = 0,
    **others: Any,
) -> list[Run]:
    """Return runs for every combination of the values, `n_init` restarts of each: one bundle for `dasrel.cluster`.

    From a sample, the default, there are 10 restarts if no number is given, as `dasrel cluster` makes; else one. Any
    other field of `Run` may be given too, as one value or as a list of values. Restarts of the same number use the same
    random numbers in every combination.

    >>> grid("fcm1", [2, 3, 4], fuzzifier=[1.5, 2], n_init=10)
    <60 runs: Run('fcm1', 2, fuzzifier=1.5), Run('fcm1', 2, fuzzifier=1.5, restart=1), ... and 57 more>
    """
    known = {f.name for f in fields(Run)} - {"restart", "random_state", "rule", "n_clusters"}
    unknown = [name for name in others if name not in known]
    if unknown:
        raise InputError(
            f"no such setting of a run: {shown(unknown[0])}", remedy=f"there are {', '.join(sorted(known))}"
        )
    if n_init is None:
        inits = _several("init", others.get("init", Run.init))
        n_init = N_INIT if all(isinstance(init, str) and init == "sample" for init in inits) else 1
    check_number("n_init", n_init, whole=True, least=1)
    values = {"rule": rule, "n_clusters": n_clusters, **others}
    lists = {name: _several(name, value) for name, value in values.items()}
    count = n_init * math.prod(map(len, lists.values()))
    if count > MOST_RUNS:
        raise InputError(
            f"{count:,} runs are requested, and at most {MOST_RUNS:,} can be made at once", remedy="lower {n_init}"
        )
    combinations = (dict(zip(lists, values, strict=True)) for values in itertools.product(*lists.values()))
    firsts = (Run(**combination, random_state=random_state) for combination in combinations)
    return Runs(first.changed(restart=restart) for first in firsts for restart in range(n_init))


def listed_runs(runs: Any) -> list[Any]:
    """Return given runs as a list; numbers of clusters are the runs that `dasrel cluster` makes of them."""
    listed: list[Any] = [runs] if isinstance(runs, (Run, numbers.Integral)) else list(runs)
    if listed and all(isinstance(count, numbers.Integral) for count in listed):
        return grid(AUTO, [int(count) for count in listed])
    return listed


def _several(name: str, value: Any) -> list[Any]:
    is_list = isinstance(value, (list, tuple, range)) or (getattr(value, "ndim", 0) > 0 and name != "init")
    listed = list(value) if is_list else [value]
    if not listed:
        raise InputError(f"{name} is an empty list", remedy="give at least one value", option=name)
    return listed
