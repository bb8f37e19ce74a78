"""When memory is short: the same batch in more and smaller pieces, whose gradients add up to the same."""

import gc
import json
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

import torch

from saccade.display import Display
from saccade.errors import SaccadeError
from saccade.files import read_json, write_text

T = TypeVar("T")
NOTE = "pieces.json"  # in resume/
WORDS = (  # of errors that have no kind of their own: a CPU's allocator, CUDA, its libraries and Triton
    "can't allocate memory",
    "not enough memory",
    "bad_alloc",
    "out of memory",
    "ALLOC_FAILED",
)
SINGLE_PAIR = (
    "memory: a single pair of the longest batch does not fit; drop long pairs with a smaller "
    "data.cleaning.max_characters, choose a smaller model.size or, on many GPUs, set training.sharding=fsdp"
)


def is_out_of_memory(error: BaseException) -> bool:
    """Whether an error says that a device, or the machine, has no memory left."""
    if isinstance(error, torch.OutOfMemoryError | MemoryError):
        return True
    if not isinstance(error, RuntimeError):
        return False
    # A capture that memory ran out in ends with an error of its own, raised while that of memory went through it.
    before = error.__context__
    return any(word in str(error) for word in WORDS) or (before is not None and is_out_of_memory(before))


class MicroBatches:
    """In how many pieces a batch goes through the model: twice as many each time that memory runs out.

    One process tries again at once. Among many, the others are waiting inside a collective by then, so the number is
    noted in the folder and the error goes on: torchrun starts all of them again, with smaller pieces.
    """

    def __init__(self, resume: Path, display: Display, alone: bool) -> None:
        self.note, self.display, self.alone = resume / NOTE, display, alone
        self.pieces = 1
        if not alone and self.note.exists():
            self.pieces = int(read_json(self.note, "remove it")["pieces"])
            display.say(f"memory: a batch goes in {self.pieces} pieces, since it did not fit in fewer ({self.note})")

    def spared(
        self,
        work: Callable[[int], T],
        most: int,
        forget: Callable[[], object],
        alone: bool | None = None,
        hopeless: str = SINGLE_PAIR,
    ) -> T:
        """Do `work` in so many pieces that it fits; `forget` what an attempt left. `most`: how many there can be;
        `hopeless`: what is said where that is not enough."""
        alone = self.alone if alone is None else alone
        while True:
            try:
                return work(self.pieces)
            except (RuntimeError, MemoryError) as error:
                if not is_out_of_memory(error):
                    raise
                if self.pieces >= most:
                    raise SaccadeError(hopeless) from None
                if not alone:
                    write_text(self.note, json.dumps({"pieces": 2 * self.pieces}))
                    raise
            # Only here has the error, whose traceback held the tensors of the attempt, been let go.
            forget()
            gc.collect()
            if torch.cuda.is_available():
                torch.cuda.empty_cache()
            self.pieces *= 2
            self.display.say(
                f"memory: a batch does not fit at once; from now on it goes in {self.pieces} pieces, whose gradients "
                "add up to the same step"
            )
