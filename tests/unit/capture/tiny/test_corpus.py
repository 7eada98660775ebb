"""The corpus, its held-out split, the token stream and the shipped passages."""

from __future__ import annotations

import gzip
import io
import json
import subprocess
import tarfile
from collections import Counter
from pathlib import Path

import numpy as np
import pytest

from capture.passages import (
    LONGEST_TOKENS,
    PASSAGES_FILE,
    SHORTEST_TOKENS,
    deal,
    may_be_shipped,
    passages,
)
from capture.tiny import corpus as corpus_module
from capture.tiny.corpus import (
    Corpus,
    Document,
    build_corpus,
    cut_at_blank_lines,
    docs_documents,
    fetch_debian_packages,
    is_held_out,
    jargon_documents,
    stdlib_documents,
)
from capture.tiny.tokenizer import (
    END_OF_TEXT_ID,
    SHIPPED_TOKENIZER,
    consecutive_windows,
    encode,
    load_tokenizer,
    sample_windows,
    train_tokenizer,
)

LONG_ENOUGH = "x = 1\n" * 300


def make_deb(path: Path, files: dict[str, bytes]) -> Path:
    """A .deb written by hand: an ar archive whose members have odd and even lengths."""
    data = io.BytesIO()
    with tarfile.open(fileobj=data, mode="w:xz") as archive:
        for name, content in files.items():
            member = tarfile.TarInfo(name)
            member.size = len(content)
            archive.addfile(member, io.BytesIO(content))
        link = tarfile.TarInfo("./link.rst.txt")
        link.type, link.linkname = tarfile.SYMTYPE, "elsewhere"
        archive.addfile(link)
    content = b"!<arch>\n"
    for name, body in {
        "debian-binary": b"2.0\n",
        "control.tar.xz": b"odd",
        "data.tar.xz": data.getvalue(),
    }.items():
        content += (
            f"{name:<16}{0:<12}{0:<6}{0:<6}{100644:<8}{len(body):<10}`\n".encode()
            + body
            + b"\n" * (len(body) % 2)
        )
    path.write_bytes(content)
    return path


@pytest.fixture
def stdlib_root(tmp_path: Path) -> Path:
    root = tmp_path / "stdlib"
    for name in (
        "abc.py",
        "base64.py",
        "json/decoder.py",
        "test/test_abc.py",
        "encodings/utf_8.py",
    ):
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(LONG_ENOUGH)
    (root / "short.py").write_text("x = 1\n")
    return root


@pytest.fixture(scope="module")
def tokenizer():
    return load_tokenizer(SHIPPED_TOKENIZER)


def test_the_split_is_the_one_the_shipped_checkpoint_was_trained_with() -> None:
    held_out = {
        "base64.py",
        "copy.py",
        "enum.py",
        "library/tarfile.rst.txt",
        "whatsnew/3.11.rst.txt",
        "jargon-0005",
    }
    trained_on = {"abc.py", "json/decoder.py", "library/json.rst.txt", "jargon-0000", "jargon-0001"}
    assert {name for name in held_out | trained_on if is_held_out(name)} == held_out


def test_one_document_in_twenty_is_held_out() -> None:
    assert sum(is_held_out(f"name-{index}") for index in range(20_000)) == pytest.approx(
        1000, abs=100
    )


def test_standard_library_leaves_out_tests_tables_and_short_files(stdlib_root: Path) -> None:
    assert [document.name for document in stdlib_documents(stdlib_root)] == [
        "abc.py",
        "base64.py",
        "json/decoder.py",
    ]


def test_without_packages_the_corpus_falls_back_and_says_so(stdlib_root: Path) -> None:
    corpus = build_corpus(None, stdlib_root=stdlib_root)
    assert {document.domain for document in corpus.documents} == {"code", "docs"}
    assert any("FALLBACK pydoc_data.topics" in note for note in corpus.notes)
    assert any(note.startswith("prose: MISSING") for note in corpus.notes)
    assert corpus.domains == ("code", "docs")


