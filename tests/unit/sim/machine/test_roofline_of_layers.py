"""The costs of the layers around the experts, where layers differ: by hand.

The machine has 1 TFLOP/s and 100 GB/s.
"""

from __future__ import annotations

from dataclasses import replace
from statistics import fmean
from typing import Any

import pytest
import yaml

from helpers.round_machine import compute, machine, small
from sim.machine.attention import LatentAttention
from sim.machine.kernels import Kernels
from sim.machine.roofline import Roofline
from sim.values.places import ROOT
from sim.values.types import Share, Step

LAUNCH = 1_000


def durations(draft_layers: int = 0, **changes: Any) -> Roofline:
    """Durations with a launch of 1 us: two for the layer's dense work, one for an expert.

    A layer has 240 parameters.
    """
    times = compute(launch_us=1.0, dense_launches=2, expert_launches=1)
    return Roofline(small(**changes), machine(compute=times), ("fp16",), draft_layers=draft_layers)


def step(rows: int, token: int, decode: bool, sequences: tuple[int, ...] = (0,)) -> Step:
    return Step(0, 0, rows, sequences, token, decode, (), ())


# Contracts: C70
def test_a_layer_without_experts_adds_its_attention_its_block_and_its_launches() -> None:
    """Before the first site are 208 + 3 * 8 * 100 parameters, and one more layer's keys and values.

    At token 1001: (240 + 2608) * 2 B + 2 * 1001 * 16 B = 37,728 B: 377 ns. Other sites: 480 +
    16,016 B: 165 ns.
    """
    times = durations(leading_dense_layers=1, dense_intermediate=100).dense_ns(step(1, 1001, True))
    assert list(times) == [377 + 5 * LAUNCH, 165 + 2 * LAUNCH, 165 + 2 * LAUNCH]


def test_shared_experts_are_read_with_the_layer_in_a_launch_of_their_own() -> None:
    """3 * 8 * 1000 parameters: (240 + 24,000) * 2 B + 16 B at token 1: 485 ns."""
    assert (
        list(durations(shared_intermediate=1_000).dense_ns(step(1, 1, True)))
        == [485 + 3 * LAUNCH] * 3
    )


def test_compressed_keys_and_values_are_what_is_read_of_the_context() -> None:
    """The latent has 10 + 6 values, 32 B a token.

    At token 10,000 that is 320,000 B, and 2 B for each of the block's parameters. Attention has 8 *
    2 * (4 + 6) + 8 * 16 + 10 + 10 * 2 * (4 + 3) + 2 * 3 * 8 = 486; with two norms and the router
    534. FLOPs: 2 * 534 + 10,000 * 2 * 2 * (2 * 10 + 6) = 1,041,068: 1,041 ns, less than the 3,211
    ns of the bytes.
    """
    latent = LatentAttention(query_rank=0, kv_rank=10, rope_dim=6, nope_dim=4, value_dim=3)
    assert (
        list(durations(latent=latent, head_dim=10).dense_ns(step(1, 10_000, True)))
        == [3_211 + 2 * LAUNCH] * 3
    )


# Contracts: C81
def test_attention_bound_by_arithmetic_does_not_hide_behind_the_bytes_of_weights() -> None:
    """With 200 heads a block has 34,986 parameters: 69,972 B take 699.72 ns, their FLOPs 70.

    At token 50 attention has 50 * 2 * 200 * (2 * 10 + 6) = 520,000 FLOPs: 520 ns, where its 1,600 B
    take 16. It comes after the projections: 1,220 ns.
    """
    latent = LatentAttention(query_rank=0, kv_rank=10, rope_dim=6, nope_dim=4, value_dim=3)
    many = durations(latent=latent, heads=200, head_dim=10)
    assert list(many.dense_ns(step(1, 50, True))) == [1_220 + 2 * LAUNCH] * 3


