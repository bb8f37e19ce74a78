"""What is trained: a section for each family of models."""

from typing import Annotated, Any, Literal

from pydantic import Field

from saccade.config.section import Probability, Section, Size


class TransformerConfig(Section):
    """The Transformer (Vaswani et al. 2017), as encoder–decoder or decoder-only."""

    family: Literal["transformer"] = "transformer"
    size: Size | None = Field(
        None, description="A named size, which the settings below override one by one. Chosen from corpus and machine."
    )
    wiring: Literal["encoder-decoder", "causal", "prefix"] = Field(
        "encoder-decoder",
        description="Two stacks, or one that reads the source and goes on with the target (decoder-only): `causal`, "
        "every position sees what came before; `prefix`, the source is also seen both ways.",
    )
    width: int | None = Field(None, gt=0, description="Width of the model, E (d_model).")
    feed_forward: int | None = Field(None, gt=0, description="Width of the feed-forward layers.")
    heads: int | None = Field(None, gt=0, description="Attention heads, H; must divide the width.")
    encoder_layers: int | None = Field(None, gt=0, description="Layers of the encoder; a decoder-only model has none.")
    decoder_layers: int | None = Field(
        None,
        gt=0,
        description="Layers of the decoder. Chosen for a decoder-only model: as many as both stacks of its size have.",
    )
    key_heads: int | None = Field(
        None,
        gt=0,
        description="Heads of keys and values, which several query heads share: 1 is multi-query, fewer than `heads` "
        "grouped-query attention. Chosen: as many as heads.",
    )
    norm: Literal["pre", "post", "deep"] = Field(
        "pre",
        description="Normalise before each sub-layer (steadier), after it (as first published), or as DeepNorm does.",
    )
    normalisation: Literal["layer", "rms"] = Field("layer", description="LayerNorm or RMSNorm.")
    residual: bool = Field(True, description="Add each sub-layer's input to its output; off shows what that buys.")
    activation: Literal["relu", "gelu", "silu", "reglu", "geglu", "swiglu"] = Field(
        "relu", description="Activation of the feed-forward layers; the last three are gated."
    )
    positions: Literal["sinusoidal", "learned", "shaw", "t5", "alibi", "rotary", "none"] = Field(
        "sinusoidal",
        description="How the model knows word order: absolute (sinusoidal, learned), relative (shaw, t5, alibi, "
        "rotary) or not at all.",
    )
    merge_positions: Literal["add", "concatenate"] = Field(
        "add", description="How absolute positions join the embeddings."
    )
    max_positions: int = Field(
        1024,
        gt=0,
        description="Longest sequence that learned positions can hold; decoder-only: source and target together.",
    )
    tied: Literal["all", "decoder", "none"] | None = Field(
        None,
        description="Which embeddings share weights: `all` (source, target and output; needs a joint vocabulary), "
        "`decoder` (target and output), `none`. Chosen: `all` with a joint vocabulary, else `decoder`.",
    )
    dropout: Probability | None = Field(
        None, description="Dropout on embeddings and sub-layer outputs. Chosen: stronger for a small corpus."
    )
    attention_dropout: Probability = Field(0.0, description="Dropout on attention weights.")
    activation_dropout: Probability = Field(0.0, description="Dropout inside the feed-forward layers.")
    heads_left: dict[str, list[int]] | None = Field(
        None,
        description="Heads that pruning left in each layer, of `encoder`, `decoder` (its self-attention) and `cross`; "
        "`saccade heads --prune` writes it. Chosen: all of them.",
    )


