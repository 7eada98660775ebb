"""The verbs that answer one question."""

from __future__ import annotations

from sim.verbs.options import (
    BUDGET,
    MACHINE,
    MODEL,
    OUTPUTS,
    PARTS,
    RUN,
    SEARCH_PATH,
    SEQUENCES,
    SHARE,
    SLOTS,
    TRACE,
    UNREAD,
    WORKLOAD,
    out,
)
from sim.verbs.verb import Kind, Option, Verb

ASK = "ask"
LISTS = ("systems", "machines", "models", "traces", "workloads", "policies")
SPLITS = ("layers", "slices", "copies", "owners")
KV = ("f32", "f16", "bf16", "q8_0", "q5_1", "q5_0", "q4_1", "q4_0", "iq4_nl")
PATIENCE_S = "30"
"""How long a run of ``ask`` may compute unless words say otherwise."""
QUESTIONS = ("memory", "link", "predictor", "cpu", "bits", "kv", "drafts")
GATES = (
    Option("trace", "whose gates", Kind.NAME, "the model's", ("trace",)),
    Option("sequences", "of synthetic gates: half of them count", Kind.WHOLE, "8", least=4),
    Option("prompt_tokens", "of each (tokens)", Kind.WHOLE, "48", least=1),
    Option("tokens", "decoded of each (tokens)", Kind.WHOLE, "24", least=1),
)
VERBS = (
    Verb(
        "ask",
        ASK,
        "sim.ask",
        "Say whether a model fits a machine, which system is fastest on it, and what would change that.",
        (
            Option("model", "whose experts", Kind.NAME, "", ("model",), is_needed=True),
            Option("machine", "on what", Kind.NAME, "", ("hardware",), is_needed=True),
            Option(
                "target", "tokens a second: also what is needed for them", Kind.NUMBER, least=1e-3
            ),
            Option(
                "precisions",
                "of systems that change none, with commas",
                Kind.NAMES,
                "the model's, q4_k_m",
                ("precision",),
            ),
            Option("context", "tokens whose keys and values get room (tokens)", Kind.WHOLE, "4096"),
            Option("gpus", "how many of the machine's GPU there are", Kind.WHOLE, "1", least=1),
            Option("split", "what each of them has", Kind.ONE, SPLITS[0], SPLITS),
            Option(
                "patience", "how long one run may compute (s)", Kind.NUMBER, PATIENCE_S, least=1
            ),
            *GATES,
            *out("outputs/ask_MODEL_MACHINE"),
        ),
        (
            "ask model=qwen3_30b_a3b machine=rtx4090_pcie4",
            "ask model=qwen3_30b_a3b machine=rtx3060_pcie4 target=10",
            "ask model=tiny_gates_half_mixtral machine=rtx4090_pcie4 gpus=2 trace.max_sequences=4",
        ),
        "docs/ask.md",
        config="config",
        refused=("system", "hardware", "budget.", *UNREAD),
        taken=("model",),
    ),
    Verb(
        "export",
        ASK,
        "sim.export",
        "Find the flags with which llama.cpp serves a model fastest, or tell a simulator of many nodes.",
        (
            Option("model", "whose experts", Kind.NAME, "", ("model",), is_needed=True),
            Option("machine", "on what", Kind.NAME, "", ("hardware",), is_needed=True),
            Option("to", "whose files", Kind.ONE, "llama_cpp", ("llama_cpp", "dynamo")),
            Option("context", "-c, or the longest (tokens)", Kind.WHOLE, "4096", least=1),
            Option("system", "of to=dynamo: which one serves", Kind.NAME, "lru", ("system",)),
            Option(
                "batches", "of to=dynamo: sequences at once, with commas", Kind.NUMBERS, "1,2,4"
            ),
            Option("kv", "-ctk and -ctv", Kind.ONE, "f16", KV),
            Option(
                "gpus", "how many of the machine's GPU; -ts splits layers", Kind.WHOLE, "1", least=1
            ),
            Option(
                "precision",
                "at which experts are stored",
                Kind.NAME,
                "q4_k_m; the model's if smaller",
                ("precision",),
            ),
            *GATES,
            *out("outputs/export_MODEL_MACHINE"),
        ),
        (
            "export model=qwen3_30b_a3b machine=rtx3060_pcie4 context=8192",
            "export model=tiny_gates_half_mixtral machine=rtx4090_pcie4 trace.max_sequences=2",
            "export to=dynamo model=tiny_gates_half_mixtral machine=rtx4090_pcie4 trace.max_sequences=4",
        ),
        "docs/export.md",
        config="config",
        refused=("hardware", "devices", "cache", "loader", "placement", "budget.", *UNREAD),
        taken=("model", "system"),
    ),
    Verb(
        "run",
        ASK,
        "sim",
        "Simulate one system on one machine: files, a table, and one sentence that answers.",
        (
            *RUN,
            PARTS,
            Option("flags", "llama.cpp's, in quotes: they choose system, cache and context"),
            OUTPUTS,
            *out("outputs/DATE/TIME"),
        ),
        (
            "run system=lru budget.resident_share=0.25",
            "run system=hobbit precision=fp16 cache=lfu trace.max_sequences=4",
            "run flags='--n-cpu-moe 12 -c 8192' precision=q4_k_m trace.max_sequences=4",
        ),
        "docs/tutorial.md, docs/contracts/outputs.md",
        config="config",
        is_hydra=True,
    ),
    Verb(
        "compare",
        ASK,
        "sim.compare",
        "Say which of two runs is faster, how surely, and from which waiting it comes.",
        (MODEL, MACHINE, TRACE, WORKLOAD, SHARE, SLOTS, BUDGET, SEQUENCES),
        (
            "compare hobbit lru trace.max_sequences=4",
            "compare 'lru cache=lfu' lru trace.max_sequences=4",
            "compare lru load_on_demand budget.resident_share=0.25 trace.max_sequences=2",
        ),
        "docs/tutorial.md",
        places="A B",
        least_places=2,
        most_places=2,
        place_group="system",
        config="config",
        refused=("system", "output_dir", *UNREAD),
    ),
    Verb(
        "whatif",
        ASK,
        "sim.whatif",
        "Say how speed depends on memory, link, predictor, cpu, bits, context or drafts, and where that turns.",
        (
            Option(
                "values", "the points, separated by commas (in the question's unit)", Kind.NUMBERS
            ),
            Option(
                "target", "tokens a second: also what is needed for them", Kind.NUMBER, least=1e-3
            ),
            *RUN,
            PARTS,
            Option(
                "output_dir",
                "folder of the answer; without the word a new one, or that of an interrupted call",
                default="outputs/whatif_QUESTION",
            ),
            Option("overwrite", "whether an older answer there is replaced", Kind.YES, "no"),
        ),
        (
            "whatif link system=lru trace.max_sequences=2",
            "whatif kv system=lru values=4096,65536 trace.max_sequences=2",
            "whatif drafts system=lru values=2,4 trace.max_sequences=2",
        ),
        "docs/whatif.md",
        places="|".join(QUESTIONS),
        least_places=1,
        most_places=1,
        config="config",
        refused=UNREAD,
    ),
    Verb(
        "screen",
        ASK,
        "sim.screen",
        "Compute one run's times on many machines at once, exactly, without prefetches.",
        (
            *RUN,
            Option("hardware.KEY", "values with commas: every combination is a machine"),
            *out("", "folder of the tables; without the word none is written"),
        ),
        (
            "screen system=lru hardware.links.pcie.peak_gb_per_s=8,16,31.5 trace.max_sequences=4",
            "screen system=lru hardware=rtx4090_pcie4,rtx3090_pcie4 budget.resident_share=0.25",
            "screen system=lru cache=lfu hardware.compute.memory_gb_per_s=500,1000 trace.max_sequences=4",
        ),
        "docs/studies.md",
        config="config",
        refused=UNREAD,
        sweeps=True,
    ),
    Verb(
        "explain",
        ASK,
        "sim.explain",
        "Say why an expert was there, or was not, when a gate asked for it.",
        (
            Option("layer", "the layer's number in the model", Kind.WHOLE),
            Option("site", "the same among the MoE layers alone", Kind.WHOLE),
            Option("expert", "which expert", Kind.WHOLE, is_needed=True),
            Option("step", "the step of the tables lookups and tokens", Kind.WHOLE, is_needed=True),
        ),
        (
            "run system=hobbit trace.max_sequences=2 output_dir=outputs/why",
            "explain outputs/why layer=4 expert=4 step=57",
            "explain outputs/why site=4 expert=4 step=57",
        ),
        "docs/explain.md",
        places="RUN",
        least_places=1,
        most_places=1,
    ),
    Verb(
        "check",
        ASK,
        "sim.check",
        "Check whether an engine's cache works as it is said to, from its residency log.",
        (
            Option("budget", "what the engine's cache may hold (4000MiB, 4GB, ..)", is_needed=True),
            Option("policy", "a file of conf/cache", Kind.NAME, "several are tried", ("cache",)),
            Option("retention", "the loader's", Kind.TEXT, "strict and after_batch are tried"),
            Option("OPTION", "any option of the policy: recency, initial, scope, .."),
        ),
        (
            "import format=bigmoe path=qwen.route.csv output_dir=phone",
            "check phone budget=4000MiB",
            "check phone budget=4000MiB policy=lru",
        ),
        "docs/check.md",
        places="LOG",
        least_places=1,
        most_places=1,
        is_open=True,
    ),
    Verb(
        "audit",
        ASK,
        "sim.audit",
        "Compute a run's summary again from its files, by code of its own, and say what differs.",
        (),
        (
            "run system=hobbit trace.max_sequences=2 output_dir=outputs/why",
            "audit outputs/why",
            "explain outputs/why layer=4 expert=4 step=57",
        ),
        "docs/contracts/outputs.md",
        places="RUN",
        least_places=1,
        most_places=1,
    ),
    Verb(
        "audit_time",
        ASK,
        "sim.audit_time",
        "Say where the simulated times of a recorded run differ from the recorded ones, by cause.",
        (
            *(one for one in RUN if one.key not in ("system",)),
            Option("output_dir", "folder of the figure and audit_time.json; without it none"),
        ),
        (
            "run system=lru trace.max_sequences=1 output_dir=outputs/recorded",
            "audit_time outputs/recorded hardware=h100_sxm_pcie5",
            "audit_time outputs/recorded hardware=rtx3090_pcie4 output_dir=outputs/times",
        ),
        "docs/validation.md",
        places="RUN",
        least_places=1,
        most_places=1,
        config="config",
        refused=("system", *UNREAD),
    ),
    Verb(
        "list",
        ASK,
        "sim.list",
        "Print what there is to choose from, one line each, with sources.",
        (SEARCH_PATH,),
        ("list systems", "list machines", "list policies"),
        "conf/",
        places="|".join(LISTS),
        least_places=1,
        most_places=1,
    ),
    Verb(
        "demo",
        ASK,
        "sim.demo",
        "Compare five systems at three memory budgets: a table, a figure and a timeline.",
        (
            Option("sequences", "only so many of the trace", Kind.WHOLE, "all", least=2),
            *out("outputs/demo"),
        ),
        ("demo", "demo sequences=2", "demo sequences=4 output_dir=outputs/demo overwrite=yes"),
        "docs/tutorial.md",
    ),
)
