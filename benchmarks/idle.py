"""How long a GPU had nothing to do while steps were taken."""

from collections.abc import Callable, Iterable

import torch
from torch.autograd import DeviceType
from torch.profiler import ProfilerActivity, profile

Interval = tuple[float, float]


def idle(intervals: Iterable[Interval]) -> float:
    """The share of the time from the first begin to the last end in which none of the intervals lasted."""
    ordered = sorted(intervals)
    if not ordered:
        return 1.0
    begin, until = ordered[0]
    busy = until - begin
    for start, end in ordered[1:]:
        busy += max(0.0, end - max(start, until))
        until = max(until, end)
    return 1 - busy / (until - begin) if until > begin else 0.0


def of_the_gpu(step: Callable[[], object], steps: int = 8, warmup: int = 3) -> float:
    """The share of some steps' time in which the GPU neither ran a kernel nor copied anything.

    What the profiler does between two kernels counts as idle, so it is no less than without it.
    """
    for _ in range(warmup):
        step()
    with profile(activities=[ProfilerActivity.CUDA], acc_events=True) as profiler:
        for _ in range(steps):
            step()
        torch.cuda.synchronize()
    done = (event for event in profiler.events() or [] if event.device_type == DeviceType.CUDA)
    return idle((one.time_range.start, one.time_range.end) for one in done if not one.is_user_annotation)
