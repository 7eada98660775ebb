"""llama.cpp's flags as words of a run (contract C154)."""

from __future__ import annotations

import sys
from types import SimpleNamespace
from typing import Any

import pytest

from sim import __main__ as command
from sim.answers import engine_flags
from sim.answers.engine_flags import KV_BITS, Flags, read_flags, words_of
from sim.results.run import Run
from sim.setup.execute import execute
from sim.study.trials import prepared
from sim.values.units import GIB
from sim.verbs.asking import KV

SMALL = ("model=tiny_mixtral", "trace.max_sequences=1", "workload.decode_tokens=2")
"""The bundled model: 16 layers of 8 experts."""


def run_of(flags: str, *words: str) -> Run:
    return prepared(words_of(read_flags(flags), [*SMALL, *words]))


def layers_on_devices(run: Run) -> tuple[int, ...]:
    """By layer, the device that has it."""
    geometry = run.controller.geometry
    return tuple(geometry.on_device(geometry.key(0, site, 0)) for site in range(geometry.sites))


def whole_layers(run: Run) -> list[int]:
    """The layers whose experts are all on the device at the start, and stay there."""
    held = set(run.controller.slots.initial)
    geometry = run.controller.geometry
    return [
        site
        for site in range(geometry.sites)
        if all(geometry.key(0, site, expert) in held for expert in range(geometry.experts))
    ]


# Contracts: C154
@pytest.mark.alike
@pytest.mark.parametrize(
    ("flags", "layers"),
    [
        ("", range(16)),
        ("--n-cpu-moe 12", range(12, 16)),
        ("-ncmoe 99", ()),
        ("--cpu-moe", ()),
        (r"-ot 'blk\.(0|3)\.ffn_.*_exps=CPU'", [1, 2, *range(4, 16)]),
        # What comes first counts: the later pattern keeps layer 1 nowhere.
        (r"--n-cpu-moe 14 -ot 'blk\.1\.=CUDA0'", (14, 15)),
        (r"-ot 'blk\.1\.=CUDA0' --n-cpu-moe 14", (1, 14, 15)),
        (r"-ot 'blk\.1\.=CUDA0,exps=CPU'", (1,)),
        ("-cmoe --moe-cache-mib 1", ()),
        ("--n-cpu-moe 12 --moe-cache-mib 1", range(12, 16)),
    ],
)
def test_layers_rest_where_the_flags_say(flags: str, layers: range) -> None:
    run = run_of(flags)
    assert whole_layers(run) == list(layers)
    cached = 1 << 20 if "--moe-cache-mib" in flags else 0
    all_bytes = 16 * 8 * run.controller.geometry.slot_sizes[0]
    held = len(layers) / 16 + cached / all_bytes
    assert run.resident_share == pytest.approx(held, abs=1e-6), "what a run tells as resident"


# Contracts: C154
def test_the_cache_of_experts_has_its_mebibytes_beside_whole_layers() -> None:
    without, cached = run_of("-ncmoe 12"), run_of("-ncmoe 12 --moe-cache-mib 1")
    more = cached.ledger.slot_bytes - without.ledger.slot_bytes
    assert more == 1 << 20
    assert cached.controller.slots.capacity_bytes[-1] == 1 << 20


# Contracts: C154
def test_with_all_experts_on_the_cpu_there_are_no_slots() -> None:
    result = execute(run_of("--cpu-moe"))
    assert result.summary["hit_ratio"] == 0
    assert result.summary["union_over_capacity"] is None
    assert result.summary["budget"]["device_bytes"] == 0
    assert result.summary["decode_tokens_per_s"] > 0


# Contracts: C154 C157
@pytest.mark.parametrize(
    ("flags", "on_first", "layers"),
    [
        # 17 places, the head's among them: of 10,7 the first GPU has 10, of 3,1 it has 13.
        ("-ts 10,7", 10, range(16)),
        ("-ts 3,1 -sm layer --n-cpu-moe 4", 13, range(4, 16)),
        (
            r"-ts 10/7 -ot 'blk\.(9|10)\.ffn_.*_exps=CPU,blk\.12\.=CUDA1'",
            10,
            [*range(9), *range(11, 16)],
        ),
    ],
)
def test_layers_are_split_between_gpus_as_the_flags_say(
    flags: str, on_first: int, layers: range
) -> None:
    run = run_of(flags)
    assert layers_on_devices(run) == (0,) * on_first + (1,) * (16 - on_first)
    assert whole_layers(run) == list(layers)
    assert run.hardware.devices is not None
    assert run.hardware.devices.state_bits == 32


