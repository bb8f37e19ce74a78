"""A training step captured once and replayed, on an NVIDIA GPU, for batches without padding.

All batches have one shape, so everything from the embedding to the update of the weights is the same few hundred
kernels on the same addresses each time: they are captured as CUDA graphs, and a step is then two launches and the copy
of a batch. Layers and the loss are compiled before, so that what is done element by element is done in few passes.

Weights, moments and gradients are kept in fp32; what computes is a copy of the model in the precision of the settings,
filled from the weights after each update:

    θ₁₆ ← round(θ₃₂);   g₁₆ = ∂L/∂θ₁₆;   θ₃₂ ← AdamW(θ₃₂, g₁₆)     (Micikevicius et al. 2018, 3.1)

On a CPU the same steps are taken as they are written, neither compiled nor captured, which is how the suite proves them
equal to those over padded batches.
"""

import copy
import time
from collections.abc import Callable
from pathlib import Path
from types import FunctionType
from typing import Any, NamedTuple

import torch
from torch import Tensor

from saccade.config import TrainingConfig
from saccade.data.unpadded import UnpaddedBatch
from saccade.display import Display
from saccade.models.protocol import EncoderDecoder
from saccade.models.unpadded import plainly
from saccade.training.memory import MicroBatches
from saccade.training.optim import clip_gradients, set_learning_rate
from saccade.training.unpadded import Unpadded

WARM = 3  # rounds before a capture: kernels are compiled and chosen, libraries make ready


class Shape(NamedTuple):
    """What a capture is of: a batch's rows, and whether it is the first of its step, which begins the gradients."""

    source: tuple[int, ...]
    target: tuple[int, ...]
    longest: tuple[int, int]
    first: bool

    @staticmethod
    def of(batch: UnpaddedBatch, first: bool) -> "Shape":
        return Shape(tuple(batch.source.shape), tuple(batch.target.shape), batch.longest, first)


class Capture(NamedTuple):
    """A captured reading of a batch: where its numbers go, and where its loss is found."""

    batch: UnpaddedBatch
    nll: Tensor
    replay: Callable[[], None]


