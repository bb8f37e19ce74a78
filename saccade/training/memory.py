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


def is_out_of_memory(error: BaseException) -> bool:
    """Whether an error says that a device, or the machine, has no memory left."""
    if isinstance(error, torch.OutOfMemoryError | MemoryError):
        return True
    words = ("can't allocate memory", "not enough memory", "bad_alloc")  # a CPU's allocator has no error of its own
    return isinstance(error, RuntimeError) and any(word in str(error) for word in words)


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

    def spared(self, work: Callable[[int], T], rows: int, forget: Callable[[], object], alone: bool | None = None) -> T:
        """Do `work` in so many pieces that it fits; `forget` what an attempt left. `rows` is the most there can be."""
        alone = self.alone if alone is None else alone
        while True:
            try:
                return work(self.pieces)
            except (RuntimeError, MemoryError) as error:
                if not is_out_of_memory(error):
                    raise
                if self.pieces >= rows:
                    raise SaccadeError(
                        "memory: a single pair of the longest batch does not fit; drop long pairs with a smaller "
                        "data.cleaning.max_characters, choose a smaller model.size or, on many GPUs, set "
                        "training.sharding=fsdp"
                    ) from None
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
