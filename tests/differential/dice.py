"""The random draws of scenarios with features: durations, links, and the rows of their steps.

Rows are recorded, or composed from requests.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from differential.scenario import (
    Batching,
    Link,
    Need,
    Prediction,
    Request,
    Routed,
    Row,
    Scenario,
    Step,
    draw_distinct,
    foresee,
    scored,
    union,
)

COMPOSED = {
    "static",
    "continuous",
    "prefill_chunk",
    "arrivals",
    "drafts",
    "prefixes",
    "draft_sites",
}
"""Features in which steps are composed of requests."""


class Draw:
    """The dice of one scenario."""

    def __init__(self, rng: np.random.Generator, ties: bool) -> None:
        self.rng, self.ties = rng, ties

    def coin(self, probability: float = 0.5) -> bool:
        return bool(self.rng.random() < probability)

    def below(self, tiny: int, long: int) -> int:
        """A duration: below `tiny` with ties, 0 included, else up to `long`."""
        return int(self.rng.integers(0, tiny)) if self.ties else int(self.rng.integers(1, long))

    def between(self, low: int, high: int) -> int:
        return int(self.rng.integers(low, high + 1))

    # ---- links

    def with_links(self, scenario: Scenario, names: set[str]) -> Scenario:
        count = 1
        if names & {"two_hops", "cut_through", "ram_tier"}:
            count = 2
        if "three_hops" in names or (
            names & {"cut_through", "ram_tier"} and "two_hops" not in names and self.coin(0.4)
        ):
            count = 3
        slowness = int(self.rng.choice([1, 1, 3]))
        heads = [False] + [self.coin() for _ in range(count - 1)]
        if count > 1 and not any(heads):
            heads[self.between(1, count - 1)] = True
        links = []
        for link in range(count):
            head = heads[link] and "cut_through" in names
            least = 1 if names & {"chunks", "cut_through"} else 0
            links.append(
                Link(
                    overhead_ns=self.below(3, 400),
                    ns_per_byte=max(least, slowness * self.below(3, 300)),
                    engines=(
                        self.between(2, 3)
                        if "engines" in names and not head and self.coin(0.8)
                        else 1
                    ),
                    head_bytes=(
                        self.between(1, max(2, max(scenario.variant_bytes) // 2)) if head else 0
                    ),
                )
            )
        if "engines" in names and count == 1:
            links[0] = replace(links[0], engines=self.between(2, 3))
        return replace(scenario, links=tuple(links))

    # ---- rows, recorded or in requests

    def with_rows(self, scenario: Scenario, names: set[str]) -> Scenario:
        first = scenario.steps[0]
        top_k = sum(need.tokens for need in first.needs[0]) // first.rows
        encoder = self.between(1, scenario.sites - 1) if "encoder_decoder" in names else 0
        rows = Rows(self, scenario, top_k, encoder)
        requests = [rows.request() for _ in range(self.between(2, 5))]
        if not names & COMPOSED:
            many = "many_sequences" in names
            return replace(scenario, steps=self.record(scenario, requests, many, encoder))
        if "arrivals" in names:
            busy = sum(first.dense_ns) + first.tail_ns + sum(scenario.service_ns)
            arrivals = [self.below(4, 2 + 8 * busy) * self.between(0, 8) for _ in requests]
            requests = [replace(r, arrival_ns=ns) for r, ns in zip(requests, arrivals, strict=True)]
        batching = Batching(
            kind="static" if "static" in names else "continuous",
            size=self.between(1, 3),
            prefill_chunk=self.between(1, 4) if "prefill_chunk" in names else 0,
            encoder_sites=encoder,
            dense_ns=first.dense_ns,
            dense_row_ns=self.below(2, 50),
            tail_ns=first.tail_ns,
        )
        if "drafts" in names:
            shares = sorted((self.between(0, 10) / 10 for _ in range(3)), reverse=True)
            batching = replace(
                batching,
                drafts=self.between(1, 3),
                accepted=tuple(shares),
                draft_seed=self.between(0, 5),
                draft_sites=self.between(1, scenario.sites - 1) if "draft_sites" in names else 0,
            )
        if "prefixes" in names:
            size = self.between(1, 2)
            requests = [replace(one, blocks=self.blocks(one, size)) for one in requests]
            tiers = (self.between(0, 1), self.between(0, 4), self.between(0, 6))
            batching = replace(batching, block_tokens=size, tiers=tiers)
        return replace(scenario, steps=(), requests=tuple(requests), batching=batching)

    def blocks(self, request: Request, size: int) -> tuple[int, ...]:
        """A path from the root of a tree in which few ways part."""
        found, block = [], 1
        for _ in range(len(request.prompt) // size):
            block = 2 * block + self.coin(0.25)
            found.append(block)
        return tuple(found)

    def record(
        self, scenario: Scenario, requests: list[Request], many: bool, encoder: int
    ) -> tuple[Step, ...]:
        """Steps of one sequence after another, or of several at once, each going on at its own
        pace.
        """
        left = [list(request.decode) for request in requests]
        prompts = [request.prompt for request in requests]
        done = [0] * len(requests)
        steps = []
        while any(prompts) or any(left):
            open_ones = [s for s in range(len(requests)) if prompts[s] or left[s]]
            members = open_ones[: 1 + many * self.between(0, 2)]
            reading = [s for s in members if prompts[s]]
            if encoder and reading:
                members = reading
            rows: list[Row] = []
            for s in members:
                rows += prompts[s] or [left[s].pop(0)]
                done[s] += len(prompts[s]) or 1
                prompts[s] = ()
            sites = range(scenario.sites)
            visits = (
                tuple(sites[:encoder] if reading else sites[encoder:]) if encoder else tuple(sites)
            )
            first = scenario.steps[0]
            ranked = [[scored(row.routed[site]) for row in rows] for site in sites]
            steps.append(
                Step(
                    sequence=members[0],
                    begins=False,
                    ends=False,
                    rows=len(rows),
                    token=max(done[s] for s in members),
                    dense_ns=first.dense_ns,
                    tail_ns=first.tail_ns,
                    needs=tuple(union(ranked[site]) if site in visits else () for site in sites),
                    forecasts=tuple(
                        rows[0].forecasts[site] if len(rows) == 1 else () for site in sites
                    ),
                    sequences=tuple(members),
                    visits=visits,
                    ranks=tuple(
                        tuple(tuple(e for e, _ in row) for row in ranked[site]) for site in sites
                    ),
                )
            )
        return tuple(steps)


class Rows:
    """Random routing, the weights in units of 1/1024, and forecasts of it."""

    def __init__(self, draw: Draw, scenario: Scenario, top_k: int, encoder: int) -> None:
        self.draw, self.rng, self.scenario, self.top_k, self.encoder = (
            draw,
            draw.rng,
            scenario,
            top_k,
            encoder,
        )
        sharpness = float(self.rng.choice([0.3, 1.0, 5.0]))
        popularity = (
            self.rng.dirichlet(np.full(scenario.experts, sharpness), size=scenario.sites) + 0.01
        )
        self.popularity = (popularity / popularity.sum(axis=1, keepdims=True)).tolist()
        self.accuracy = float(self.rng.choice([0.3, 0.7, 0.9, 1.0]))

    def request(self) -> Request:
        sites = range(self.scenario.sites)
        prompt = sites[: self.encoder] if self.encoder else sites
        return Request(
            prompt=tuple(self.row(prompt, foreseen=False) for _ in range(self.draw.between(1, 6))),
            decode=tuple(
                self.row(sites[self.encoder :], foreseen=True)
                for _ in range(self.draw.between(0, 7))
            ),
        )

    def row(self, visits: range, foreseen: bool) -> Row:
        routed = tuple(
            self.routed(site) if site in visits else () for site in range(self.scenario.sites)
        )
        lookahead = range(1, self.scenario.loader.lookahead + 1)
        return Row(
            routed,
            tuple(
                tuple(
                    self.forecast(routed, site + ahead) if foreseen else None for ahead in lookahead
                )
                for site in range(self.scenario.sites)
            ),
        )

    def routed(self, site: int) -> Routed:
        chosen = draw_distinct(self.rng, self.popularity[site], self.top_k)
        cuts = sorted(1 + int(c) for c in self.rng.choice(1023, size=self.top_k - 1, replace=False))
        parts = [b - a for a, b in zip([0, *cuts], [*cuts, 1024], strict=True)]
        pairs = [(expert, part / 1024) for expert, part in zip(chosen, parts, strict=True)]
        return tuple(sorted(pairs, key=lambda pair: (-pair[1], pair[0])))

    def forecast(self, routed: tuple[Routed, ...], site: int) -> Prediction:
        if site >= self.scenario.sites:
            return None
        needs = tuple(Need(expert, 1, score) for expert, score in scored(routed[site]))
        return foresee(self.rng, needs, self.scenario.experts, self.accuracy)
