"""Compiles every kernel for GPUs that are not here, and checks registers and shared memory.

    python -m real.kernels.ahead [--targets 80 89 90 120] [--few] [--jobs 4]

It fails where a kernel spills, or takes more shared memory than the GPU has. What is compiled is
what the launchers launch: they are called with tensors without data, and the types, alignments and
constants of their launches are compiled. This is needed because the interpreter accepts much that
the compiler does not, and the compiler accepts more shared memory than a GPU has.

A kernel at the speed of memory has many bytes under way. So each line says how many programs of a
launch one multiprocessor holds at once, by registers, shared memory and warps, and how many bytes
of weights they have asked for together. A change that costs registers shows there without a GPU.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from dataclasses import asdict, dataclass
from functools import cache
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import torch

from real.kernels.dequant_gemv import dequant_gemv
from real.kernels.experts import dense_expert, masked_expert, partial_expert
from real.kernels.gated_gemv import gated_gemv
from real.kernels.gather_rows import gather_rows
from real.kernels.grouped_gemm import grouped_expert
from real.kernels.jit import Call, recorded
from real.kernels.pacing import spin_until, stamp
from real.kernels.quantise import Layout
from real.kernels.slot_matrices import PlainLayout, SlotMatrices
from real.kernels.sparse_expert import gathered_expert
from real.kernels.stacked_gates import stacked_gates

SHARED_BYTES = {
    80: 163 << 10,
    86: 99 << 10,
    89: 99 << 10,
    90: 227 << 10,
    100: 227 << 10,
    120: 99 << 10,
}
"""The shared memory that one block may take, in bytes, by compute capability.

Source: CUDA C++ Programming Guide, table of technical specifications.
"""
MOST_WARPS = {80: 64, 86: 48, 89: 48, 90: 64, 100: 64, 120: 48}
MOST_PROGRAMS = {80: 32, 86: 16, 89: 24, 90: 32, 100: 32, 120: 24}
"""Of one multiprocessor. Source: the same table."""
REGISTERS, REGISTER_UNIT, RESERVED_BYTES = 65536, 256, 1024
"""Registers of a multiprocessor, the unit in which a warp gets them, and shared bytes a program."""
TARGETS = (80, 89, 90, 120)
TOLD_EVERY_S = 10.0
MIXTRAL, QWEN3, PRIMES = (14336, 4096), (768, 2048), (131, 257)
"""Neurons and hidden size of an expert; primes leave no alignment to compile for."""
TYPES = {
    torch.float32: "fp32",
    torch.float16: "fp16",
    torch.bfloat16: "bf16",
    torch.uint8: "u8",
    torch.int16: "i16",
    torch.int32: "i32",
    torch.int64: "i64",
}
BF16 = torch.bfloat16


@dataclass(frozen=True)
class Compiled:
    """One kernel compiled for one GPU. ``stack`` and ``local`` are bytes that a thread spills.

    ``tile_bytes`` are those of weights that a program asks for before it waits for any.
    """

    kernel: str
    target: int
    constants: dict[str, Any]
    registers: int
    stack: int
    local: int
    shared_bytes: int
    warps: int = 4
    tile_bytes: int = 0

    @property
    def programs(self) -> int:
        """How many programs one multiprocessor holds at once."""
        unit = -(-self.registers * 32 // REGISTER_UNIT) * REGISTER_UNIT
        shared = SHARED_BYTES[self.target] + RESERVED_BYTES
        return min(
            REGISTERS // (unit * self.warps),
            shared // (self.shared_bytes + RESERVED_BYTES),
            MOST_WARPS[self.target] // self.warps,
            MOST_PROGRAMS[self.target],
        )

    @property
    def flight_bytes(self) -> int:
        """Bytes under way on one multiprocessor that is full of such programs."""
        return self.programs * self.tile_bytes

    def faults(self) -> list[str]:
        found = []
        if self.stack or self.local:
            found.append(f"spills {self.stack + self.local} bytes a thread")
        if self.shared_bytes > SHARED_BYTES[self.target]:
            found.append(
                f"takes {self.shared_bytes} B of shared memory of {SHARED_BYTES[self.target]}"
            )
        return [f"{self.kernel} {self.constants} for sm_{self.target} {what}" for what in found]


def launches(few: bool, target: int) -> Iterator[Call]:
    """What the launchers launch for real shapes on such a GPU, each distinct launch once."""
    with recorded(target) as calls:
        for neurons, hidden in [MIXTRAL] if few else [MIXTRAL, QWEN3, PRIMES]:
            for bits in (4,) if few else (8, 4, 2, 16):
                many = not few and (neurons, hidden) != QWEN3
                _launch_one_row(neurons, hidden, bits, (1, 8) if neurons == QWEN3[0] else (1,))
                _launch_rows(neurons, hidden, bits, (8, 16, 32, 256) if many else (8,))
            _launch_sparse(neurons, hidden)
        _launch_gathers()
        for experts, k, hidden in [(8, 2, 4096)] if few else [(8, 2, 4096), (128, 8, 2048)]:
            stacked_gates(_meta(1, hidden), _meta(3, experts, hidden), k)
        clock = _meta(1, dtype=torch.int64)
        stamp(clock)
        spin_until(clock, 1_000_000)
        seen: list[str] = []
        for call in calls:
            name = f"{call[0].fn.__name__} {_form(*call[:2])} {call[2]}"
            if name not in seen:
                seen.append(name)
                yield call


def _meta(*shape: int, dtype: torch.dtype = BF16) -> torch.Tensor:
    return torch.empty(*shape, dtype=dtype, device="meta")


def _expert(neurons: int, hidden: int, bits: int) -> tuple[SlotMatrices, SlotMatrices]:
    """The matrices of such experts: gate above up, and down."""

    def layout(rows: int, columns: int) -> Layout | PlainLayout:
        return PlainLayout(rows, columns, BF16) if bits == 16 else Layout(rows, columns, bits, 64)

    inner, outer = layout(2 * neurons, hidden), layout(hidden, neurons)
    pool = _meta(8, inner.stored_bytes + outer.stored_bytes, dtype=torch.uint8)
    return SlotMatrices(pool, inner), SlotMatrices(pool, outer, inner.stored_bytes)


def _launch_one_row(neurons: int, hidden: int, bits: int, most_needs: tuple[int, ...]) -> None:
    """The products of one input, by the rule's kernel and by the other one."""
    first, down = _expert(neurons, hidden, bits)
    for needs in most_needs:
        dense_expert(_meta(1, hidden), first, down, _meta(needs, dtype=torch.int32))
    one = _meta(1, dtype=torch.int32)
    for integers in (False, True) if bits < 8 and hidden % 16 == 0 else (False,):
        gated_gemv(_meta(1, hidden), first, one, integers=integers)
        dequant_gemv(_meta(1, neurons, dtype=torch.float32), down, one, integers=integers)