# Contracts: C81
def test_an_engines_kernels_are_as_many_as_it_has_and_read_at_their_share() -> None:
    """Ten launches for two, and a quarter of the rate: 165 ns become 660, an expert's 768 B 31 for 8.

    A head of 80 parameters is 160 B: 6 ns for 2.
    """
    times = compute(launch_us=1.0, dense_launches=2, expert_launches=1, tail_launches=1)
    driven = machine(compute=times).driven_by(Kernels(launches=10, weight_share=0.25))
    slow = Roofline(small(), driven, ("fp16",))
    assert list(slow.dense_ns(step(1, 1001, True))) == [660 + 10 * LAUNCH] * 3
    assert slow.expert_ns(0, 0, 1) == 31 + LAUNCH
    assert machine(compute=times).driven_by(Kernels()).compute == times


# Contracts: C81
def test_attention_reads_keys_and_values_at_its_own_share_of_the_machines_rate() -> None:
    """480 B of weights take 4.8 ns, 1001 tokens of 16 B 160.16; at a quarter 640.64.

    Beside weights at half of the rate keys and values still have a quarter of it: 9.6 and 640.64.
    """
    times = compute(launch_us=1.0, dense_launches=2, expert_launches=1)
    for weight_share, total in ((1.0, 645), (0.5, 650)):
        kernels = Kernels(attention_share=0.25, weight_share=weight_share)
        driven = machine(compute=times).driven_by(kernels)
        slow = Roofline(small(), driven, ("fp16",), kernels=kernels)
        assert list(slow.dense_ns(step(1, 1001, True))) == [total + 2 * LAUNCH] * 3


# Contracts: C81
def test_a_step_of_several_rows_has_more_kernels_where_the_engine_has() -> None:
    """Five more of each layer; a row by itself has none of them."""
    times = compute(launch_us=1.0, dense_launches=2, expert_launches=1)
    more = Roofline(small(), machine(compute=times), ("fp16",), kernels=Kernels(more_launches=5))
    for rows, launches in ((1, 0), (2, 5), (100, 5)):
        (found, *_), (before, *_) = (
            one.dense_ns(step(rows, 1001, False)) for one in (more, durations())
        )
        assert found - before == launches * LAUNCH


# Contracts: C81
def test_kernels_of_a_replayed_step_follow_one_another_in_the_machines_time() -> None:
    """A quarter of a launch of 1 us for each kernel: two of a layer, one of an expert, one of the head.

    Up to four rows; a step of five has launches, also for an expert that one of its rows needs and
    for a head that runs for the last. A draft for three sequences is a step of three rows. A machine
    without graphs launches all, and a replay is never slower than a launch.
    """
    times = compute(launch_us=1.0, dense_launches=2, expert_launches=1, tail_launches=1)
    plain, short, always, longer, none = (
        Roofline(
            small(),
            machine(compute=replace(times, replay_us=us)),
            ("fp16",),
            draft_layers=1,
            kernels=Kernels(graph_rows=rows),
        )
        for us, rows in ((0.25, 0), (0.25, 4), (0.25, None), (3.0, None), (None, None))
    )

    def saved(one: Roofline, what: Step) -> tuple[int, int, int]:
        before, after = (
            (each.dense_ns(what)[0], each.tail_ns(what), each.expert_ns(0, 0, 1, what.rows))
            for each in (plain, one)
        )
        layer, tail, expert = (a - b for a, b in zip(before, after, strict=True))
        return layer, tail, expert

    quick = (2 * 750, 750, 750)
    for rows in (1, 4):
        assert saved(short, step(rows, 1001, False)) == quick
    assert saved(short, step(5, 1001, False)) == (0, 0, 0)
    assert saved(always, step(5, 1001, False)) == quick
    for one in (longer, none):
        assert saved(one, step(1, 1001, True)) == (0, 0, 0)
    assert short.expert_ns(0, 0, 1) == short.expert_ns(0, 0, 1, 4) < short.expert_ns(0, 0, 1, 5)
    checking = Step(0, 0, 6, (0, 1, 2), 1001, True, (), (), (0, 1, 2), drafters=(3,))
    drafting = replace(checking, parts=(Share(2, 1001, 1),) * 3)
    # The check has six rows. A draft has a layer, two experts for each of three rows, and a head.
    assert saved(short, drafting)[0] == (2 + 6 + 1) * 750


