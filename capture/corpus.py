"""The command that shows the text which the project's own models are trained and evaluated on.

``python -m capture.corpus``. All of the text is under licences that allow this use:

=======  ==========================================================  ========================
domain   text                                                        licence
=======  ==========================================================  ========================
code     CPython standard library, .py sources (no tests)            PSF-2.0
docs     CPython documentation, reST sources (python3.11-doc)        PSF-2.0, samples also 0BSD
prose    Jargon File 4.4.7 (dict-jargon)                             public domain
=======  ==========================================================  ========================

The sources come with the running Python. The other two are Debian packages: they are fetched with
``apt-get download`` or given as .deb files, and read without being installed. Where neither is
possible, ``pydoc_data.topics`` (PSF-2.0, in every Python) stands in for docs and there is no prose;
``Corpus.notes`` then says so.

Whole documents are held out, by a hash of their names. So a document stays on its side of the split
when Python or a package gets a new version.
"""

from __future__ import annotations

import argparse
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from capture.tiny.corpus import DOMAINS, Document, build_corpus, default_deb_folder


def size_table(documents: Iterable[Document]) -> Iterator[tuple[str, str, int, int]]:
    """(domain, split, number of documents, UTF-8 bytes) for every split that has documents."""
    counts: Counter[tuple[str, str]] = Counter()
    sizes: Counter[tuple[str, str]] = Counter()
    for document in documents:
        key = (document.domain, "held out" if document.is_held_out else "training")
        counts[key] += 1
        sizes[key] += len(document.text.encode())
    for domain in DOMAINS:
        for split in ("training", "held out"):
            if counts[domain, split]:
                yield domain, split, counts[domain, split], sizes[domain, split]


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        prog="python -m capture.corpus", description="Show the corpus and its split."
    )
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
    corpus = build_corpus(options.debs, download=not options.no_download)
    print("\n".join(corpus.notes))
    for domain, split, count, size in size_table(corpus.documents):
        print(f"{domain:6} {split:9} {count:5} documents {size:10,} bytes")


if __name__ == "__main__":
    main()
