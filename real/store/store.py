"""Every expert of a model, at each precision in play, in one file.

The file begins with a block of text (a magic line, then JSON). Then follows one region for each
precision, in which experts stand by site, then id. Each begins at a multiple of 4096 bytes, so that
unbuffered reads may begin there.

An expert's *blob* is its stored tensors one after another (`real.store.variants`). A slot holds,
and a load moves, exactly the blob's bytes.

Experts that move neuron by neuron have two parts (`real.store.neurons`): their pairs are the blob,
and a region behind all others holds their up projections, which no slot holds.

A *stand-in* has the blobs of a few experts only and repeats them, so that a model of any size fits
a disk.
"""

from __future__ import annotations

import fcntl
import glob
import hashlib
import json
import os
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, BinaryIO

import torch

from real.store.experts import ExpertForm, Tensors
from real.store.neurons import PAIRS, PRECISION, UP, by_neuron
from real.store.variants import (
    ALIGNMENT,
    StoreError,
    Variant,
    aligned,
    is_lossless,
    variant_from,
    variant_of,
)
from sim.values.types import Geometry
from sim.values.units import NS_PER_S

MAGIC = b"experts of a Mixture-of-Experts model, schema 1\n"
HEADER_LIMIT = 1 << 24
PART = ".part"
"""What follows a store's name while it is written; then the number of the process."""
RESIDENT = "hqq2_g64"
"""The stored form of up projections of experts that move neuron by neuron (FloE section 3.2)."""


@dataclass(frozen=True)
class StoreHeader:
    """What a store holds, and where.

    - ``identity``: what was stored. A store of another identity holds another model's experts.
    - ``distinct``: how many experts have blobs of their own, in order of site and id. These are all
      of them, but in a stand-in.
    - ``lossless``: by precision, whether reading gives the model's own weights back.
    - ``sha256``: of the blobs, expert by expert, each by precision and the resident part last.
    - ``resident``: the part of an expert that no slot holds; None if experts have none.
    - ``written_s``: the time that the file had when it was whole, in s. Who alters the file changes
      its time.
    """

    identity: Mapping[str, Any]
    sites: int
    experts: int
    distinct: int
    variants: tuple[Variant, ...]
    lossless: tuple[bool, ...] = ()
    sha256: str = "0" * 64
    resident: Variant | None = None
    written_s: int = 0

    def to_json(self) -> str:
        return json.dumps(asdict(self), sort_keys=True)

    @classmethod
    def from_json(cls, text: str) -> StoreHeader:
        plain = json.loads(text)
        variants = tuple(variant_from(variant) for variant in plain.pop("variants"))
        resident = plain.pop("resident", None)
        return cls(
            **{
                **plain,
                "variants": variants,
                "lossless": tuple(plain["lossless"]),
                "resident": None if resident is None else variant_from(resident),
            }
        )

    @property
    def is_stand_in(self) -> bool:
        """Whether the experts are patterns, and no model's."""
        return "stand_in" in self.identity

    @property
    def parts(self) -> tuple[Variant, ...]:
        """All that is stored of an expert, in the file's order."""
        return self.variants if self.resident is None else (*self.variants, self.resident)

    @property
    def neurons(self) -> int:
        """How many neurons an expert that moves neuron by neuron has; 1 for all other experts."""
        return 1 if self.resident is None else self.variants[0].tensors[0].shape[0]

    @property
    def num_bytes(self) -> int:
        """The size of the whole file."""
        last = self.parts[-1]
        return last.begin + self.distinct * last.stride

    def number(self, site: int, expert: int) -> int:
        """The number of an expert's blob; in a stand-in several experts have the same."""
        return (site * self.experts + expert) % self.distinct

    def offset(self, precision: int, site: int, expert: int) -> int:
        """The byte of the file at which an expert's blob begins."""
        variant = self.parts[precision]
        return variant.begin + self.number(site, expert) * variant.stride