# Contracts: C154
def test_other_gpus_are_told_by_words_and_split_by_flags() -> None:
    run = run_of("-ts 1,16", "devices=layers_2", "hardware.devices.peer.gb_per_s=50")
    assert run.hardware.devices is not None
    assert run.hardware.devices.peer.gb_per_s == 50
    assert layers_on_devices(run) == (0,) + (1,) * 15


# Contracts: C154
def test_context_sequences_and_bits_of_keys_and_values() -> None:
    run = run_of("-c 4096 -np 2 -ctk q8_0 -ctv q4_0 -ub 16 -ngl 99 -fa on -m model.gguf")
    assert run.model.kv_bits == 6.5
    assert run.workload.lengths.context == 2048
    assert (run.workload.batching, run.workload.together) == ("continuous", 2)
    assert run.workload.prefill_chunk == 16
    assert run_of("").workload.prefill_chunk == 512


# Contracts: C154
def test_keys_and_values_that_are_one_vector_have_one_type() -> None:
    """llama.cpp: a model with MLA "does not support different K and V cache types"."""
    words = ("model=deepseek_v2_lite", "precision=q4_k_m", "trace.max_sequences=1")
    assert prepared(words_of(read_flags("-ctk q8_0 -ctv q8_0"), words)).model.kv_bits == 8.5
    for flags in ("-ctv q8_0", "-ctk q8_0", "-ctk q8_0 -ctv q4_0"):
        with pytest.raises(ValueError, match="deepseek_v2_lite caches keys and values as one"):
            words_of(read_flags(flags), words)


# Contracts: C81 C154
def test_prompts_attend_to_compressed_keys_and_values_as_they_are() -> None:
    words = ("model=deepseek_v2_lite", "precision=q4_k_m", "trace.max_sequences=1")
    latent = prepared(words_of(read_flags("--cpu-moe"), words)).model.latent
    assert latent is not None
    assert not latent.unfolds
    assert run_of("--cpu-moe").model.latent is None


# Contracts: C154
def test_values_without_flash_attention_may_have_16_bits_and_keys_any() -> None:
    for flags in ("-fa off -ctk q8_0", "-fa off -ctv bf16", "-fa auto -ctv q8_0"):
        assert read_flags(flags)


