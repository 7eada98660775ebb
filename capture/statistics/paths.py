"""Statistics of how earlier layers' choices forecast later ones, and of paths through the layers.

Source: Yi et al., EdgeMoE, arXiv:2308.14352, figures 4 and 8. Its models are top-1. Here a *path*
is the expert with the largest weight at each site. A layer's *key* is either that expert (`first`)
or the whole selection (`set`).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import polars as pl
from numpy.typing import NDArray

from capture.statistics.codes import selection_codes
from capture.statistics.sample import Bools, Floats, Ints, Sample, Unavailable
from sim.values.units import part_of

KEYS = ("first", "set")
KNOWN = (0, 1, 2)
"""How many previous layers' choices are known."""
PATH_SHARE = 0.2
PATH_LENGTHS = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64)
PATH_STARTS = 4
MOST_EVALUATED = 20_000
"""Most rows that predictions are evaluated on; of more rows as many, evenly spaced, are taken."""


# Coverage of the likeliest experts (EdgeMoE fig. 8)


def prior_coverage(sample: Sample) -> pl.DataFrame:
    """How often selections are among the likeliest experts, given the choices of earlier sites.

    ``value`` is the share of a site's selections that are among its ``top`` likeliest experts,
    given the choices of ``known`` (0, 1 or 2) sites before. Sites count from the third on, so that
    all three values are of the same selections.

    Likeliness is counted on the `fit` sequences and evaluated on the `eval` ones (``evaluated`` is
    `held out`). Where one of the splits has no rows, both are all rows (`in sample`, which flatters
    long keys). An expert never seen after a key is ranked as if one site fewer were known. ``seen``
    is the share of rows whose key occurred in the fit, ``choices`` the mean number of selections a
    row.
    """
    if len(sample.sites) < 3:
        raise Unavailable(f"needs 3 sites, the rows visit {len(sample.sites)}")
    fit, held = sample.split("fit"), sample.split("eval")
    evaluated = "held out" if fit.any() and held.any() else "in sample"
    if evaluated == "in sample":
        fit = held = np.ones(len(sample.ids), np.bool_)
    counted, asked = np.flatnonzero(fit), np.flatnonzero(held)
    if len(asked) > MOST_EVALUATED:
        asked = asked[np.linspace(0, len(asked) - 1, MOST_EVALUATED).astype(np.int64)]
    codes: dict[str, NDArray[Any]] = {"first": sample.top, "set": selection_codes(sample.ids)}
    parts = []
    for two, one, site in zip(sample.sites, sample.sites[1:], sample.sites[2:], strict=False):
        for key in KEYS:
            pair = codes[key][:, [one, two]]
            numbered = [np.zeros(len(pair), np.int64), _numbered(pair[:, 0])]
            numbered.append(
                _numbered(
                    numbered[1] * (int(_numbered(pair[:, 1]).max()) + 1) + _numbered(pair[:, 1])
                )
            )
            scores, seen = _scores(sample.members(site), numbered, counted, asked)
            choices = float((sample.ids[asked, site] >= 0).sum(-1).mean())
            for known in KNOWN:
                hits = _hits(scores[known], sample.ids[asked, site])
                parts.append(
                    pl.DataFrame(
                        {
                            "site": site,
                            "key": key,
                            "known": known,
                            "top": np.arange(1, sample.num_experts + 1),
                            "value": hits,
                            "chance": np.arange(1, sample.num_experts + 1) / sample.num_experts,
                            "choices": choices,
                            "seen": seen[known],
                            "evaluated": evaluated,
                        }
                    )
                )
    return pl.concat(parts)


def _numbered(values: NDArray[Any]) -> Ints:
    """The values, replaced by the ranks 0, 1, .. of their distinct values."""
    return np.unique(values, return_inverse=True)[1]


