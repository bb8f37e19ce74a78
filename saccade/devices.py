"""Where the arithmetic happens, and how precise it is."""

import platform
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch

from saccade.errors import SaccadeError

_MATMUL: Any = torch.backends.mkldnn.matmul  # type: ignore[attr-defined]
_LESS = "bf16"


def device_for(name: str | None, setting: str = "training.device") -> torch.device:
    """The device that is asked for, or the best there is; one that cannot be used is refused by name."""
    best = "cuda" if torch.cuda.is_available() else "mps" if torch.backends.mps.is_available() else "cpu"
    try:
        device = torch.device(name or best)
    except RuntimeError:
        raise SaccadeError(f"{setting}={name!r} is not a device; use cpu, cuda, cuda:0 or mps") from None
    try:
        torch.empty(1, device=device).cpu()
    except (RuntimeError, AssertionError, NotImplementedError) as error:
        reason = str(error).splitlines()[0]
        raise SaccadeError(f"{setting}={name!r} cannot be used ({reason}); here {best} can") from None
    return device


def describe_device(device: torch.device) -> str:
    """A device by the name on its box."""
    if device.type == "cuda":
        return str(torch.cuda.get_device_name(device))
    if device.type != "cpu":
        return device.type
    threads = torch.get_num_threads()
    return f"cpu, {threads} thread{'s' if threads > 1 else ''}"


def predates_bf16(device: torch.device) -> bool:
    """Whether it is an NVIDIA GPU of before 2020, without units for bf16. torch calculates in bf16 there all the same,
    many times slower than in single precision, and says that it can; Triton is not made for them."""
    ours = device.type == "cuda" and torch.cuda.is_available() and torch.version.hip is None
    return ours and torch.cuda.get_device_capability(device) < (8, 0)


@cache
def is_intel() -> bool:
    """Whether this is a processor that MKL, torch's own library of matrix products, is made for."""
    try:
        return "GenuineIntel" in Path("/proc/cpuinfo").read_text()
    except OSError:
        return "Intel" in platform.processor()


@cache
def runs_triton(device: torch.device, dtype: torch.dtype) -> bool:
    """Whether kernels written in Triton can be used there. One is tried: a machine may lack what compiles them."""
    if device.type != "cuda" or find_spec("triton") is None:
        return False
    from saccade.models import norm_kernel  # Triton comes with torch for CUDA, not for a CPU

    if not norm_kernel.COMPILED:
        return False
    try:
        norm_kernel.trial(device, dtype)
    except Exception as error:  # Triton's own errors, a compiler's, those of files: all mean the same
        warnings.warn(f"Triton cannot be used on {device}, decoding takes more calls: {error}", stacklevel=2)
        return False
    return True


@contextmanager
def quick_products() -> Iterator[None]:
    """Within, matrix products in single precision are oneDNN's, where that is quicker than MKL and as exact."""
    if not onednn_is_quicker():
        yield
        return
    before = _MATMUL.fp32_precision
    _MATMUL.fp32_precision = _LESS
    try:
        yield
    finally:
        _MATMUL.fp32_precision = before


@cache
def onednn_is_quicker() -> bool:
    """On a CPU that MKL is not made for: half of its time on an AMD EPYC.

    torch turns to oneDNN when it is told that less precision would do. Most processors have nothing that is quicker at
    less, so products are as exact as ever; where they come out rounded, MKL keeps them.
    """
    wide = torch.backends.cpu.get_cpu_capability().startswith("AVX512")  # what torch asks before it turns to it
    if is_intel() or not wide or not torch.backends.mkldnn.is_available():
        return False
    generator = torch.Generator().manual_seed(1)
    a, b = (torch.rand(64, 64, generator=generator) for _ in range(2))
    before = _MATMUL.fp32_precision
    _MATMUL.fp32_precision = _LESS
    exact = torch.allclose((a @ b).double(), a.double() @ b.double(), rtol=1e-5)
    _MATMUL.fp32_precision = before
    return exact


def autocast(device: torch.device, precision: str | None) -> torch.autocast:
    """The arithmetic of forward passes."""
    return torch.autocast(device.type, torch.bfloat16, enabled=precision == "bf16")