# Contracts: C81
def test_each_further_row_of_up_to_eight_adds_a_share_to_the_reading_of_weights() -> None:
    """At a quarter more a row five rows read 480 B twice as long, 960 B, and keys and values as before:
    4 * 1001 + 10 pairs; nine read as long as eight, 2.75 times. An expert's 768 B become 1,536.
    """
    times = compute(launch_us=1.0, dense_launches=2, expert_launches=1)
    slow = Roofline(small(), machine(compute=times), ("fp16",), kernels=Kernels(row_share=0.25))
    plain = durations()
    for rows, more in ((1, 0), (5, 480), (8, 840), (9, 840)):
        (found, *_), (before, *_) = (one.dense_ns(step(rows, 1001, False)) for one in (slow, plain))
        assert found - before == pytest.approx(more * 10 / 1_000, abs=1)
    assert slow.expert_ns(0, 0, 5) - plain.expert_ns(0, 0, 5) == pytest.approx(7.68, abs=1)
    assert slow.expert_ns(0, 0, 1) == plain.expert_ns(0, 0, 1)


def test_llama_cpps_rows_take_as_long_as_a_dense_model_took_there() -> None:
    """The tokens a second of pull request 15802, by rows: no step is 14 % off, the mean 6 %."""
    told = [155.02, 277.36, 390.23, 468.95, 514.50, 529.37, 559.17, 570.67]
    kernels = yaml.safe_load((ROOT / "conf/kernels/llama_cpp.yaml").read_text(encoding="utf-8"))
    share = kernels["row_share"]
    times = [rows * told[0] / rate for rows, rate in enumerate(told, 1)]
    errors = [abs((1 + share * rows) / time - 1) for rows, time in enumerate(times)]
    assert max(errors) < 0.14
    assert fmean(errors) < 0.06
    slope = sum(n * (time - 1) for n, time in enumerate(times)) / sum(n * n for n in range(8))
    assert share == round(slope, 2)


def test_the_rate_of_stratas_kernels_is_drawn_from_profiles_of_three_cards() -> None:
    """What passes before a layer's experts on an RTX 3060, an RTX 5070 and an RTX 2080 Ti, in ms.

    A linear layer reads 59.3 MB in 17 kernels before its experts, an attention layer 61.6 MB in 37
    for four rows; 36 and 12 of 48. Each card has a rate, its assumed efficiency, and its rows.
    """
    llama, strata = (
        yaml.safe_load((ROOT / f"conf/kernels/{name}.yaml").read_text(encoding="utf-8"))
        for name in ("llama_cpp", "strata")
    )
    card = yaml.safe_load((ROOT / "conf/hardware/rtx4090_pcie4.yaml").read_text(encoding="utf-8"))
    assert strata["launches"] == (36 * 41 + 12 * 63) // 48 - 3
    assert not {"row_share", "graph_rows"} & set(strata), (
        "llama.cpp's: its graphs are of every step"
    )
    read_mb, kernels = 36 * 59.3 + 12 * 61.6, 36 * 17 + 12 * 37
    shares = []
    for rate, rows, measured_ms in (
        (360 * 0.85, 2.33, 21.43),
        (672 * 0.9, 4, 14.6),
        (616 * 0.85, 4, (36 * 324 + 12 * 384) / 1e3),
    ):
        slower = 1 + llama["row_share"] * (rows - 1)
        reading_ms = measured_ms - kernels * card["compute"]["replay_us"] / 1e3
        shares.append(read_mb / rate * slower / reading_ms)
    assert shares == pytest.approx([0.58, 0.55, 0.56], abs=0.01)
    assert strata["weight_share"] == round(fmean(shares), 1)


