"""The kernels' benchmark, tiny and on the host: it times every operator once, with its bytes."""

from __future__ import annotations

from real.cuda.bench import Bench, Measuring
from real.cuda.host import HostRuntime
from real.kernels.quantise import Layout

NEURONS, HIDDEN = 40, 64


def test_every_operator_is_timed_beside_the_bytes_that_it_reads() -> None:
    bench = Bench(
        shapes={"mixtral": (NEURONS, HIDDEN)},
        far_bytes=1 << 12,
        kept_shares=(0.5,),
        needs=(("mixtral", 3),),
        batch_rows=(2,),
        curve_bytes=(1 << 12,),
        curve_hidden=HIDDEN,
        gates=((8, 2, HIDDEN),),
        prefill_rows=(2,),
        copy_bytes=1 << 12,
        repeats=1,
    )
    read = {timed.operator: timed.read_bytes for timed in Measuring(HostRuntime(), bench).measure()}
    assert read["expert bf16"] == 3 * NEURONS * HIDDEN * 2
    half, up = NEURONS // 2 * 2 * HIDDEN * 2, NEURONS * HIDDEN * 2
    assert read["sparse_expert 50% kept"] == half
    assert read["up and sparse_expert 50% kept"] == half + up
    int2 = Layout(NEURONS, HIDDEN, 2, 64).stored_bytes
    assert int2 == NEURONS * HIDDEN // 4 + 2 * NEURONS * 2
    assert read["expert of 50% of its neurons"] == half + int2
    assert read["3 experts int4"] == 3 * read["expert int4"]
    assert read["expert int4, 2 rows"] == read["expert int4"]
    assert read["torch expert bf16, 2 rows"] == read["expert bf16"]
    assert read["routed gate"] == 8 * HIDDEN * 2
    assert read["stacked gates of 4"] == 4 * 8 * HIDDEN * 2
    assert {
        "gemv int4",
        "expert int4",
        "gemv int4 by size",
        "torch bf16",
        "torch bmm bf16, 3 x 2 rows",
    } <= set(read)