class RNNConfig(Section):
    """Recurrent encoder–decoders, from Kalchbrenner & Blunsom 2013 to Wu et al. 2016 (GNMT)."""

    family: Literal["rnn"]
    size: Size | None = Field(
        None, description="A named size, which the settings below override one by one. Chosen from corpus and machine."
    )
    wiring: Literal["rctm", "cho", "sutskever", "bahdanau", "luong", "lstmn", "gnmt"] = Field(
        "bahdanau",
        description="What the decoder gets of the source. `rctm`: one vector, made by convolutions, at every step; "
        "`cho`: one vector, at every step; `sutskever`: one vector, as its initial state; `bahdanau`: attention from "
        "the state before each step; `luong`: from that after it; `lstmn`: as `fusion` says, to units that attend to "
        "their own past; `gnmt`: as `bahdanau`, told to all of many layers.",
    )
    fusion: Literal["shallow", "deep"] = Field(
        "deep",
        description="With `lstmn`, where what attention finds goes. `shallow`: into the input of each step; `deep`: "
        "into its memory, through a gate (Cheng et al. 2016, 4).",
    )
    score: str = Field(
        "additive",
        description="How attention scores a source word: dot, scaled-dot, bilinear, low-rank, additive, concat, "
        "location, cosine or diagonal.",
    )
    window: str = Field("global", description="Over what part of the source it looks: global, local-m or local-p.")
    window_radius: int = Field(10, gt=0, description="D of a local window: words to either side of its centre.")
    input_feeding: bool = Field(
        True, description="With `luong`, tell each step the last attentional vector (Luong et al. 2015, 3.3)."
    )
    cell: Literal["gru", "lstm", "tanh"] | None = Field(
        None,
        description="The recurrent unit; `tanh` has no gates. Chosen: `lstm` with `gnmt` and `lstmn`, `tanh` with "
        "`rctm`, otherwise `gru`.",
    )
    embedding: int | None = Field(None, gt=0, description="Width of the word embeddings.")
    width: int | None = Field(None, gt=0, description="Width of the recurrent states (of each direction).")
    layers: int | None = Field(
        None,
        gt=0,
        description="Stacked recurrent layers, in the encoder and in the decoder. Chosen: 1; with `gnmt` 2 to 8, by "
        "size.",
    )
    bidirectional: bool | None = Field(
        None,
        description="Read the source in both directions. Chosen: with `bahdanau` and `gnmt` (its lowest layer) yes, "
        "otherwise no.",
    )
    largest_kernel: int = Field(
        20, ge=2, description="With `rctm`, columns that its largest convolution spans; 20 are made for 210 pieces."
    )
    reverse_source: bool = Field(False, description="Read the source backwards (Sutskever et al. 2014, 3.3).")
    tied: Literal["all", "decoder", "none"] | None = Field(
        None, description="Which embeddings share weights, as for the Transformer. Chosen in the same way."
    )
    dropout: Probability | None = Field(
        None, description="Dropout on embeddings, between layers and before the output. Chosen as for the Transformer."
    )


class ConvConfig(Section):
    """Convolutional models: ConvS2S (Gehring et al. 2017) and ByteNet (Kalchbrenner et al. 2016)."""

    family: Literal["conv"]
    size: Size | None = Field(
        None, description="A named size, which the settings below override one by one. Chosen from corpus and machine."
    )
    wiring: Literal["convs2s", "bytenet"] = Field(
        "convs2s",
        description="`convs2s`: gated convolutions with an attention in every decoder block; `bytenet`: dilated "
        "convolutions, the decoder stacked on the encoder, no attention.",
    )
    embedding: int | None = Field(None, gt=0, description="Width of the word embeddings; ByteNet's width throughout.")
    width: int | None = Field(None, gt=0, description="Width of ConvS2S's convolutions.")
    kernel: int = Field(3, gt=0, description="Positions a convolution sees; odd.")
    encoder_layers: int | None = Field(None, gt=0, description="Convolutions of the encoder.")
    decoder_layers: int | None = Field(None, gt=0, description="Convolutions of the decoder.")
    dilation_cycle: int = Field(
        5, gt=0, description="ByteNet's dilations double this many times (1, 2, 4, …) and begin again."
    )
    max_positions: int = Field(1024, gt=0, description="Longest sequence that ConvS2S's positions can hold.")
    tied: Literal["all", "decoder", "none"] | None = Field(
        None, description="Which embeddings share weights, as for the Transformer. Chosen in the same way."
    )
    dropout: Probability | None = Field(
        None,
        description="Dropout on embeddings, before convolutions and before the output. Chosen as for the Transformer.",
    )