# Contracts: C81
def test_many_rows_unfold_compressed_keys_and_values() -> None:
    """100 rows at the end of 150 tokens attend to 10,050 pairs: 2 * 26 FLOPs each of 200 heads as they
    are, or 2 * (4 + 6 + 3) unfolded. Of the 50 tokens before them that is 2 * 10 * (4 + 3) more.

    So it is 200 * (10,050 * 26 + 50 * 140) = 53,660,000 FLOPs and not 104,520,000. The projections'
    are 2 * 100 * 34,986 = 6,997,200. An engine that never unfolds takes the larger number.
    """
    latent = LatentAttention(query_rank=0, kv_rank=10, rope_dim=6, nope_dim=4, value_dim=3)
    many = durations(latent=latent, heads=200, head_dim=10)
    assert list(many.dense_ns(step(100, 150, False))) == [53_660 + 6_997 + 2 * LAUNCH] * 3
    kept = durations(latent=replace(latent, unfolds=False), heads=200, head_dim=10)
    assert list(kept.dense_ns(step(100, 150, False))) == [104_520 + 6_997 + 2 * LAUNCH] * 3


# Contracts: C151
def test_drafts_take_a_layer_its_experts_and_the_head_one_after_another_before_the_first_site() -> (
    None
):
    """A draft at token 1001: a layer of 165 ns, two experts of 768 B (8 ns) and a head of 160 B
    (2 ns), with 2, 1, 1 and 1 launches: 183 ns and 5 launches.

    Checking two drafts reads what one token reads, so that each site takes its 165 ns.
    """
    checking = Step(0, 0, 3, (0,), 1001, True, (), (), (0, 1, 2), drafters=(1, 1))
    drafting = durations(draft_layers=1)
    assert list(drafting.dense_ns(checking)) == [
        165 + 2 * LAUNCH + 2 * (183 + 5 * LAUNCH),
        165 + 2 * LAUNCH,
        165 + 2 * LAUNCH,
    ]
    assert list(durations().dense_ns(checking)) == [165 + 2 * LAUNCH] * 3
    assert list(drafting.dense_ns(step(1, 1001, True))) == [165 + 2 * LAUNCH] * 3


def test_the_head_runs_for_every_decoded_row_and_for_the_last_of_a_prompt() -> None:
    """10,000 x 8 parameters: 1,600 ns of bytes; with 40 rows 6,400 ns of work."""
    wide = durations(vocab=10_000)
    assert wide.tail_ns(step(1, 9, True)) == 1_600 + LAUNCH
    assert wide.tail_ns(step(40, 48, True)) == 6_400 + LAUNCH
    assert wide.tail_ns(step(40, 40, False)) == 1_600 + LAUNCH


def encoder_decoder() -> Roofline:
    """One site in the encoder, two in the decoder.

    The decoder's layers also have a cross-attention of 192 parameters and a norm of 8.
    """
    return durations(encoder_sites=1, vocab=1_000_000)


def test_an_encoders_rows_attend_to_the_whole_prompt() -> None:
    """101 rows: 2 * 101 * 240 + 4 * 101 * 101 * 8 = 374,912 FLOPs: 375 ns.

    A decoder has half of that attention.
    """
    assert encoder_decoder().dense_ns(step(101, 101, False))[0] == 375 + 2 * LAUNCH
    assert durations().dense_ns(step(101, 101, False))[0] == 213 + 2 * LAUNCH


def test_a_decoder_reads_of_its_cross_attention_what_does_not_stand_in_the_cache() -> None:
    """Of 440 parameters 64 make keys and values of the prompt, which are in the cache.

    752 B and 1001 * 16 B take 168 ns.
    """
    assert encoder_decoder().dense_ns(step(1, 1001, True))[1:] == [168 + 2 * LAUNCH] * 2


# Contracts: C70
def test_after_a_prompt_an_encoder_decoder_makes_the_keys_and_values_that_its_decoder_crosses_to() -> (
    None
):
    """101 rows through 2 * 64 parameters: 25,856 FLOPs: 26 ns.

    A decoded token's tail reads the head's 16 MB.
    """
    model = encoder_decoder()
    assert model.tail_ns(step(101, 101, False)) == 26 + LAUNCH
    assert model.tail_ns(step(1, 102, True)) == 160_000 + LAUNCH


def test_kinds_of_sites_keep_their_own_times_whatever_was_asked_before() -> None:
    model = encoder_decoder()
    first = list(model.dense_ns(step(1, 10, True)))
    model.dense_ns(step(1, 5_000, True))
    assert list(model.dense_ns(step(1, 10, True))) == first
    assert first[0] != first[1] == first[2]
