"""The verbs for many runs at once."""

from __future__ import annotations

from sim.verbs.options import (
    MACHINE,
    MODEL,
    OUTPUTS,
    PARTS,
    RUN,
    SEQUENCES,
    SHARE,
    SYSTEM,
    TRACE,
    WORKLOAD,
    many,
    out,
)
from sim.verbs.verb import Kind, Option, Verb

MANY = "many"
VERBS = (
    Verb(
        "sweep",
        MANY,
        "sim",
        "Simulate every combination of values that stand with commas, a folder for each.",
        (*(many(one) if one.kind is Kind.NAME else one for one in RUN), PARTS, OUTPUTS),
        (
            "sweep system=lru,hobbit trace.max_sequences=2",
            "sweep system=lru budget.resident_share=0.25,0.5 trace.max_sequences=2",
            "sweep system=lru cache=lru,lfu outputs=summary trace.max_sequences=2",
        ),
        "docs/tutorial.md, docs/studies.md",
        lead=("-m",),
        config="config",
        is_hydra=True,
        sweeps=True,
    ),
    Verb(
        "study",
        MANY,
        "sim.study",
        "Make a study: a grid, a list or a search of runs as one dataset; it goes on where it was stopped.",
        (
            Option("name", "a file of conf/study, or a path to one", is_needed=True),
            Option("launcher", "who runs the cells", Kind.ONE, "pool", ("pool", "ray", "submitit")),
            Option("workers", "processes at once", Kind.WHOLE, "one a core", least=1),
            Option(
                "output_dir",
                "folder of the dataset; the same one goes on",
                default="outputs/studies/NAME",
            ),
            Option("retry", "whether cells that failed run again", Kind.YES, "no"),
            *(Option(key, f"of launcher=ray and submitit: {key}") for key in ("batch", "address")),
            *(
                Option(key, f"of launcher=submitit: {key}")
                for key in ("cluster", "partition", "timeout_min", "mem_gb", "account", "qos")
            ),
            *RUN,
        ),
        (
            "study name=budgets trace.max_sequences=2",
            "study name=hobbit_weights workers=2",
            "study name=hobbit_front",
        ),
        "docs/studies.md",
        config="config",
    ),
    Verb(
        "frontier",
        MANY,
        "sim.frontier",
        "Show hits and loads of caches at every number of slots; LRU exactly, from one pass.",
        (
            Option(
                "policies",
                "which caches, with commas",
                Kind.NAMES,
                "the system's own",
                ("cache",),
            ),
            Option("points", "how many capacities are shown, and walked", Kind.WHOLE, "8", least=1),
            SYSTEM,
            MODEL,
            TRACE,
            WORKLOAD,
            SEQUENCES,
            *out("outputs/frontier"),
        ),
        (
            "frontier system=lru trace.max_sequences=2",
            "frontier system=lru policies=lru,sieve,s3_fifo,lfu points=4 trace.max_sequences=2",
            "frontier system=lru policies=lru,lru_warm trace=tiny_qwen2moe model=tiny_qwen2moe",
        ),
        "docs/frontier.md",
        config="config",
        refused=("budget.", "budget"),
    ),
    Verb(
        "report",
        MANY,
        "sim.report",
        "Write runs as one self-contained page with figures.",
        out("outputs/report"),
        (
            "run system=lru trace.max_sequences=2 output_dir=outputs/lru",
            "report outputs/lru",
            "report outputs/lru output_dir=outputs/page overwrite=yes",
        ),
        "docs/report.md",
        places="RUN...",
        least_places=1,
        most_places=1000,
    ),
    Verb(
        "pareto",
        MANY,
        "sim.pareto",
        "Show speed and quality of runs, and which no other beats in both.",
        (
            Option("measure", "what is lost", Kind.ONE, "divergence", ("divergence", "increase")),
            *out("", "folder of the figures; without the word none is drawn"),
        ),
        (
            "run system=lru trace.max_sequences=2 output_dir=outputs/lru",
            "pareto outputs/lru",
            "pareto outputs/lru output_dir=outputs/front overwrite=yes",
        ),
        "docs/quality.md",
        places="PATH...",
        least_places=1,
        most_places=1000,
    ),
    Verb(
        "versus",
        MANY,
        "sim.versus",
        "Compare each system of a study with one of them, paired, at each budget.",
        (Option("also", "only cells whose overrides have this word"),),
        (
            "study name=budgets trace.max_sequences=2",
            "versus outputs/studies/budgets lru",
            "versus outputs/studies/budgets hobbit also=budget.resident_share=0.25",
        ),
        "docs/studies.md",
        places="STUDY SYSTEM",
        least_places=2,
        most_places=2,
    ),
    Verb(
        "fit",
        MANY,
        "sim.fit",
        "Fit a predictor's statistics, or a cache's weights, on a trace's fit sequences.",
        (
            Option("predictor", "whose statistics", Kind.NAME, "", ("predictor",)),
            Option("cache", "whose weights", Kind.NAME, "", ("cache",)),
            Option("step", "of a cache's weights: how fine the grid is", Kind.NUMBER, "0.1"),
            TRACE,
            MODEL,
            MACHINE,
            SHARE,
            SEQUENCES,
            Option("output_dir", "folder of a predictor's files", default="outputs/predictors"),
        ),
        (
            "fit predictor=next_site",
            "fit cache=weighted_score trace.max_sequences=2 step=0.5",
            "fit predictor=expert_paths output_dir=outputs/fits",
        ),
        "docs/add_policy.md",
        config="config",
    ),
    Verb(
        "reproduce",
        MANY,
        "sim.reproduce",
        "Recompute the papers' claims, and say which hold.",
        (
            Option(
                "paper",
                "which, with commas",
                Kind.SOME,
                "all",
                ("hobbit", "edgemoe", "fate", "floe"),
            ),
            Option("phone", "folder of a recorded phone run", Kind.PLACE),
            Option("recorded", "MODEL:DIR, one more trace for the gains over LRU and LFU"),
            Option(
                "field", "folder of Qwen3-30B's gates, for runs that others published", Kind.PLACE
            ),
            Option("processes", "at once", Kind.WHOLE, "2", least=1),
            Option(
                "output_dir",
                "folder of the report; finished runs are kept there",
                default="outputs/reproduce",
            ),
        ),
        ("reproduce", "reproduce paper=fate", "reproduce paper=hobbit,floe processes=2"),
        "docs/papers.md",
    ),
)