class Store:
    """A store on disk, open for reading."""

    def __init__(self, path: Path) -> None:
        """Raise StoreError, naming the file and the fault, if it is no whole store."""
        self.path = path
        self.header = read_header(path)
        found = path.stat().st_size
        if found != self.header.num_bytes:
            raise StoreError(
                f"{path} has {found} bytes, but its header tells of {self.header.num_bytes}: it was"
                " cut or altered; delete it, and the next run writes it anew"
            )

    def check_in_place(self) -> None:
        """Raise StoreError unless the path still has this content. Ask it once it was opened."""
        found = read_header(self.path)
        if replace(found, written_s=self.header.written_s) != self.header:
            raise StoreError(
                f"{self.path} was written anew, of other weights or in another engine.dtype, while"
                " this run was starting; run again, and give runs at the same time folders of their"
                " own with engine.store_dir"
            )

    def check_shape(self, geometry: Geometry) -> None:
        """Raise StoreError unless it holds a run's experts, in the sizes the run counts with."""
        held, g = self.header, geometry
        sizes = tuple(variant.num_bytes for variant in held.variants)
        if g.variant_bytes != sizes or (g.sites, g.experts) != (held.sites, held.experts):
            raise StoreError(
                f"{self.path} holds {held.sites} x {held.experts} experts of {sizes} B, the run"
                f" needs {g.sites} x {g.experts} of {g.variant_bytes} B; build it with the"
                " stored_bytes of this store"
            )

    def bytes_of(self, precision: int) -> int:
        """How many bytes of an expert a slot holds at a precision."""
        return self.header.variants[precision].num_bytes

    def decode(
        self, precision: int, blob: torch.Tensor, dtype: torch.dtype
    ) -> dict[str, torch.Tensor]:
        return self.header.variants[precision].decode(blob, dtype)

    def read_resident(self) -> torch.Tensor | None:
        """The resident parts of all experts that have blobs of their own, uint8 [distinct, stride].

        None if experts have no such part.
        """
        resident = self.header.resident
        if resident is None:
            return None
        with self.path.open("rb") as stream:
            stream.seek(resident.begin)
            self.check_in_place()
            content = bytearray(stream.read(self.header.distinct * resident.stride))
        return torch.frombuffer(content, dtype=torch.uint8).view(
            self.header.distinct, resident.stride
        )

    def check_unaltered(self) -> None:
        """Raise StoreError if the content is not what was written.

        It is read only where the file has another time: it was altered, or copied.
        """
        written_ns = self.header.written_s * NS_PER_S
        if self.path.stat().st_mtime_ns == written_ns:
            return
        self.verify()
        with suppress(OSError):  # another's file is read again next time
            os.utime(self.path, ns=(written_ns, written_ns))

    def verify(self) -> None:
        """Read the whole store. Raise StoreError if its digest is not the header's."""
        digest = hashlib.sha256()
        with self.path.open("rb") as stream:
            for number in range(self.header.distinct):
                site, expert = divmod(number, self.header.experts)
                for precision, variant in enumerate(self.header.parts):
                    stream.seek(self.header.offset(precision, site, expert))
                    digest.update(stream.read(variant.num_bytes))
        if digest.hexdigest() != self.header.sha256:
            raise StoreError(
                f"{self.path}: its content has another sha256 than its header tells: it was altered;"
                " delete it, and the next run writes it anew"
            )


def read_header(path: Path) -> StoreHeader:
    """The header of a store. Raise StoreError if the file is no store, or its header damaged."""
    try:
        with path.open("rb") as stream:
            if stream.read(len(MAGIC)) != MAGIC:
                raise StoreError(
                    f"{path} is no store of experts: it begins otherwise; delete it, and the next"
                    " run writes it anew, or choose another engine.store_dir"
                )
            length = int(stream.readline(20))
            if not 0 < length < HEADER_LIMIT:
                raise ValueError(f"a header of {length} bytes")
            return StoreHeader.from_json(stream.read(length).decode())
    except StoreError:
        raise
    except OSError as error:
        raise StoreError(f"{path} cannot be read: {error}") from None
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise StoreError(
            f"{path}: its header is damaged ({error}); delete it, and the next run writes it anew"
        ) from None


def open_or_write(
    path: Path,
    identity: Mapping[str, Any],
    forms: Sequence[ExpertForm],
    precisions: Sequence[str],
    tensors_of: Callable[[int, int], Tensors],
    *,
    distinct: int | None = None,
    advance: Callable[[int], None] = lambda done: None,
) -> Store:
    """The store at ``path``; written first if none is there, or one of another identity or form.

    ``tensors_of(site, expert)`` gives stored tensors; one expert is in memory at a time.
    ``distinct`` is how many experts get blobs of their own (None: all). ``advance`` is told how
    many are done. The file appears whole or not at all. Raise StoreError, also where the disk is
    full.
    """
    header = plan_store(identity, forms, precisions, distinct)
    if path.exists() and _is_same(path, header):
        store = Store(path)
        store.check_unaltered()
        return store
    part = path.with_name(path.name + f"{PART}{os.getpid()}")

    def parts_of(site: int, expert: int) -> Tensors:
        found = tensors_of(site, expert)
        return found if header.resident is None else by_neuron(forms[site], found)

    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        _remove_left(path)
        _write(part, header, parts_of, advance)
        os.replace(part, path)
    except OSError as error:
        raise StoreError(
            f"{path} cannot be written ({error.strerror}): it takes {header.num_bytes} bytes; make"
            " room, or name another folder with engine.store_dir"
        ) from error
    finally:
        with suppress(NotADirectoryError):  # a file stands where its folder should
            part.unlink(missing_ok=True)
    return Store(path)


