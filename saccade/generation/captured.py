"""One step captured and replayed.

On a GPU a small step spends its time waiting for the processor to launch it, kernel by kernel. Here a whole step
(decode, log-probabilities, rules, search) is written over storage whose shapes and addresses never change, captured
once as a CUDA graph, and replayed; so is the reading of the sources. Shapes come from a bounded set (sentences, source
columns and positions are rounded up, what is added is masked), so that a few captures serve everything. Whether all
sentences are done is asked without waiting for the answer, one step behind.

Only what can be captured is: Transformers, greedy and beam search without coverage, and rules that are the same at
every step. For anything else, and where capturing fails, `replayed` answers None and the plain loop does the work. The
same code runs uncaptured on a CPU, which is how the suite proves it equal to the plain loop.
"""

import warnings
import weakref
from collections import OrderedDict
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from functools import cache
from threading import Lock
from typing import NamedTuple
from weakref import WeakKeyDictionary

import torch
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel

from saccade.attention.multihead import Joint
from saccade.data.tokenizers import PAD
from saccade.errors import SaccadeError
from saccade.generation.fixed import FixedBeam, FixedGreedy, Rows
from saccade.generation.rules import Forbid, Rule, end_at_limit
from saccade.generation.search import Beam, Greedy, Hypothesis, Search
from saccade.models.protocol import EncoderDecoder
from saccade.models.transformer_state import Seen, TransformerState

KEPT = 6  # captures kept for a model, the most recent
COLUMNS = 16  # of sources, at least: fewer would be no quicker, and attention reads its masks by sixteen
WINDOW = 32  # positions are read so many more at a time as a search goes on
# cuDNN's takes 6 ms to plan for every shape, 2 s for a capture, and is made for many queries: a step has a few.
KERNELS = [SDPBackend.EFFICIENT_ATTENTION, SDPBackend.FLASH_ATTENTION, SDPBackend.MATH]
BEHIND = 1  # steps that run before it is known whether they were needed: to launch one takes less than one does


class Form(NamedTuple):
    """The shapes of a capture, and what it is made to do."""

    sentences: int
    columns: int
    positions: int
    search: Search
    forbidden: tuple[int, ...]
    rounded: torch.dtype | None  # what autocast has its products computed in, where that is on


def replayed(
    model: EncoderDecoder,
    source: Tensor,
    mask: Tensor,
    search: Search,
    limits: Tensor,
    rules: Sequence[Rule],
) -> list[list[Hypothesis]] | None:
    """What `generate` answers for a batch, by captured steps; None where they cannot be had.

    The batch is best on the host: its shape is asked for, and it goes to the model's device in one copy.
    """
    forbidden = _capturable(model, search, rules)
    if forbidden is None:
        return None
    longest = int(limits.max())
    weight = next(model.parameters())
    device = weight.device
    form = Form(
        _round(source.size(0), 8),
        _round(max(source.size(1), COLUMNS), COLUMNS),
        _round(max(longest, WINDOW), WINDOW),
        search,
        forbidden,
        torch.get_autocast_dtype(device.type) if torch.is_autocast_enabled(device.type) else None,
    )
    with _ALONE, torch.cuda.device_of(weight), _rounding(device, form.rounded):
        kept = _CAPTURES.setdefault(model, OrderedDict())
        stamp = (weight.data_ptr(), device)
        if form in kept and kept[form].stamp != stamp:  # the model has moved since
            kept.clear()
        try:
            if form not in kept:
                kept[form] = Captured(model, form, device, capture=device.type == "cuda")
            kept.move_to_end(form)
            while len(kept) > KEPT:
                kept.popitem(last=False)
            return kept[form].run(source, mask, limits, longest)
        except SaccadeError:
            raise
        except Exception as error:  # CUDA's and torch's errors, Triton's, those of its compiler and its files
            _FAILED[model] = True
            kept.clear()
            warnings.warn(f"a step could not be captured, decoding goes on without: {error}", stacklevel=2)
            return None


_CAPTURES: "WeakKeyDictionary[EncoderDecoder, OrderedDict[Form, Captured]]" = WeakKeyDictionary()
_FAILED: "WeakKeyDictionary[EncoderDecoder, bool]" = WeakKeyDictionary()
_ALONE = Lock()  # storage that is fixed serves one call at a time


def _rounding(device: torch.device, dtype: torch.dtype | None) -> AbstractContextManager[object]:
    """Autocast as it is, but for the casts of weights that it keeps: they are gone when it ends, and a graph that read
    them would go on reading where they were."""
    return nullcontext() if dtype is None else torch.autocast(device.type, dtype, cache_enabled=False)


