"""What `dasrel cluster` prints of a result."""

from __future__ import annotations

from typing import Any

from dasrel.commands.base import Lines, Result
from dasrel.report.verdict import structure_statements
from dasrel.util.text import count_text, group_sizes, shown, some


def lines_of(result: Result) -> Lines:
    """Return names and texts for people."""
    settings, sample = result["settings"], result["sample"]
    began = ""
    if sample is not None:
        began = f", the best of {sample['runs']:,} on a sample of {count_text(sample['objects'], 'object')}"
        began += "" if sample["left_out"] is None else f" ({sample['left_out']})"
    lines = [] if len(settings) > 1 else _mode_lines(settings[0])
    lines += [("verdict", statement.text) for statement in structure_statements(result["structure"])]
    lines.append(("results", shown(result["out"], limit=400)))
    if all(map(_is_unsound, settings)):
        advice = "try fewer clusters, or smaller values of --entropy-weight, --fuzzifier or --eta-scale"
        lines.append(("caution", f"clusters coincide or are empty: {advice}"))
    lines += [
        ("objects", f"{result['n_objects']:,}, kind {result['kind']}"),
        ("runs", f"{result['runs']:,}{began}; {result['runs_converged']:,} converged"),
        ("scans", f"{result['scans']:,} in {result['seconds']:.1f} s"),
        *_level_lines(result["levels"]),
    ]
    changed = result.get("euclideanized")
    if changed is not None:
        text = f"{changed['method']}, gamma {changed['gamma']:.6g}, {changed['ratio']:.3g} of D was added"
        lines.append(("Euclideanised", text))
    if result.get("warm_start") is not None:
        lines += _moved_lines(result["warm_start"])
    return lines + (_one_setting(result) if len(settings) == 1 else _several_settings(result))


def _level_lines(levels: list[dict[str, Any]]) -> Lines:
    """Return what was done on samples, if there were some with fewer objects than the matrix."""
    if len(levels) < 2 or levels[0]["objects"] == levels[-1]["objects"]:
        return []
    return [
        (
            f"on {level['objects']:,}",
            f"{count_text(level['runs'], 'run')}, {count_text(level['n_iter'], 'iteration')}"
            f" in {level['seconds']:.1f} s",
        )
        for level in levels
    ]


def _mode_lines(setting: dict[str, Any]) -> Lines:
    """Return how many clusters of pcm1 and pcm2 are left, where that is fewer than were wanted."""
    if setting["n_modes"] in (None, setting["n_clusters"]):
        return []
    return [("modes", f"{setting['n_clusters']} clusters ended in {count_text(setting['n_modes'], 'mode')}")]


def _is_unsound(setting: dict[str, Any]) -> bool:
    return bool(setting["flat"] or setting["coincident_clusters"] or setting["empty"])


def _moved_lines(warm: dict[str, Any]) -> Lines:
    named = f": {some([shown(name) for name in warm['moved_ids']], total=warm['moved'])}" if warm["moved"] else ""
    before = count_text(warm["objects_before"], "object")
    shares = " ".join(f"{count:,}" for count in warm["new_per_cluster"])
    return [
        ("moved", f"{warm['moved']:,} of {before} changed their cluster{named}"),
        ("new", count_text(warm["new_objects"], "object") + (f": {shares}" if warm["new_objects"] else "")),
    ]


def _several_settings(result: Result) -> Lines:
    lines = []
    for setting in result["settings"]:
        suffix = "" if setting["converged"] else ", not converged"
        suffix += ", clusters coincide or are empty" if _is_unsound(setting) else ""
        if setting["objects"] < result["n_objects"]:
            suffix += f", centres of a sample of {setting['objects']:,}"
        quality = setting["validity"] or {}
        indices = [name for name in ("fuzzy_silhouette", "silhouette", "xie_beni") if quality.get(name) is not None]
        texts = [f"{name.replace('_', ' ')} {quality[name]:.3f}" for name in indices]
        lines.append((setting["folder"], ", ".join([*texts, f"sizes {_sizes(setting)}{suffix}"])))
    advice = result["recommended"]
    return lines if advice is None else [*lines, ("recommended", f"{advice['folder']}: {advice['reason']}")]


def _one_setting(result: Result) -> Lines:
    setting, advice = result["settings"][0], result["recommended"]
    weight = setting["entropy_weight_used"] if setting["rule"] == "fcm2" else None
    used = {"fuzzifier": setting.get("fuzzifier"), "entropy weight": weight}
    numbers = "".join(f", {name} {value:.6g}" for name, value in used.items() if value is not None)
    after = f"after {setting['n_iter']:,} of at most {_most_iterations(setting):,} iterations (run {setting['run']})"
    lines = [
        ("rule", f"{setting['rule']}, {count_text(setting['n_clusters'], 'cluster')}{numbers}"),
        *((_ladder_name(ladder), _ladder_text(ladder)) for ladder in setting["ladders"]),
        ("converged", f"{'yes' if setting['converged'] else 'no'}, {after}{_ended(setting)}"),
        ("objective", f"{setting['objective']:.8g}"),
    ]
    silhouette = (setting["validity"] or {}).get("silhouette")
    if silhouette is not None:
        low = advice is not None and not advice["is_good"] and result["structure"] is None
        doubt = ": low, perhaps there are no clusters" if low else ""
        lines.append(("silhouette", f"{silhouette:.3f}{doubt}"))
    bound = result["requested"]["border"]
    return [
        *lines,
        ("sizes", _sizes(setting)),
        ("medoids", " ".join(shown(name) for name in setting["medoids"] if name is not None)),
        ("border", f"{count_text(setting['border'], 'object')} with a largest membership below {bound:g}"),
    ]


def _ladder_name(ladder: dict[str, Any]) -> str:
    name: str = ladder["parameter"]
    return "rule chosen" if name == "rule" else name.replace("_", " ")


def _ladder_text(ladder: dict[str, Any]) -> str:
    """Return what is printed of a choice, with how sure it is."""
    chosen, runner_up, distance = ladder["chosen"], ladder["runner_up"], ladder["distance"]
    value, rival = (text if isinstance(text, str) else f"{text:.6g}" for text in (chosen, runner_up or 0))
    sure = "" if distance is None else f"; {rival} would be taken if silhouettes changed by {distance:.2g}"
    return f"{value}: {ladder['reason']}{sure}"


def _ended(setting: dict[str, Any]) -> str:
    """Return the two numbers at the end of a run."""
    names = {"objective": setting["objective_change"], "memberships": setting["largest_change"]}
    changes = [f"{name} {value:.1e}" for name, value in names.items() if value is not None]
    return f"; last changes: {', '.join(changes)}" if changes else ""


def _most_iterations(setting: dict[str, Any]) -> int:
    """Return the most iterations of a run, with those of the fcm2 run before pcm1 and pcm2."""
    twice = setting["rule"].startswith("pcm") and setting["init"] not in ("memberships", "model")
    return int(setting["max_iter"]) * (2 if twice else 1)


def _sizes(setting: dict[str, Any]) -> str:
    """Return the sizes of the clusters; clusters in one mode count once."""
    sizes, modes = setting["sizes"], setting.get("modes") or range(setting["n_clusters"])
    return group_sizes(size for k, (size, mode) in enumerate(zip(sizes, modes, strict=True)) if k == mode)
