"""Popularity and locality: which experts are used, how soon again, and how many a batch needs.

Every function takes a `Sample` and returns a table with a row for each site and value of the axis.
``chance`` is the value for evenly drawn experts.
"""

from __future__ import annotations

import numpy as np
import polars as pl

from capture.statistics.sample import Floats, Ints, Sample

LAGS = (1, 2, 4, 8, 16, 32, 64, 128)
BATCHES = (1, 2, 4, 8, 16, 32, 64)
EXPERT_SHARES = tuple(tenth / 10 for tenth in range(1, 11))


def popularity(sample: Sample) -> pl.DataFrame:
    """Uses of each expert at each site, and their ``share`` of all uses of the site."""
    parts = []
    for site in sample.sites:
        uses = sample.members(site).sum(0)
        experts = np.arange(sample.num_experts)
        parts.append(
            pl.DataFrame(
                {"site": site, "expert": experts, "uses": uses, "share": uses / uses.sum()}
            )
        )
    return pl.concat(parts)


def gini(shares: Floats) -> float:
    """Gini coefficient: 0 where all shares are equal, towards 1 where one has everything."""
    ordered = np.sort(shares)
    ranks = np.arange(1, len(ordered) + 1)
    return float(
        2 * (ranks * ordered).sum() / (len(ordered) * ordered.sum())
        - (len(ordered) + 1) / len(ordered)
    )


def reuse_by_lag(sample: Sample) -> pl.DataFrame:
    """Mean share (``value``) of a token's experts that the token ``lag`` positions later selects.

    ``popularity_alone`` is the value for two independent tokens of the whole sample: sum q^2 / sum
    q, with q the share of rows that select an expert. Lags without a pair of rows are left out.
    """
    parts = []
    for site in sample.sites:
        chosen = sample.ids[:, site]
        some = np.asarray((chosen >= 0).any(-1))
        used = sample.members(site)[some].mean(0)
        alone = float((used**2).sum() / used.sum())
        for lag in LAGS:
            here, there = sample.pairs(lag)
            both = some[here] & some[there]
            if not both.any():
                continue
            one, other = chosen[here[both]], chosen[there[both]]
            common = ((one[:, :, None] == other[:, None, :]) & (one >= 0)[:, :, None]).sum((1, 2))
            parts.append(
                {
                    "site": site,
                    "lag": lag,
                    "pairs": int(both.sum()),
                    "value": float((common / (one >= 0).sum(-1)).mean()),
                    "chance": float(used.sum() / sample.num_experts),
                    "popularity_alone": alone,
                }
            )
    return pl.DataFrame(
        parts,
        schema={
            "site": pl.Int64,
            "lag": pl.Int64,
            "pairs": pl.Int64,
            "value": pl.Float64,
            "chance": pl.Float64,
            "popularity_alone": pl.Float64,
        },
    )


def reuse_distance(sample: Sample) -> pl.DataFrame:
    """How many selections there are at each reuse distance.

    The ``distance`` of a selection is how many other experts its sequence has selected at the site
    since it last selected this one; experts of that last token itself do not count. It is null for
    a sequence's first use of an expert. An LRU cache of C experts for the site, empty at each
    sequence's start, hits at most the distances below C.
    """
    parts = []
    for site in sample.sites:
        _, latest = sample.last_use(site)
        before = np.vstack([np.full((1, sample.num_experts), -1, latest.dtype), latest[:-1]])
        before = np.where(before >= sample.first_row[:, None], before, -1)
        distances = np.concatenate([_distances(before, chosen) for chosen in sample.ids[:, site].T])
        values, counts = np.unique(distances, return_counts=True)
        table = pl.DataFrame({"site": site, "distance": values, "selections": counts}).filter(
            pl.col("distance") > -2
        )
        parts.append(table.with_columns(pl.col("distance").replace(-1, None)))
    return pl.concat(parts)


