"""The memory of a step, kept for the next.

A step's tensors take and free some megabytes, which malloc gives back to the system and has to be given anew, filled
with zeros: 70 pages and a tenth of the processor's time a request of the demo's model. Told so, it keeps them. A large
model's steps are long beside that, and it would only keep 100 MB more.

What is kept grows as batches of all shapes come by, for some ten thousand requests. So it is taken at once, before the
first: a process is nearly as large then as it will be.
"""

import os

import torch

KEEPING = {"MALLOC_MMAP_THRESHOLD_": 32 << 20, "MALLOC_TRIM_THRESHOLD_": 256 << 20, "MALLOC_TOP_PAD_": 16 << 20}
TAKEN, BLOCK = 192 << 20, 8 << 20  # bytes: less than is given back, in blocks that come from what is kept


def take_what_will_be_kept() -> None:
    """In a process that was started with `KEEPING`; in any other, nothing."""
    if all(os.environ.get(name) == str(size) for name, size in KEEPING.items()):
        blocks = [torch.zeros(BLOCK, dtype=torch.uint8) for _ in range(TAKEN // BLOCK)]
        del blocks
