"""Recent answers, the least recently used leave first."""

from collections import OrderedDict
from collections.abc import Hashable

from saccade.serving.schemas import Result

OVERHEAD = 600  # bytes of an entry beside its letters


class AnswerCache:
    """Answers by model version, what was asked for and the text; bounded by the memory they take."""

    def __init__(self, most: int) -> None:
        self.most, self.size = most, 0
        self.hits = self.misses = 0
        self._kept: OrderedDict[Hashable, tuple[Result, int]] = OrderedDict()

    def __len__(self) -> int:
        return len(self._kept)

    def get(self, key: Hashable, index: int) -> Result | None:
        """The answer, as that to text number `index`."""
        found = self._kept.get(key)
        if found is None:
            self.misses += 1
            return None
        self.hits += 1
        self._kept.move_to_end(key)
        return found[0].model_copy(update={"index": index})

    def put(self, key: Hashable, result: Result) -> None:
        """Keep an answer, if it is not larger than all that may be kept."""
        if self.most < OVERHEAD:
            return
        size = OVERHEAD + len(result.model_dump_json()) + len(repr(key))
        if size > self.most or key in self._kept:
            return
        self._kept[key] = (result, size)
        self.size += size
        while self.size > self.most:
            self.size -= self._kept.popitem(last=False)[1][1]
