"""Compiles every kernel for GPUs that are not here, and checks registers and shared memory.

    python -m real.kernels.ahead [--targets 80 89 90 120] [--few]

It fails where a kernel spills, or takes more shared memory than the GPU has. What is compiled is
what the launchers launch: they are called with tensors without data, and the types, alignments and
constants of their launches are compiled. This is needed because the interpreter accepts much that
the compiler does not, and the compiler accepts more shared memory than a GPU has.
"""

from __future__ import annotations

import argparse
import json
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch

from real.kernels.dequant_gemv import dequant_gemv
from real.kernels.gated_gemv import gated_gemv
from real.kernels.gather_rows import gather_rows
from real.kernels.grouped_gemm import grouped_gemm
from real.kernels.jit import Call, recorded
from real.kernels.pacing import spin_until, stamp
from real.kernels.quantise import Layout
from real.kernels.slot_matrices import PlainLayout, SlotMatrices
from real.kernels.sparse_expert import gathered_expert, sparse_expert
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
TARGETS = (80, 89, 90, 120)
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
    """One kernel compiled for one GPU. ``stack`` and ``local`` are bytes that a thread spills."""

    kernel: str
    target: int
    constants: dict[str, Any]
    registers: int
    stack: int
    local: int
    shared_bytes: int

    def faults(self) -> list[str]:
        found = []
        if self.stack or self.local:
            found.append(f"spills {self.stack + self.local} bytes a thread")
        if self.shared_bytes > SHARED_BYTES[self.target]:
            found.append(
                f"takes {self.shared_bytes} B of shared memory of {SHARED_BYTES[self.target]}"
            )
        return [f"{self.kernel} {self.constants} for sm_{self.target} {what}" for what in found]


def launches(few: bool) -> Iterator[Call]:
    """What the launchers launch for real shapes, each distinct launch once."""
    with recorded() as calls:
        for neurons, hidden in [MIXTRAL] if few else [MIXTRAL, QWEN3, PRIMES]:
            for bits in (4,) if few else (8, 4, 2, 16):
                for dtype in (BF16,) if few else (BF16, torch.float16):
                    _launch_quantised(neurons, hidden, bits, dtype)
            _launch_sparse(neurons, hidden)
        for experts, k in [(8, 2)] if few else [(8, 2), (60, 4), (128, 8)]:
            stacked_gates(_meta(1, 4096), _meta(3, experts, 4096), k)
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


def _launch_quantised(neurons: int, hidden: int, bits: int, dtype: torch.dtype) -> None:
    def layout(rows: int, columns: int) -> Layout | PlainLayout:
        return PlainLayout(rows, columns, dtype) if bits == 16 else Layout(rows, columns, bits, 64)

    inner, outer = layout(neurons, hidden), layout(hidden, neurons)
    size = inner.stored_bytes
    pool = _meta(8, 2 * size + outer.stored_bytes, dtype=torch.uint8)
    slots = _meta(2, dtype=torch.int32)
    gate, up, down = (
        SlotMatrices(pool, inner),
        SlotMatrices(pool, inner, size),
        SlotMatrices(pool, outer, 2 * size),
    )
    h_JN = gated_gemv(_meta(hidden, dtype=dtype), gate, up, slots)
    dequant_gemv(h_JN, down, slots)
    dequant_gemv(_meta(1, hidden, dtype=dtype), up, slots)
    grouped_gemm(_meta(100, hidden, dtype=dtype), gate, slots, [60, 40])


def _launch_sparse(neurons: int, hidden: int) -> None:
    x_H, v_JN = _meta(hidden), _meta(2, neurons, dtype=torch.float32)
    slots, counts, pairs = (
        _meta(2, dtype=torch.int32),
        _meta(2, dtype=torch.int32),
        _meta(8, neurons, 2 * hidden),
    )
    sparse_expert(x_H, v_JN, pairs, slots, _meta(2, dtype=torch.float32))
    gathered_expert(x_H, v_JN, pairs, slots, counts)
    # Also pairs of half precision, and pairs of an odd number of bytes, which no model has.
    for width in (4 * hidden, 4 * hidden + 2, 4 * hidden + 1):
        source, target = (_meta(neurons, width, dtype=torch.uint8) for _ in range(2))
        for columns in (1, 50):
            gather_rows(source, _meta(neurons // 10, dtype=torch.int32), target, columns)


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


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m real.kernels.ahead", description=(__doc__ or "").split("\n")[0]
    )
    parser.add_argument(
        "--targets", type=int, nargs="+", default=list(TARGETS), choices=sorted(SHARED_BYTES)
    )
    parser.add_argument("--few", action="store_true", help="one launch of each kernel")
    parser.add_argument("--json", action="store_true", help="a line of JSON for each")
    options = parser.parse_args()
    faults, count = [], 0
    try:
        calls = list(launches(options.few))
    except RuntimeError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    for target in options.targets:
        for call in calls:
            done = compile_for(call, target)
            faults += done.faults()
            count += 1
            line = (
                json.dumps(asdict(done))
                if options.json
                else (
                    f"sm_{target:<4}{done.kernel:26} {done.registers:3} registers"
                    f" {done.shared_bytes:6} B shared {done.stack + done.local} B spilled  "
                    + " ".join(f"{name}={value}" for name, value in done.constants.items())
                )
            )
            print(line, flush=True)
    print("\n".join(faults) or f"{count} kernels compiled; none spills, all fit", file=sys.stderr)
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