def test_training_and_held_out_documents_partition_the_corpus(stdlib_root: Path) -> None:
    corpus = build_corpus(None, stdlib_root=stdlib_root)
    assert Counter(corpus.training) + Counter(corpus.held_out) == Counter(corpus.documents)
    assert "base64.py" in {document.name for document in corpus.held_out}
    code = [document.is_held_out for document in corpus.documents if document.domain == "code"]
    assert Counter(code) == {True: 1, False: 2}


def test_packages_are_read_without_unpacking_them(tmp_path: Path, stdlib_root: Path) -> None:
    sources = "./usr/share/doc/python3.11/html/_sources/"
    make_deb(
        tmp_path / "python3.11-doc_1_all.deb",
        {
            f"{sources}library/zlib.rst.txt": b"z" * 2000,
            f"{sources}about.rst.txt": b"a" * 2001,
            f"{sources}whatsnew/changelog.rst.txt": b"c" * 2000,
            f"{sources}short.rst.txt": b"s",
            "./usr/share/doc/python3.11/html/about.html": b"h" * 2000,
        },
    )
    make_deb(
        tmp_path / "dict-jargon_1_all.deb",
        {"./usr/share/dictd/jargon.dict.dz": gzip.compress(b"   entry\n    n.\n\n    text")},
    )
    docs = list(docs_documents(tmp_path / "python3.11-doc_1_all.deb"))
    assert [(document.name, len(document.text)) for document in docs] == [
        ("about.rst.txt", 2001),
        ("library/zlib.rst.txt", 2000),
    ]
    (prose,) = jargon_documents(tmp_path / "dict-jargon_1_all.deb")
    assert (prose.name, prose.text) == ("jargon-0000", "entry\n n.\n\n text\n\n")
    corpus = build_corpus(tmp_path, download=False, stdlib_root=stdlib_root)
    assert [note.split(":")[0] for note in corpus.notes] == ["code", "docs", "prose"]
    assert not any("FALLBACK" in note or "MISSING" in note for note in corpus.notes)


def test_a_file_that_is_no_package_is_refused_by_name(tmp_path: Path) -> None:
    broken = tmp_path / "python3.11-doc_1_all.deb"
    broken.write_bytes(b"<html>not found</html>")
    with pytest.raises(ValueError, match=r"python3.11-doc_1_all.deb: starts with b'<html>no'"):
        list(docs_documents(broken))


