"""Fine-tuning with a vocabulary that has grown: rows for the new pieces, in the weights and in Adam's moments.

Old rows stay what they are. Before the first step, then, the logits of old pieces are those of the old model wherever
the text holds old pieces alone, and the new rows only take a share m_t of the probability at each position t:

    p_new(y | x) = p_old(y | x) · Π_t (1 - m_t),    m_t = Σ_{v new} p_new(v | y_<t, x)

A new row is the mean of the rows of the old pieces i = 1 … n that stood in its place. Its logit is then the mean of
theirs and exp(mean) ≤ mean(exp), so that, before any step, no new piece is likelier than its parts are on average:

    p_new(v) ≤ 1/n Σ_i p_new(i) ≤ 1/n Σ_i p_old(i)

A row drawn at random (`training.new_rows=random`) has no such bound.
"""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import torch
from torch import Tensor, nn

from saccade.config import Config
from saccade.data.extending import origins
from saccade.data.tokenizers import Tokenizers
from saccade.display import Display
from saccade.errors import SaccadeError
from saccade.folder import WEIGHTS
from saccade.models.build import build_model
from saccade.training import checkpoint

Rows = dict[str, list[list[int]]]


def new_rows(config: Config, old: Tokenizers, new: Tokenizers) -> Rows:
    """The weights that have a row for each piece, by name, with the old pieces that each new row stands for.

    Found by building the model with one vocabulary and with the other: what has other shapes has such rows.
    """
    grown: Rows = {}
    sides = [("both", new.source.size, new.target.size, old.target, new.target)]
    if not new.joint:
        sides = [
            ("source", new.source.size, old.target.size, old.source, new.source),
            ("target", old.source.size, new.target.size, old.target, new.target),
        ]
    before = _shapes(config, old.source.size, old.target.size)
    for _, source, target, small, large in sides:
        after = _shapes(config, source, target)
        changed = [name for name, shape in after.items() if shape != before[name]]
        parts = origins(small, large) if changed else []
        grown |= dict.fromkeys(changed, parts)
    return grown


def _shapes(config: Config, source: int, target: int) -> dict[str, torch.Size]:
    with torch.device("meta"):
        model = build_model(config, source, target)
    return {name: parameter.shape for name, parameter in model.named_parameters()}


def extended(rows: Tensor, parts: Sequence[Sequence[int]]) -> Tensor:
    """The rows, (V, …), and behind them for each new piece the mean of its parts'."""
    if not parts:
        return rows
    return torch.cat([rows, torch.stack([rows[list(ids)].mean(0) for ids in parts])])


def load_grown(model: nn.Module, folder: Path, grown: Rows, initial: str) -> None:
    """Fill `model` with the weights of `folder`; rows that it has not are means, or stay as they were drawn."""
    weights = checkpoint.load_tensors(folder / WEIGHTS)
    drawn = {name: parameter.detach() for name, parameter in model.named_parameters() if name in grown}
    for name, parts in grown.items():
        if name not in weights:
            raise SaccadeError(f"{folder / WEIGHTS}: has no {name}; config.yaml and weights do not belong together")
        if initial == "mean":
            weights[name] = extended(weights[name], parts)
        else:
            weights[name] = torch.cat([weights[name], drawn[name][len(weights[name]) :].cpu()])
    checkpoint.fill(model, weights, folder / WEIGHTS)


def load_moments(
    optimizer: torch.optim.Optimizer,
    model: nn.Module,
    folder: Path,
    grown: Rows,
    wanted: bool | None,
    part_of: Callable[[Tensor, Tensor], Tensor] = lambda whole, parameter: whole,
) -> str | None:
    """Adam's moments from the last checkpoint of `folder`; returns what was done, in words.

    `wanted`: None takes them if they are there and the vocabulary has grown. `part_of`: what this process holds of a
    moment, of which each of several may hold a part.

    A new row has seen no gradient: its first moment is zero. Its second is the mean of its parts', so that its first
    steps are as long as theirs; zero would make them too long, for the step count says that it is known.
    """
    last = checkpoint.latest(folder / "resume")
    if last is None:
        if wanted:
            raise SaccadeError(
                f"training.keep_moments=true: {folder} has no checkpoint with Adam's moments (resume/ was removed); "
                "leave it out"
            )
        return None
    if not (bool(grown) if wanted is None else wanted):
        return None
    moments: dict[str, dict[str, Tensor]] = {}
    for key, tensor in checkpoint.load_moments(last).items():
        if key.startswith("adam/"):
            name, _, part = key.removeprefix("adam/").rpartition("/")
            moments.setdefault(name, {})[part] = _grown_moment(part, tensor, grown.get(name, []))
    _check_shapes(model, moments, last)
    for name, parameter in model.named_parameters():
        held = {part: part_of(tensor, parameter) for part, tensor in moments.get(name, {}).items()}
        optimizer.state[parameter] = {
            part: tensor.to(parameter.device) if tensor.dim() or parameter.is_cuda else tensor
            for part, tensor in held.items()
        }
    return f"Adam's moments: from {last}"


def _grown_moment(part: str, tensor: Tensor, parts: Sequence[Sequence[int]]) -> Tensor:
    if not parts or not tensor.dim():
        return tensor
    if part == "exp_avg":
        return torch.cat([tensor, tensor.new_zeros(len(parts), *tensor.shape[1:])])
    return extended(tensor, parts)


def _check_shapes(model: nn.Module, moments: Mapping[str, Mapping[str, Tensor]], path: Path) -> None:
    for name, parameter in model.named_parameters():
        for part, tensor in moments.get(name, {}).items():
            if tensor.dim() and tensor.shape != parameter.shape:
                raise SaccadeError(
                    f"{path}: Adam's {part} of {name} has shape {tuple(tensor.shape)}, the model wants "
                    f"{tuple(parameter.shape)}; set training.keep_moments=false"
                )


def say_grown(display: Display, grown: Rows, initial: str) -> None:
    """What happened to the weights, in words."""
    if grown and (count := max(len(parts) for parts in grown.values())):
        how = "the mean of the pieces they are made of" if initial == "mean" else "drawn at random"
        display.say(f"new rows: {count:,} in {', '.join(grown)}: {how}")
