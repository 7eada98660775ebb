"""Runs that others published, simulated from what their sources tell.

``claims/field.csv`` has one run a row: what was measured, where that is written, and the words that
simulate it. Machines are those of ``conf/hardware``, with the link's rate as the source tells it.
``drawn`` has the words whose figures are drawn from another row, which ``fitted_on`` names.
``baseline`` names the run of the same group that it is compared with (`sim.reproduce.field_gains`).
Gates are synthetic, fitted to published statistics of a model, which the word ``like=`` names.
With the word ``prompt=N`` the speed is that of reading N tokens at once, else that of decoding.
"""

from __future__ import annotations

import csv
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from rich.table import Table

from sim.process.printing import NARROW, with_whole_words
from sim.reproduce.roles import FOLDER
from sim.study.trials import trial
from sim.values.fields import HEADER_FILE

FILE = FOLDER / "field.csv"
LIKE, NEXT = "qwen3_30b_a3b", "qwen3_8_flash_next"
LIKE_KEY, PROMPT_KEY = "like", "prompt"
PROMPTS = "prompts"
"""The folder of gates with prompts that are long enough for all runs of a model."""
ONE = ("precision=int4", "trace.max_sequences=1")
WORDS = (f"model={LIKE}", *ONE)
GATES: Mapping[str, tuple[str, ...]] = {
    LIKE: WORDS,
    NEXT: (
        *WORDS,
        "model.experts=512",
        "model.top_k=10",
        "model.hidden=2560",
        "model.expert_intermediate=640",
        "model.heads=24",
        "model.kv_heads=2",
        "model.head_dim=256",
        "+model.windows=[1,1,1,0]",
        "+model.dense_bits=8",
        "model.other_site_params=36000000",
        f"model.gates_of=synthetic_{NEXT}",
        f"model.sizes_of={NEXT}",
    ),
    **{name: (f"model={name}", *ONE) for name in ("gpt_oss_120b", "gpt_oss_20b")},
    **{
        name: (f"model={name}", *ONE, f"model.gates_of=synthetic_{name}", f"model.sizes_of={name}")
        for name in ("qwen3_235b_a22b", "deepseek_v3", "deepseek_v2_lite")
    },
}
"""By the model whose gates a row has, the words of all its rows. ``like=`` in a row's words names it.

Of Qwen3.8-Flash-Next every fourth layer attends to all tokens, as engines do that mask what its
indexer does not pick; one that gathers the 2,048 tokens it picks has ``model.windows=[1,1,1,2048]``.
The others keep a state, of which nothing is counted. Its dense weights are 3.4 GB without embedding
and head. The last five are models of the catalogue: their runs have whole layers on the CPU, or none.
"""

GAVE_ATTENTION = (
    "ik-q30-3090ti-16k",
    "ik-q30-4080-16k",
    "lc-q30-4080-16k",
    "ik-q235-5090-14k",
    "ik-q235q8-5090-14k",
    "ik-v2l-4080-29k",
    "lc-oss20-gb10-8k",
    "lc-oss120-gb10-8k",
    "lc-q30q8-gb10-8k",
)
"""The first contexts of nine groups, which gave ``conf/kernels/llama_cpp.yaml`` the share of a machine's
rate at which attention reads keys and values.
"""
GAVE_LAUNCH = ("lc-oss20-strix-0k", "lc-q30-strix-0k", "lc-q30f16-strix-0k")
"""The runs that gave ``conf/hardware/strix_halo.yaml`` the time of a launch."""
GAVE_HEADS = ("lc-oss20-gb10-pp-8k", "lc-oss20-gb10-pp-32k", "lc-q30q8-gb10-pp-32k")
"""The prompts that gave ``conf/kernels/llama_cpp.yaml`` the least width of a head."""
FITTED = {*GAVE_ATTENTION, *GAVE_LAUNCH, *GAVE_HEADS}
"""Runs from which a figure was drawn that all runs have. They are not scored."""


@dataclass(frozen=True)
class Published:
    """A published run. ``hit_ratio`` is None where the source does not tell it.

    ``fitted_on``: the run from which the figures of ``drawn``, the last of the words, were drawn; empty
    where there are none.
    ``baseline``: the run of its group that it is compared with; empty where there is none.
    """

    name: str
    source: str
    machine: str
    tokens_per_s: float
    hit_ratio: float | None
    words: tuple[str, ...]
    fitted_on: str = ""
    baseline: str = ""
    drawn: tuple[str, ...] = ()

    @property
    def is_prompt(self) -> bool:
        return prompt_of(self.words) > 0


@dataclass(frozen=True)
class Row:
    """A published run beside its simulation. ``ratio``: simulated tokens a second by measured.

    ``gates``: where those of the simulation come from.
    """

    published: Published
    tokens_per_s: float
    hit_ratio: float
    gates: str

    @property
    def ratio(self) -> float:
        return self.tokens_per_s / self.published.tokens_per_s


