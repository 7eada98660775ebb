"""Layers that attend to the last tokens only: what they keep, and how long they take."""

from __future__ import annotations

import random
from dataclasses import replace
from itertools import product
from typing import Any

import pytest

from helpers.round_machine import machine, small
from sim.machine.attention import LatentAttention
from sim.machine.devices import Devices, Peer
from sim.machine.ledger import kv_bytes, make_ledger
from sim.machine.measured import Measured
from sim.machine.model import Model
from sim.machine.roofline import Roofline
from sim.setup.on_devices import ledgers_on
from sim.values.types import Share, Step
from sim.workload.steps import Limits


def step(*parts: Share) -> Step:
    rows, longest = sum(one.rows for one in parts), max(one.tokens for one in parts)
    numbers, decode = tuple(range(len(parts))), rows == len(parts)
    return Step(0, 0, rows, numbers, longest, decode, (), (), (0, 1, 2), parts=parts)


def test_a_pattern_repeats_over_all_layers_and_a_site_has_those_before_it() -> None:
    """Two leading layers, then two of one site each: 0 1 | 2 3 | 4 5, the first site has four."""
    model = small(
        windows=[7, 0, 9], leading_dense_layers=2, dense_layers_per_site=1, dense_intermediate=5
    )
    assert [model.windows_at(site) for site in range(3)] == [(7, 0, 9, 7), (0, 9), (7, 0)]
    assert model.windows == (7, 0, 9)
    assert small().windows_at(1) == (0,)
    assert small(windows=(7, 0)).with_drafts(2).windows_at(4) == (7,), "like the last of its own"