def _launch_rows(neurons: int, hidden: int, bits: int, counts: tuple[int, ...]) -> None:
    """The products of several inputs."""
    first, down = _expert(neurons, hidden, bits)
    for rows in counts:
        grouped_expert(_meta(rows, hidden), first, down, _meta(1, dtype=torch.int32), [rows])
    # An engine that computes in another type gives the kernels such inputs.
    for dtype in (torch.float16, torch.float32) if bits < 16 else ():
        x_TH = _meta(counts[0], hidden, dtype=dtype)
        grouped_expert(x_TH, first, down, _meta(1, dtype=torch.int32), [counts[0]])


def _launch_sparse(neurons: int, hidden: int) -> None:
    x_1H, one, two = _meta(1, hidden), _meta(1, dtype=torch.int32), _meta(2, dtype=torch.int32)
    layout, pairs = Layout(neurons, hidden, 2, 64), _meta(8, neurons, 2 * hidden)
    up = SlotMatrices(_meta(8, layout.stored_bytes, dtype=torch.uint8), layout)
    masked_expert(x_1H, up, one, pairs, one, _meta(1, dtype=torch.float32))
    partial_expert(x_1H, up, one, pairs, one, one, _meta(neurons, 1, dtype=torch.int32))
    gathered_expert(x_1H[0], _meta(2, neurons, dtype=torch.float32), pairs, two, two)


def _launch_gathers() -> None:
    """Rows of half precision, and of an odd number of bytes, which no model has."""
    for width in (16384, 16386, 16385):
        source, target = (_meta(14336, width, dtype=torch.uint8) for _ in range(2))
        for columns in (1, 50):
            gather_rows(source, _meta(1433, dtype=torch.int32), target, columns)


def _tile_bytes(arguments: dict[str, Any]) -> int:
    """The bytes of weights that a program asks for at once; 0 for kernels that read none."""
    a = arguments
    if "BITS" in a:
        sets = 2 if a["GATED"] and a["BITS"] >= 8 else 1
        return int(a["BN"] * a["BK"] * a["weight_ptr"].itemsize * sets * a.get("STAGES", 1))
    if "pairs_ptr" in a:
        return int(2 * a["BT"] * a["H"] * a["pairs_ptr"].itemsize)
    if "BB" in a and "weight_ptr" in a:
        return int(a["BB"] * a["BH"] * a["weight_ptr"].itemsize)
    return 0


def _form(
    kernel: Any, arguments: dict[str, Any]
) -> tuple[dict[str, str], dict[tuple[int], Any], dict[tuple[int], Any]]:
    """Signature, constants and alignments with which a launch on a GPU would be specialised."""
    signature, constants, attributes = {}, {}, {}
    constexprs = {parameter.name for parameter in kernel.params if parameter.is_constexpr}
    for index, name in enumerate(kernel.arg_names):
        value = arguments[name]
        if isinstance(value, torch.Tensor):
            signature[name] = f"*{TYPES[value.dtype]}"
            attributes[(index,)] = [["tt.divisibility", 16]]
        elif name in constexprs or value == 1:
            signature[name] = "constexpr"
            constants[(index,)] = value
        else:
            signature[name] = "i32" if abs(value) < 1 << 31 else "i64"
            if value % 16 == 0:
                attributes[(index,)] = [["tt.divisibility", 16]]
    return signature, constants, attributes