def _scores(
    member: Bools, keys: list[Ints], counted: Ints, asked: Ints
) -> tuple[list[Floats], list[float]]:
    """By number of known sites: each expert's likeliness [asked, E], and the share of seen keys.

    The likeliness is the expert's count after the key, plus less than 1 by the order that the
    shorter key gives.
    """
    scores: list[Floats] = []
    seen = []
    below: Floats = np.zeros((len(asked), member.shape[1]))
    for key in keys:
        counts = np.zeros((int(key.max()) + 1, member.shape[1]), np.float32)
        rows, experts = np.nonzero(member[counted])
        np.add.at(counts, (key[counted][rows], experts), 1)
        there = np.zeros(len(counts), np.bool_)
        there[key[counted]] = True
        score = counts[key[asked]] + below
        scores.append(score)
        seen.append(float(there[key[asked]].mean()))
        below = score / (score.max(-1, keepdims=True) + 1)
    return scores, seen


def _hits(scores: Floats, chosen: Ints) -> Floats:
    """Share of ``chosen`` [R, K] that are among the 1, 2, .. E best scores of their row, [E].

    Equal scores rank by ascending id.
    """
    order = np.argsort(-scores, axis=-1, kind="stable")
    ranks = np.empty_like(order)
    np.put_along_axis(ranks, order, np.broadcast_to(np.arange(scores.shape[1]), order.shape), -1)
    of_chosen = np.take_along_axis(ranks, np.maximum(chosen, 0).astype(np.int64), -1)[chosen >= 0]
    counts = np.bincount(of_chosen, minlength=scores.shape[1])
    return np.cumsum(counts) / max(len(of_chosen), 1)


# Paths (EdgeMoE fig. 4)


def paths(sample: Sample, seed: int = 0) -> pl.DataFrame:
    """How concentrated tokens are on few paths, for paths of ``length`` sites from ``site`` on.

    ``paths`` counts the paths that occur, ``tokens_per_path`` the tokens on each on average.
    ``value`` is the share of tokens on the most frequent PATH_SHARE of the paths. ``control`` and
    ``control_paths`` are the same after each site's experts were shuffled over the tokens, which
    keeps every site's popularity and nothing else.

    Where nearly every token has a path of its own, ``value`` is PATH_SHARE whatever the model does.
    So read it beside ``tokens_per_path`` and the control. Starts are spread over the sites.
    """
    top = sample.top[:, sample.sites]
    top = top[(top >= 0).all(-1)]
    if not len(top):
        raise Unavailable("no row has an expert at every site")
    rng = np.random.default_rng(seed)
    shuffled = np.stack([rng.permutation(column) for column in top.T], axis=1)
    num_sites = top.shape[1]
    starts = sorted({number * num_sites // PATH_STARTS for number in range(PATH_STARTS)})
    parts = []
    for start in starts:
        true, control = _path_counts(top, start), _path_counts(shuffled, start)
        for length, counts in true.items():
            parts.append(
                {
                    "site": sample.sites[start],
                    "length": length,
                    "tokens": len(top),
                    "paths": len(counts),
                    "tokens_per_path": len(top) / len(counts),
                    "value": covered(counts),
                    "control": covered(control[length]),
                    "control_paths": len(control[length]),
                }
            )
    return pl.DataFrame(parts)


def _path_counts(top: Ints, start: int) -> Mapping[int, Ints]:
    """By length: how many tokens each path that occurs has.

    Lengths are PATH_LENGTHS, and always the length that reaches the last site.
    """
    num_sites = top.shape[1]
    counts: dict[int, Ints] = {}
    code = np.zeros(len(top), np.int64)
    for site in range(start, num_sites):
        length = site - start + 1
        # Codes are renumbered at every site, so that they stay small whatever the length.
        _, code, of_path = np.unique(
            code * (int(top.max()) + 1) + top[:, site], return_inverse=True, return_counts=True
        )
        if length in PATH_LENGTHS or site == num_sites - 1:
            counts[length] = of_path
    return counts


def covered(counts: Ints, share: float = PATH_SHARE) -> float:
    """Share of the tokens on the most frequent ``share`` of the paths, on one path at least."""
    ordered = np.sort(counts)[::-1]
    return float(ordered[: max(1, part_of(len(ordered), share))].sum() / ordered.sum())
