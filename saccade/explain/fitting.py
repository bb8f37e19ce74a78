"""The training that experiments share: AdamW, a warm-up, a cosine, one loss a step."""

from collections.abc import Callable

from torch import Tensor, nn

from saccade.config import TrainingConfig
from saccade.training.optim import clip_gradients, learning_rate, make_optimizer, set_learning_rate


def fit(
    model: nn.Module,
    loss: Callable[[], Tensor],
    *,
    steps: int,
    peak: float,
    after: Callable[[int], None],
) -> list[float]:
    """Minimise what `loss` gives, a new batch each call; `after` is told each step. Returns the losses."""
    optimizer = make_optimizer(model, TrainingConfig())
    losses = []
    for step in range(1, steps + 1):
        warmup = min(30, 1 + steps // 10)
        set_learning_rate(optimizer, learning_rate(step, schedule="cosine", peak=peak, warmup=warmup, total=steps))
        value = loss()
        value.backward()
        clip_gradients(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        losses.append(value.item())
        after(step)
    return losses