class CapturedSteps:
    """The steps of a run: gradients of batches, added up, and the update by them.

    Where memory is short, each batch goes in `micro.pieces` of one smaller shape. All batches have one shape, so the
    first is as good a trial as the longest: what does not fit is known before the first step. Dropout falls by place,
    so from there on a run is not that of a larger GPU, but as good; resumed, it goes on in the pieces it went in.
    """

    def __init__(
        self,
        model: EncoderDecoder,
        settings: TrainingConfig,
        optimizer: torch.optim.Optimizer,
        display: Display,
        micro: MicroBatches | None = None,
    ) -> None:
        self.micro = micro or MicroBatches(Path(), display, alone=True)
        self.settings, self.optimizer, self.display = settings, optimizer, display
        self.weights = [p for group in optimizer.param_groups for p in group["params"]]
        self.device = self.weights[0].device
        self.copy = low_copy(model, torch.bfloat16 if settings.precision == "bf16" else None)
        of = dict(zip(model.parameters(), self.copy.parameters(), strict=True))
        self.copies: list[Tensor] = [of[weight] for weight in self.weights]
        self.on_gpu = self.device.type == "cuda"
        if self.on_gpu:
            from saccade.models.norm_training_kernel import with_kernels  # Triton comes with torch for CUDA

            with_kernels(self.copy)
        self.objective = Unpadded(self.copy, settings, Compiled() if self.on_gpu else plainly).train()
        self.scale = self.weights[0].new_zeros(())
        self.norm = self.weights[0].new_zeros(())
        for weight in self.weights:
            weight.grad = torch.zeros_like(weight)
        for group in optimizer.param_groups:
            group["capturable"] = self.on_gpu
            group["lr"] = self.weights[0].new_zeros(())
        optimizer.found_inf = torch.zeros((), device=self.device)  # type: ignore[attr-defined]
        # torch would say that a step is quicker captured, while it is tried before that.
        optimizer._warned_capturable_if_run_uncaptured = True
        self.pool = torch.cuda.graph_pool_handle() if self.on_gpu else None  # graphs are replayed one after the other
        self.captures: dict[Shape, Capture] = {}
        self.update: Callable[[], None] | None = None
        self.foreseen: tuple[float, int] | None = None  # seconds a step, bytes

    def take(self, batches: list[UnpaddedBatch], tokens: int, rate: float) -> tuple[Tensor, Tensor]:
        """One step; its loss a token and the norm of its gradient, still on the device."""
        self.scale.fill_(1 / tokens)
        whole = batches[0]
        nll = self.micro.spared(
            lambda pieces: self._gradients([piece for batch in batches for piece in batch.pieces(pieces)]),
            whole.most_pieces,
            self._forget,
            hopeless=self._hopeless(whole),
        )
        set_learning_rate(self.optimizer, rate)
        assert self.update is not None
        self.update()
        return nll / tokens, self.norm.clone()

    def _gradients(self, batches: list[UnpaddedBatch]) -> Tensor:
        """Add up the gradients of batches; returns their negative log-likelihood."""
        losses = []
        # Before anything is added up: what is captured is tried first, which adds gradients of its own.
        for capture, batch in zip(self._ready(batches), batches, strict=True):
            capture.batch.source.copy_(batch.source, non_blocking=True)
            capture.batch.target.copy_(batch.target, non_blocking=True)
            capture.replay()
            losses.append(capture.nll.clone())  # the next replay writes over this one
        return torch.stack(losses).sum()

    def _ready(self, batches: list[UnpaddedBatch]) -> list[Capture]:
        """What is replayed for each batch of a step, captured now if it was not before."""
        shapes = [Shape.of(batch, first=number == 0) for number, batch in enumerate(batches)]
        new = {
            shape: self._captured(batch, shape.first)
            for shape, batch in dict(zip(shapes, batches, strict=True)).items()
            if shape not in self.captures
        }
        if self.on_gpu and new:
            self._capture(new, shapes)
        else:
            self.captures |= new
            self.update = self.update or self._update
        return [self.captures[shape] for shape in shapes]

    def _captured(self, batch: UnpaddedBatch, first: bool) -> Capture:
        """The reading of a batch as it is written."""
        batch = batch.to(self.device, copy=True)
        nll = self.weights[0].new_zeros(())

        def read() -> None:
            for low in self.copies:
                low.grad = None
            loss = self.objective(batch)
            (loss.total * self.scale).backward()
            nll.copy_(loss.nll)
            gradients = [low.grad if low.grad is not None else torch.zeros_like(low) for low in self.copies]
            if first:
                torch._foreach_copy_([weight.grad for weight in self.weights], gradients)
            else:
                for weight, gradient in zip(self.weights, gradients, strict=True):
                    weight.grad.add_(gradient)

        return Capture(batch, nll, read)

    def _update(self) -> None:
        norm = clip_gradients(self.weights, self.settings.clip_norm)
        self.norm.copy_(norm)
        # The fused update leaves all weights alone when this is set: a bad step does no harm before it is seen.
        self.optimizer.found_inf.copy_(~torch.isfinite(norm))  # type: ignore[attr-defined]
        self.optimizer.step()
        self._fill()

    def _capture(self, new: dict[Shape, Capture], step: list[Shape]) -> None:
        """Make graphs of what is new, and the first time one of the update; then a whole step is timed."""
        with self.display.task("compiling and capturing a step", None), Kept(self.optimizer, self.weights):
            works = [capture.replay for capture in new.values()] + ([] if self.update else [self._update])
            # All before any: what is tried outside the pool needs its memory beside that of what is captured in it.
            for work in works:
                warm(work)
            graphs = [captured(work, self.pool) for work in works]
            for (shape, capture), replay in zip(new.items(), graphs, strict=False):
                self.captures[shape] = capture._replace(replay=replay)
            if self.update is None:
                self.update = graphs[-1]
                replays = [*(self.captures[shape].replay for shape in step), self.update]
                self.foreseen = self._time(replays), torch.cuda.max_memory_allocated(self.device)
        self._fill()

    def _time(self, replays: list[Callable[[], None]]) -> float:
        torch.cuda.synchronize(self.device)
        start = time.perf_counter()
        for _ in range(WARM):
            for replay in replays:
                replay()
        torch.cuda.synchronize(self.device)
        return (time.perf_counter() - start) / WARM

    def _forget(self) -> None:
        """Let go of all that was captured, and of its memory, before the next try."""
        self.captures.clear()
        self.update = None
        for low in self.copies:
            low.grad = None
        if self.on_gpu:
            self.objective.call = Compiled()
            self.pool = torch.cuda.graph_pool_handle()
            torch.cuda.reset_peak_memory_stats(self.device)

    def _hopeless(self, batch: UnpaddedBatch) -> str:
        source, target = batch.room(batch.most_pieces)
        return (
            f"training.batch_tokens={self.settings.batch_tokens}: memory is too short for the smallest piece of a "
            f"batch, {source:,} + {target:,} tokens (the longest sentences have {batch.longest[0]:,} and "
            f"{batch.longest[1]:,}); leave the GPU more free memory and give the same command again, which goes on "
            "from the last checkpoint, or begin another run (another --out, its weights with --from) with "
            "training.unpadded=false, whose pieces can be a single pair, a smaller data.cleaning.max_characters or a "
            "smaller model.size"
        )

    @torch.no_grad()
    def _fill(self) -> None:
        """What computes gets the weights as they are now."""
        torch._foreach_copy_(self.copies, self.weights)


