"""A saved model with a tokenizer of numbered words, and prompts of random words."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import Whitespace
from transformers import PreTrainedTokenizerFast

WORDS = 96


def save_checkpoint(model: Any, directory: Path, chat_template: str | None = None) -> Path:
    model.save_pretrained(directory)
    save_tokenizer(directory, chat_template)
    return directory


def save_tokenizer(directory: Path, chat_template: str | None = None) -> None:
    words = Tokenizer(WordLevel({f"w{number}": number for number in range(WORDS)}, unk_token="w3"))
    words.pre_tokenizer = Whitespace()
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=words)
    if chat_template is not None:
        tokenizer.chat_template = chat_template
    tokenizer.save_pretrained(directory)


def write_prompts(path: Path, count: int = 4, words: int = 30, **changes: str) -> Path:
    generator = np.random.default_rng(0)
    lines = []
    for index in range(count):
        text = " ".join(f"w{number}" for number in generator.integers(4, WORDS, words))
        split = "eval" if index % 2 else "fit"
        line = {
            "domain": "noise",
            "document": f"d{index}",
            "split": split,
            "text": text,
            "licence": "CC0-1.0",
        }
        lines.append(json.dumps({**line, **changes}))
    path.write_text("\n".join(lines) + "\n")
    return path
