"""What named sizes imply, and what follows from the settings of a model alone."""

from saccade.config import (
    ClassifierConfig,
    ConvConfig,
    LMConfig,
    Model,
    RNNConfig,
    Size,
    TransformerConfig,
    known,
)
from saccade.errors import SaccadeError

# width, feed-forward, heads, layers of each stack; `base` and `big` are the paper's (Vaswani et al. 2017, table 3)
TRANSFORMER_SIZES: dict[Size, tuple[int, int, int, int]] = {
    "tiny": (128, 512, 4, 2),
    "small": (256, 1024, 4, 3),
    "medium": (384, 1536, 6, 5),
    "base": (512, 2048, 8, 6),
    "big": (1024, 4096, 16, 6),
}
# embedding, state; `big` is the paper's (Bahdanau et al. 2015, B.1)
RNN_SIZES: dict[Size, tuple[int, int]] = {
    "tiny": (96, 128),
    "small": (192, 256),
    "medium": (256, 384),
    "base": (320, 512),
    "big": (620, 1000),
}
# layers of GNMT's stacks; `big` has the paper's (Wu et al. 2016, 3.1)
GNMT_LAYERS: dict[Size, int] = {"tiny": 2, "small": 3, "medium": 4, "base": 6, "big": 8}
CELLS = {"gnmt": "lstm", "lstmn": "lstm", "rctm": "tanh"}  # of the wirings that have but one; the others get a GRU
ATTENDING = ("bahdanau", "luong", "lstmn", "gnmt")

# embedding, width, layers of each stack; `big` is the paper's (Gehring et al. 2017, 4.3, at its first width)
CONV_SIZES: dict[Size, tuple[int, int, int]] = {
    "tiny": (96, 128, 3),
    "small": (192, 256, 4),
    "medium": (256, 384, 6),
    "base": (384, 512, 9),
    "big": (768, 512, 15),
}
# embedding, u, d_a, hops, width before the labels; u, d_a and hops of `big` are the paper's (Lin et al. 2017, 4.1)
CLASSIFIER_SIZES: dict[Size, tuple[int, int, int, int, int]] = {
    "tiny": (64, 64, 64, 4, 128),
    "small": (96, 128, 128, 8, 256),
    "medium": (128, 192, 192, 16, 512),
    "base": (192, 256, 256, 24, 1024),
    "big": (300, 300, 350, 30, 2000),
}

# parts into which each output of a language model is cut; `ngram`: N - 1
LM_PARTS = {"attention": 1, "key-value": 2, "key-value-predict": 3}


def without_use(model: Model) -> str | None:
    """A setting that says nothing beside the others, and why; None if there is none."""
    if isinstance(model, RNNConfig) and model.wiring not in ATTENDING:
        for name in ("score", "window"):
            if (given := getattr(model, name)) != RNNConfig.model_fields[name].default:
                return f"model.{name}={given}: model.wiring={model.wiring} has no attention"
    if isinstance(model, LMConfig) and model.wiring == "ngram" and model.window is not None:
        return f"model.window={model.window}: model.wiring=ngram looks back as far as model.order says"
    if not isinstance(model, TransformerConfig) or model.positions in ("sinusoidal", "learned"):
        return None
    if model.merge_positions == "concatenate":
        return f"model.merge_positions=concatenate: model.positions={model.positions} has no vectors of its own"
    return None


