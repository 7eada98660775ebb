"""The text that the project's own models are trained and evaluated on.

All of it is under licences that allow this use:

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

import gzip
import hashlib
import importlib
import io
import platform
import re
import shutil
import subprocess
import sysconfig
import tarfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

DOMAINS = ("code", "docs", "prose")
DEBIAN_PACKAGES = {"docs": "python3.11-doc", "prose": "dict-jargon"}
PSF = "PSF-2.0"
PSF_DOCS = "PSF-2.0 (code samples also 0BSD)"
PUBLIC_DOMAIN = "public domain"
# Shorter files are mostly licence headers and re-exports; longer ones are tables that would
# dominate their domain.
SHORTEST_CHARS = 1500
LONGEST_CHARS = 200_000
PROSE_DOCUMENT_CHARS = 8000
# Directories whose names start with one of these hold other licences, test fixtures or generated
# tables.
SKIPPED_DIRECTORIES = re.compile(
    r"/(site-packages|test|idle_test|encodings|lib2to3/tests|pydoc_data|ensurepip|turtledemo|__pycache__|config-)"
)


@dataclass(frozen=True)
class Document:
    """One document of the corpus; its ``name`` alone decides whether it is held out."""

    domain: str
    name: str
    text: str
    licence: str

    @property
    def is_held_out(self) -> bool:
        return is_held_out(self.name)


@dataclass(frozen=True)
class Corpus:
    """Documents by domain, then by name.

    ``notes`` say where each domain came from, or why it is missing.
    """

    documents: tuple[Document, ...]
    notes: tuple[str, ...]

    @property
    def training(self) -> tuple[Document, ...]:
        return tuple(document for document in self.documents if not document.is_held_out)

    @property
    def held_out(self) -> tuple[Document, ...]:
        return tuple(document for document in self.documents if document.is_held_out)

    @property
    def domains(self) -> tuple[str, ...]:
        """Domains with at least one held-out and one training document, in the order of
        ``DOMAINS``.
        """
        both = {document.domain for document in self.training} & {
            document.domain for document in self.held_out
        }
        return tuple(domain for domain in DOMAINS if domain in both)


def is_held_out(name: str) -> bool:
    """True for one name in twenty: the same names on every machine and for every version."""
    return int(hashlib.sha1(name.encode(), usedforsecurity=False).hexdigest(), 16) % 20 == 0


def stdlib_documents(root: Path | None = None) -> Iterator[Document]:
    """The .py sources under ``root``, sorted by path.

    ``root`` defaults to the running Python's standard library.
    """
    root = root or Path(sysconfig.get_paths()["stdlib"])
    names = (path.relative_to(root).as_posix() for path in root.rglob("*.py"))
    # Names are compared as strings, with "/" as a character; paths would sort in another order.
    for name in sorted(name for name in names if not SKIPPED_DIRECTORIES.search("/" + name)):
        text = (root / name).read_text(encoding="utf-8", errors="replace")
        if len(text) > SHORTEST_CHARS:
            yield Document("code", name, text[:LONGEST_CHARS], PSF)


def docs_documents(package: Path) -> Iterator[Document]:
    """The reST sources inside a ``python3.11-doc`` .deb, without the changelog, sorted by path."""
    for path, content in sorted(deb_files(package, lambda path: path.endswith(".rst.txt"))):
        name = path.split("_sources/")[1]
        text = content.decode("utf-8", "replace")
        if "changelog" not in name and len(text) > SHORTEST_CHARS:
            yield Document("docs", name, text[:LONGEST_CHARS], PSF_DOCS)


def topics_documents() -> Iterator[Document]:
    """``pydoc_data.topics``, the part of the language reference that is in every Python.

    It stands in for the docs.
    """
    topics = importlib.import_module("pydoc_data.topics").topics
    for name in sorted(topics):
        yield Document("docs", name, topics[name], PSF)


def jargon_documents(package: Path) -> Iterator[Document]:
    """The Jargon File inside a ``dict-jargon`` .deb, in documents of about 8 kB."""
    for _, content in deb_files(package, lambda path: path.endswith("/jargon.dict.dz")):
        text = gzip.decompress(content).decode("utf-8", "replace")
        # The dict format indents every definition by three blanks.
        text = "\n".join(line.removeprefix("   ") for line in text.split("\n"))
        for index, part in enumerate(cut_at_blank_lines(text, PROSE_DOCUMENT_CHARS)):
            yield Document("prose", f"jargon-{index:04d}", part, PUBLIC_DOMAIN)


def cut_at_blank_lines(text: str, target_chars: int) -> Iterator[str]:
    """Parts of ``text`` that end at the first blank line beyond ``target_chars``.

    The last part may be shorter.
    """
    part = ""
    for paragraph in re.split(r"\n\n+", text):
        part += paragraph + "\n\n"
        if len(part) > target_chars:
            yield part
            part = ""
    yield part


def deb_files(package: Path, wanted: Callable[[str], bool]) -> list[tuple[str, bytes]]:
    """(path, content) of the regular files of a .deb whose path ``wanted`` accepts.

    Nothing is written to disk. Raises ValueError if ``package`` is not a Debian package, or if its
    data member uses a compression that Python cannot read.
    """
    for name, content in ar_members(package):
        if name.startswith("data.tar"):
            try:
                with tarfile.open(fileobj=io.BytesIO(content)) as archive:
                    members = [
                        member for member in archive if member.isfile() and wanted(member.name)
                    ]
                    return [(member.name, archive.extractfile(member).read()) for member in members]  # type: ignore[union-attr]
            except tarfile.ReadError as error:
                raise ValueError(
                    f"cannot read {name} of {package}: {error}; repack it as .tar.xz or use the"
                    " package of Debian 12"
                ) from error
    raise ValueError(
        f"cannot read {package}: no data.tar member, {package.stat().st_size} bytes; download it"
        " again"
    )


def ar_members(path: Path) -> Iterator[tuple[str, bytes]]:
    """(name, content) of each member of a Unix ar archive, the container of a .deb (deb(5)).

    Raises ValueError if the file is no such archive.
    """
    content = path.read_bytes()
    if content[:8] != b"!<arch>\n":
        raise ValueError(
            f"cannot read {path}: starts with {content[:8]!r}, a .deb starts with b'!<arch>\\n'"
        )
    position = 8
    while position + 60 <= len(content):
        header = content[position : position + 60]
        size = int(header[48:58])
        yield (
            header[:16].decode().strip().rstrip("/"),
            content[position + 60 : position + 60 + size],
        )
        # Members are padded to an even length.
        position += 60 + size + size % 2


def fetch_debian_packages(folder: Path, timeout_s: float = 300.0) -> str | None:
    """Downloads the packages that ``folder`` lacks with apt-get, which needs no root for this.

    Returns None, or the reason why it could not.
    """
    missing = [
        package for package in DEBIAN_PACKAGES.values() if find_package(folder, package) is None
    ]
    if not missing:
        return None
    if shutil.which("apt-get") is None:
        return "this machine has no apt-get"
    folder.mkdir(parents=True, exist_ok=True)
    try:
        done = subprocess.run(
            ["apt-get", "download", *missing],
            cwd=folder,
            capture_output=True,
            text=True,
            timeout=timeout_s,
        )
    except subprocess.TimeoutExpired:
        return f"apt-get download took more than {timeout_s:.0f} s"
    if done.returncode == 0:
        return None
    last_line = (done.stderr.strip() or done.stdout.strip() or "no message").splitlines()[-1]
    return f"apt-get download {' '.join(missing)} failed: {last_line}"


def find_package(folder: Path, package: str) -> Path | None:
    """The .deb of ``package`` in ``folder`` with the last name in order, or None."""
    return max(folder.glob(f"{package}_*.deb"), default=None)


def build_corpus(
    deb_folder: Path | None, download: bool = True, stdlib_root: Path | None = None
) -> Corpus:
    """The corpus: all three domains where the packages can be had, else with the fallback.

    ``deb_folder`` holds the .deb files, or receives them if ``download``; None means no packages at
    all.
    """
    reason = None
    if deb_folder is None:
        reason = "no folder for packages given"
    elif download:
        reason = fetch_debian_packages(deb_folder)
    documents = list(stdlib_documents(stdlib_root))
    notes = [f"code: {stdlib_root or f'standard library of Python {platform.python_version()}'}"]
    readers = {"docs": docs_documents, "prose": jargon_documents}
    for domain, package_name in DEBIAN_PACKAGES.items():
        package = find_package(deb_folder, package_name) if deb_folder else None
        if package is not None:
            documents += readers[domain](package)
            notes.append(f"{domain}: {package.name}")
            continue
        why = reason or f"{deb_folder} has no {package_name}_*.deb"
        if domain == "docs":
            documents += topics_documents()
            notes.append(f"docs: FALLBACK pydoc_data.topics, {package_name} is missing ({why})")
        else:
            notes.append(f"{domain}: MISSING, {package_name} is missing ({why})")
    return Corpus(tuple(documents), tuple(notes))


def default_deb_folder() -> Path:
    """Where downloaded packages are kept between runs."""
    return Path.home() / ".cache" / "moe-offload-lab" / "debs"