class Compiled:
    """Has each piece of work compiled, once for all that looks alike.

    torch counts the programs of a function and compiles no ninth, so each of these has functions of its own: how many
    models a process has trained before makes no difference.
    """

    def __init__(self) -> None:
        self.made: dict[Any, Callable[..., Any]] = {}

    def __call__(self, work: Callable[..., Any], *inputs: Any) -> Any:
        if work not in self.made:
            own = FunctionType(work.__code__.replace(), work.__globals__, work.__name__)
            self.made[work] = torch.compile(own, dynamic=False)
        return self.made[work](*inputs)


class Kept:
    """Weights, moments and the generator as they were, whatever is tried meanwhile."""

    def __init__(self, optimizer: torch.optim.Optimizer, weights: list[Tensor]) -> None:
        self.optimizer, self.weights = optimizer, weights

    def __enter__(self) -> None:
        self.device = self.weights[0].device
        self.generator = torch.cuda.get_rng_state(self.device)
        self.before = [weight.detach().clone() for weight in self.weights]
        self.moments = [{k: v.clone() for k, v in self.optimizer.state[w].items()} for w in self.weights]

    @torch.no_grad()
    def __exit__(self, *_: object) -> None:
        torch.cuda.synchronize(self.device)
        torch._foreach_copy_(self.weights, self.before)
        for weight, moments in zip(self.weights, self.moments, strict=True):
            for name, tensor in self.optimizer.state[weight].items():
                tensor.copy_(moments[name]) if moments else tensor.zero_()
        torch.cuda.set_rng_state(self.generator, self.device)


def warm(work: Callable[[], None]) -> None:
    """Do the work as it is written, so that all is compiled, chosen and made ready."""
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(WARM):
            work()
    torch.cuda.current_stream().wait_stream(stream)


def captured(work: Callable[[], None], pool: Any) -> Callable[[], None]:
    """The work, once it is warm, as a graph to replay."""
    graph = torch.cuda.CUDAGraph()
    # What other threads do meanwhile is no concern of this capture: the next batches are put into pinned memory.
    with torch.cuda.graph(graph, pool=pool, capture_error_mode="thread_local"):
        work()
    return graph.replay


def low_copy(model: EncoderDecoder, dtype: torch.dtype | None) -> EncoderDecoder:
    """The same network with parameters of another type, if one is named; tables of waves and angles stay exact."""
    made = copy.deepcopy(model)
    for parameter in made.parameters():
        parameter.data = parameter.data.to(dtype or parameter.dtype)
        parameter.grad = None
    return made
