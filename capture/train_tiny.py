"""The command that trains the project's own Mixture-of-Experts models on a CPU.

``python -m capture.train_tiny model=NAME``

The result of a run depends on its recipe and its text alone. All that changes from step to step
(weights, optimizer moments, both generators, the losses so far) is in one ``RunState``. It is
written to ``OUT/run_state.pt`` every few steps, to a file beside it that is then renamed, so that
the file is always complete. ``--resume`` continues a killed run from there. On the same machine
with the same number of threads it ends with the same bits as a run that was never killed.

    OUT/run_state.pt         while training; deleted at the end
    OUT/tokenizer.json       written before the first step
    OUT/config.json ...      a transformers checkpoint in float16, written at the end
    OUT/train_meta.json      recipe, text, losses
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import torch
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeRemainingColumn
from tokenizers import Tokenizer
from transformers import PreTrainedTokenizerFast

from capture.tiny.corpus import Corpus, build_corpus, default_deb_folder
from capture.tiny.evaluation import evaluate
from capture.tiny.families import family_of
from capture.tiny.model import (
    recorded_router_logits,
)
from capture.tiny.recipes import RECIPES, Recipe
from capture.tiny.tokenizer import (
    END_OF_TEXT,
    SHIPPED_TOKENIZER,
    encode,
    load_tokenizer,
    train_tokenizer,
)
from capture.tiny.training import RunState, train_step
from sim.process.interrupts import telling
from sim.process.progress import Shown

STATE_FILE = "run_state.pt"
OnStep = Callable[[int, float], None]


def train(
    state: RunState, state_file: Path, save_every: int, on_step: OnStep = lambda step, loss: None
) -> None:
    """Runs ``state`` to the recipe's last step, saving it every ``save_every`` steps.

    After each step ``on_step`` is told the number of steps done and the loss.
    """
    state.model.train()
    with recorded_router_logits(state.model) as router_logits:
        while state.step < state.recipe.num_steps:
            state.losses.append(train_step(state, router_logits))
            if state.step % save_every == 0:
                state.save(state_file)
            on_step(state.step, state.losses[-1])
    state.model.eval()


def train_with_progress(
    state: RunState, state_file: Path, save_every: int, console: Console
) -> None:
    """``train`` with a progress bar: mean loss of the last 20 steps, tokens/s, time left."""
    tokens_per_step = state.recipe.batch * state.recipe.seq
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("{task.fields[note]}  ETA"),
        TimeRemainingColumn(),
    )
    begun, before = time.monotonic(), state.step
    with Shown(*columns, console=console) as progress:
        bar = progress.add_task(
            "training: steps", total=state.recipe.num_steps, completed=before, note=""
        )

        def on_step(step: int, _loss: float) -> None:
            rate = (step - before) * tokens_per_step / (time.monotonic() - begun)
            loss = np.mean(state.losses[-20:])
            note = f"loss {loss:.3f} nats/token, {rate:,.0f} tokens/s"
            progress.update(bar, completed=step, note=note)

        train(state, state_file, save_every, on_step)


def export(state: RunState, tokenizer: Tokenizer, folder: Path) -> None:
    """Writes the transformers checkpoint in float16.

    The model of ``state`` is rounded to float16, too.
    """
    state.model.half().save_pretrained(folder)
    PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, bos_token=END_OF_TEXT, eos_token=END_OF_TEXT
    ).save_pretrained(folder)
    state.model.float()


def write_meta(state: RunState, corpus: Corpus, folder: Path) -> None:
    """Writes ``train_meta.json``: recipe, sizes, text, and the mean loss of every 100 steps."""
    recipe = state.recipe
    total = sum(parameter.numel() for parameter in state.model.parameters())
    sites = family_of(state.model).sites(state.model)
    of_experts = sum(parameter.numel() for site in sites for parameter in site.experts.parameters())
    idle = of_experts * (recipe.experts - recipe.top_k) // recipe.experts
    meta = {
        "recipe": recipe.as_dict(),
        "parameters": {"total": total, "active_per_token": total - idle},
        "steps": state.step,
        "text": {"sources": corpus.notes, "sha256": state.text_sha256},
        "loss_per_100_steps": [
            round(float(np.mean(state.losses[i : i + 100])), 4) for i in range(0, state.step, 100)
        ],
    }
    (folder / "train_meta.json").write_text(json.dumps(meta, indent=1) + "\n")


def choose_tokenizer(
    option: str, resume: bool, corpus: Corpus, recipe: Recipe, folder: Path
) -> Tokenizer:
    """The tokenizer of this run, saved as ``tokenizer.json`` in ``folder``.

    A resumed run reads its own. Others take what ``option`` says: ``shipped``, ``new`` (trained
    here) or the path of a file.
    """
    own = folder / "tokenizer.json"
    if resume:
        return load_tokenizer(own)
    if option == "new":
        tokenizer = train_tokenizer(corpus.training, recipe.vocab)
    else:
        tokenizer = load_tokenizer(SHIPPED_TOKENIZER if option == "shipped" else Path(option))
    folder.mkdir(parents=True, exist_ok=True)
    tokenizer.save(str(own))
    return tokenizer


def run(recipe: Recipe, options: argparse.Namespace, console: Console) -> None:
    """Trains into ``options.out`` and prints an evaluation of the trained model."""
    state_file = options.out / STATE_FILE
    refuse_to_overwrite(options.out, state_file, options.resume)
    corpus = build_corpus(options.debs, download=not options.no_download)
    console.print(*corpus.notes, sep="\n", highlight=False)
    tokenizer = choose_tokenizer(options.tokenizer, options.resume, corpus, recipe, options.out)
    state = RunState.start(recipe, encode(corpus.training, tokenizer))
    if options.resume:
        state.load(state_file)
        console.print(f"resuming after step {state.step} of {recipe.num_steps}")
    train_with_progress(state, state_file, options.save_every, console)
    export(state, tokenizer, options.out)
    write_meta(state, corpus, options.out)
    state_file.unlink(missing_ok=True)
    evaluate(options.out, corpus, console)


def refuse_to_overwrite(folder: Path, state_file: Path, resume: bool) -> None:
    """Raises ValueError if a new run would overwrite an old one, or if none can be resumed."""
    if resume and not state_file.is_file():
        raise ValueError(
            f"cannot resume: {state_file} does not exist; leave out --resume to start a run"
        )
    if not resume and state_file.is_file():
        raise ValueError(
            f"cannot start in {folder}: {state_file} is an unfinished run; give --resume or another"
            " --out"
        )
    if not resume and (folder / "config.json").is_file():
        raise ValueError(f"cannot start in {folder}: it holds a finished model; give another --out")


def parser() -> argparse.ArgumentParser:
    result = argparse.ArgumentParser(
        prog="python -m capture.train_tiny",
        description=(
            "Train one of the project's own MoE models on a CPU (half an hour), or evaluate a"
            " checkpoint."
        ),
    )
    result.add_argument(
        "model",
        nargs="?",
        type=recipe_name,
        default="model=tiny_mixtral",
        help=f"model=NAME, one of {', '.join(RECIPES)}",
    )
    result.add_argument(
        "--evaluate", type=Path, metavar="DIR", help="do not train: evaluate the checkpoint in DIR"
    )
    result.add_argument(
        "--passages", type=Path, metavar="FILE", help="evaluate on these instead of the corpus"
    )
    result.add_argument(
        "--out", type=Path, help="folder of the new checkpoint (default: outputs/NAME)"
    )
    result.add_argument(
        "--resume", action="store_true", help="go on with the run that was interrupted in --out"
    )
    result.add_argument(
        "--save-every", type=positive, default=50, metavar="STEPS", help="how much a kill may cost"
    )
    result.add_argument(
        "--threads",
        type=positive,
        default=1,
        help="CPU threads; the last bits of the model depend on it",
    )
    result.add_argument(
        "--debs",
        type=Path,
        default=default_deb_folder(),
        help="folder of .deb files, filled if empty",
    )
    result.add_argument(
        "--no-download", action="store_true", help="use only the packages that --debs already holds"
    )
    result.add_argument(
        "--tokenizer", default="shipped", help="'shipped', 'new' or a path of a tokenizer.json"
    )
    overrides = result.add_argument_group(
        "recipe", "what differs from the recipe of NAME in capture/tiny/recipes.py"
    )
    overrides.add_argument("--tokens", type=whole, help="training tokens, e.g. 1e6")
    for name in (
        "layers",
        "hidden",
        "inter",
        "experts",
        "top_k",
        "heads",
        "kv_heads",
        "seq",
        "batch",
        "seed",
    ):
        overrides.add_argument(f"--{name.replace('_', '-')}", type=int)
    for name in ("learning_rate", "balance_loss", "z_loss", "embedding_std"):
        overrides.add_argument(f"--{name.replace('_', '-')}", type=float)
    return result


def recipe_name(text: str) -> str:
    """The NAME in ``model=NAME``."""
    key, _, name = text.partition("=")
    if key != "model" or name not in RECIPES:
        raise argparse.ArgumentTypeError(
            f"{text!r} is not model=NAME with NAME one of {', '.join(RECIPES)}"
        )
    return name


def whole(text: str) -> int:
    """A whole number, which may be written like 3.7e6."""
    value = float(text)
    if not value.is_integer():
        raise argparse.ArgumentTypeError(f"{text} is not a whole number")
    return int(value)


def positive(text: str) -> int:
    value = int(text)
    if value < 1:
        raise argparse.ArgumentTypeError(f"{text} is below 1")
    return value


@telling("--resume goes on from the last step that was saved (--save-every)")
def main(arguments: Sequence[str] | None = None) -> int:
    command = parser()
    options = command.parse_args(arguments)
    console = Console()
    torch.set_num_threads(options.threads)
    fields = {entry.name for entry in dataclasses.fields(Recipe)}
    changes = {
        name: value for name, value in vars(options).items() if name in fields and value is not None
    }
    options.out = options.out or Path("outputs") / options.model
    try:
        if options.evaluate is not None:
            text = options.passages or build_corpus(options.debs, not options.no_download)
            evaluate(options.evaluate, text, console)
        else:
            run(dataclasses.replace(RECIPES[options.model], **changes), options, console)
    except ValueError as error:
        command.error(str(error))
    return 0


if __name__ == "__main__":
    sys.exit(main())
