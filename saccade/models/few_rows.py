"""Matrix products over a few rows, by a function that is compiled on this machine (few_rows.c).

A step of one sentence, or of one beam, reads every weight of the decoder and does little with it, so it should take as
long as reading them. MKL takes twice as long for one row, since it works on one thread, and oneDNN for five, since it
takes 10 µs to begin. 256 wide, 3+3 layers, vocabulary 8,000: all products of a step take 0.27 ms by MKL for one row and
0.49 by oneDNN for five, and 0.13 and 0.21 here (two threads of an AMD EPYC of Zen 5).

It takes a C compiler, for half a second, once a machine: what it makes is kept in the user's cache. Where there is
none, or anything is not as expected, `compiled` answers None, and nothing but speed is lost. It shares torch's
threads. Intel's processors, where MKL is at home, are left alone: there nothing was measured.
"""

import ctypes
import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from saccade.devices import is_intel

MOST = 8  # rows
PANEL = 32  # outputs, as in few_rows.c
SOURCE = Path(__file__).with_suffix(".c")
WORTH = 1 << 18  # products of numbers that are worth another thread: to wake it and to wait takes as long as 50,000
PATIENCE = 30  # seconds for the compiler


class Panels(NamedTuple):
    """A matrix (out, in) as the compiled function reads it."""

    weights: Tensor  # (out / 32, in, 32), the last filled up with zeros
    address: int
    out: int

    @classmethod
    def of(cls, weight: Tensor) -> "Panels":
        out, width = weight.shape
        weights = F.pad(weight.detach(), (0, 0, 0, -out % PANEL)).view(-1, PANEL, width).transpose(1, 2).contiguous()
        return cls(weights, weights.data_ptr(), out)


def few_rows(x: Tensor, panels: Panels, bias: Tensor | None, then: str = "none") -> Tensor:
    """x Wᵀ + b for up to `MOST` rows in float32; `then`: `relu` of it, in the same call."""
    call = compiled()
    assert call is not None
    return _product(call, x, panels, bias, then)


def _product(call: Callable[..., None], x: Tensor, panels: Panels, bias: Tensor | None, then: str) -> Tensor:
    x = x if x.is_contiguous() else x.contiguous()
    width = x.size(-1)
    rows = x.numel() // width
    y = x.new_empty(*x.shape[:-1], panels.out)
    call(
        x.data_ptr(),
        panels.address,
        None if bias is None else bias.data_ptr(),
        y.data_ptr(),
        rows,
        width,
        panels.out,
        then == "relu",
        min(torch.get_num_threads(), 1 + rows * width * panels.out // WORTH),
    )
    return y


@cache
def compiled() -> Callable[..., None] | None:
    """The function of few_rows.c; None where it cannot be had."""
    if not sys.platform.startswith("linux") or is_intel():
        return None
    try:
        call = _loaded()
    except (OSError, subprocess.SubprocessError, AttributeError):
        return None
    x, weight, bias = torch.arange(6.0).view(3, 2) - 2, torch.arange(140.0).view(70, 2) - 60, torch.arange(70.0)
    found = _product(call, x, Panels.of(weight), bias, "relu")
    return call if torch.equal(found, F.linear(x, weight, bias).relu()) else None


def _loaded() -> Callable[..., None]:
    _share_threads()
    name = f"few-rows-{hashlib.sha256(SOURCE.read_bytes() + _processor()).hexdigest()[:16]}.so"
    kept = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "saccade" / name
    if not kept.exists():
        with tempfile.TemporaryDirectory() as folder:
            made = _compile(Path(folder))
            try:
                kept.parent.mkdir(parents=True, exist_ok=True)
                handle, beside = tempfile.mkstemp(dir=kept.parent)
                os.close(handle)
                shutil.copyfile(made, beside)
                Path(beside).replace(kept)  # whoever else is at it makes the same
            except OSError:
                return _function(made)  # a home that cannot be written to
    return _function(kept)


def _function(library: Path) -> Callable[..., None]:
    call = ctypes.CDLL(str(library)).product
    pointer, size = ctypes.c_void_p, ctypes.c_size_t
    call.argtypes = [pointer, pointer, pointer, pointer, ctypes.c_int, size, size, ctypes.c_int, ctypes.c_int]
    call.restype = None
    return call


def _compile(folder: Path) -> Path:
    """The library, without an OpenMP of its own: two in one process stand in each other's way."""
    compiler = shutil.which("cc") or shutil.which("gcc")
    if compiler is None:
        raise OSError("no C compiler")
    made, library = folder / "few_rows.o", folder / "few_rows.so"
    for arguments in (
        ["-O2", "-march=native", "-fopenmp", "-fPIC", "-c", str(SOURCE), "-o", str(made)],
        ["-shared", str(made), "-o", str(library)],
    ):
        subprocess.run([compiler, *arguments], check=True, capture_output=True, timeout=PATIENCE)
    return library


def _share_threads() -> None:
    """Have torch's OpenMP be found by what is loaded next."""
    maps = Path("/proc/self/maps").read_text().split()
    runtimes = {word for word in maps if "/libgomp" in word or "/libiomp" in word}
    torchs = [path for path in runtimes if "torch" in path] or list(runtimes)
    if not torchs:
        raise OSError("torch has no OpenMP")
    ctypes.CDLL(torchs[0], mode=ctypes.RTLD_GLOBAL)


def _processor() -> bytes:
    """What it can do: a home may be shared by machines."""
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    return "\n".join(sorted({line for line in lines if line.startswith(("flags", "Features", "model name"))})).encode()
