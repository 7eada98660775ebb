"""Words of `moelab real` that would change nothing are refused."""

from __future__ import annotations

import pytest

from real.setup.prepare import check_slowing, check_words, read_request
from sim.setup.configure import configure


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["live.sequences=1"], "live.sequences=1 changes nothing with input=replay; leave it out,"),
        (["+live.x=1"], "+live.x=1 changes nothing with input=replay; leave it out, or say input="),
        (["input=live", "trace.max_sequences=1"], "trace.max_sequences=1 changes nothing with"),
        (
            ["input=live", "workload.short_sequences=drop"],
            "workload.short_sequences=drop changes nothing with input=live;",
        ),
        (["input=live", "trace.split=fit"], "trace.split=fit changes nothing with input=live;"),
        (["device=null", "engine.links=free"], "engine.links=free changes nothing on device=null"),
        (["device=null", "engine.compute=free"], "engine.compute=free changes nothing on device="),
        (["device=null", "engine.source=mmap"], "engine.source=mmap changes nothing on device=nul"),
        (["device=null", "engine.cold=true"], "engine.cold=true changes nothing on device=null, "),
        (["device=null", "engine.stand_in_gib=2"], "engine.stand_in_gib=2 changes nothing on devi"),
        (["engine.stand_in_gib=2"], "engine.stand_in_gib=2 changes nothing: the experts are a che"),
        (["device=cpu", "engine.gather=zero_copy"], "engine.gather=zero_copy changes nothing on d"),
        (["input=live", "engine.gather_threads=2"], "engine.gather_threads=2 changes nothing on d"),
    ],
)
def test_a_word_that_changes_nothing_is_refused(words: list[str], told: str) -> None:
    cfg, _ = configure("system=lru", *words, config="real")
    with pytest.raises(ValueError, match=r"changes nothing") as refused:
        check_words(cfg, words)
    assert str(refused.value).startswith(told)


@pytest.mark.parametrize(
    "words",
    [
        ["trace.max_sequences=1", "engine.links=free"],
        ["input=live", "live.sequences=1", "trace=tiny_mixtral"],
        ["device=null", "engine.links=paced", "engine.patience_s=9"],
        ["device=null", "input=live", "engine.dtype=bfloat16"],
        ["engine.weights=stand_in", "engine.stand_in_gib=2"],
        ["model=mixtral_8x7b", "engine.stand_in_gib=2"],
        ["device=host", "engine.gather=zero_copy", "engine.gather_columns=9"],
    ],
)
def test_a_word_that_counts_is_taken(words: list[str]) -> None:
    cfg, _ = configure("system=lru", *words, config="real")
    check_words(cfg, words)


# Contracts: C74
def test_words_by_which_parties_slow_each_other_are_refused_on_a_device() -> None:
    beside = "+hardware.beside={compute: {loader: 3}}"
    shared = (
        "{_target_: sim.machine.SharedMemory, gb_per_s: 0.2, parties: [compute, loader], slows: "
    )
    drawn = [f"+hardware.shared_memory={shared}as_drawn}}"]
    for words in ([beside], drawn, ["hardware=gb10", "hardware.shared_memory.gb_per_s=9"]):
        cfg, _ = configure("system=lru", *words, config="real")
        with pytest.raises(ValueError, match=r"changes nothing on a device") as refused:
            check_slowing(cfg, words)
        assert str(refused.value).startswith(f"{words[-1]} changes nothing on a device, whose part")
    always = [f"+hardware.shared_memory={shared}always}}"]
    for words in (always, ["hardware=gb10"], ["hardware=h100_sxm_pcie5_measured"]):
        cfg, _ = configure("system=lru", *words, config="real")
        check_slowing(cfg, words)


# Contracts: C141
@pytest.mark.parametrize("device", ["null", "cpu"])
def test_a_page_cache_of_the_machine_is_refused_because_no_device_reads_from_it(
    device: str,
) -> None:
    pages = "{_target_: sim.machine.Pages, capacity_gib: 1, gb_per_s: 10}"
    word = f"+hardware.links.loader.page_cache={pages}"
    cfg, system = configure("system=lru", f"device={device}", word, config="real")
    with pytest.raises(ValueError, match=r"^hardware\.links\.loader\.page_cache: a device's eng"):
        read_request(cfg, system)
    without = configure("system=lru", word.partition("=")[0] + "=null", config="real")
    assert read_request(*without).device == "cpu"


# Contracts: C142, C151
def test_drafts_are_refused_where_a_device_would_give_them_no_time() -> None:
    words = ["workload.draft_tokens=2", "workload.draft_layers=1"]
    free = [*words, "engine.compute=free"]
    told = r"^workload\.draft_layers=1 with engine\.compute=free: device=cpu computes no drafts, so"
    with pytest.raises(ValueError, match=told):
        read_request(*configure("system=lru", *free, config="real"))
    for taken in (words, [*words, "device=null"], [free[0], free[2]]):
        assert read_request(*configure("system=lru", *taken, config="real")).input == "replay"