def compile_for(call: Call, target: int) -> Compiled:
    """Compile a launch down to machine code, with the compiler that Triton brings."""
    import triton
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    kernel, arguments, options = call
    signature, constants, attributes = _form(kernel, arguments)
    source = ASTSource(fn=kernel, signature=signature, constexprs=constants, attrs=attributes)
    compiled = triton.compile(source, target=GPUTarget("cuda", target, 32), options=options)
    registers, stack, local = _resources(compiled.asm["cubin"])
    named = {kernel.arg_names[index]: value for (index,), value in constants.items()}
    types = ",".join(name for name in signature.values() if name.startswith("*"))
    return Compiled(
        kernel.fn.__name__,
        target,
        {"types": types, **named},
        registers,
        stack,
        local,
        compiled.metadata.shared,
        options.get("num_warps", 4),
        _tile_bytes(arguments),
    )


def _resources(cubin: bytes) -> tuple[int, int, int]:
    """Registers, stack and local bytes of the only kernel in a cubin."""
    import triton

    tool = Path(triton.__file__).parent / "backends" / "nvidia" / "bin" / "cuobjdump"
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(cubin)
        file.flush()
        said = subprocess.run(
            [tool, "--dump-resource-usage", file.name], capture_output=True, text=True, check=True
        ).stdout
    found = re.search(r"REG:(\d+) STACK:(\d+) SHARED:\d+ LOCAL:(\d+)", said)
    if found is None:
        raise RuntimeError(f"cuobjdump said nothing of resources: {said[:200]!r}")
    registers, stack, local = map(int, found.groups())
    return registers, stack, local


def _told(one: Compiled) -> str:
    return (
        f"sm_{one.target:<4}{one.kernel.strip('_'):22} {one.registers:3} registers"
        f" {one.shared_bytes:6} B shared {one.stack + one.local} B spilled"
        f" {one.programs:2} x {one.warps:2} warps {one.flight_bytes >> 10:3} KiB under way  "
        + " ".join(f"{name}={value}" for name, value in one.constants.items())
    )


@cache
def _calls(few: bool, target: int) -> list[Call]:
    return list(launches(few, target))


def _compile_one(asked: tuple[bool, int, int]) -> Compiled:
    """Compile a launch by its number, in whichever process: calls cannot be sent to another one."""
    few, target, number = asked
    return compile_for(_calls(few, target)[number], target)


def compiled(few: bool, targets: Sequence[int], jobs: int) -> Iterator[tuple[int, Compiled]]:
    """How many kernels there are to compile, with each in order, by ``jobs`` processes.

    Triton keeps what it has compiled in its cache, by source, arguments and target. So a call that
    was killed goes on where it was.
    """
    asked = [(few, t, number) for t in targets for number in range(len(_calls(few, t)))]
    if jobs == 1:
        yield from ((len(asked), _compile_one(one)) for one in asked)
        return
    with ProcessPoolExecutor(jobs, get_context("spawn")) as pool:
        yield from ((len(asked), one) for one in pool.map(_compile_one, asked))


def summary(found: Sequence[Compiled]) -> str:
    """One line about kernels that have no fault: how few warps a multiprocessor has of any."""
    least = min(found, key=lambda one: (one.programs * one.warps, one.kernel, one.target))
    return (
        f"{len(found)} kernels compiled; none spills, all fit; the fewest warps of a multiprocessor"
        f" are {least.programs * least.warps}, of {least.kernel.strip('_')} on sm_{least.target}"
    )


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m real.kernels.ahead", description=(__doc__ or "").split("\n")[0]
    )
    parser.add_argument(
        "--targets", type=int, nargs="+", default=list(TARGETS), choices=sorted(SHARED_BYTES)
    )
    parser.add_argument("--few", action="store_true", help="one launch of each kernel")
    parser.add_argument("--json", action="store_true", help="a line of JSON for each")
    parser.add_argument(
        "--jobs", type=int, default=os.cpu_count() or 1, help="how many processes compile"
    )
    options = parser.parse_args()
    found: list[Compiled] = []
    told_s = time.monotonic()
    try:
        for count, done in compiled(options.few, options.targets, max(1, options.jobs)):
            found.append(done)
            facts = {**asdict(done), "programs": done.programs, "flight": done.flight_bytes}
            print(json.dumps(facts) if options.json else _told(done), flush=True)
            if time.monotonic() - told_s >= TOLD_EVERY_S:
                told_s = time.monotonic()
                print(f"{len(found)} of {count} kernels", file=sys.stderr, flush=True)
    except BrokenProcessPool:
        print(
            f"error: a process ended behind kernel {len(found)}, perhaps for want of memory; give"
            f" fewer than --jobs {options.jobs}: what has been compiled is kept and not done again",
            file=sys.stderr,
        )
        return 2
    except RuntimeError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    faults = [fault for one in found for fault in one.faults()]
    print("\n".join(faults) or summary(found), file=sys.stderr)
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
