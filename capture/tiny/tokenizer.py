"""Byte-level BPE for the project's own models, and documents as one stream of tokens."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

from capture.tiny.corpus import DOMAINS, Document
from sim.values.places import ASSETS

END_OF_TEXT = "<|endoftext|>"
END_OF_TEXT_ID = 0
SHIPPED_TOKENIZER = ASSETS / "tiny_mixtral" / "tokenizer.json"


@dataclass(frozen=True)
class TokenStream:
    """The tokens of documents one after the other, each ended by an end-of-text token.

    ``ids``, ``document`` (index into the documents) and ``domain`` (index into DOMAINS) have one
    value per token.
    """

    ids: npt.NDArray[np.uint16]
    document: npt.NDArray[np.int32]
    domain: npt.NDArray[np.uint8]

    def __len__(self) -> int:
        return len(self.ids)

    @property
    def sha256(self) -> str:
        """Digest of everything that batches are drawn from."""
        return hashlib.sha256(self.ids.tobytes() + self.domain.tobytes()).hexdigest()

    def tokens_by_domain(self) -> dict[str, int]:
        """Number of tokens of every domain that has any."""
        counts = np.bincount(self.domain, minlength=len(DOMAINS))
        return {domain: int(count) for domain, count in zip(DOMAINS, counts, strict=True) if count}


def train_tokenizer(documents: Iterable[Document], vocab_size: int = 2048) -> Tokenizer:
    """A byte-level BPE tokenizer, trained on the documents.

    Every byte is a token, so every text can be encoded. Equally frequent merges may come in another
    order from run to run: then the tokens are the same, but some of their ids differ. So a
    checkpoint is usable only with the tokenizer that it was trained with.
    """
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size,
        special_tokens=[END_OF_TEXT],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    # Long files are cut, so that one large module does not decide the merges of its domain.
    texts = (
        document.text if document.domain == "prose" else document.text[:20_000]
        for document in documents
    )
    tokenizer.train_from_iterator(texts, trainer)
    return tokenizer


def load_tokenizer(path: Path) -> Tokenizer:
    """The tokenizer of a ``tokenizer.json``, or of a checkpoint folder that has one."""
    file = path / "tokenizer.json" if path.is_dir() else path
    if not file.is_file():
        raise ValueError(
            f"cannot load a tokenizer: {file} does not exist; give a checkpoint folder or a"
            " tokenizer.json"
        )
    return Tokenizer.from_file(str(file))


def encode(documents: Sequence[Document], tokenizer: Tokenizer) -> TokenStream:
    """The documents as tokens, in their order."""
    pieces = [
        np.array([*encoding.ids, END_OF_TEXT_ID], dtype=np.uint16)
        for encoding in tokenizer.encode_batch_fast([document.text for document in documents])
    ]
    lengths = [len(piece) for piece in pieces]
    domains = np.array([DOMAINS.index(document.domain) for document in documents], dtype=np.uint8)
    return TokenStream(
        ids=np.concatenate(pieces) if pieces else np.zeros(0, np.uint16),
        document=np.repeat(np.arange(len(documents), dtype=np.int32), lengths),
        domain=np.repeat(domains, lengths),
    )


def sample_windows(
    stream: TokenStream, length: int, counts: Sequence[int], seed: int = 7
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.uint8]]:
    """Random windows that each lie inside one document, taking a domain's documents in turn.

    ``counts`` are the numbers of windows, by domain of DOMAINS. Returns token ids [window, length]
    and the domain index [window]. A domain without a document of ``length`` tokens gets no window.
    Raises ValueError if there is none at all.
    """
    generator = np.random.default_rng(seed)
    windows: list[npt.NDArray[np.int64]] = []
    domains: list[int] = []
    for domain, count in enumerate(counts):
        starts = np.flatnonzero(stream.domain == domain)
        starts = starts[starts < len(stream) - length]
        starts = starts[stream.document[starts] == stream.document[starts + length - 1]]
        documents = np.unique(stream.document[starts])
        for index in range(count if len(documents) else 0):
            inside = starts[stream.document[starts] == documents[index % len(documents)]]
            start = int(generator.choice(inside))
            windows.append(stream.ids[start : start + length].astype(np.int64))
            domains.append(domain)
    if not windows:
        raise ValueError(
            f"cannot sample windows of {length} tokens: no held-out document is as long; give more"
            " text"
        )
    return np.stack(windows), np.array(domains, dtype=np.uint8)


def consecutive_windows(
    stream: TokenStream, length: int, shared: int = 1
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.uint8]]:
    """The stream cut into windows [window, length], and the domain [window] of their first tokens.

    Neighbouring windows share ``shared`` tokens. If a window's first ``shared`` tokens are not
    predicted, every token of the stream but the first ``shared`` is predicted exactly once. The
    stream's last ``(len(stream) - shared) % (length - shared)`` tokens are left out.
    """
    starts = np.arange(0, len(stream) - length + 1, length - shared)
    windows = stream.ids[starts[:, None] + np.arange(length)].astype(np.int64)
    return windows, stream.domain[starts]
