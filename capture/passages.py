"""Writes the held-out passages that captures are made from:
``capture/assets/prompts/heldout.jsonl``.

A passage starts at a natural boundary of a held-out document: a definition, a section title, a
dictionary entry. It runs on for about 230 tokens of the project's tokenizer. Its beginning serves
as a prompt, and its rest is the true continuation, for teacher forcing. No document serves both the
``fit`` and the ``eval`` split.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import re
from collections.abc import Iterator, Sequence
from pathlib import Path

from tokenizers import Tokenizer

from capture.tiny.corpus import Corpus, Document, build_corpus, default_deb_folder
from sim.values.places import ASSETS, IS_CHECKOUT

PASSAGES_PER_SPLIT = {"code": 12, "docs": 12, "prose": 8}
SPLITS = ("fit", "eval")
SHORTEST_TOKENS = 200
LONGEST_TOKENS = 260
# The longest of the shipped tokenizer's tokens, a run of blanks, has 48 characters.
LONGEST_TOKEN_CHARS = 48
PASSAGES_FILE = (ASSETS / "prompts" if IS_CHECKOUT else Path()) / "heldout.jsonl"

# A line is a boundary if the line before it is blank and the text that it starts matches the
# domain's pattern.
BOUNDARIES = {
    "code": re.compile(r"(@|class |def |async def )"),
    "docs": re.compile(r"\S[^\n]*\n([=*\-~^\"+#])\1{2,}\n"),
    "prose": re.compile(r"[^\s\[{][^\n]{0,60}\n \S"),
}


def passages(document: Document, tokenizer: Tokenizer) -> list[str]:
    """Passages of ``document`` in order, without overlap.

    Each starts at a boundary and ends at the end of a line.
    """
    found: list[str] = []
    end_of_last = 0
    for start in boundary_positions(document):
        if start < end_of_last:
            continue
        text = whole_lines(document.text[start:], tokenizer)
        if text is not None:
            found.append(text)
            end_of_last = start + len(text)
    return found


def boundary_positions(document: Document) -> Iterator[int]:
    """Character positions in ``document.text`` at which a passage may start, ascending."""
    pattern = BOUNDARIES[document.domain]
    for blank in re.finditer(r"(?<=\n)\n+", document.text):
        if pattern.match(document.text, blank.end()):
            yield blank.end()


def whole_lines(text: str, tokenizer: Tokenizer) -> str | None:
    """As many leading lines of ``text`` as LONGEST_TOKENS allow.

    None if these have fewer than SHORTEST_TOKENS.
    """
    # This prefix certainly has more than LONGEST_TOKENS. It spares tokenising the rest of a long
    # document once per line.
    text = text[: LONGEST_TOKEN_CHARS * (LONGEST_TOKENS + 1)]
    lines = 0
    for line_end in re.finditer("\n", text):
        if num_tokens(text[: line_end.end()], tokenizer) > LONGEST_TOKENS:
            break
        lines = line_end.end()
    return text[:lines] if num_tokens(text[:lines], tokenizer) >= SHORTEST_TOKENS else None


def num_tokens(text: str, tokenizer: Tokenizer) -> int:
    return len(tokenizer.encode(text).ids)


def may_be_shipped(document: Document) -> bool:
    """Whether the licence of the document's domain applies to it.

    False for files with a copyright notice of their own: their licence may be another.
    """
    return "copyright" not in document.text.lower()


def split_documents(documents: Sequence[Document]) -> dict[str, list[Document]]:
    """Documents by split, dealt in turn, in the order of a hash of their names."""
    ordered = sorted(
        documents, key=lambda document: hashlib.sha1(document.name.encode()).hexdigest()
    )
    return {split: ordered[index :: len(SPLITS)] for index, split in enumerate(SPLITS)}


def deal(
    documents: Sequence[Document], count: int, tokenizer: Tokenizer
) -> list[tuple[Document, str]]:
    """``count`` passages with their documents, one from every document in turn.

    Raises ValueError if the documents have too few.
    """
    queues = [(document, passages(document, tokenizer)) for document in documents]
    rounds = max((len(found) for _, found in queues), default=0)
    dealt = [
        (document, found[turn])
        for turn in range(rounds)
        for document, found in queues
        if turn < len(found)
    ]
    if len(dealt) < count:
        names = ", ".join(document.name for document in documents) or "none"
        raise ValueError(
            f"cannot choose {count} passages: documents ({names}) have {len(dealt)}; give the"
            " packages with --debs"
        )
    return dealt[:count]


def heldout_records(corpus: Corpus, tokenizer: Tokenizer) -> list[dict[str, str]]:
    """Rows of the passages file (domain, document, split, text, licence), by split, then domain."""
    records = []
    shippable = [document for document in corpus.held_out if may_be_shipped(document)]
    for split in SPLITS:
        for domain, count in PASSAGES_PER_SPLIT.items():
            documents = split_documents(
                [document for document in shippable if document.domain == domain]
            )[split]
            for document, text in deal(documents, count, tokenizer):
                records.append(
                    {
                        "domain": domain,
                        "document": document.name,
                        "split": split,
                        "text": text,
                        "licence": document.licence,
                    }
                )
    return records


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="python -m capture.passages", description=__doc__)
    parser.add_argument("--out", type=Path, default=PASSAGES_FILE)
    parser.add_argument(
        "--debs",
        type=Path,
        default=default_deb_folder(),
        help="folder of .deb files, filled if empty",
    )
    parser.add_argument(
        "--no-download", action="store_true", help="use only what --debs already holds"
    )
    options = parser.parse_args(arguments)
    tokenizer = Tokenizer.from_file(str(ASSETS / "tiny_mixtral" / "tokenizer.json"))
    records = heldout_records(
        build_corpus(options.debs, download=not options.no_download), tokenizer
    )
    options.out.parent.mkdir(parents=True, exist_ok=True)
    options.out.write_text(
        "".join(json.dumps(record, ensure_ascii=False) + "\n" for record in records)
    )
    print(f"{len(records)} passages, {options.out.stat().st_size:,} bytes: {options.out}")


if __name__ == "__main__":
    main()