def _capturable(model: EncoderDecoder, search: Search, rules: Sequence[Rule]) -> tuple[int, ...] | None:
    """The tokens that the rules forbid, or None where something cannot be captured."""
    if model in _FAILED or model.training or search.needs_attention or type(search) not in (Greedy, Beam):
        return None
    if end_at_limit not in rules or not all(rule is end_at_limit or isinstance(rule, Forbid) for rule in rules):
        return None
    if not getattr(getattr(model, "decoder", None), "fixed_steps", False):
        return None
    return tuple(sorted({token for rule in rules if isinstance(rule, Forbid) for token in rule.ids}))


def _round(size: int, step: int) -> int:
    """Up to a power of two, or beyond `step` to a multiple of an eighth of one: a bounded set, little padding."""
    if size <= step:
        return max(1, 1 << (size - 1).bit_length())
    eighth = max(step, (1 << (size - 1).bit_length()) // 8)
    return -(-size // eighth) * eighth


class Captured:
    """Fixed storage for one form, with the steps over it."""

    def __init__(self, model: EncoderDecoder, form: Form, device: torch.device, capture: bool) -> None:
        self._model = weakref.ref(model)  # by which it is kept: it would never go
        self.form, self.device, self.capture = form, device, capture
        self.stamp = (next(model.parameters()).data_ptr(), device)
        N, S = form.sentences, form.columns
        self.size = form.search.size if isinstance(form.search, Beam) else 1
        self.given = _Given(N, S, device)
        self.mask = self.given.real.bool()
        self.rows = Rows(self.given.limits, self.size, model.output_matrix.size(0), form.forbidden)
        self.state = self._storage()
        self.search = self._search()
        self.answers = _Answers(self.search.done, capture)
        # All graphs share what they need on the way: none of it is read after the end of a graph.
        self.pool = torch.cuda.graph_pool_handle() if capture else None
        self.begin = self._captured(self._begin)
        self.steps: dict[int, Callable[[], None]] = {}

    @property
    def model(self) -> EncoderDecoder:
        model = self._model()
        assert model is not None
        return model

    def _search(self) -> FixedGreedy | FixedBeam:
        search, capacity = self.form.search, self.form.positions
        dtype = torch.promote_types(next(self.model.parameters()).dtype, torch.float32)
        cells = None if self.state.numbers is None else self.state.numbers.cells
        if isinstance(search, Beam):
            path = self.state.path
            if path is None:  # a beam of one needs none
                path = self.rows.tokens.new_zeros(self.form.sentences, 1, capacity)
            return FixedBeam(search, self.rows, capacity, self.mask, dtype, path, cells)
        return FixedGreedy(self.rows, capacity, dtype, cells)

    def _storage(self) -> TransformerState:
        memory = self.model.encode(self.given.source, self.mask)
        state = self.model.init_state(memory, capacity=self.form.positions)
        assert isinstance(state, TransformerState)
        state = state.beams(self.size)
        assert state.caches is not None
        # A tensor for keys and values together, written in one call; what is masked must be a number all the same.
        caches = tuple(Joint.of(layer.keys.new_zeros(2, *layer.keys.shape)) for layer in state.caches)
        numbers = None
        if state.lean is not None:  # kept, rather than made of the masks in every step
            alike = not isinstance(self.form.search, Beam)  # in what all sentences may look at
            cells = (1, 1, 1) if alike else (self.form.sentences, 1, self.size)
            numbers = Seen(
                caches[0].keys.new_zeros(*cells, self.form.positions * self.size),
                torch.zeros_like(state.memory_mask, dtype=caches[0].keys.dtype),
            )
        return replace(state, caches=caches, position=self.rows.position, padded=True, numbers=numbers)

    def _captured(self, work: Callable[[], None]) -> Callable[[], None]:
        """The work as a graph to replay."""
        if not self.capture:
            return work
        stream, now = _stream_of(self.device), torch.cuda.current_stream()
        stream.wait_stream(now)
        with sdpa_kernel(KERNELS), torch.cuda.stream(stream):
            for _ in range(3):  # kernels are chosen, and libraries make ready, before anything is captured
                work()
        now.wait_stream(stream)
        graph = torch.cuda.CUDAGraph()
        # What other threads do meanwhile is no concern of this capture.
        with (
            sdpa_kernel(KERNELS),
            torch.cuda.graph(graph, self.pool, stream, capture_error_mode="thread_local"),
        ):
            work()
        return graph.replay

    def _begin(self) -> None:
        """The sources, into the memory's storage, and everything as it is before the first step."""
        self.mask.copy_(self.given.real)
        self.rows.reset()
        self.search.reset()
        fresh = self.model.init_state(self.model.encode(self.given.source, self.mask), capacity=1)
        assert isinstance(fresh, TransformerState)
        for layer, new in zip(self.state.memory, fresh.memory, strict=True):
            layer.keys.copy_(new.keys)
            layer.values.copy_(new.values)
        self.state.memory_mask.copy_(fresh.memory_mask)
        if self.state.numbers is not None:
            memory = self.state.numbers.memory
            memory.copy_(fresh.memory_mask.to(memory.dtype).log_())

    def _step_over(self, window: int) -> Callable[[], None]:
        """A step that reads the first `window` positions of the storage."""
        if window not in self.steps:
            state = self.state.within(window)
            before = [part.clone() for part in self._changing()]

            def step() -> None:
                output = self.model.decode(self.rows.tokens, state)
                self.search.advance(self.model.logits(output.hidden[:, -1]))

            self.steps[window] = self._captured(step)
            for part, value in zip(self._changing(), before, strict=True):  # as if nothing had been tried
                part.copy_(value)
        return self.steps[window]

    def _changing(self) -> list[Tensor]:
        return [*self.rows.changing(), *self.search.changing()]

    def run(self, source: Tensor, mask: Tensor, limits: Tensor, longest: int) -> list[list[Hypothesis]]:
        """`longest`: the largest of the limits."""
        self.answers.wait()
        self.given.send(source, mask, limits)
        self.begin()
        with self._aside() if self._take(longest) else nullcontext():
            return self.search.results()[: source.size(0)]

    def _take(self, most: int) -> bool:
        """Steps, until all is known to be done; False: as many as there can be, and the last may be under way."""
        for position in range(most):
            self._step_over(min(-(-(position + 1) // WINDOW) * WINDOW, self.form.positions))()
            if self.answers.ask(position):
                return True
        return False

    def _aside(self) -> AbstractContextManager[object]:
        """Where results are read beside a step that is under way: it was not needed, and changes none of them."""
        return torch.cuda.stream(_stream_of(self.device)) if self.capture else nullcontext()


@cache
def _stream_of(device: torch.device) -> torch.cuda.Stream:
    """One for all captures: libraries keep some memory for each stream that they have seen."""
    return torch.cuda.Stream(device)


class _Given:
    """What a call is about, put together on the host and sent to fixed storage in one copy."""

    def __init__(self, sentences: int, columns: int, device: torch.device) -> None:
        sizes, shape = (sentences * columns, sentences * columns, sentences), (sentences, columns)
        self._host = torch.empty(sum(sizes), dtype=torch.long, pin_memory=device.type == "cuda")
        self._there = torch.empty_like(self._host, device=device)
        source, real, self.limits = self._there.split(sizes)  # limits: (N,)
        self.source, self.real = source.view(shape), real.view(shape)  # what is real is 1, padding 0
        ids, marks, most = (part.numpy() for part in self._host.split(sizes))
        self._parts = ids.reshape(shape), marks.reshape(shape), most
        nothing = self._host[:0]
        self.send(nothing.view(0, 0), nothing.view(0, 0), nothing)

    def send(self, source: Tensor, mask: Tensor, limits: Tensor) -> None:
        """Nobody may be reading what was sent before: results have been waited for."""
        B, S = source.shape
        ids, marks, most = self._parts
        ids.fill(PAD)
        marks.fill(0)
        marks[:, 0] = 1  # those that fill up the form look somewhere, and end at once
        most.fill(1)
        ids[:B, :S] = source.cpu().numpy()
        marks[:B, :S] = mask.cpu().numpy()
        most[:B] = limits.cpu().numpy()
        self._there.copy_(self._host, non_blocking=True)


class _Answers:
    """Whether all is done: asked after every step, and read when the answer is there, so that nothing waits."""

    def __init__(self, done: Tensor, behind: bool) -> None:
        self.done = done  # (N,)
        self.places = [_place(done.numel()) for _ in range(BEHIND + 1) if behind]

    def wait(self) -> None:
        """What comes next comes after the last step of before, on whatever stream that was."""
        for _, arrived in self.places:
            arrived.wait()

    def ask(self, number: int) -> bool:
        """After step `number`, as far as is known: whether all is done."""
        if not self.places:
            return bool(self.done.all())
        answer, arrived = self.places[number % len(self.places)]
        answer.copy_(self.done, non_blocking=True)
        arrived.record()
        if number < BEHIND:
            return False
        answer, arrived = self.places[(number - BEHIND) % len(self.places)]
        arrived.synchronize()
        return bool(answer.all())


def _place(sentences: int) -> tuple[Tensor, torch.cuda.Event]:
    """Where answers arrive, and that they have."""
    return torch.empty(sentences, dtype=torch.bool, pin_memory=True), torch.cuda.Event()