# Contracts: C188
def test_a_layer_keeps_no_more_tokens_of_a_sequence_than_its_window_has() -> None:
    """A layer caches 16 B of a token; the first and the third have a window of 7."""
    model = small(windows=(7, 0))
    assert model.kv_bytes_by_window() == {7: 32, 0: 16}
    assert model.kv_bytes_by_window([1, 2]) == {0: 16, 7: 16}
    assert model.kv_bytes_per_token == 48
    assert [model.kv_bytes(tokens) for tokens in (0, 6, 7, 8, 100)] == [
        0,
        6 * 48,
        7 * 48,
        7 * 32 + 8 * 16,
        7 * 32 + 100 * 16,
    ]
    assert small().kv_bytes(100) == 4_800


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"windows": [7, -1]}, "model.windows=-1"),
        ({"windows": [7, 0.5]}, r"model.windows=0.5"),
        (
            {"windows": [7], "encoder_sites": 1},
            r"windows=\[7\] do not go with encoder_sites=1; set model.windows=\[\]",
        ),
    ],
)
def test_windows_that_cannot_be_are_refused(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        small(**changes)
    assert not any(small(windows=[0], encoder_sites=1).windows)


# Contracts: C82, C188
def test_the_ledger_has_room_for_each_layer_in_its_fullest_step() -> None:
    """Layers without a window hold 200 tokens at most, those with one 14, maybe in other steps."""
    model, limits = small(windows=(7, 0)), Limits(200, 1, 5, {7: 14})
    ledger = make_ledger(model, machine(), limits, slot_bytes=0)
    assert ledger.kv_bytes == 14 * 32 + 200 * 16
    assert ledger.prefix_bytes == 5 * 48, "a held prefix may end anywhere: all of it is kept"
    assert kv_bytes(model, limits, [0, 2]) == 14 * 32


# Contracts: C160, C188
def test_a_device_keeps_what_its_own_layers_do() -> None:
    two: Any = machine()
    devices = Devices(2, "layers", Peer(1.0, 0.0), shares=(1, 3))
    model, limits = small(windows=(7, 0)), Limits(200, 1, 0, {7: 14})
    whole = make_ledger(model, two, limits, slot_bytes=0)
    object.__setattr__(two, "devices", devices)
    parts = ledgers_on(two, model, limits, whole, {0: 0, 1: 0})
    assert devices.device_of(model) == (0, 1, 1)
    assert [part.kv_bytes for part in parts] == [14 * 16, 200 * 16 + 14 * 16]


LATENT = LatentAttention(query_rank=0, kv_rank=4, rope_dim=2, nope_dim=2, value_dim=2)


def _model(draw: random.Random) -> Model:
    leading = draw.choice([0, 2])
    return small(
        windows=[draw.choice([0, 1, 5, 30]) for _ in range(draw.randint(1, 4))],
        heads=draw.choice([2, 20_000]),
        latent=draw.choice([None, LATENT]),
        leading_dense_layers=leading,
        dense_intermediate=5 if leading else 0,
    )


# Contracts: C188
@pytest.mark.parametrize("seed", range(40))
def test_a_windows_attention_is_counted_row_by_row(seed: int) -> None:
    """Each row sees its last tokens; all rows of a sequence together read what any of them sees.

    The sequences of a step have rows and contexts of their own.
    """
    draw = random.Random(seed)
    model = _model(draw)
    counts = [draw.randint(1, 40) for _ in range(draw.randint(1, 3))]
    parts = [Share(rows, rows + draw.choice([0, 1, 4, 100])) for rows in counts]
    compute = machine().compute
    for site, time in enumerate(Roofline(model, machine(), ("fp16",)).dense_ns(step(*parts))):
        flops = read = 0
        for window, part in product(model.windows_at(site), parts):
            seen = [
                range(max(0, end - (window or end)), end)
                for end in range(part.tokens - part.rows + 1, part.tokens + 1)
            ]
            pairs, tokens = sum(map(len, seen)), len(set().union(*seen))
            # By hand for LATENT's ranks, per head: 2 * (2 * 4 + 2) compressed; 2 * (2 + 2 + 2) unfolded,
            # for which each token of no row takes 2 * 4 * (2 + 2) first.
            compressed, unfolded = 20 * pairs, 12 * pairs + 32 * (tokens - part.rows)
            per_head = min(compressed, unfolded) if model.latent else 4 * model.head_dim * pairs
            flops += model.heads * per_head
            read += tokens
        params, layers = model.block_params(site), model.layers_at(site)
        assert time == pytest.approx(
            compute.operation_ns(
                2 * sum(counts) * params,
                params * model.dense_bits / 8,
                layers * compute.dense_launches + (layers - 1) * compute.expert_launches,
            )
            + compute.operation_ns(flops, read * model.layer_kv_bytes, 0),
            abs=1,
        )


# Contracts: C81, C188
def test_a_measured_layer_with_a_window_takes_the_time_of_the_context_that_it_sees() -> None:
    """Measured at 1 and 101 tokens: 10 and 30 us, of layers of 240 parameters without windows."""
    table = Measured(0.0, 240, dense_us=[[1, 10.0], [101, 30.0]])
    times = Roofline(small(windows=(51, 0)), machine(measured=table), ("fp16",)).dense_ns(
        step(Share(1, 101))
    )
    assert list(times) == [20_000, 30_000, 20_000]


def test_windows_that_no_sequence_reaches_change_nothing() -> None:
    plain, wide = small(), small(windows=(500, 0))
    for rows, token, sequences in ((1, 499, 1), (4, 100, 4), (60, 500, 2), (7, 7, 1)):
        of = step(*[Share(rows // sequences, token)] * sequences)
        assert list(Roofline(plain, machine(), ("fp16",)).dense_ns(of)) == list(
            Roofline(wide, machine(), ("fp16",)).dense_ns(of)
        )
    limits = Limits(400, 1, 0, {500: 400})
    assert make_ledger(plain, machine(), limits, slot_bytes=0) == make_ledger(
        wide, machine(), limits, slot_bytes=0
    )
    assert replace(wide, windows=()) == plain
