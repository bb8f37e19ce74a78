"""Batches without padding to test with, and a run over them."""

from functools import partial

import numpy as np
import torch
from hypothesis import strategies as st
from models_under_test import make

from saccade.attention.dropout import Dropout
from saccade.config import TrainingConfig
from saccade.data.batching import collate
from saccade.data.store import Store, StoreWriter
from saccade.data.tokenizers import BOS, EOS
from saccade.data.unpadded import UnpaddedBatcher, collate_unpadded
from saccade.display import Display
from saccade.training.loop import Trainer, Validation

SIZE = 20  # of the vocabulary
side = st.integers(0, 9).flatmap(lambda n: st.lists(st.integers(4, SIZE - 1), min_size=n, max_size=n))
corpora = st.lists(st.tuples(side, side), min_size=1, max_size=40)


def stored(pairs, folder):
    with StoreWriter(folder, source_vocabulary=SIZE, target_vocabulary=SIZE) as writer:
        writer.extend(pairs)
    return Store(folder)


def learning(name):
    """A model in training that drops nothing, so that two ways can be compared."""
    model = make(name).train()
    for module in model.modules():
        if isinstance(module, Dropout):
            module.p = 0.0
    return model


def some_pairs(count=7, seed=0):
    random = np.random.default_rng(seed)
    sides = ([random.integers(4, SIZE, random.integers(1, 10)).tolist() for _ in range(count)] for _ in range(2))
    return list(zip(*sides, strict=True))


def both(pairs):
    """The same pairs padded, and without padding with rows to spare."""
    rows = range(len(pairs))
    return collate(pairs, rows), collate_unpadded(pairs, np.array(rows), (96, 128), (10, 10))


def sentences_of(batch):
    """The pairs that a batch holds, read off its numbers."""
    found = []
    target = batch.target.tolist()
    for row, place in enumerate(target[2]):
        if target[4][row] == 0 or place:
            continue
        end, first, last = target[4][row], target[5][row], target[6][row]
        assert target[0][row] == BOS
        assert target[0][row + 1 : end] == target[1][row : end - 1]
        assert target[1][end - 1] == EOS
        assert batch.source[0, last - 1] == EOS
        assert batch.source[4, first:last].tolist() == [row] * (last - first)
        assert batch.source[5, first:last].tolist() == [end] * (last - first)
        found.append((tuple(batch.source[0, first : last - 1].tolist()), tuple(target[1][row : end - 1])))
    return found


def trained(folder, store, steps, batch_tokens=128, display=None):
    """A run over batches without padding, or what is left of it, as `Trainer` goes through it."""
    training = TrainingConfig(
        max_steps=steps, learning_rate=0.01, warmup_steps=2, validate_every=4, checkpoint_every=4,
        batch_tokens=batch_tokens, r_drop=1.0, patience=0, accumulate=2, ema=0.9, log_every=2, tensorboard=False,
    )  # fmt: skip
    model = make("transformer pre-norm").train()
    torch.manual_seed(7)
    folder.mkdir(exist_ok=True)
    batcher = UnpaddedBatcher(store, batch_tokens=batch_tokens, seed=1)
    validate = partial(Validation, 1.0, None)
    trainer = Trainer(training, model, batcher, validate, folder, display or Display(quiet=True))
    trainer.restore()
    outcome = trainer.fit()
    assert outcome.progress.step == steps
    assert trainer.captured is not None
    return list(model.parameters())
