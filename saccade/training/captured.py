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
from types import FunctionType
from typing import Any, NamedTuple

import torch
from torch import Tensor

from saccade.config import TrainingConfig
from saccade.data.unpadded import UnpaddedBatch
from saccade.display import Display
from saccade.errors import SaccadeError
from saccade.models.protocol import EncoderDecoder
from saccade.models.unpadded import plainly
from saccade.training.optim import clip_gradients, set_learning_rate
from saccade.training.unpadded import Unpadded

WARM = 3  # rounds before a capture: kernels are compiled and chosen, libraries make ready


class Shape(NamedTuple):
    """What a capture is of: a batch's rows, and whether it is the first of its step, which begins the gradients."""

    source: tuple[int, ...]
    target: tuple[int, ...]
    longest: tuple[int, int]
    first: bool


class Capture(NamedTuple):
    """A captured reading of a batch: where its numbers go, and where its loss is found."""

    batch: UnpaddedBatch
    nll: Tensor
    replay: Callable[[], None]


class CapturedSteps:
    """The steps of a run: gradients of batches, added up, and the update by them."""

    def __init__(
        self, model: EncoderDecoder, settings: TrainingConfig, optimizer: torch.optim.Optimizer, display: Display
    ) -> None:
        self.settings, self.optimizer, self.display = settings, optimizer, display
        self.weights = [p for group in optimizer.param_groups for p in group["params"]]
        self.device = self.weights[0].device
        self.copy = low_copy(model, torch.bfloat16 if settings.precision == "bf16" else None)
        of = dict(zip(model.parameters(), self.copy.parameters(), strict=True))
        self.copies: list[Tensor] = [of[weight] for weight in self.weights]
        self.on_gpu = self.device.type == "cuda"
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
        losses = []
        self.scale.fill_(1 / tokens)
        # Before anything is added up: what is captured is tried first, which adds gradients of its own.
        captures = [self._capture(batch, first=number == 0) for number, batch in enumerate(batches)]
        for capture, batch in zip(captures, batches, strict=True):
            capture.batch.source.copy_(batch.source, non_blocking=True)
            capture.batch.target.copy_(batch.target, non_blocking=True)
            capture.replay()
            losses.append(capture.nll / tokens)  # a new tensor: the next replay writes over this one
        set_learning_rate(self.optimizer, rate)
        assert self.update is not None
        self.update()
        return torch.stack(losses).sum(), self.norm.clone()

    def _capture(self, batch: UnpaddedBatch, first: bool) -> Capture:
        shape = Shape(tuple(batch.source.shape), tuple(batch.target.shape), batch.longest, first)
        if shape not in self.captures:
            try:
                self.captures[shape] = self._captured(batch, first)
            except torch.OutOfMemoryError:
                raise SaccadeError(
                    f"memory: a batch of {batch.source.size(1):,} + {batch.target.size(1):,} tokens does not fit; "
                    "lower training.batch_tokens and raise training.accumulate by as much, which is the same step, or "
                    "set training.unpadded=false, whose batches go in pieces"
                ) from None
        return self.captures[shape]

    def _captured(self, batch: UnpaddedBatch, first: bool) -> Capture:
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

        def update() -> None:
            norm = clip_gradients(self.weights, self.settings.clip_norm)
            self.norm.copy_(norm)
            # The fused update leaves all weights alone when this is set: a bad step does no harm before it is seen.
            self.optimizer.found_inf.copy_(~torch.isfinite(norm))  # type: ignore[attr-defined]
            self.optimizer.step()
            self._fill()

        if not self.on_gpu:
            self.update = update
            return Capture(batch, nll, read)
        with self.display.task("compiling and capturing a step", None), Kept(self.optimizer, self.weights):
            replay = captured(read, self.pool)
            if self.update is None:
                self.update = captured(update, self.pool)
                self.foreseen = self._time(replay), torch.cuda.max_memory_allocated(self.device)
        self._fill()
        return Capture(batch, nll, replay)

    def _time(self, replay: Callable[[], None]) -> float:
        assert self.update is not None
        torch.cuda.synchronize(self.device)
        start = time.perf_counter()
        for _ in range(WARM):
            replay()
            self.update()
        torch.cuda.synchronize(self.device)
        return (time.perf_counter() - start) / WARM

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


def captured(work: Callable[[], None], pool: Any) -> Callable[[], None]:
    """The work as a graph to replay."""
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(WARM):
            work()
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, pool=pool):
        work()
    return graph.replay


def low_copy(model: EncoderDecoder, dtype: torch.dtype | None) -> EncoderDecoder:
    """The same network with parameters of another type, if one is named; tables of waves and angles stay exact."""
    made = copy.deepcopy(model)
    for parameter in made.parameters():
        parameter.data = parameter.data.to(dtype or parameter.dtype)
        parameter.grad = None
    return made