def published(place: Path = FILE) -> list[Published]:
    """The runs of the file, in its order. Raise ValueError, naming the line, for one that is none."""
    found = []
    with place.open(encoding="utf-8", newline="") as file:
        for number, row in enumerate(csv.DictReader(file), 2):
            try:
                hits = float(row["hit_ratio"]) if row["hit_ratio"] else None
                drawn, own = tuple(row["drawn"].split()), tuple(row["words"].split())
                rate, words = float(row["tokens_per_s"]), own and (*own, *drawn)
                prompt = prompt_of(words)
                told = row["id"], row["source"], row["machine"], rate, hits, words
                one = Published(*told, row["fitted_on"], row["baseline"], drawn)
            except (KeyError, ValueError, AttributeError) as error:
                raise ValueError(f"{place}:{number}: {row} is no published run ({error})") from None
            if rate <= 0 or prompt < 0 or not one.source.startswith("https://") or not words:
                raise ValueError(f"{place}:{number}: {row} needs a rate, a source and words")
            if bool(drawn) != bool(one.fitted_on):
                raise ValueError(
                    f"{place}:{number}: {row} says what is drawn (drawn={' '.join(drawn) or 'none'})"
                    f" and from which run (fitted_on={row['fitted_on'] or 'none'}), or neither"
                )
            found.append(one)
    return found


def like_of(words: Sequence[str]) -> str:
    """The model whose gates these words are simulated on."""
    return _said(words, LIKE_KEY) or LIKE


def prompt_of(words: Sequence[str]) -> int:
    """How many tokens a run reads whose speed is a prompt's; 0 where it is that of decoding."""
    return int(_said(words, PROMPT_KEY) or 0)


def _said(words: Sequence[str], key: str) -> str:
    named = [word.partition("=")[2] for word in words if word.startswith(f"{key}=")]
    return named[-1] if named else ""


def trace_of(gates: Path, words: Sequence[str]) -> Path:
    """The folder of the gates of these words: under their model's name in ``gates``, or ``gates``
    itself; those of prompts under `PROMPTS`.
    """
    like = like_of(words)
    if prompt_of(words):
        return gates / PROMPTS / like
    own = gates / like
    return own if like != LIKE or own.exists() else gates


def check_gates(gates: Path, of: Sequence[Published]) -> None:
    """Raise ValueError where the gates of a run's model are not in ``gates``, before any is simulated."""
    for one in of:
        like, trace = like_of(one.words), trace_of(gates, one.words)
        if like not in GATES:
            raise ValueError(f"{LIKE_KEY}={like}: published runs have gates of {', '.join(GATES)}")
        if not (trace / HEADER_FILE).exists():
            made = "tokens=256 sequences=24"
            if one.is_prompt:
                longest = max(prompt_of(o.words) for o in of if like_of(o.words) == like)
                made = f"tokens=1 sequences=1 prompt_tokens={longest} lookahead=0"
            raise ValueError(
                f"{trace} has no trace, and published runs need gates like those of {like}: make"
                f" some with moelab synthesize like={like} {made} output_dir={trace}"
            )


def on_gates(gates: Path, words: Sequence[str]) -> list[str]:
    """The words of a run on its model's gates. Its own take the place of those of all rows."""
    prompt = prompt_of(words)
    read = (f"workload.prompt_tokens={prompt}", "workload.decode_tokens=1") if prompt else ()
    every = (*GATES[like_of(words)], f"trace.path={trace_of(gates, words)}", *read, *words)
    own = {word.partition("=")[0]: word for word in every}
    return [word for key, word in own.items() if key not in (LIKE_KEY, PROMPT_KEY)]


def rows(gates: Path, of: Sequence[Published]) -> Iterator[Row]:
    """Each run, simulated on its model's gates in the folder ``gates``."""
    for one in of:
        summary = trial(on_gates(gates, one.words)).summary
        decoded, told = 1 / float(summary["tpot_s"]["mean"]), str(summary["trace"]["gates"])
        rate = float(summary["prefill_tokens_per_s"]) if one.is_prompt else decoded
        yield Row(one, rate, float(summary["hit_ratio"]), told)


def table(found: Sequence[Row]) -> Table:
    """Measured and simulated, side by side."""
    columns = ("run", "machine", "measured", "simulated", "ratio", "hits measured", "simulated")
    gates = "; ".join(sorted({row.gates for row in found}))
    made = Table(*columns, "fitted on", caption=f"gates: {gates}", **NARROW)
    for row in found:
        told = row.published.hit_ratio
        made.add_row(
            row.published.name,
            row.published.machine,
            f"{row.published.tokens_per_s:.2f}",
            f"{row.tokens_per_s:.2f}",
            f"{row.ratio:.2f}",
            "-" if told is None else f"{told:.3f}",
            f"{row.hit_ratio:.3f}",
            row.published.fitted_on,
        )
    return with_whole_words(made)
