"""The verbs about traces: what a model's gates chose."""

from __future__ import annotations

from sim.verbs.options import DTYPE, PROMPT_SETS, TRACE, named, out
from sim.verbs.verb import Kind, Option, Verb

TRACES = "traces"
MODEL_PLACE = Option(
    "model", "a folder of a transformers model, or OWNER/NAME", Kind.WEIGHTS, is_needed=True
)
FITTED = Option("output_dir", "folder of the fit", default="outputs/predictors")
FORMATS = (
    "bigmoe",
    "gpt_oss_fingerprint",
    "npz",
    "llama_moe_trace",
    "colibri",
    "vllm",
    "sglang",
    "ktransformers",
    "moe_cache_eval",
    "megatron_router_trace",
    "commitmoe",
    "flame",
    "parquet",
    "csv",
    "jsonl",
)
AUTO = "what the model allows"
TINY = "capture/assets/tiny_mixtral"
BUNDLED = "capture/assets/traces/tiny_mixtral"
VERBS = (
    Verb(
        "capture",
        TRACES,
        "capture",
        "Record what the gates of a transformers model see and choose, as a trace.",
        (
            MODEL_PLACE,
            Option(
                "prompts",
                "a file of JSON lines, or the bundled set heldout",
                Kind.PLACE,
                values=PROMPT_SETS,
                is_needed=True,
            ),
            Option(
                "output_dir",
                "folder of the trace; the same words go on after an interruption",
                Kind.FOLDER,
                is_needed=True,
            ),
            Option("sequences", "how many, half of each split", Kind.WHOLE, "64", least=1),
            Option("prompt_tokens", "the range of prompt lengths (tokens)", default="32-64"),
            Option("decode_tokens", "that follow each prompt", Kind.WHOLE, "64", least=1),
            Option(
                "continuation", "whose text follows", Kind.ONE, "document", ("document", "greedy")
            ),
            Option(
                "chat", "whether greedy uses the chat template", Kind.ONE, "auto", ("auto", "no")
            ),
            Option("batch", "sequences at once", Kind.WHOLE, "1", least=1),
            Option(
                "prefill_chunk", "prompts in steps of so many tokens; 0: one step", Kind.WHOLE, "0"
            ),
            Option("prefill", "what is kept of prompts", Kind.ONE, "rows", ("rows", "counts")),
            Option("lookahead", "how many sites ahead scores reach", default=AUTO),
            Option("lookahead_position", "from what is seen where", default="gate_in"),
            Option("norms", "norms that the scores are seen through", default=AUTO),
            Option(
                "prefill_lookahead",
                "forecasts of prompts",
                Kind.ONE,
                "counts",
                ("counts", "rows", "no"),
            ),
            Option(
                "sparsities",
                "of the activation shares; empty: none",
                default=AUTO,
                can_be_empty=True,
            ),
            Option("hidden_sequences", "of each split, that keep gate inputs", Kind.WHOLE, "4"),
            Option("hidden_share", "of their decode rows (share)", Kind.NUMBER, "1"),
            Option("hidden_dtype", "of gate inputs", Kind.TEXT, "int8"),
            Option("logits", "whether the router's scores are kept", default="yes"),
            Option("logits_step", "their fixed-point step; 0: exact", default="1/32"),
            Option("lookahead_step", "the scores' step", default="1/32"),
            Option("weights_step", "the weights' step; 0: exact", default="0"),
            Option("experts_implementation", "how transformers computes experts", default="eager"),
            DTYPE,
            Option("device", "where it runs, as torch says it", default="cpu"),
            Option("threads", "threads of the CPU; 0: torch's choice", Kind.WHOLE, "0"),
            Option("seed", "of prompt lengths", Kind.WHOLE, "0"),
            Option("name", "name of the trace", default="the model's"),
            Option("trust_remote_code", "whether the model's own code may run", default="no"),
        ),
        (
            f"capture model={TINY} prompts=heldout output_dir=my_trace",
            f"capture model={TINY} prompts=heldout sequences=4 decode_tokens=16 output_dir=few",
            f"capture model={TINY} prompts=heldout prefill=counts sequences=8 output_dir=counted",
        ),
        "docs/captures.md",
    ),
    Verb(
        "import",
        TRACES,
        "capture.import_trace",
        "Turn published routing of a real model into a trace.",
        (
            Option("format", "who wrote it", Kind.ONE, values=FORMATS, is_needed=True),
            Option("path", "the file or folder", Kind.PLACE, is_needed=True),
            *out("outputs/traces/FILE", "folder of the trace; without the word a new one"),
            Option(
                "KEY",
                "what the file does not tell (model, experts a layer, hidden, expert_intermediate,"
                " licence), and options of the format; what is missing or wrong is told",
            ),
        ),
        (
            "import format=bigmoe path=qwen.route.csv output_dir=phone",
            "import format=parquet path=routes.parquet columns=layer:layer_idx output_dir=mine",
            "import format=csv path=routes.csv output_dir=mine model=mine experts=64 hidden=2048"
            " expert_intermediate=1408 licence=own",
        ),
        "docs/captures.md, docs/add_trace_format.md",
        aliases=("capture import_trace",),
        is_open=True,
    ),
    Verb(
        "get",
        TRACES,
        "capture.get",
        "Download, check and import published gates of a real model; without a name list them.",
        (
            Option("cache", "folder of what was downloaded", default="outputs/downloads"),
            *out("outputs/traces/NAME", "folder of the trace; without the word a new one"),
        ),
        (
            "get",
            "get phone_qwen3_30b",
            "get phone_qwen3_30b output_dir=phone cache=downloads",
        ),
        "docs/traces.md",
        places="[NAME]",
        least_places=0,
        most_places=1,
    ),
    Verb(
        "synthesize",
        TRACES,
        "capture.synthesize",
        "Make a trace of a model whose weights are not at hand, from published statistics.",
        (
            Option(
                "like",
                "a model of conf/model, or qwen3_8_flash_next",
                Kind.NAME,
                "",
                ("model", "qwen3_8_flash_next"),
                is_needed=True,
            ),
            Option(
                "tokens", "decoded tokens of each sequence", Kind.WHOLE, least=1, is_needed=True
            ),
            *out("", "folder of the trace"),
            Option("reading", "which reading of the published numbers", default="the first"),
            Option("sequences", "how many", Kind.WHOLE, "8", least=1),
            Option("prompt_tokens", "of each sequence", Kind.WHOLE, "32"),
            Option("seed", "of the random numbers", Kind.WHOLE, "0"),
            Option("lookahead", "how many sites ahead scores reach", Kind.WHOLE, "3"),
            Option("hidden_sequences", "that keep gate inputs; needs safetensors", Kind.WHOLE, "0"),
        ),
        (
            "synthesize like=mixtral_8x7b tokens=32 output_dir=mixtral",
            "synthesize like=qwen3_30b_a3b tokens=16 sequences=4 output_dir=qwen3",
            "synthesize like=mixtral_8x7b reading=first_choice tokens=16 output_dir=first",
        ),
        "docs/synthesis_check.md",
        aliases=("capture synthesize",),
    ),
    Verb(
        "lint",
        TRACES,
        "capture.lint",
        "Look for what a user should know before believing a trace's numbers.",
        (Option("write", "whether the findings go into the trace's header", default="true"),),
        (
            f"lint {BUNDLED} write=false",
            "lint capture/assets/traces/tiny_qwen2moe write=false",
            "lint capture/assets/traces/tiny_switch write=false",
        ),
        "docs/contracts/traces.md",
        aliases=("capture lint",),
        places="TRACE",
        least_places=1,
        most_places=1,
    ),
    Verb(
        "stats",
        TRACES,
        "capture.stats",
        "Show statistics of the gates of one or more traces, side by side.",
        (
            Option("phase", "which rows", Kind.ONE, "decode", ("decode", "prompt", "all")),
            Option("exclude", "leave out sequences with one of these flags"),
            Option("only", "only these statistics, with commas"),
            Option("seed", "of the shuffled control of paths", Kind.WHOLE, "0"),
            *out("", "folder of tables and figures; without the word none is written"),
        ),
        (
            f"stats {BUNDLED}",
            f"stats {BUNDLED} phase=prompt",
            f"stats {BUNDLED} capture/assets/traces/tiny_qwen2moe",
        ),
        "docs/captures.md",
        aliases=("capture stats",),
        places="TRACE...",
        least_places=1,
        most_places=1000,
    ),
    Verb(
        "capture fit",
        TRACES,
        "capture.fit",
        "Train the networks of a learned predictor on a trace's fit sequences.",
        (
            Option("predictor", "which", Kind.NAME, "", ("predictor",), is_needed=True),
            named(TRACE, "tiny_mixtral"),
            Option("width", "units of the hidden layer at the first site", Kind.WHOLE, "64"),
            Option("epochs", "passes over the rows", Kind.WHOLE, "60", least=1),
            Option("batch", "rows at once", Kind.WHOLE, "256", least=1),
            Option("rate", "rate of learning", Kind.NUMBER, "0.003"),
            Option("decay", "decay of weights", Kind.NUMBER, "0.0001"),
            Option("seed", "of the random numbers", Kind.WHOLE, "0"),
            FITTED,
        ),
        (
            "capture fit predictor=learned epochs=2",
            "capture fit predictor=learned epochs=2 width=32 output_dir=outputs/small",
            "capture fit predictor=learned_stride_2 epochs=2",
        ),
        "docs/add_policy.md",
        config="config",
        taken=("predictor",),
    ),
    Verb(
        "capture channels",
        TRACES,
        "capture.channels",
        "Compute FloE's forecast of channels, and count how much of it came true.",
        (
            MODEL_PLACE,
            named(TRACE, "tiny_mixtral"),
            Option("trace.path", "folder of another trace"),
            FITTED,
        ),
        (
            f"capture channels model={TINY}",
            f"capture channels model={TINY} trace=tiny_mixtral",
            f"capture channels model={TINY} output_dir=outputs/channels",
        ),
        "docs/channels.md",
    ),
    Verb(
        "capture check_synthesis",
        TRACES,
        "capture.check_synthesis",
        "Check whether a synthetic trace can stand in for a real one.",
        (
            Option("traces", "folders, with commas", default="the bundled trace"),
            Option("sequences", "of each split", Kind.WHOLE, "32", least=2),
            Option("tokens", "of each sequence", Kind.WHOLE, "64", least=48),
        ),
        (
            "capture check_synthesis",
            "capture check_synthesis sequences=8",
            f"capture check_synthesis traces={BUNDLED} tokens=48",
        ),
        "docs/synthesis_check.md",
    ),
)