def _remove_left(path: Path) -> None:
    """Remove what killed runs have left of this store: parts that nobody holds any more."""
    for part in path.parent.glob(f"{glob.escape(path.name)}{PART}*"):
        with suppress(OSError), part.open("rb") as stream:
            fcntl.flock(stream, fcntl.LOCK_EX | fcntl.LOCK_NB)
            part.unlink()


def _held(path: Path) -> BinaryIO:
    """A new file, held until it is closed, so that no other run takes it for one that was left."""
    while True:
        stream = path.open("wb")
        fcntl.flock(stream, fcntl.LOCK_EX)
        with suppress(FileNotFoundError):
            if os.path.samestat(path.stat(), os.fstat(stream.fileno())):
                return stream
        stream.close()


def _is_same(path: Path, header: StoreHeader) -> bool:
    found = read_header(path)
    same = ("identity", "sites", "experts", "distinct", "variants", "resident")
    one, other = json.loads(found.to_json()), json.loads(header.to_json())
    return all(one[name] == other[name] for name in same)


def plan_store(
    identity: Mapping[str, Any],
    forms: Sequence[ExpertForm],
    precisions: Sequence[str],
    distinct: int | None = None,
) -> StoreHeader:
    """The header of a store that is still to be written; it says where everything will be."""
    like = forms[0].like
    shapes = {name: values.shape for name, values in like.items()}
    for form in forms:
        own = {name: values.shape for name, values in form.like.items()}
        if own != shapes:
            raise StoreError(
                f"{form.layer.name}: its experts are {own}, those of the first site {shapes}"
            )
    experts = forms[0].layer.num_experts
    total = len(forms) * experts
    variants, resident = _variants_of(forms[0], precisions)
    header = StoreHeader(
        dict(identity),
        len(forms),
        experts,
        min(distinct or total, total),
        variants,
        (True,) * len(precisions),
        resident=resident,
    )
    # The offsets are not known yet, and the text grows with them: there is room to spare for that.
    begin = aligned(len(MAGIC) + 20 + len(header.to_json()) + 32 * len(header.parts), ALIGNMENT)
    placed = []
    for part in header.parts:
        placed.append(replace(part, begin=begin))
        begin += header.distinct * part.stride
    count = len(precisions)
    return replace(
        header, variants=tuple(placed[:count]), resident=placed[count] if placed[count:] else None
    )


def _variants_of(
    form: ExpertForm, precisions: Sequence[str]
) -> tuple[tuple[Variant, ...], Variant | None]:
    """How experts are stored at each precision, and which part of them no slot holds."""
    if PRECISION not in precisions:
        return (
            tuple(variant_of(precision, form.like, form.flipped) for precision in precisions),
            None,
        )
    if len(precisions) > 1:
        raise StoreError(
            f"precision {PRECISION} goes with no other one, got {', '.join(precisions)}"
        )
    try:
        like = by_neuron(form, form.like)
    except ValueError as error:
        raise StoreError(str(error)) from None
    pairs = replace(variant_of("fp16", {PAIRS: like[PAIRS]}), precision=PRECISION)
    return (pairs,), variant_of(RESIDENT, {UP: like[UP]})


def _write(
    path: Path,
    header: StoreHeader,
    tensors_of: Callable[[int, int], Tensors],
    advance: Callable[[int], None],
) -> None:
    digest, lossless = hashlib.sha256(), [True] * len(header.parts)
    with _held(path) as stream:
        # The room is reserved first, so that a full disk shows before the work.
        os.posix_fallocate(stream.fileno(), 0, header.num_bytes)
        for number in range(header.distinct):
            site, expert = divmod(number, header.experts)
            tensors = tensors_of(site, expert)
            for precision, variant in enumerate(header.parts):
                blob = variant.encode(tensors)
                content: Any = blob.numpy()
                digest.update(content)
                stream.seek(header.offset(precision, site, expert))
                stream.write(content)
                lossless[precision] = lossless[precision] and is_lossless(variant, blob, tensors)
            advance(number + 1)
        # An expert is lossless only if all its parts are.
        whole = lossless if header.resident is None else [all(lossless)]
        final = replace(
            header,
            lossless=tuple(whole),
            sha256=digest.hexdigest(),
            written_s=int(time.time()),
        )
        text = final.to_json().encode()
        stream.seek(0)
        stream.write(MAGIC + f"{len(text)}\n".encode() + text)
        if stream.tell() > header.variants[0].begin:
            raise StoreError(f"the header of {path} has grown over the blobs")
    os.utime(path, (final.written_s, final.written_s))
