"""The verbs about machines and models: measured, described, and run for real."""

from __future__ import annotations

from sim.verbs.options import (
    BUNDLED_MODELS,
    DEVICE,
    MACHINE,
    MODEL,
    NEW_FOLDER,
    PROMPT_SETS,
    QUALITY,
    RUN,
    SEQUENCES,
    SHARE,
    SYSTEM,
    THREADS,
    TRACE,
    WEIGHTS,
    many,
    named,
    out,
)
from sim.verbs.verb import Kind, Option, Verb

MACHINES = "machine"
ON = Option(
    "device", "where experts are computed", Kind.ONE, "cpu", ("null", "cpu", "cuda", "host")
)
REAL = (
    SYSTEM,
    ON,
    named(MODEL, "tiny_mixtral"),
    named(MACHINE, "paced_cpu"),
    TRACE,
    SHARE,
    SEQUENCES,
)
LOOP = Option("loop", "whose gates decide", Kind.ONE, "both", ("open", "closed", "both"))
SIZES = ("full", "small", "tiny")
CONTROLS = ("rates_1.1", "rates_0.9", "contention_off")
MODES = ("teacher-forced", "free-running")
PACES = ("paced", "free")
FIGURES = (
    "hobbit_3b",
    "edgemoe_6",
    "edgemoe_7",
    "edgemoe_15",
    "fate_10",
    "floe_3a",
    "floe_3b",
    "floe_tables",
    "all",
)
VERBS = (
    Verb(
        "calibrate",
        MACHINES,
        "sim.calibrate",
        "Fit a machine's constants to an engine's own log (real calibrate measures this machine).",
        (
            Option(
                "log", "a csv file, one line a token; or Strata's log", Kind.PLACE, is_needed=True
            ),
            Option(
                "columns",
                "KIND:COLUMN with commas; bytes and io_ms at least; or strata",
                is_needed=True,
            ),
            Option(
                "base",
                "the machine that all else is taken from",
                Kind.NAME,
                "",
                ("hardware",),
                is_needed=True,
            ),
            Option("name", "name of the new machine", Kind.NEW_NAME, is_needed=True),
            Option("link", "which link the log is about", default="the one at the device"),
            Option("model", "whose work compute times are", Kind.NAME, "", ("model",)),
            Option("precision", "of the experts that the log is of", default="fp16"),
            Option("context", "tokens so far", Kind.WHOLE, "1", least=1),
            Option("rows", "how many of the log's lines are fitted", Kind.WHOLE, "half", least=1),
            Option("routes", "the trace of the same run: lanes are fitted", Kind.PLACE),
            Option("lanes", "with routes: how many engines read", Kind.WHOLE, "1", least=1),
            Option("copy_gb_per_s", "with routes: an engine's copy of what it read", Kind.TEXT),
            Option("output", "the file that is written", default="conf/hardware/NAME.yaml"),
        ),
        (
            "calibrate log=tokens.csv columns=bytes:read_bytes,io_ms:io_ms base=oneplus_15r name=my_phone",
            "calibrate log=tokens.csv columns=bytes:read_bytes,io_ms:io_ms base=oneplus_15r name=held rows=60",
            "run system=lru hardware=oneplus_15r trace.max_sequences=2",
        ),
        "docs/machines.md",
        config="config",
        refused=("hardware",),
        taken=("model", "precision"),
    ),
    Verb(
        "models",
        MACHINES,
        "sim.models",
        "Compute a model's sizes from its transformers configuration alone.",
        (
            Option("from", "its config.json", Kind.PLACE, is_needed=True),
            Option("name", "name of the model", default="the folder's"),
            Option("output", "the file to write, in a folder named model", default="printed"),
        ),
        (
            "models from=capture/assets/tiny_mixtral/config.json",
            "models from=capture/assets/tiny_qwen2moe name=mine",
            "models from=capture/assets/tiny_mixtral name=own output=mine/model/own.yaml",
        ),
        "docs/machines.md",
    ),
    Verb(
        "real",
        MACHINES,
        "real",
        "Run a system on a device, with the simulator's own policy objects.",
        (
            *REAL,
            Option(
                "input",
                "whose gates decide: the trace's, or the model's",
                Kind.ONE,
                "replay",
                ("replay", "live"),
            ),
            Option("engine.links", "paced as the machine's, or free", Kind.ONE, "paced", PACES),
            Option("output_dir", NEW_FOLDER, Kind.FOLDER, "outputs/DATE/TIME"),
        ),
        (
            "real system=lru trace.max_sequences=1",
            "real system=hobbit input=live live.sequences=1 live.new_tokens=4",
            "real system=lru device=null trace.max_sequences=1",
        ),
        "docs/real.md",
        config="real",
        is_hydra=True,
    ),
    Verb(
        "validate",
        MACHINES,
        "real.validate",
        "Measure how far the simulator is from runs on a device: decisions, bytes, times.",
        (
            many(Option("systems", "which", values=("system",), is_needed=True)),
            Option(
                "budgets", "shares of the expert bytes, with commas", Kind.NUMBERS, is_needed=True
            ),
            Option("repeats", "of each", Kind.WHOLE, "3", least=1),
            Option("seed", "of the order", Kind.WHOLE, "0"),
            Option(
                "closed_loop",
                "how a closed loop runs, too: one or both",
                Kind.SOME,
                "none",
                MODES,
                can_be_empty=True,
            ),
            *out("outputs/validation"),
            *(one for one in REAL if one.key not in ("system", "budget.resident_share")),
        ),
        (
            "validate systems=lru budgets=0.5 repeats=1 trace.max_sequences=1",
            "validate systems=lru,hobbit budgets=0.25,0.5 repeats=1 trace.max_sequences=1",
            "validate systems=lru budgets=0.5 repeats=1 device=null trace.max_sequences=1",
        ),
        "docs/validation.md",
        aliases=("real validate",),
        config="real",
        refused=("system",),
    ),
    Verb(
        "suite",
        MACHINES,
        "real.suite",
        "Make all that a machine with a GPU can show in eight minutes; it goes on where it was stopped.",
        (
            Option(
                "device",
                "cuda, or host to rehearse without a GPU",
                Kind.ONE,
                "cuda",
                ("cuda", "host"),
            ),
            Option("size", "how much", Kind.ONE, "full", SIZES),
            Option("output", "folder, or with pack and bundle the file"),
            Option("archive", "a file of all that came out"),
            Option("pieces", "only these, with commas"),
            Option("again", "these anew, with commas"),
            Option("minutes", "that it may take; a rehearsal 60", Kind.NUMBER, "8"),
            Option("modules", "of pack and bundle: which, with commas"),
            Option("most_mib", "of bundle: the largest file (MiB)", Kind.WHOLE, "64"),
        ),
        (
            "suite missing device=host",
            "suite device=host size=tiny pieces=probe output=rehearsal",
            "suite bundle output=project.tar.gz",
        ),
        "docs/gpu_run.md",
        aliases=("real suite",),
        places="[missing|pack|bundle]",
        most_places=1,
    ),
    Verb(
        "quality",
        MACHINES,
        "real.quality",
        "Measure what a system's lossy choices cost in quality, with the model itself.",
        (
            SYSTEM,
            TRACE,
            SHARE,
            SEQUENCES,
            LOOP,
            Option("prompts", "a file or bundled set, captured first", Kind.PLACE, "", PROMPT_SETS),
            *QUALITY,
            Option("tasks", "of lm-evaluation-harness instead of texts, with commas"),
            Option("task_dir", "tasks of one's own", Kind.PLACE),
            Option("limit", "documents of each task; 0: all", Kind.WHOLE, "0"),
            *out("outputs/quality"),
        ),
        (
            "quality system=hobbit budget.resident_share=0.25 trace.max_sequences=2",
            "quality system=lru precision=int4 loop=open trace.max_sequences=2",
            "quality system=floe loop=open trace.max_sequences=2",
        ),
        "docs/quality.md",
        aliases=("real quality",),
        config="config",
    ),
    Verb(
        "real calibrate",
        MACHINES,
        "real.calibrate",
        "Measure this machine from inside the engine, as a machine of the simulator.",
        (
            Option("name", "name of the machine", Kind.NEW_NAME, is_needed=True),
            Option("device", "whose copies and experts", Kind.ONE, "cpu", ("cpu", "cuda", "host")),
            Option("size", "how much is measured", Kind.ONE, "full", SIZES),
            Option(
                "tables", "keep measured times of one model", Kind.ONE, "none", ("none", "model")
            ),
            Option("seconds", "that it may take", Kind.NUMBER, "150", least=5),
            Option("facts", "a JSON file of all that was measured"),
            Option("output", "the file that is written", default="conf/hardware/NAME.yaml"),
        ),
        (
            "real calibrate name=my_machine size=tiny output=my_machine.yaml",
            "real calibrate name=mine size=tiny facts=facts.json output=mine.yaml",
            "real calibrate name=other size=tiny tables=model output=other.yaml",
        ),
        "docs/machines.md",
        config="real",
    ),
    Verb(
        "real probe",
        MACHINES,
        "real.probe",
        "Measure what this machine's link to its GPU, its host calls and its kernels take.",
        (Option("output", "where the facts go", default="facts.json"),),
        ("real probe", "real probe output=mine.json", "suite missing device=cuda"),
        "docs/kernels.md",
    ),
    Verb(
        "real quality_front",
        MACHINES,
        "real.quality_front",
        "Measure the quality of a study's points, and draw their front of speed and quality.",
        (LOOP, *QUALITY, *out("outputs/quality_front")),
        (
            "study name=hobbit_front",
            "real quality_front outputs/studies/hobbit_front",
            "real quality_front outputs/studies/hobbit_front loop=open overwrite=yes",
        ),
        "docs/quality.md",
        places="STUDY",
        least_places=1,
        most_places=1,
        config="config",
    ),
    Verb(
        "real quality_fit",
        MACHINES,
        "real.quality_fit",
        "Make the choices that papers make offline by a model's losses.",
        (
            Option(
                "fit", "which", Kind.ONE, "", ("widths", "low_share", "sparsity"), is_needed=True
            ),
            named(TRACE, "tiny_mixtral"),
            Option("tolerated", "increase of perplexity (share)", Kind.NUMBER, "0.05"),
            Option("texts", "how many sequences are read", Kind.WHOLE, "8", least=1),
            WEIGHTS,
            *(one for one in QUALITY if one.key == "dtype"),
            DEVICE,
            THREADS,
            Option("output_dir", "folder of the fit", default="outputs/fits"),
        ),
        (
            "real quality_fit fit=low_share tolerated=0.02 texts=2",
            "real quality_fit fit=widths texts=2",
            "real quality_fit fit=sparsity texts=2",
        ),
        "docs/quality.md",
        config="config",
    ),
    Verb(
        "real quality_figures",
        MACHINES,
        "real.quality_figures",
        "Make the papers' motivating figures on a real model.",
        (
            Option("figure", "names with commas, or all", Kind.SOME, "", FIGURES, is_needed=True),
            Option(
                "model",
                "a bundled model, a folder, or OWNER/NAME",
                Kind.WEIGHTS,
                "tiny_mixtral",
                BUNDLED_MODELS,
            ),
            Option(
                "prompts",
                "a file of JSON lines or a bundled set",
                Kind.PLACE,
                "heldout",
                PROMPT_SETS,
            ),
            Option("fit", "texts of this split", Kind.WHOLE, "8", least=1),
            Option("eval", "texts of this split", Kind.WHOLE, "32", least=1),
            *(one for one in QUALITY if one.key == "dtype"),
            DEVICE,
            THREADS,
            Option("output_dir", "folder of the figures", default="outputs/quality_figures"),
        ),
        (
            "real quality_figures figure=hobbit_3b fit=2 eval=2",
            "real quality_figures figure=edgemoe_15 model=tiny_mixtral fit=2 eval=2",
            "real quality_figures figure=all fit=2 eval=2",
        ),
        "docs/quality.md",
    ),
    Verb(
        "real predict",
        MACHINES,
        "real.predict",
        "Say how far simulated times are from those that a machine was measured with.",
        (
            Option("data", "folder with suite/ and recordings/", Kind.PLACE, is_needed=True),
            Option("calibrating", "recordings that calibrate, with commas, or none", default="lru"),
            Option(
                "rates", "a control: what was measured takes so many times as long", default="1"
            ),
            Option("contention", "a control: off leaves out who slows whom", default="on"),
            Option("output_dir", "folder of the machine's file and predicted.json; else none"),
        ),
        (
            "real predict data=DIR",
            "real predict data=DIR calibrating=none",
            "real predict data=DIR rates=1.1 output_dir=outputs/predicted",
        ),
        "docs/validation.md",
        is_open=True,
    ),
    Verb(
        "fidelity",
        MACHINES,
        "real.fidelity",
        "Set every predicted time beside the measured one, and say what was missed.",
        (
            Option("data", "folder with suite/ and recordings/: predicted again", Kind.PLACE),
            Option("phone", "folder of a phone's recorded runs: predicted again", Kind.PLACE),
            Option("field", "gates for published runs: predicted again", Kind.PLACE),
            Option("control", "a machine that is wrong on purpose", Kind.ONE, "", CONTROLS),
            Option("output_dir", "folder of the pairs, tables and figure; else none"),
        ),
        (
            "fidelity",
            "fidelity output_dir=outputs/fidelity",
            "fidelity control=rates_1.1",
        ),
        "docs/fidelity.md",
        is_open=True,
    ),
    Verb(
        "real bench_engine",
        MACHINES,
        "real.bench_engine",
        "Measure the GPU's engine beside a bare loop of the same calls.",
        (
            Option("device", "host rehearses it", Kind.ONE, "cuda", ("cuda", "host")),
            Option(
                "model", "whose sizes", Kind.ONE, "qwen3_30b_a3b", ("qwen3_30b_a3b", "mixtral_8x7b")
            ),
            Option("size", "of the experts", Kind.ONE, "whole", ("whole", "tiny")),
            Option(
                "tokens", "how many are decoded", Kind.WHOLE, default="60 or 16, by model", least=2
            ),
            Option("share", "of the experts' bytes on the device", Kind.NUMBER, "0.25"),
            Option("store_dir", "folder of the experts' file", default="a temporary one"),
        ),
        (
            "real bench_engine device=host size=tiny tokens=4",
            "real bench_engine",
            "real bench_engine model=mixtral_8x7b share=0.5",
        ),
        "docs/gpu_run.md",
    ),
    Verb(
        "real closed_loop",
        MACHINES,
        "real.closed_loop",
        "Measure how far simulating lossy systems on recorded gates is off.",
        (
            many(Option("systems", "which", default="seven of them", values=("system",))),
            Option("mode", "how the closed loop runs", Kind.ONE, "both", (*MODES, "both")),
            *QUALITY,
            *(one for one in RUN if one.key not in ("system",)),
            *out("outputs/closed_loop"),
        ),
        (
            "real closed_loop systems=lru trace.max_sequences=1",
            "real closed_loop systems=lru,hobbit trace.max_sequences=1",
            "real closed_loop systems=floe trace.max_sequences=1",
        ),
        "docs/quality.md",
        config="config",
        refused=("system",),
    ),
)
