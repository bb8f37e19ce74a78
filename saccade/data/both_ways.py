"""The pairs of a store in both directions, for a model that learns both at once."""

import numpy as np
import numpy.typing as npt

from saccade.data.store import Ids, Store


class BothWays(Store):
    """Pair i of a store of n, and as pair n + i the same one the other way round; nothing is copied."""

    def __init__(self, store: Store) -> None:
        super().__init__(store.folder)
        self._one_way = len(store)
        sources, targets = self.source_lengths, self.target_lengths
        self.source_lengths, self.target_lengths = (
            np.concatenate([sources, targets]),
            np.concatenate([targets, sources]),
        )
        self.tokens = (sum(self.tokens), sum(self.tokens))

    def sides(self, indices: npt.NDArray[np.int64]) -> tuple[Ids, Ids]:
        pairs = [self.pair(i) for i in indices.tolist()]
        return np.concatenate([source for source, _ in pairs]), np.concatenate([target for _, target in pairs])

    def pair(self, i: int) -> tuple[Ids, Ids]:
        if not self._one_way <= i < len(self):
            return super().pair(i)
        source, target = super().pair(i - self._one_way)
        return target, source
