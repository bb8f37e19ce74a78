"""What other programs cannot hold: asked of the settings, so that it is known before training and not after it."""

from collections.abc import Callable

from saccade.config import Model, TransformerConfig
from saccade.errors import SaccadeError

# What each format is called in a sentence.
TARGETS = {"ctranslate2": "CTranslate2", "huggingface": "Hugging Face transformers", "onnx": "ONNX"}


def obstacles(model: Model, to: str) -> list[str]:
    """The resolved settings, as `model.key=value`, that keep a model from being exported to `to`; none: it can be."""
    if not isinstance(model, TransformerConfig):
        return [f"model.family={model.family}"]
    if model.wiring != "encoder-decoder":
        return [f"model.wiring={model.wiring}"]
    if model.heads_left is not None:  # other programs have one number of heads for all layers
        return [f"model.heads_left={model.heads_left}"]
    return [f"model.{name}={_written(getattr(model, name))}" for name in _OBSTACLES[to](model)]


def refuse(model: Model, to: str) -> None:
    """Refuse, by name, a model that `to` cannot hold."""
    if found := obstacles(model, to):
        raise SaccadeError(
            f"cannot be exported to {TARGETS[to]}: {', '.join(found)}; translate with saccade itself, "
            f"or train with other settings"
        )


def warning(model: Model) -> str | None:
    """What to say when training starts, of the one format that the command line translates with."""
    found = obstacles(model, "ctranslate2")
    return f"cannot be exported to CTranslate2: {', '.join(found)}" if found else None


def _ctranslate2(model: TransformerConfig) -> list[str]:
    return [] if model.residual else ["residual"]


def _huggingface(model: TransformerConfig) -> list[str]:
    """MarianMT is post-norm with sinusoids, Pegasus pre-norm with sinusoids, Blenderbot pre-norm with a table."""
    found = [] if model.residual else ["residual"]
    if model.normalisation != "layer":
        found.append("normalisation")
    if model.activation not in ("relu", "gelu", "silu"):
        found.append("activation")
    if model.merge_positions != "add":
        found.append("merge_positions")
    if model.positions not in ("sinusoidal", "learned"):
        found.append("positions")
    elif model.positions == "learned" and model.norm != "pre":
        found += ["positions", "norm"]
    return found


def _onnx(model: TransformerConfig) -> list[str]:
    return []


_OBSTACLES: dict[str, Callable[[TransformerConfig], list[str]]] = {
    "ctranslate2": _ctranslate2,
    "huggingface": _huggingface,
    "onnx": _onnx,
}


def _written(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)