def with_shape(model: Model, joint: bool) -> Model:
    """The same settings with every measure that the named size or the vocabulary implies written out."""
    size = model.size or "small"
    if isinstance(model, ClassifierConfig):
        names = ("embedding", "width", "attention_width", "hops", "output_width")
        implied = dict(zip(names, CLASSIFIER_SIZES[size], strict=True)) | {"size": size, "dropout": 0.1}
        return model.model_copy(update={k: v for k, v in implied.items() if getattr(model, k) is None})
    tied = model.tied or ("all" if joint else "decoder")
    if tied == "all" and not joint:
        raise SaccadeError(
            "model.tied=all needs one vocabulary for both sides; set tokenizer.joint=true or model.tied=decoder"
        )
    chosen: dict[str, object] = {"size": size, "tied": tied, "dropout": 0.1 if model.dropout is None else model.dropout}
    if isinstance(model, TransformerConfig):
        width, feed_forward, heads, layers = TRANSFORMER_SIZES[size]
        measures = {"width": width, "feed_forward": feed_forward, "heads": heads, "key_heads": model.heads or heads}
        if in_one_sequence(model):
            measures["decoder_layers"] = 2 * layers
        else:
            measures |= {"encoder_layers": layers, "decoder_layers": layers}
    elif isinstance(model, ConvConfig):
        embedding, width, layers = CONV_SIZES[size]
        measures = {"embedding": embedding, "width": width, "encoder_layers": layers, "decoder_layers": layers}
    elif isinstance(model, LMConfig):
        embedding, width = RNN_SIZES[size]
        step = 8 * lm_parts(model)  # parts of equal width, which matrix units like
        measures = {"embedding": embedding, "width": -(-width // step) * step}
    else:
        embedding, width = RNN_SIZES[size]
        measures = {"embedding": embedding, "width": width}
        measures["layers"] = GNMT_LAYERS[size] if model.wiring == "gnmt" else 1
        chosen["cell"] = model.cell or CELLS.get(model.wiring, "gru")
        both_ways = model.wiring in ("bahdanau", "gnmt")
        chosen["bidirectional"] = both_ways if model.bidirectional is None else model.bidirectional
    for name, value in measures.items():
        given = getattr(model, name)
        chosen[name] = value if given is None else given
    return model.model_copy(update=chosen)


def measures(model: Model) -> str:
    """A resolved model's size in words."""
    if isinstance(model, TransformerConfig):
        if in_one_sequence(model):
            return (
                f"decoder-only, {model.wiring}, {model.width} wide, {model.decoder_layers} layers, {model.heads} heads"
            )
        return f"{model.width} wide, {model.encoder_layers}+{model.decoder_layers} layers, {model.heads} heads"
    if isinstance(model, ConvConfig):
        return f"{model.wiring}, {model.width} wide, {model.encoder_layers}+{model.decoder_layers} layers"
    if isinstance(model, LMConfig):
        looks = f"order {model.order}" if model.wiring == "ngram" else f"window {model.window or 'unbounded'}"
        return f"{model.wiring}, {model.cell} {model.width} wide, embeddings {model.embedding}, {looks}"
    if isinstance(model, ClassifierConfig):
        return f"lstm {model.width} wide both ways, {model.hops} hops, embeddings {model.embedding}"
    looks = f", {model.score} attention" if model.wiring in ATTENDING else ", no attention"
    unit = f"{model.fusion} fusion," if model.wiring == "lstmn" else model.cell
    return f"{model.wiring}, {unit} {model.width} wide, embeddings {model.embedding}{looks}"


def default_learning_rate(model: Model, batch_tokens: int = 8192) -> float:
    """A peak rate that trains well.

    Transformer: 7e-4 at the paper's width of 512; narrower ones bear more (4e-3 at 128: docs/lab-log.md), and with
    batches of fewer tokens than 8,192 less, by the square root.
    """
    if isinstance(model, TransformerConfig):
        rate = min(4e-3, 7e-4 * (512 / known(model.width)) ** 1.25)
        return float(f"{rate * min(1.0, batch_tokens / 8192) ** 0.5:.2g}")
    return 1e-3


def in_one_sequence(model: Model) -> bool:
    """Whether the target stands behind the source, so that positions are shared by both."""
    return isinstance(model, TransformerConfig) and model.wiring != "encoder-decoder"


def longest_sequence(model: Model) -> int | None:
    """How many pieces, ends counted, the model's positions can hold; None: any number.

    Of either side or, where they stand in one sequence, of both together.
    """
    if isinstance(model, TransformerConfig):
        return model.max_positions if model.positions == "learned" else None
    if isinstance(model, ConvConfig):
        return model.max_positions if model.wiring == "convs2s" else None
    return None


def goes_without_source(model: Model) -> bool:
    """Whether one text file is a corpus for it: a language model needs no sources."""
    return isinstance(model, LMConfig)


def attends(model: Model) -> bool:
    """Whether it looks at the source while it writes."""
    if isinstance(model, RNNConfig):
        return model.wiring in ATTENDING
    return not isinstance(model, ConvConfig | LMConfig) or model.wiring not in ("bytenet", "ngram")


def lm_parts(model: LMConfig) -> int:
    """Into how many parts each output of a language model is cut."""
    return model.order - 1 if model.wiring == "ngram" else LM_PARTS[model.wiring]
