"""The models that ship with the project load, are small, and still do what their cards record."""

from __future__ import annotations

import json
import re

import pytest

from sim.values.places import ROOT

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

from rich.console import Console  # noqa: E402

from capture.tiny.evaluation import evaluate  # noqa: E402
from capture.tiny.families import family_named  # noqa: E402
from capture.tiny.model import build_model, load_model  # noqa: E402
from capture.tiny.recipes import RECIPES  # noqa: E402

ASSETS = ROOT / "capture" / "assets"
PASSAGES = ASSETS / "prompts" / "heldout.jsonl"
ALL_ASSETS_BYTES = 36_000_000
LARGEST_BYTES = {"tiny_mixtral": 15_000_000, "tiny_qwen2moe": 7_000_000, "tiny_switch": 4_000_000}
AUTO_CLASSES = {
    "tiny_mixtral": transformers.AutoModelForCausalLM,
    "tiny_qwen2moe": transformers.AutoModelForCausalLM,
    "tiny_switch": transformers.AutoModelForSeq2SeqLM,
}
# Cards have three decimals, and another machine's arithmetic may decide near-ties otherwise.
TOLERANCE = 0.004

every_model = pytest.mark.parametrize("name", RECIPES)


def card_tables(card: str) -> dict[str, dict[str, dict[str, str]]]:
    """The tables of a card: {heading above it: {first cell: {column: cell}}}."""
    tables: dict[str, dict[str, dict[str, str]]] = {}
    heading, columns = "", []
    for line in card.splitlines():
        if line.startswith("#"):
            heading, columns = line.lstrip("# "), []
        elif line.startswith("|") and not re.fullmatch(r"[|:\- ]+", line):
            cells = [cell.strip() for cell in line.strip("|").split("|")]
            if columns:
                tables.setdefault(heading, {})[cells[0]] = dict(zip(columns, cells, strict=True))
            else:
                columns = cells
        elif not line.startswith("|"):
            columns = []
    return tables


def test_all_assets_together_keep_a_checkout_light() -> None:
    assert (
        sum(path.stat().st_size for path in ASSETS.rglob("*") if path.is_file()) <= ALL_ASSETS_BYTES
    )


@every_model
def test_a_checkpoint_is_the_recipes_architecture_in_float16_and_weighs_what_it_may(
    name: str,
) -> None:
    folder = ASSETS / name
    assert sum(path.stat().st_size for path in folder.iterdir()) <= LARGEST_BYTES[name]
    shipped, fresh = load_model(folder), build_model(RECIPES[name])
    assert {key: value.shape for key, value in shipped.named_parameters()} == {
        key: value.shape for key, value in fresh.named_parameters()
    }
    assert json.loads((folder / "config.json").read_text())["dtype"] == "float16"
    assert (folder / "tokenizer.json").read_bytes() == (
        ASSETS / "tiny_mixtral" / "tokenizer.json"
    ).read_bytes()
    # The model is trained: every router has moved from where it began.
    sites = family_named(RECIPES[name].family).sites
    for there, here in zip(sites(shipped), sites(fresh), strict=True):
        assert (there.router_weight - here.router_weight).abs().max() > 0.01


@pytest.mark.alike
@every_model
def test_a_checkpoint_loads_by_transformers_automatic_classes_and_writes_text(name: str) -> None:
    model = AUTO_CLASSES[name].from_pretrained(ASSETS / name, dtype=torch.float32).eval()
    assert type(model).__name__ == type(load_model(ASSETS / name)).__name__
    tokenizer = transformers.AutoTokenizer.from_pretrained(ASSETS / name)
    prompt = tokenizer("def __init__(self", return_tensors="pt")["input_ids"]
    written = model.generate(
        prompt, attention_mask=torch.ones_like(prompt), max_new_tokens=8, do_sample=False
    )
    assert len(tokenizer.decode(written[0], skip_special_tokens=True)) > 4


@pytest.mark.parametrize(
    "name", [pytest.param("tiny_qwen2moe", marks=pytest.mark.thorough), "tiny_switch"]
)
def test_evaluation_reproduces_the_card(name: str) -> None:
    """The passages that ship are the same text on every machine."""
    tables = card_tables((ASSETS / name / "README.md").read_text())
    evaluation = evaluate(ASSETS / name, PASSAGES, Console(quiet=True))
    recorded = {domain: float(row["passages"]) for domain, row in tables["Loss"].items()}
    assert recorded == pytest.approx(
        {domain: loss.nats_per_token for domain, loss in evaluation.losses.items()}, abs=TOLERANCE
    )
    stacks = [heading for heading in tables if heading.startswith("Gating of the ")]
    assert stacks == [f"Gating of the {stack}" for stack in evaluation.statistics]
    for stack, statistics in evaluation.statistics.items():
        table = tables[f"Gating of the {stack}"]
        # A bar would end a cell of the card's table.
        ours = {row.name.replace("|x W_up|", "abs(x W_up)"): row for row in statistics}
        assert list(table) == list(ours)
        for title, row in table.items():
            assert float(row["passages"]) == pytest.approx(ours[title].value, abs=TOLERANCE), title
            published = ours[title].published
            assert row["published"] == (published.value if published else "")


@pytest.mark.parametrize("name", ["tiny_qwen2moe", "tiny_switch"])
def test_a_card_states_the_recipe_that_the_command_repeats(name: str) -> None:
    card = " ".join((ASSETS / name / "README.md").read_text().split())
    recipe = RECIPES[name]
    assert f"python -m capture.train_tiny model={name} --out" in card
    assert (
        f"{recipe.tokens:,} tokens ({recipe.num_steps} steps of {recipe.batch} windows of"
        f" {recipe.seq} tokens)" in card
    )
    total = sum(parameter.numel() for parameter in load_model(ASSETS / name).parameters())
    assert f"{total:,}" in card
    for fact in ("PSF-2.0", "public domain", "What it does not show"):
        assert fact in card
