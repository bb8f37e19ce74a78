"""Random numbers that depend on what they are for, and on nothing else.

A generator that is drawn from in turn would give a sentence other numbers in another batch. Here a number is a hash of
its *counters*: the seed, the sentence's own source ids, which draw, which step, which token. So it is the same in any
batch, order and padding, and, since the hash is made of 64-bit integers, on any device.

The hash is SplitMix64 (Steele, Lea & Flood 2014, "Fast splittable pseudorandom number generators"): the number at place
i of the stream that starts at h is mix(h + (i + 1) γ), and a stream is split by starting another at such a number.
"""

import torch
from torch import Tensor


def _signed(value: int) -> int:
    """The 64 bits of `value` as torch has them."""
    return value - (1 << 64) if value >> 63 else value


GAMMA = _signed(0x9E3779B97F4A7C15)  # 2^64 / golden ratio, odd
_FIRST, _SECOND = _signed(0xBF58476D1CE4E5B9), _signed(0x94D049BB133111EB)


def split(streams: Tensor, places: Tensor) -> Tensor:
    """The 64-bit numbers at `places` of `streams`, whose shapes broadcast: each is uniform, and a stream of its own."""
    bits = streams + (places + 1) * GAMMA
    # In place: a step of the search hashes its rows times the vocabulary.
    bits.bitwise_xor_(_shifted(bits, 30)).mul_(_FIRST)
    bits.bitwise_xor_(_shifted(bits, 27)).mul_(_SECOND)
    return bits.bitwise_xor_(_shifted(bits, 31))


def sentence_streams(source: Tensor, mask: Tensor, seed: int) -> Tensor:
    """A stream for each sentence of `source` (B, S): of its own ids, in their order, and the seed."""
    streams = split(source.new_zeros(source.size(0)), source.new_full((), seed))
    for ids, real in zip(source.unbind(1), mask.unbind(1), strict=True):
        streams = torch.where(real, split(streams, ids), streams)
    return streams


def exponential(streams: Tensor, size: int) -> Tensor:
    """(R,) streams → (R, size) numbers from the exponential distribution, in float32: -log(1 - u).

    u = (n + ½) / 2^53 of 53 bits. Float32 keeps 24 of them wherever the first one is, so that small numbers, which win
    (see `sampling`), are as fine as large ones; the largest u is 1 - 2^-24, so that none is infinite.
    """
    bits = split(streams.unsqueeze(1), torch.arange(size, device=streams.device))
    uniform = _shifted(bits, 11).to(torch.float32).add_(0.5).mul_(2.0**-53).clamp_(max=1 - 2.0**-24)
    return uniform.neg_().log1p_().neg_()


def _shifted(bits: Tensor, places: int) -> Tensor:
    """Bits moved to the right, with zeros after them: torch's own shift repeats the sign."""
    return (bits >> places).bitwise_and_((1 << (64 - places)) - 1)