def _distances(before: Ints, chosen: Ints) -> Ints:
    """Reuse distances [N] of one ``chosen`` expert a row; -1: first use, -2: no choice."""
    mine = np.take_along_axis(before, np.maximum(chosen, 0)[:, None].astype(np.int64), -1)
    since = (before > mine).sum(-1)
    return np.where(chosen < 0, -2, np.where(mine[:, 0] < 0, -1, since))


def unions(sample: Sample) -> pl.DataFrame:
    """How many distinct experts (``value``) a ``batch`` of tokens needs at a site.

    ``kind``:

    - `sequences`: one token of each of ``batch`` different sequences, drawn evenly. The value is
      the exact expectation, without sampling.
    - `window`: ``batch`` consecutive tokens of one sequence, as the mean over all such windows.

    Batches larger than the number of sequences, or than every sequence, are left out.
    """
    parts = []
    starts = np.unique(sample.first_row)
    lengths = np.diff(np.append(starts, len(sample.ids)))
    batches = [batch for batch in BATCHES if batch <= len(starts)]
    position, rows = sample.trace.position, np.arange(len(sample.ids))
    for site in sample.sites:
        member, latest = sample.last_use(site)
        mean = float(member.sum() / len(member))
        chances = {
            batch: sample.num_experts * (1 - (1 - mean / sample.num_experts) ** batch)
            for batch in BATCHES
        }
        unused = 1 - np.add.reduceat(member, starts, axis=0, dtype=np.float64) / lengths[:, None]
        none_uses = subset_products(unused, max(batches))
        values = {("sequences", batch): float((1 - none_uses[batch]).sum()) for batch in batches}
        for batch in BATCHES:
            first = rows - batch + 1
            whole = first >= sample.first_row
            whole[whole] = position[rows[whole]] - position[first[whole]] == batch - 1
            if whole.any():
                values["window", batch] = float(
                    (latest[whole] >= first[whole, None]).sum(-1).mean()
                )
        parts += [
            {"site": site, "kind": kind, "batch": batch, "value": value, "chance": chances[batch]}
            for (kind, batch), value in values.items()
        ]
    return pl.DataFrame(parts)


def subset_products(values: Floats, largest: int) -> Floats:
    """The mean product of all subsets of so many rows of ``values`` [R, E], by size 0..``largest``.

    Returns [largest + 1, E].
    """
    means = np.zeros((largest + 1, values.shape[1]))
    means[0] = 1.0
    sizes = np.arange(1, largest + 1)[:, None]
    for number, row in enumerate(values, start=1):
        # A random subset of ``size`` of the first ``number`` rows contains this row with
        # probability size / number.
        means[1:] = ((number - sizes) * means[1:] + sizes * row * means[:-1]) / number
    return means


def least_popular(sample: Sample) -> pl.DataFrame:
    """How few of a prompt's selections fall on its least popular experts, as means over prompts.

    ``value`` is the share of a prompt's selections that fall on the ``experts`` share of its active
    experts that it uses least; between whole experts it is interpolated linearly. ``active`` counts
    the experts that are used at all.

    Source: Fang et al., Fate, section 4.5 and figure 9: 30 % of the active experts have 15 % of the
    tokens in layer 6.
    """
    parts = []
    starts = np.unique(sample.first_row)
    for site in sample.sites:
        uses = np.add.reduceat(sample.members(site), starts, axis=0, dtype=np.int64)
        uses = np.sort(uses[uses.sum(-1) > 0], axis=-1)
        curves = [_cumulative(row[row > 0]) for row in uses]
        active = float((uses > 0).sum(-1).mean())
        parts += [
            {"site": site, "experts": share, "value": float(value), "active": active}
            for share, value in zip(EXPERT_SHARES, np.mean(curves, axis=0), strict=True)
        ]
    return pl.DataFrame(parts)


def _cumulative(uses: Ints) -> Floats:
    """The share of all ``uses`` (ascending) that the first EXPERT_SHARES of the experts have."""
    covered = np.concatenate([[0], np.cumsum(uses)]) / uses.sum()
    return np.asarray(
        np.interp(np.array(EXPERT_SHARES) * len(uses), np.arange(len(covered)), covered)
    )