def test_a_failed_download_is_a_reason_and_not_an_exception(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(corpus_module.shutil, "which", lambda name: "/usr/bin/apt-get")
    failed = subprocess.CompletedProcess(
        [], 100, "", "warning\nE: Unable to locate package dict-jargon"
    )
    monkeypatch.setattr(corpus_module.subprocess, "run", lambda *arguments, **options: failed)
    assert "Unable to locate package dict-jargon" in str(fetch_debian_packages(tmp_path / "debs"))
    monkeypatch.setattr(corpus_module.shutil, "which", lambda name: None)
    assert fetch_debian_packages(tmp_path / "debs") == "this machine has no apt-get"


def test_packages_that_are_there_are_not_downloaded_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for package in ("python3.11-doc", "dict-jargon"):
        (tmp_path / f"{package}_1_all.deb").touch()
    monkeypatch.setattr(
        corpus_module.subprocess, "run", lambda *arguments, **options: pytest.fail("downloaded")
    )
    assert fetch_debian_packages(tmp_path) is None


def test_cutting_at_blank_lines_loses_no_paragraph() -> None:
    text = "\n\n".join(f"paragraph {index} " + "word " * 20 for index in range(50))
    parts = list(cut_at_blank_lines(text, 500))
    assert "".join(parts) == text + "\n\n"
    assert all(500 < len(part) < 700 for part in parts[:-1])


def test_every_text_survives_the_tokenizer(tokenizer) -> None:
    text = "def f(x):\n    return '£ ∼ \x00 日本'\n"
    assert tokenizer.decode(tokenizer.encode(text).ids) == text
    own = train_tokenizer([Document("code", "a.py", LONG_ENOUGH, "")], vocab_size=300)
    assert own.decode(own.encode(text).ids) == text


def test_the_stream_knows_where_documents_end(tokenizer) -> None:
    documents = [Document("code", "a", "x = 1\n", ""), Document("prose", "b", "a word", "")]
    stream = encode(documents, tokenizer)
    ends = np.flatnonzero(stream.ids == END_OF_TEXT_ID)
    assert len(ends) == 2
    assert stream.document.tolist() == [0] * (ends[0] + 1) + [1] * (ends[1] - ends[0])
    assert tokenizer.decode(stream.ids[: ends[0]].tolist()) == "x = 1\n"
    assert stream.tokens_by_domain() == {"code": ends[0] + 1, "prose": ends[1] - ends[0]}


def test_sampled_windows_lie_inside_one_document(tokenizer) -> None:
    documents = [Document("docs", str(index), f"{index} " * 40, "") for index in range(5)]
    stream = encode([*documents, Document("prose", "short", "a", "")], tokenizer)
    windows, domains = sample_windows(stream, 30, (3, 10, 2))
    assert domains.tolist() == [1] * 10
    assert END_OF_TEXT_ID not in windows[:, :-1]
    # Two windows of each of the five documents, dealt in turn.
    texts = [set(tokenizer.decode(window.tolist()).split()) & set("01234") for window in windows]
    assert texts == [{str(index % 5)} for index in range(10)]


def test_consecutive_windows_predict_every_token_once(tokenizer) -> None:
    stream = encode(
        [Document("code", "a", "".join(f"x{index} = {index}\n" for index in range(99)), "")],
        tokenizer,
    )
    windows, _ = consecutive_windows(stream, 10)
    predicted = windows[:, 1:].ravel()
    assert predicted.tolist() == stream.ids[1 : len(predicted) + 1].tolist()
    assert len(stream) - 1 - len(predicted) < 9


def test_shipped_passages_are_held_out_and_no_document_is_in_both_splits(tokenizer) -> None:
    records = [json.loads(line) for line in PASSAGES_FILE.read_text().splitlines()]
    documents = {
        split: {row["document"] for row in records if row["split"] == split}
        for split in ("fit", "eval")
    }
    assert Counter(row["split"] for row in records) == {"fit": 32, "eval": 32}
    assert Counter(row["domain"] for row in records) == {"code": 24, "docs": 24, "prose": 16}
    assert not documents["fit"] & documents["eval"]
    assert all(is_held_out(row["document"]) for row in records)
    assert len({row["text"] for row in records}) == 64
    for row in records:
        assert set(row) == {"domain", "document", "split", "text", "licence"}
        ids = tokenizer.encode(row["text"]).ids
        assert SHORTEST_TOKENS <= len(ids) <= LONGEST_TOKENS
        assert tokenizer.decode(ids) == row["text"]
    assert PASSAGES_FILE.stat().st_size < 200_000


def test_passages_start_at_definitions_and_do_not_overlap(tokenizer) -> None:
    body = "".join(f"    total = total + values[{index}]\n" for index in range(10))
    text = "# note\n" + "".join(f"\n\ndef function_{name}(values):\n{body}" for name in "abcdefghi")
    found = passages(Document("code", "a.py", text, ""), tokenizer)
    assert len(found) >= 3
    position = 0
    for passage in found:
        assert passage.startswith("def function_")
        assert passage.endswith("\n")
        position = text.index(passage, position) + len(passage)


def test_files_with_a_copyright_notice_are_not_shipped() -> None:
    assert may_be_shipped(Document("code", "a.py", "x = 1", ""))
    assert not may_be_shipped(Document("code", "a.py", "# Copyright 2001 Somebody\nx = 1", ""))


def test_too_few_passages_are_refused_with_their_number(tokenizer) -> None:
    with pytest.raises(ValueError, match=r"cannot choose 2 passages: documents \(a.py\) have 0"):
        deal([Document("code", "a.py", "x = 1\n", "")], 2, tokenizer)


def test_domains_need_text_on_both_sides_of_the_split() -> None:
    documents = (
        Document("code", "abc.py", "", ""),
        Document("code", "base64.py", "", ""),
        Document("docs", "x", "", ""),
    )
    assert Corpus(documents, ()).domains == ("code",)
