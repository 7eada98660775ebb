"""Options that several verbs share."""

from __future__ import annotations

from dataclasses import replace

from sim.verbs.verb import Kind, Option

NEW_FOLDER = "folder of what is written; without the word a new one"


def out(default: str, meaning: str = NEW_FOLDER) -> tuple[Option, ...]:
    """The folder of a verb's results, and what happens to one that is not empty."""
    return (
        Option("output_dir", meaning, Kind.FOLDER, default),
        Option("overwrite", "whether a folder that is not empty is emptied", Kind.YES, "no"),
    )


SEARCH_PATH = Option(
    "hydra.searchpath", "folders of your own beside conf/, such as [mine]", Kind.TEXT
)


def named(option: Option, default: str) -> Option:
    """The same option with another default."""
    return replace(option, default=default)


def many(option: Option) -> Option:
    """The same option with several names, separated by commas."""
    return replace(option, kind=Kind.NAMES)


SYSTEM = Option(
    "system", "predictor, cache, precision and loader together", Kind.NAME, "hobbit", ("system",)
)
MODEL = Option("model", "whose sizes", Kind.NAME, "tiny_gates_half_mixtral", ("model",))
MACHINE = Option("hardware", "which machine", Kind.NAME, "rtx4090_pcie4", ("hardware",))
TRACE = Option(
    "trace",
    "whose gates; trace.path=DIR for a folder",
    Kind.NAME,
    "of_model: the model's own",
    ("trace",),
)
WORKLOAD = Option("workload", "how requests come", Kind.NAME, "sequential", ("workload",))
SHARE = Option(
    "budget.resident_share", "expert bytes on the device (share of all)", Kind.TEXT, "0.5"
)
BUDGET = Option(
    "budget", "fit: as many expert bytes as the memory leaves", Kind.ONE, values=("fit",)
)
SLOTS = Option("budget.slots_gib", "the same as a size (GiB)", Kind.TEXT, "null")
SEQUENCES = Option("trace.max_sequences", "how many sequences are replayed", Kind.TEXT, "null: all")
PARTS = Option(
    "PART",
    "predictor, cache, precision, placement, payload, loader, kernels, ram_cache: swap a part",
)
RUN = (SYSTEM, MODEL, MACHINE, TRACE, WORKLOAD, SHARE, SLOTS, BUDGET, SEQUENCES)
"""What makes a run."""
OUTPUTS = Option("outputs", "all files, or summary.json alone", Kind.ONE, "all", ("all", "summary"))
UNREAD = ("outputs", "timeline_steps", "bounds")
"""What of a run's configuration an answer does not have: it leaves no files of a run, and no bounds."""
WEIGHTS = Option(
    "weights", "the model's folder or OWNER/NAME", Kind.WEIGHTS, default="the bundled one"
)
PROMPT_SETS = ("heldout",)
"""The bundled texts."""
BUNDLED_MODELS = ("tiny_mixtral", "tiny_qwen2moe", "tiny_switch")
"""The bundled models that have weights."""
DTYPE = Option(
    "dtype", "what it is computed in", Kind.ONE, "float32", ("float32", "bfloat16", "float16")
)
DEVICE = Option("device", "where it is computed, as torch says it", default="cpu")
THREADS = Option("threads", "threads of the CPU; 0: torch's choice", Kind.WHOLE, "0")
QUANTISER = Option("quantiser", "how integers are made", Kind.ONE, "groups", ("groups", "channels"))
GROUP = Option("group", "weights that share a scale", Kind.WHOLE, "64", least=1)
QUALITY = (WEIGHTS, DTYPE, DEVICE, THREADS, QUANTISER, GROUP)
"""How a model is run to measure quality."""