class LMConfig(Section):
    """Recurrent language models, which translate by going on where the source ends (Daniluk et al. 2017)."""

    family: Literal["lm"]
    size: Size | None = Field(
        None, description="A named size, which the settings below override one by one. Chosen from corpus and machine."
    )
    wiring: Literal["attention", "key-value", "key-value-predict", "ngram"] = Field(
        "key-value-predict",
        description="How it looks back. `attention`: every output is key, value and prediction; `key-value`: one half "
        "scores, the other is mixed; `key-value-predict`: a third part predicts; `ngram`: no attention, parts of the "
        "last outputs side by side.",
    )
    window: int | None = Field(
        None,
        gt=0,
        description="L: words back that attention reaches, source and target counted on. Chosen: to the first.",
    )
    order: int = Field(4, ge=2, description="N of `ngram`: each prediction reads parts of the last N - 1 outputs.")
    cell: Literal["gru", "lstm"] = Field("lstm", description="The recurrent unit.")
    embedding: int | None = Field(None, gt=0, description="Width of the word embeddings.")
    width: int | None = Field(
        None, gt=0, description="Width of the recurrent outputs, all parts together; their number must divide it."
    )
    layers: int = Field(1, gt=0, description="Stacked recurrent layers, the same for source and target.")
    tied: Literal["all", "decoder", "none"] | None = Field(
        None, description="Which embeddings share weights, as for the Transformer. Chosen in the same way."
    )
    dropout: Probability | None = Field(
        None, description="Dropout on embeddings, between layers and before the output. Chosen as for the Transformer."
    )


class ClassifierConfig(Section):
    """A sentence classifier: structured self-attentive embeddings (Lin et al. 2017). The target of a pair is its label.

    It changes defaults of other sections: pairs of any length ratio and copies are kept, labels get a vocabulary of
    their own, there is no BLEU at validations, and the search looks for the likeliest label, long or short.
    """

    family: Literal["classifier"]
    size: Size | None = Field(
        None, description="A named size, which the settings below override one by one. Chosen from corpus and machine."
    )
    embedding: int | None = Field(None, gt=0, description="Width of the word embeddings.")
    width: int | None = Field(None, gt=0, description="Width u of the LSTM, in each of its two directions.")
    layers: int = Field(1, gt=0, description="Stacked layers of the LSTM.")
    hops: int | None = Field(
        None, gt=0, description="Hops r: how many times the sentence is looked at, each its own way."
    )
    attention_width: int | None = Field(None, gt=0, description="Width d_a of the hidden layer of the attention.")
    penalty: float = Field(
        1.0, ge=0, description="Weight of ‖A Aᵀ - I‖² in the loss, which drives the hops apart; 0 turns it off."
    )
    output_width: int | None = Field(None, gt=0, description="Width of the fully connected layer before the labels.")
    dropout: Probability | None = Field(
        None, description="Dropout on embeddings, between layers and before the output. Chosen as for the Transformer."
    )


Model = TransformerConfig | RNNConfig | ConvConfig | LMConfig | ClassifierConfig
ModelConfig = Annotated[Model, Field(discriminator="family")]
FAMILIES = ("transformer", "rnn", "conv", "lm", "classifier")

# Defaults that a family wants otherwise than the sections have them; what is given wins.
FAMILY_DEFAULTS: dict[str, dict[str, dict[str, Any]]] = {
    "classifier": {
        # A sentence of forty words may have a label of one, or be it.
        "data": {"cleaning": {"max_ratio": float("inf"), "drop_copies": False}},
        "tokenizer": {"joint": False},
        "training": {"validate_bleu_pairs": 0},
        # A label holds nothing of the sentence, and parts of a sentence have none.
        "search": {"length_penalty": 0.0, "split": "never", "protect": []},
    }
}