# Contracts: C145 C154
def test_a_cache_is_split_among_gpus_as_their_layers_on_the_cpu() -> None:
    """Layers 0 to 11 are the first GPU's, 12 to 15 the second one's; 9 to 11 and 14, 15 stay."""
    run = run_of(r"-ts 12,5 -ot 'blk\.([0-8]|12|13)\.ffn=CPU' --moe-cache-mib 5")
    assert whole_layers(run) == [9, 10, 11, 14, 15]
    geometry, slots = run.controller.geometry, run.controller.slots
    capacity = {
        slots.pool_of[geometry.key(0, site, 0)]: slots.capacity_bytes[
            slots.pool_of[geometry.key(0, site, 0)]
        ]
        for site in (0, 8, 12, 13)
    }
    assert [*capacity.values()] == [(5 << 20) * 9 // 11, (5 << 20) * 2 // 11]
    result = execute(run)
    assert result.summary["hit_ratio"] > 5 / 16


# Contracts: C154
def test_a_line_of_flags_reads_as_what_it_was_written_from() -> None:
    for flags in (
        Flags(),
        Flags(8192, 2, "q8_0", "q4_0", 2048, 20, (r"blk\.(1|2)\.ffn_.*_exps=CPU",), 512),
        Flags(4096, n_cpu_moe=3),
        Flags(4096, n_cpu_moe=3, split=(10, 6.5, 1)),
        Flags(split=(123456.789012, 0.000001)),
    ):
        assert read_flags(flags.line()) == flags


def test_every_name_of_a_flag_is_read() -> None:
    """Names that say nothing here are read over, with their values."""
    short = "-ngl all -m x -fa on -b 9 -c 64 -np 2 -ctk q8_0 -ctv q4_1 -ub 7 -ts 3/1.5 -sm layer -ncmoe 4"
    long = (
        "--gpu-layers auto --model x --flash-attn on --batch-size 9 --ctx-size 64 --parallel 2"
        " --cache-type-k q8_0 --cache-type-v q4_1 --ubatch-size 7 --tensor-split 3,1.5"
        " --split-mode layer --n-cpu-moe 4"
    )
    told = Flags(64, 2, "q8_0", "q4_1", 7, 4, split=(3.0, 1.5))
    assert (read_flags(short), read_flags(long)) == (told, told)
    assert read_flags("--n-gpu-layers 99 -cmoe --moe-cache-mib 0 -ts 5") == Flags(
        patterns=("exps=CPU",)
    )
    assert read_flags("-ncmoe 0 --override-tensor a=CPU,b=CPU --cpu-moe -ncmoe 2") == Flags(
        patterns=("a=CPU", "b=CPU", "exps=CPU"), n_cpu_moe=2
    )
    assert Flags().line() == "-ngl all"
    assert read_flags("-ncmoe 5 -ncmoe 3") == Flags(n_cpu_moe=5), "each adds its layers"
    for text, rows in (("-b 9", 9), ("-b 9 -ub 7", 7), ("-ub 9 -b 7", 7), ("-ub 8192", 2048)):
        assert read_flags(text) == Flags(micro_batch=rows), "a micro-batch is at most a batch"
    large = Flags(micro_batch=4096)
    assert (large.line(), read_flags(large.line())) == ("-ngl all -ub 4096 -b 4096", large)
    whole = Flags(64, 2, "f32", "q4_0", 7, 4, ("a=CPU", "b"), 5, (3.0, 1.5))
    assert whole.line() == (
        "-ngl all -c 64 -np 2 -ctk f32 -ctv q4_0 -ub 7 -ts 3,1.5 -ot a=CPU -ot b --n-cpu-moe 4"
        " --moe-cache-mib 5"
    )


def test_a_block_of_32_numbers_takes_their_bits_and_16_for_each_of_its_scales() -> None:
    """ggml: q5_1 and q4_1 keep the least number beside the scale."""
    blocks = {
        name: (32 * int(name[1]) + 16 * (1 + int(name[3]))) / 32
        for name in KV_BITS
        if name[0] == "q"
    }
    assert blocks.keys() == {"q8_0", "q5_1", "q5_0", "q4_1", "q4_0"}
    assert {**blocks, "f32": 32, "f16": 16, "bf16": 16, "iq4_nl": 4.5} == KV_BITS


@pytest.mark.parametrize(
    ("flags", "given", "words"),
    [
        (
            Flags(n_cpu_moe=3),
            ["model=x"],
            [
                "system=llama_cpp_n_cpu_moe",
                "cache.quotas.n_cpu_moe=3",
                "budget.slots_gib=1.5",
                "hardware.reserved_gib=2.484375",
                "workload.prefill_chunk=512",
                "model=x",
            ],
        ),
        (
            Flags(9, 2, "q8_0", "q4_0", 16, 0, ("a=CPU", "b"), 256, (3.0, 1.0, 1.5)),
            ["model=x"],
            [
                "system=llama_cpp_cache",
                "cache.cache.quotas.n_cpu_moe=0",
                "cache.cache.quotas.overrides=['a=CPU','b']",
                "budget.slots_gib=1.75",
                "hardware.reserved_gib=0.51953125",  # no more rows than the context has
                "workload=continuous_4",
                "workload.together=2",
                "workload.prefill_chunk=16",
                "workload.context_tokens=4",
                "++model.kv_bits=6.5",
                "devices=layers_2",
                "hardware.devices.count=3",
                "hardware.devices.state_bits=32",
                "hardware.devices.shares=[3,1,1.5]",
                "model=x",
            ],
        ),
        (
            Flags(2, 2, "f16", "f32", cache_mib=512, split=(1.0, 2.0)),
            ["devices=owners_2"],
            [
                "system=llama_cpp_cache",
                "cache.cache.quotas.n_cpu_moe=0",
                "budget.slots_gib=2.0",
                f"hardware.reserved_gib={0.5 + 2 * 4 / GIB}",  # two rows' masks of a token
                "workload=continuous_4",
                "workload.together=2",
                "workload.prefill_chunk=512",
                "workload.context_tokens=1",
                "++model.kv_bits=24",
                "hardware.devices.shares=[1,2]",
                "devices=owners_2",
            ],
        ),
    ],
)
def test_the_words_of_a_line_by_hand(
    flags: Flags, given: list[str], words: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whole layers take 1.5 GiB of all bytes; a cache comes on top. The logits of a row take 1/256 GiB,
    of which 1/64 GiB is where staging was.
    """
    asked: list[list[str]] = []

    def prepared(of: list[str]) -> Any:
        asked.append(of)
        model, hardware = (
            SimpleNamespace(
                latent=None,
                vocab=1 << 20,
                **dict.fromkeys(("hidden", "top_k", "expert_intermediate"), 0),
                kv_bytes_by_window=dict,
            ),
            SimpleNamespace(reserved_gib=0.5),
        )
        ledger = SimpleNamespace(slot_bytes=3 << 29, staging_bytes=1 << 24, activation_bytes=0)
        workload = SimpleNamespace(limits=SimpleNamespace(tokens=0))
        return SimpleNamespace(ledger=ledger, model=model, hardware=hardware, workload=workload)

    monkeypatch.setattr(engine_flags, "prepared", prepared)
    assert words_of(flags, given) == words
    budget = words.index(next(word for word in words if word.startswith("budget.")))
    layers = [f"cache.quotas.n_cpu_moe={flags.n_cpu_moe}"]
    layers += ["cache.quotas.overrides=['a=CPU','b']"] * bool(flags.patterns)
    whole = ["system=llama_cpp_n_cpu_moe", *layers, "budget.resident_share=1"]
    others = [word for word in words[budget + 1 :] if "reserved" not in word]
    assert asked == [[*whole, *others]]


@pytest.mark.parametrize(
    ("flags", "told"),
    [
        ("-c 0", "flags: -c 0 must be a whole number from 1 on"),
        ("--n-cpu-moe -1", "flags: --n-cpu-moe -1 must be a whole number from 0 on"),
        ("-np 1234567890123", "flags: -np 1234567890123 must be a whole number from 1 on"),
        ("-ngl 98", "flags: -ngl 98: every layer's attention"),
        ("-ts 1,0.0", "flags: -ts 1,0.0 must have a number above 0 for each GPU, as in -ts 3,1;"),
        ("-ts ,1", "flags: -ts ,1 must have a number above 0"),
        ("-ts 1234567,1", "flags: -ts 1234567,1 must have a number above 0"),
    ],
)
def test_a_value_out_of_its_range_is_refused(flags: str, told: str) -> None:
    with pytest.raises(ValueError, match="flags: ") as refused:
        read_flags(flags)
    assert str(refused.value).startswith(told)


@pytest.mark.alike
@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (
            "--n-cpu-mow 3",
            r"'--n-cpu-mow' is no flag that is known here; did you mean --n-cpu-moe\?",
        ),
        ("-mg 1", "-mg is not modelled: the first GPU has what is of no layer"),
        ("-ts 3,0", "-ts 3,0 must have a number above 0 for each GPU"),
        ("-ts 1,1 -sm row", "-sm row is not modelled: GPUs that split every matrix"),
        (r"-ts 10,7 -ot 'blk\.12\.=CUDA0'", "layer 12 on CUDA0, but the layer is on device 1"),
        ("--moe-expert-cache 48", "the engine's own is --moe-cache-mib"),
        ("-c", "-c needs a value"),
        ("-fa --cpu-moe", "-fa needs a value"),
        ("-fa sometimes", "-fa sometimes is none of on, off, auto"),
        ("-ctv q8_0 -fa off", "-ctv q8_0 needs flash attention, and -fa off turns it off"),
        ("-fa 0 -ctk q8_0 -ctv iq4_nl", "-ctv iq4_nl needs flash attention"),
        ("-c many", "-c many must be a whole number from 1 on"),
        ("-ctk q3", "-ctk q3 is none of f32, f16"),
        ("-ngl 20", "-ngl 20: every layer's attention is on the GPU here"),
        ("-ot 'a", "No closing quotation"),
        ("-ot blk=CUDA1", "layer 0 on CUDA1, but the layer is on device 0"),
        ("-ot blk=nowhere", "must be REGEX=BUFFER"),
        ('-ot "it\'s=CPU"', "-ot it's=CPU: a pattern with ' or \\$\\{ cannot be passed on$"),
        (r"-ot exps=CPU,\${x}=CPU", r"-ot \$\{x\}=CPU: a pattern with ' or \$\{ cannot"),
        ("-ot attn=CPU", "finds no tensor of experts"),
        ("-c 1 -np 2", "-c 1 is less than a token for each of -np"),
        ("-c 8", r"workload\.context_tokens=8 is shorter than sequence"),
    ],
)
def test_flags_that_cannot_be_are_refused_by_name(flags: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        run_of(flags)


def test_words_that_choose_what_flags_choose_are_refused() -> None:
    with pytest.raises(ValueError, match=r"so budget\.resident_share=0\.5 does not go with them"):
        words_of(read_flags("-c 8192"), ["budget.resident_share=0.5"])


# Contracts: C154
@pytest.mark.parametrize(
    ("flags", "word", "told"),
    [
        ("-c 8192", "workload.context_tokens=500", r"workload\.context_tokens \(-c\)"),
        ("-c 8192 -np 3", "workload.together=2", r"workload\.together \(-np\)"),
        ("-ub 64", "workload.prefill_chunk=7", r"workload\.prefill_chunk \(-ub and -b,"),
        ("--cpu-moe", "workload.prefill_chunk=7", r"workload\.prefill_chunk \(-ub and -b, 512"),
        ("-ctk q8_0", "++model.kv_bits=4", r"model\.kv_bits \(-ctk and -ctv, f16"),
        ("--cpu-moe", "model.kv_bits=4", r"model\.kv_bits \(-ctk and -ctv, f16"),
        ("-ts 3,1", "hardware.devices.shares=[1,1]", r"hardware\.devices\.shares \(-ts\)"),
    ],
)
def test_a_word_that_would_put_a_flag_aside_is_refused(flags: str, word: str, told: str) -> None:
    with pytest.raises(ValueError, match=f"^flags say {told}.*leave it out, or say it by that"):
        run_of(flags, word)


# Contracts: C154
def test_what_no_flag_of_the_line_says_is_said_by_a_word() -> None:
    run = run_of("--cpu-moe", "workload.context_tokens=500", "workload=static_4")
    assert (run.workload.lengths.context, run.workload.together) == (500, 4)


# Contracts: C154
def test_room_for_a_micro_batch_is_the_users_own_where_they_say_what_is_set_aside() -> None:
    """The bundled model's 34 tokens of prompt and 2 decoded ones. 30 rows need most at experts: 36 + 496
    + 384 numbers each, beside what is uploaded. 64 need most at the head: 2,176 numbers, of which the
    staging of 8 projections of 30,720 B is a part. The ledger counts 1,984 B of a row already.
    """
    at_experts = 30 * 4 * (36 + 496 + 384) - 30 * 1_984
    assert run_of("-ub 30").hardware.reserved_gib == 0.5 + at_experts / GIB
    at_head = 64 * 4 * 2_176 - 8 * 30_720 - 34 * 1_984
    assert run_of("-ub 64").hardware.reserved_gib == 0.5 + at_head / GIB
    assert run_of("-ub 64", "hardware.reserved_gib=0.25").hardware.reserved_gib == 0.25


# Contracts: C154
def test_without_flash_attention_scores_are_set_aside() -> None:
    """4,096 tokens of context: each of 64 rows has 4 heads' scores of them, and a mask."""
    row = 5 * 4_096 + 2 * (128 + 128)
    beyond = 64 * 4 * row - 8 * 30_720 - 64 * 1_984
    run = run_of("-ub 64 -c 4096 -fa off", "trace.max_sequences=1", "workload.prompt_tokens=64")
    assert run.hardware.reserved_gib == 0.5 + beyond / GIB
    assert read_flags("-fa off").line() == "-ngl all -fa off"


def test_a_run_takes_flags_for_the_words_that_they_stand_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    given = ["model=tiny_mixtral", "outputs=summary"]
    monkeypatch.setattr(sys, "argv", ["sim", *given, "flags=--n-cpu-moe 3 -c 4096"])
    command._take_flags()
    assert sys.argv == ["sim", *words_of(Flags(4096, n_cpu_moe=3), given)]
    assert "workload.context_tokens=4096" in sys.argv
    before = list(sys.argv)
    command._take_flags()
    assert sys.argv == before, "without flags nothing changes"


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["flags=-c none"], "flags: -c none must be a whole number from 1 on"),
        (
            ["flags=-c 9", "flags=-np 2"],
            "flags= stands twice; write all flags in one, as in flags='-c 8192 -np 2'",
        ),
    ],
)
def test_flags_that_cannot_be_end_a_run_with_one_line(
    flags: list[str],
    message: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(sys, "argv", ["sim", "model=tiny_mixtral", *flags])
    monkeypatch.setattr(command, "OVERWRITE", [])
    assert command._command() == 2
    told = capsys.readouterr()
    assert told.err == f"error: {message}\n"
    assert told.out == ""


def test_the_verb_offers_the_kinds_of_keys_and_values_that_flags_know() -> None:
    assert tuple(KV_BITS) == KV
