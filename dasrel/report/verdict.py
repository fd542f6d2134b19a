"""The verdict on a result, in words: what was found, how sure it is, and what to distrust."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

import numpy as np

from dasrel.names import INDICES
from dasrel.report.page_parts import Statement
from dasrel.store.audit import allowed_repairs
from dasrel.util import Array
from dasrel.util.text import count_text, ordinal_text, shown, some

SCALE = (
    (0.7, "good", "a strong structure"),
    (0.5, "good", "a reasonable structure"),
    (0.25, "caution", "a weak structure, which could be artificial: compare with other methods"),
    (-1.0, "bad", "no substantial structure: perhaps there are no clusters"),
)
"""What a mean silhouette says (Kaufman and Rousseeuw 1990, table 4)."""
SURE, DOUBTFUL = 0.01, 0.05
"""Bounds of the p value: below the first there is more structure than chance, above the second there is not."""
AGREEMENT = 0.6
"""Agreement between halves below which clusters are doubtful."""
NEAR = 0.02
"""Settings whose index is within this share of the best are named: the choice between them is not clear."""
SAME = 1e-4
"""Objectives within this share of each other count as the same optimum."""
ALL = 0.9
"""Share of the objects in a cluster from which it is as good as the only one."""
BORDER = 0.2
"""Share of objects on a border above which the clusters overlap."""


def silhouette_statement(value: float | None, what: str = "The mean silhouette") -> list[Statement]:
    """Return what a mean silhouette says."""
    if value is None:
        return []
    level, words = next((level, words) for bound, level, words in SCALE if value >= bound or bound == -1)
    return [Statement(level, f"{what} is {value:.3f}: {words}.")]


def structure_statements(structure: dict[str, Any] | None) -> list[Statement]:
    """Return how sure clusters are, first: whether chance makes such ones, and whether halves of the objects agree."""
    if structure is None:
        return []
    p, agreement = structure["p_value"], structure["agreement"]
    text = f"(p = {p:.2f}); groups agree to {max(agreement, 0.0):.0%} between halves"
    if p > DOUBTFUL:
        verdict = [Statement("bad", f"No clear clusters: data without groups look as clustered {text}.")]
    elif p > SURE:
        verdict = [Statement("caution", f"Perhaps clusters: data without groups seldom look as clustered {text}.")]
    elif agreement < AGREEMENT:
        doubt = "another number of clusters may fit better"
        verdict = [Statement("caution", f"More structure than chance {text}: {doubt}.")]
    else:
        verdict = [Statement("good", f"More structure than chance {text}.")]
    linked = structure["linked"]
    if linked is not None and linked["disagrees"]:
        sizes = some([f"{size:,}" for size in linked["sizes"]], show=6)
        text = (
            f"Average linkage finds other groups, of {sizes} among {structure['objects']:,} objects, again in halves"
            f" ({linked['agreement']:.0%}): c-means divides large groups beside small ones."
            f" `dasrel tree STORE OUT --linkage average --clusters {linked['cut']}` cuts so."
        )
        verdict.append(Statement("caution", text))
    return verdict


def cluster_verdict(
    result: dict[str, Any], best: dict[str, Any], runs: Sequence[dict[str, Any]], silhouettes: Array | None
) -> list[Statement]:
    """Return the verdict on a clustering, on its recommended setting."""
    n, verdict = result["n_objects"], [*_choice(result, best)]
    alone = [verdict.pop()] if len(result["settings"]) < 2 else []
    quality = best.get("validity") or {}
    structure = structure_statements(result.get("structure"))
    silhouette = silhouette_statement(quality.get("silhouette"))
    if structure and silhouette:  # which judges better than limits that are the same for all data
        text = silhouette[0].text
        silhouette = [Statement("info", text if silhouette[0].level == "good" else text.split(":")[0] + ".")]
    verdict = structure + verdict + silhouette
    if silhouettes is not None and (below := int((silhouettes < 0).sum())):
        level = "caution" if below > 0.05 * n else "info"
        objects = count_text(below, "object is", "objects are")
        own = "its" if below == 1 else "their"
        verdict.append(Statement(level, f"{objects} nearer to another cluster than to {own} own (silhouette below 0)."))
    verdict += _restarts(n, best, runs) + _borders(result, best) + _faults(best) + _geometry(result, best)
    if not result.get("converged", True):
        left = [each["folder"] for each in result["settings"] if not each.get("converged", True)]
        named = "The best run" if left == ["."] else f"The best run of {some([shown(name) for name in left])}"
        verdict.append(Statement("bad", f"{named} has not converged: raise max_iter, or look at the runs below."))
    changed = result.get("warm_start")
    if changed is not None:
        moved = f"{changed['moved']:,} of {count_text(changed['objects_before'], 'object')}"
        text = (
            f"{moved} changed their cluster since {shown(changed['from'], limit=200)}; {changed['new_objects']:,} new."
        )
        verdict.append(Statement("info", text))
    verdict += [Statement("caution", f"{shown(warning, limit=400)}.") for warning in result.get("warnings") or []]
    return verdict + alone


def _choice(result: dict[str, Any], best: dict[str, Any]) -> list[Statement]:
    """Return why this setting, and which others are as good."""
    settings, advice = result["settings"], result.get("recommended")
    if len(settings) < 2 or advice is None:
        text = "One setting was computed: nothing here tells whether another number of clusters fits better."
        return (
            [Statement("info", f"{text} `dasrel cluster STORE OUT --clusters 2-10` compares some.")]
            if len(settings) < 2
            else []
        )
    index, value = advice["index"], advice["value"]
    name = index.replace("_", " ")
    counts = sorted({setting["n_clusters"] for setting in settings})
    tried = f"{counts[0]} to {counts[-1]} clusters" if len(counts) > 1 else f"{count_text(len(settings), 'setting')}"
    of = "" if value is None else f" ({name} {value:.3f})"
    verdict = [Statement("info", f"Of {tried}, {count_text(advice['n_clusters'], 'cluster')} are recommended: it has"
                       f" {shown(advice['reason'], limit=200)}{of}.")]  # fmt: skip
    others = [(setting, (setting.get("validity") or {}).get(index)) for setting in settings if setting is not best]
    near = [
        setting for setting, other in others if value and other is not None and _is_near(other, value, INDICES[index])
    ]
    if near:
        named = some([f"{setting['rule']} with {setting['n_clusters']}" for setting in near])
        verdict.append(Statement("caution", f"Nearly as good by this index: {named} clusters. Look at both."))
    return verdict


def _is_near(other: float, value: float, larger: bool) -> bool:
    lost = (value - other if larger else other - value) / abs(value)
    return lost <= NEAR


def _restarts(n: int, best: dict[str, Any], runs: Sequence[dict[str, Any]]) -> list[Statement]:
    """Return how many runs of the same setting have found the same optimum: those on a sample, if there was one."""
    of_sample = best.get("restarts")
    if of_sample is not None and of_sample["finished"] > 1:
        finished, same = of_sample["finished"], of_sample["same"]
        where = "" if of_sample["objects"] == n else f" on a sample of {of_sample['objects']:,} objects"
        text = f"{same} of {finished} restarts that were finished{where} ended"
        if same == 1:
            return [Statement("caution", f"Only {text} in the best clusters: more restarts may find better ones.")]
        return [Statement("good", f"{text} in the same clusters, the best ones.")]
    names = ("rule", "n_clusters", "fuzzifier", "entropy_weight", "eta_scale", "spread")
    same = [run for run in runs if all(run.get(name) == best.get(name) for name in names)]
    if len(same) < 2 or best.get("objective") is None:
        return []
    top = best["objective"]
    equal = sum(abs(run["objective"] - top) <= SAME * max(abs(top), 1e-300) for run in same)
    if equal == 1:
        text = f"Only 1 of {len(same)} runs of this setting ended at the best objective: more restarts may find better."
        return [Statement("caution" if len(same) > 3 else "info", text)]
    return [Statement("good", f"{equal} of {len(same)} runs of this setting ended at the same best objective.")]


def _borders(result: dict[str, Any], best: dict[str, Any]) -> list[Statement]:
    count, n = best.get("border"), result["n_objects"]
    if count is None or best["rule"] == "hard":
        return []
    bound = result.get("requested", {}).get("border", 0.9)
    if not count:
        return [Statement("good", f"No object lies on a border: all largest memberships are at least {bound:g}.")]
    of = f"{count_text(count, 'object')} of {n:,} ({count / n:.0%})"
    if best["rule"].startswith("pcm"):
        return [Statement("info", f"{of} have no typicality of {bound:g} or more in any cluster.")]
    level = "caution" if count > BORDER * n else "info"
    more = ": the clusters overlap" if level == "caution" else ""
    return [Statement(level, f"{of} lie on a border, with a largest membership below {bound:g}{more}.")]


def _faults(best: dict[str, Any]) -> list[Statement]:
    verdict = []
    if best.get("flat"):
        text = "All memberships are equal to 1/c: this is no clustering. Lower the entropy weight or the fuzzifier."
        verdict.append(Statement("bad", text))
    elif best.get("coincident_clusters"):
        pairs = count_text(best["coincident_clusters"], "pair")
        modes = best.get("n_modes")
        into = f" into {count_text(modes, 'mode')}" if modes else ""
        text = f"{pairs} of clusters coincide: {best['n_clusters']} clusters ended{into}, so that there are fewer than"
        verdict.append(Statement("bad", f"{text} their number says. Try fewer clusters, or narrower ones."))
    if best.get("empty"):
        empty = count_text(best["empty"], "cluster has", "clusters have")
        verdict.append(Statement("caution", f"{empty} no object of its own: try fewer clusters."))
    return verdict


def _geometry(result: dict[str, Any], best: dict[str, Any]) -> list[Statement]:
    changed = result.get("euclideanized")
    if changed is not None:
        return [_changed(changed)]
    count = best.get("negative_distances")
    if count:
        added = best.get("beta") or 0.0
        healed = f"; {added:.4g} was added to all pairs" if added else ""
        text = f"The matrix is not Euclidean: {count_text(count, 'squared distance')} to centres were negative{healed}."
        return [Statement("caution", f"{text} `dasrel spectrum` says how far from Euclidean it is.")]
    return []


def _changed(changed: dict[str, Any]) -> Statement:
    if changed.get("was_euclidean"):
        return Statement("good", "The matrix is Euclidean already: nothing was added.")
    share = changed["ratio"]
    level = "caution" if share > 0.5 else "info"
    text = f"The matrix was made Euclidean by {changed['method']}: {share:.2g} of its sum was added"
    doubt = ", so much that small differences are lost" if level == "caution" else ""
    return Statement(level, f"{text}{doubt}.")


def outlier_verdict(result: dict[str, Any], setting: dict[str, Any]) -> list[Statement]:
    """Return the verdict on one setting of outliers."""
    n, count, verdict = result["n_objects"], setting["outliers"], []
    share = f"{count / n:.1%} of {count_text(n, 'object')}"
    wanted = result.get("requested", {}).get("reject", "auto")
    if count:
        by = "a requested number" if isinstance(wanted, int) else f"a requested share of {wanted}"
        by = "the gap that sets them apart" if wanted == "auto" else by
        text = f"{count_text(count, 'outlier')}, {share}, by {by}: typicality below {setting['threshold']:.4g}."
        verdict.append(Statement("info", text))
    verdict += _neighbour_statements(setting)
    rungs = [rung["same_outliers"] for rung in setting.get("ladder") or []] if count else []
    if rungs:
        least = min(rungs) / count
        level, words = ("good", "they hardly depend on the width") if least >= 0.8 else ("caution", "look at both")
        text = f"At other widths {min(rungs):,} to {max(rungs):,} of {count:,} outliers are the same objects: {words}."
        verdict.append(Statement(level, text))
    clusters = setting.get("clusters")
    if clusters is not None:
        text = f"The others form {count_text(clusters['n_clusters'], 'cluster')} of any shape."
        level = "caution" if max(clusters["sizes"]) >= ALL * sum(clusters["sizes"]) else "info"
        verdict.append(Statement(level, " ".join([text, *(f"{_sentence(words)}." for words in shape_words(clusters))])))
        if not clusters["complete"]:
            text = "Not all segments were tested: some of these clusters may be one."
            verdict.append(Statement("caution", text))
        if clusters["is_euclidean"] is False:
            text = "The matrix is not Euclidean, which clusters of any shape assume."
            verdict.append(Statement("caution", text))
    if setting.get("negative_distances"):
        text = f"{count_text(setting['negative_distances'], 'squared distance')} to the centre were negative:"
        verdict.append(Statement("caution", f"{text} the matrix is not Euclidean."))
    if result.get("euclideanized"):
        verdict.append(_changed(result["euclideanized"]))
    if not setting["converged"]:
        verdict.append(Statement("bad", "The typicalities have not converged: raise max_iter."))
    return verdict


def _neighbour_statements(setting: dict[str, Any]) -> list[Statement]:
    """Return what the distances to neighbours say beside the typicalities."""
    near, count = setting["neighbours"], setting["outliers"]
    ordinal = ordinal_text(near["k"])
    scores = Statement("caution" if _scores_disagree(setting) else "info", f"{_sentence(neighbour_words(setting))}.")
    if count:
        return [scores]
    if not near["standing_out"]:
        text = (
            f"No outliers stand out: the largest distances to the {ordinal} neighbour have no gap that the tail of the"
        )
        return [Statement("info", f"{text} others does not explain."), scores]
    names = some([shown(name) for name in near["standing_out_ids"]], total=near["standing_out"])
    alone = count_text(near["standing_out"], "object stands", "objects stand")
    text = (
        f"No outliers stand out by their typicality, but {alone} out by the distance to the {ordinal} neighbour:"
        f" {names}. Outliers that are near each other look typical to a"
        " narrow kernel: look at a larger width, and at the ranks by neighbours."
    )
    return [Statement("caution", text), scores]


def neighbour_words(setting: dict[str, Any]) -> str:
    """Return in words how far typicalities and distances to neighbours agree on the outliers of a setting."""
    near = setting["neighbours"]
    ordinal, same, compared = ordinal_text(near["k"]), near["same"], near["compared"]
    least = "outlier" if setting["outliers"] else "least typical object"
    text = (
        f"{same:,} of {count_text(compared, least)} {'is' if same == 1 else 'are'} among the {compared:,} farthest from"
    )
    text += f" their {ordinal} neighbour"
    return f"{text}: the two scores disagree, look at both" if _scores_disagree(setting) else text


def _scores_disagree(setting: dict[str, Any]) -> bool:
    """Return whether the two scores have different objects that matter: rejected, or standing out."""
    near = setting["neighbours"]
    return bool(setting["outliers"] or near["standing_out"]) and near["same"] < 0.8 * near["compared"]


def shape_words(clusters: dict[str, Any]) -> list[str]:
    """Return what clusters of any shape do not show, and what to try next."""
    sizes = clusters["sizes"]
    largest, others = max(sizes), sum(sizes) - max(sizes)
    if largest < ALL * (largest + others):
        return ["groups that touch count as one cluster"]
    whose = f"{largest:,} of {largest + others:,} objects" if others else "all objects"
    return [
        f"{whose} that are no outliers are in one cluster: groups that touch or differ in density can be joined",
        "clusters by density (`dasrel density STORE OUT`) may separate them, or a cut of a dendrogram (`dasrel tree"
        " STORE OUT --linkage average`)",
    ]


def _sentence(words: str) -> str:
    return words[:1].upper() + words[1:]


def linkage_verdict(result: dict[str, Any], cut: dict[str, Any]) -> list[Statement]:
    """Return the verdict on a dendrogram and one of its cuts."""
    verdict = silhouette_statement(cut.get("silhouette"), f"The mean silhouette of {cut['n_clusters']} clusters")
    if len(result["cuts"]) > 1 and result.get("recommended"):
        text = f"Of {len(result['cuts'])} cuts, the one into {count_text(cut['n_clusters'], 'cluster')} has the"
        verdict.insert(0, Statement("info", f"{text} highest silhouette."))
    gap = result.get("largest_gap")
    if gap is not None:
        agrees = gap == cut["n_clusters"]
        level, words = ("good", "as this cut has") if agrees else ("caution", f"not {cut['n_clusters']}: look at both")
        text = f"The largest gap between heights is at {count_text(gap, 'cluster')}, {words}."
        verdict.append(Statement(level, text))
    sizes = cut["sizes"]
    if len(sizes) > 1 and sizes[0] > 0.9 * result["n_objects"]:
        text = f"One cluster has {sizes[0] / result['n_objects']:.0%} of all objects: {result['linkage']} linkage"
        verdict.append(Statement("caution", f"{text} may have split off outliers only."))
    return verdict


def alignment_verdict(result: dict[str, Any]) -> list[Statement]:
    """Return the verdict on an alignment."""
    width = "the matrix itself as kernel" if result["width"] is None else f"a kernel of width {result['width']:.4g}"
    text = f"{count_text(result['n_clusters'], 'cluster')} and {width} agree best: alignment {result['alignment']:.3f}"
    verdict = [Statement("info", f"{text} of at most 1.")]
    other = result["centred_best"]["n_clusters"]
    if other != result["n_clusters"]:
        text = (
            f"The centred alignment is largest for {count_text(other, 'cluster')} instead: the number is not certain."
        )
        verdict.append(Statement("caution", text))
    else:
        verdict.append(Statement("good", "The centred alignment recommends the same number."))
    ranked = sorted(
        (partition for partition in result["partitions"] if partition["sound"]),
        key=lambda partition: -partition["alignment"],
    )
    if len(ranked) > 1 and ranked[1]["alignment"] >= (1 - NEAR) * ranked[0]["alignment"]:
        text = f"{count_text(ranked[1]['n_clusters'], 'cluster')} align nearly as well ({ranked[1]['alignment']:.3f})."
        verdict.append(Statement("caution", text))
    unsound = [partition["n_clusters"] for partition in result["partitions"] if not partition["sound"]]
    if unsound:
        text = f"Clusters coincide or are empty for {some(unsound)} clusters; these were not chosen."
        verdict.append(Statement("info", text))
    if not result["converged"]:
        verdict.append(Statement("bad", "Not all partitions have converged: raise max_iter."))
    return verdict


def embedding_verdict(result: dict[str, Any]) -> list[Statement]:
    """Return the verdict on principal coordinates."""
    two, negative = sum(result["shares"][:2]), result["negative_share"]
    level = "good" if two >= 0.5 else "caution"
    doubt = "" if two >= 0.5 else ": what looks near in the picture may be far apart"
    verdict = [Statement(level, f"The first two axes have {two:.0%} of the positive eigenvalues{doubt}.")]
    if result["spread"]:
        verdict.append(Statement("info", f"{result['spread']:.4g} was added to all pairs: no eigenvalue is negative."))
    elif result["n_negative"]:
        level = "caution" if negative > 0.1 else "info"
        text = f"The matrix is not Euclidean: about {negative:.1%} of the eigenvalues by size are negative, and no axis"
        verdict.append(Statement(level, f"{text} shows them."))
    else:
        verdict.append(
            Statement("good", "No negative eigenvalue was found: the matrix is Euclidean, as far as is known.")
        )
    if not result["converged"]:
        verdict.append(Statement("bad", f"The axes have not converged ({shown(result['stopped'])}): raise max_scans."))
    return verdict


def spectrum_verdict(result: dict[str, Any]) -> list[Statement]:
    """Return the verdict on a spectrum."""
    answer = result["is_euclidean"]
    if answer:
        verdict = [Statement("good", "The matrix is Euclidean: its values are distances between points.")]
    elif answer is None:
        verdict = [Statement("caution", "It is not known whether the matrix is Euclidean: more scans are needed.")]
    else:
        share = result.get("negative_share") or 0.0
        text = f"The matrix is not Euclidean: at least {count_text(result['n_negative'], 'eigenvalue')} below 0, about"
        verdict = [Statement("caution" if share > 0.1 else "info", f"{text} {share:.1%} of all by size.")]
        verdict.append(
            Statement("info", f"A constant of {result['spread']:.6g} added to all pairs makes it Euclidean.")
        )
    threshold = result["entropy_threshold"]
    verdict.append(Statement("info", f"Above an entropy weight of {threshold:.4g} all clusters of fcm2 are equal."))
    if not result["converged"]:
        verdict.append(Statement("bad", f"The search has not converged ({shown(result['stopped'])}): raise max_scans."))
    return verdict


def euclideanize_verdict(result: dict[str, Any]) -> list[Statement]:
    """Return the verdict on a Euclideanisation."""
    verdict = [_changed(result)]
    if not result.get("was_euclidean"):
        verdict.append(
            Statement("info", f"Kruskal's stress between the matrix and the result is {result['stress']:.3g}.")
        )
    if result.get("merged"):
        verdict.append(Statement("info", f"{count_text(result['merged'], 'object')} duplicate another one."))
    if result.get("converged") is False:
        verdict.append(Statement("bad", "The search has not converged: raise max_scans."))
    return verdict


def audit_verdict(audit: dict[str, Any]) -> list[Statement]:
    """Return the verdict on a store."""
    if audit["state"] != "complete":
        text = (
            f"The store is unfinished: {audit['tiles_written']:,} of {count_text(audit['tiles'], 'tile')} are written."
        )
        return [Statement("bad", text)]
    verdict = [Statement("good", f"The store is complete: {count_text(audit['tiles'], 'tile')}.")]
    repairs = allowed_repairs(audit["input"])
    if repairs:
        verdict.append(Statement("caution", f"Repairs were allowed: {', '.join(repairs)}."))
    else:
        verdict.append(Statement("good", "No repair was allowed: all values are those of the source."))
    for name, words in (("missing", "had no value"), ("clipped", "were small negative distances and became 0")):
        if (audit[name] or {}).get("count"):
            verdict.append(Statement("caution", f"{count_text(audit[name]['count'], 'pair')} {words}."))
    if (audit["asymmetry"] or {}).get("largest"):
        text = f"{count_text(audit['asymmetry']['pairs'], 'pair')} had two different values, by up to"
        verdict.append(Statement("caution", f"{text} {audit['asymmetry']['largest']:.4g}."))
    zeros = (audit["zeros"] or {}).get("count")
    if zeros and audit["kind"] in ("distance", "squared-distance"):
        verdict.append(
            Statement("info", f"{count_text(zeros, 'pair')} of different objects have the value 0: duplicates.")
        )
    verified = audit.get("verified")
    if verified is not None:
        bad = len(verified["bad"])
        text = f"All {count_text(verified['tiles'], 'tile')} were read and compared with their checksums: "
        verdict.append(
            Statement("bad" if bad else "good", text + (count_text(bad, "fault") if bad else "no fault") + ".")
        )
    return verdict


def figures_verdict(verdicts: Sequence[str]) -> list[Statement]:
    """Return how many figures of a table have each verdict."""
    levels: dict[str, Any] = {"exact": "good", "same": "good", "close": "good", "different": "caution", "failed": "bad"}
    return [
        Statement(levels.get(word.lower(), "info"), f"{count_text(count, 'figure')}: {shown(word)}.")
        for word, count in Counter(verdicts).most_common()
    ]


def mean_by_cluster(labels: Array, values: Array, clusters: int) -> list[float | None]:
    """Return the mean of values over the objects of each cluster; None for a cluster without objects."""
    known = ~np.isnan(values)
    at = labels[known].astype(np.intp)
    counts = np.bincount(at, minlength=clusters)
    sums = np.bincount(at, weights=values[known], minlength=clusters)
    return [float(s / c) if c else None for s, c in zip(sums[:clusters], counts[:clusters], strict=True)]
