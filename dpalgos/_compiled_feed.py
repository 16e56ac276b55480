"""What ``numpy.random.Generator`` asks of a bit generator, over a block of words that Python refills; compiled.

Compiled, because Python cannot be trusted inside such a function: an exception in a Python callback (the user's Ctrl-C,
say) would be swallowed and a zero returned for a random word. Here Python only refills the block, and the compiled loop
asks again until the block is there.

The state is one array of 64-bit words: the position, the number of words, what :func:`refill` is to be given, its
address, then the words. The address is no constant of the code, which therefore is compiled once and kept.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from llvmlite import ir
from numba import carray, types
from numba.extending import intrinsic

from dpalgos.compiling import compiled_callback, compiled_in_order

__all__ = ["BLOCK", "HEADER", "functions"]

BLOCK = 2048
"""Words of a block; a constant, so that what a generator returns depends on the key and on the calls alone."""

HEADER = 4
"""Words of the state before the block."""

_STATE = types.CPointer(types.uint64)


@intrinsic  # type: ignore[untyped-decorator]  # numba has no types
def _call(context: Any, address: Any, argument: Any) -> Any:
    """Call the C function ``void (uint64_t)`` at an address."""

    def generate(_: Any, builder: Any, __: Any, values: Any) -> Any:
        kind = ir.FunctionType(ir.VoidType(), [ir.IntType(64)])
        builder.call(builder.inttoptr(values[0], kind.as_pointer()), [values[1]])

    return types.void(types.uint64, types.uint64), generate


@compiled_in_order
def _take(state: Any) -> Any:
    words = carray(state, HEADER + BLOCK)
    while words[0] >= words[1]:
        _call(words[3], words[2])
    words[0] += np.uint64(1)
    return words[np.int64(words[0]) + HEADER - 1]


@compiled_callback(types.uint64(_STATE))
def _next_uint64(state: Any) -> Any:
    return _take(state)


@compiled_callback(types.uint32(_STATE))
def _next_uint32(state: Any) -> Any:
    return np.uint32(_take(state) >> np.uint64(32))


@compiled_callback(types.float64(_STATE))
def _next_double(state: Any) -> Any:
    return np.float64(np.int64(_take(state) >> np.uint64(11))) * 2.0**-53


def functions() -> tuple[int, int, int, int]:
    """Return the addresses of next_uint64, next_uint32, next_double and next_raw."""
    return _next_uint64.address, _next_uint32.address, _next_double.address, _next_uint64.address
