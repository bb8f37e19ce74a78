"""Every setting there is, one documented class a section.

A configuration is YAML, changed by `section.key=value` arguments, checked as a whole before anything runs:

    config = Config.load("recipe.yaml", ["training.max_steps=60"])

`None` means *chosen for you*: `saccade.planning` fills it in from the corpus and the machine, says why, and the
folder keeps the resolved file. The sentence on each field is the help of the command line and the reference page.
"""

import copy
import difflib
import types
from collections.abc import Collection, Iterable, Mapping
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar, Union, get_args, get_origin

import yaml
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from saccade.errors import SaccadeError
from saccade.files import write_text

Size = Literal["tiny", "small", "medium", "base", "big"]
Placeholder = Literal["tags", "variables", "urls", "emails", "numbers"]
Probability = Annotated[float, Field(ge=0.0, lt=1.0)]


T = TypeVar("T")


def known(value: T | None) -> T:
    """A setting that was left open and has been chosen since."""
    assert value is not None, "the settings were not resolved"
    return value


class Section(BaseModel):
    """A group of settings: unknown names are refused, values are checked, nothing changes after it is made."""

    model_config = ConfigDict(extra="forbid", frozen=True)


class CleaningConfig(Section):
    """Which pairs are dropped before training. Each drop is counted, named and shown with examples."""

    enabled: bool = Field(True, description="Clean the corpus. `--no-clean` turns it off and keeps every pair.")
    max_characters: int = Field(2000, gt=0, description="Drop a pair if either side has more characters than this.")
    max_ratio: float = Field(
        9.0, gt=1.0, description="Drop a pair if one side has this many times the characters of the other."
    )
    drop_copies: bool = Field(True, description="Drop a pair whose source equals its target.")
    drop_duplicates: bool = Field(
        True, description="Drop a pair that came before. Remembers a hash of each pair: about 70 bytes of memory."
    )


class CorpusConfig(Section):
    """One corpus of a mixture, an item of the list `data.mixture`."""

    train: list[str] = Field(min_length=1, description="Its files, as in `data.train`.")
    valid: list[str] = Field(
        default_factory=list,
        description="Validation files of its own, in the same forms. Where no corpus has any: `data.valid`.",
    )
    weight: float | None = Field(
        None,
        gt=0,
        description="Its share of the pairs, beside those of the others; for all corpora or none. Chosen: by size and "
        "`data.temperature`.",
    )
    tag: str = Field(
        "",
        description="A word put before every source of it, such as `<2de>`; it is one piece of the vocabulary.",
    )
    source: str | None = Field(None, description="Its source language. Chosen: `data.source`.")
    target: str | None = Field(None, description="Its target language. Chosen: `data.target`.")


class DataConfig(Section):
    """Where the pairs come from."""

    train: list[str] = Field(
        default_factory=list,
        description="Training files: text files in pairs (source target source target …; one alone for a language "
        "model), or TSV, JSONL or Parquet files with both sides; `.gz` is read as it is, `-` is standard input (TSV), "
        "`hub:NAME` a public dataset; a pattern such as `'part-*.parquet'`, or a folder, is all files that it holds. "
        "Empty: the built-in corpus.",
    )
    valid: list[str] = Field(
        default_factory=list,
        description="Validation files, in the same forms. Empty: held out of the training pairs.",
    )
    source: str = Field("en", description="Source language: a label for files, a locale for the built-in corpus.")
    target: str = Field("de", description="Target language: a label for files, a locale for the built-in corpus.")
    monolingual: bool | None = Field(
        None,
        description="Text files hold targets alone, and every source is empty: for a language model. Chosen: yes for "
        "one text file with `model.family=lm`, otherwise no.",
    )
    source_field: str = Field("source", description="Name of the source column in JSONL and Parquet files.")
    target_field: str = Field("target", description="Name of the target column in JSONL and Parquet files.")
    builtin_pairs: int = Field(12_000, gt=0, description="How many pairs to make when the corpus is the built-in one.")
    valid_pairs: int | None = Field(
        None,
        gt=0,
        description="How many pairs to hold out when no validation files are given. Chosen: 5%, at most 2,000; 500 of "
        "the built-in corpus.",
    )
    seed: int = Field(1, description="Seed of the built-in corpus and of the held-out choice.")
    cleaning: CleaningConfig = Field(default_factory=CleaningConfig, description="Which pairs are dropped.")
    # Several corpora at once (data/mixture.py)
    mixture: list[CorpusConfig] = Field(
        default_factory=list,
        description="Corpora to train on together, each with `train` and, where wanted, `valid`, `weight`, `tag`, "
        "`source` and `target`; in place of `train`.",
    )
    temperature: float = Field(
        1.0,
        gt=0,
        description="T of a mixture without weights: a corpus of n pairs has a share ∝ n^(1/T). 1: by size; more: "
        "small corpora come more often.",
    )
    # A corpus that is never prepared as a whole (data/streams.py)
    stream: bool = Field(
        False,
        description="Read, clean and encode the files while training; only a sample is prepared beforehand.",
    )
    stream_window: int = Field(
        100_000,
        gt=0,
        description="Streams: pairs that are held, shuffled, rid of duplicates and sorted into batches together.",
    )
    stream_interleave: int = Field(
        8, gt=0, description="Streams: files of a corpus that are read in turns, so that a window holds some of each."
    )
    stream_sample: int = Field(
        200_000,
        gt=1,
        description="Streams: pairs drawn beforehand, for the vocabulary, the batches' shapes and the validation set.",
    )
    # The old corpus in fine-tuning (data/replay.py, training/forgetting.py)
    replay: list[str] = Field(
        default_factory=list,
        description="With `--from`: files of the old corpus to mix in, in the forms of `train`. Empty: the pairs that "
        "folder was trained on, while its `resume/` is there.",
    )
    replay_share: Probability | None = Field(
        None,
        description="With `--from`: the share of training pairs that are old ones. Chosen: 0.2 with `replay` files, "
        "otherwise 0.",
    )
    old_valid: list[str] = Field(
        default_factory=list,
        description="With `--from`: files by which to measure what was forgotten. Empty: that folder's validation set.",
    )
    old_valid_pairs: int = Field(
        1000, ge=0, description="With `--from`: pairs of them to score before and after; 0 measures nothing."
    )


class TokenizerConfig(Section):
    """How text becomes pieces. Nothing is ever un-encodable: what is not in the vocabulary is spelled in bytes."""

    kind: Literal["bpe", "unigram", "words", "characters", "bytes"] = Field("bpe", description="The kind of pieces.")
    vocabulary: int | None = Field(
        None, ge=300, description="Pieces in the vocabulary (a joint one counts once). Chosen from the number of pairs."
    )
    joint: bool | None = Field(
        None,
        description="One vocabulary for both sides. Chosen: joint where the two sides share most of their letters.",
    )
    sample: int = Field(1_000_000, gt=0, description="Learn the vocabulary from at most this many pairs.")
    # What joins a vocabulary (data/extending.py)
    terms: list[str] = Field(
        default_factory=list,
        description="Words that are one piece each and never split, such as the tag `<BT>`; with `--from` they join "
        "the vocabulary.",
    )
    new_pieces: int = Field(
        0,
        ge=0,
        description="With `--from`: learn so many new pieces from the corpus, behind the old ones, which stay; 0: keep "
        "the vocabulary.",
    )


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


class TrainingConfig(Section):
    """How the weights are learned."""

    batch_tokens: int | None = Field(
        None, gt=0, description="Most tokens of either side in a batch, padding counted. Chosen from the corpus."
    )
    accumulate: int = Field(1, gt=0, description="Batches whose gradients are added up before a step.")
    max_steps: int | None = Field(None, gt=0, description="Stop after this many steps. Chosen from the corpus.")
    max_minutes: float | None = Field(
        None, gt=0, description="Stop after this many minutes of training and validation. Chosen: no limit."
    )
    learning_rate: float | None = Field(None, gt=0, description="Highest learning rate. Chosen from the model's width.")
    schedule: Literal["inverse-sqrt", "cosine", "linear", "constant"] = Field(
        "inverse-sqrt", description="How the learning rate falls after the warm-up."
    )
    warmup_steps: int | None = Field(None, ge=0, description="Steps over which it rises. Chosen: 8% of max_steps.")
    adam_beta1: Probability = Field(0.9, description="AdamW's decay of the mean gradient.")
    adam_beta2: Probability = Field(0.98, description="AdamW's decay of the mean squared gradient.")
    adam_epsilon: float = Field(1e-9, gt=0, description="AdamW's guard against division by zero.")
    weight_decay: float = Field(0.0, ge=0, description="AdamW's weight decay, on matrices only.")
    label_smoothing: Probability = Field(0.1, description="Probability mass spread over the whole vocabulary.")
    clip_norm: float = Field(1.0, ge=0, description="Largest norm of the gradient; 0 turns clipping off.")
    subword_dropout: Probability = Field(
        0.0,
        description="BPE dropout (Provilkov et al. 2020): chance of skipping a merge when training text is encoded.",
    )
    precision: Literal["fp32", "bf16"] | None = Field(
        None, description="Arithmetic of forward and backward; weights stay fp32. Chosen: bf16 on a GPU that has it."
    )
    unpadded: bool | None = Field(
        None,
        description="Sentences lie one behind the other in batches of one shape, without padding, and a step is "
        "compiled and captured once (CUDA graphs). Chosen: on one NVIDIA GPU, for Transformers.",
    )
    recompute: bool = Field(
        False,
        description="Layers forget what they computed and compute it again for their gradient (activation "
        "checkpointing): much less memory for about a third more time.",
    )
    device: str | None = Field(None, description="`cpu`, `cuda`, `cuda:1`, `mps`. Chosen: a GPU if there is one.")
    threads: int | None = Field(None, gt=0, description="CPU threads. Chosen: as many as there are cores.")
    seed: int = Field(1, description="Seed of weights, order and dropout.")
    stream_workers: int = Field(
        1,
        ge=0,
        description="With `data.stream`: threads of each process that clean and encode ahead; 0: the one that reads "
        "does it. They change nothing but the speed.",
    )
    validate_every: int | None = Field(None, gt=0, description="Steps between validations. Chosen: 20 to 40 a run.")
    validate_by: Literal["loss", "bleu"] = Field("loss", description="What decides which checkpoint is best.")
    validate_bleu_pairs: int = Field(
        200, ge=0, description="Validation pairs to translate for BLEU at each validation; 0 turns it off."
    )
    patience: int = Field(8, ge=0, description="Stop after this many validations without a new best; 0 never stops.")
    average: int = Field(
        5, ge=1, description="At the end, average the last so many checkpoints, if that is better on validation."
    )
    keep: int = Field(5, ge=1, description="Checkpoints to keep for resuming and averaging.")
    checkpoint_every: int | None = Field(
        None, gt=0, description="Steps between checkpoints for resuming. Chosen: at every validation."
    )
    log_every: int = Field(20, gt=0, description="Steps between lines in log.jsonl.")
    tensorboard: bool | None = Field(
        None, description="Write TensorBoard scalars. Chosen: if tensorboard is installed."
    )
    # What is minimised beside cross-entropy (training/objectives.py), and how the weights become the model
    r_drop: float | None = Field(
        None,
        ge=0,
        description="α of R-Drop (Liang et al. 2021, eq. 4): each batch is read twice, and the two predictions are "
        "drawn together; 0 turns it off. Chosen: 5 on a GPU for up to 400,000 pairs, if there is no SimCut.",
    )
    simcut: float = Field(
        0.0,
        ge=0,
        description="α of SimCut (Gao et al. 2022, 3.1): predictions with and without words cut off are drawn "
        "together; the paper's is 3, 0 turns it off.",
    )
    simcut_one_sided: bool = Field(
        False, description="SimCut draws the prediction with words cut off to the other one, and not that one to it."
    )
    cutoff: Probability = Field(
        0.05, description="p_cut: chance of a word to be cut off where SimCut or token cutoff reads without it."
    )
    cutoff_weight: float = Field(
        0.0,
        ge=0,
        description="Token cutoff (Shen et al. 2020): weight of the cross-entropy of a further reading with words cut "
        "off; 0 turns it off.",
    )
    word_dropout: Probability = Field(
        0.0, description="Chance of a word to be left out of a sentence, on both sides (Gal & Ghahramani 2016)."
    )
    bidirectional_steps: int = Field(
        0,
        ge=0,
        description="So many of `max_steps` come first and train both directions, with one vocabulary (Gao et al. "
        "2022, 4); the learning rate then starts anew.",
    )
    ema: Probability = Field(
        0.0,
        description="Decay of a moving average of the weights, which is then what is validated and kept as the best; "
        "0.999 remembers about a thousand steps, 0 turns it off.",
    )

    # Many processes (docs/distributed.md)
    sharding: Literal["auto", "none", "fsdp"] = Field(
        "auto",
        description="On many processes: `none`, each holds all weights (DDP); `fsdp`, each a part (FSDP2); `auto`: "
        "parts if the whole does not fit.",
    )
    hang_timeout: float = Field(
        600.0,
        gt=0,
        description="On many processes: seconds without a sign or progress until a rank is named.",
    )

    # Fine-tuning with a vocabulary that grows (training/extension.py)
    new_rows: Literal["mean", "random"] = Field(
        "mean",
        description="Weights that a new piece begins with: the mean of the old pieces that it is made of, or random.",
    )
    keep_moments: bool | None = Field(
        None,
        description="With `--from`: go on with Adam's moments of that folder's last checkpoint. Chosen: if it has one "
        "and the vocabulary grows.",
    )


class SearchConfig(Section):
    """How the folder translates, unless the call says otherwise."""

    beam: int = Field(5, gt=0, description="Hypotheses kept alive; 1 is greedy search.")
    n_best: int = Field(1, gt=0, description="Translations to return for each sentence; at most the beam.")
    length_penalty: float = Field(
        1.0, ge=0, description="α of Wu et al. 2016, eq. 14: 0 favours short output, 1 is near the mean per token."
    )
    coverage_penalty: float = Field(
        0.0, ge=0, description="β of Wu et al. 2016, eq. 14: punishes source words that were never looked at."
    )
    early_stopping: Literal["safe", "beam"] = Field(
        "safe",
        description="`safe`: go on until no hypothesis can overtake, which is proved; `beam`: stop when as many as the "
        "beam have ended, which is quicker and now and then loses the best.",
    )
    max_length_factor: float = Field(2.0, gt=0, description="Longest output: this many times the source's pieces …")
    max_length_extra: int = Field(20, ge=0, description="… plus this many.")
    max_source: int = Field(
        2048, gt=0, description="Refuse a sentence of more pieces than this, rather than take minutes and gigabytes."
    )
    batch_tokens: int = Field(4096, gt=0, description="Most source tokens translated at once, padding counted.")
    # Text around the model.
    split: Literal["auto", "always", "never"] = Field(
        "auto",
        description="Split a line into sentences, translate them and join them as they were. `auto`: only a line that "
        "is longer than the model can hold or than any it was trained on; `never`: such a line is refused.",
    )
    protect: list[Placeholder] = Field(
        ["tags", "variables", "urls", "emails", "numbers"],
        description="Kinds of placeholders that are in the translation as often as in the source, whatever the model "
        "does; empty: none.",
    )
    terms: list[str] = Field(
        default_factory=list, description="Words that stay as they are, as often as they are in the source."
    )

    # Other searches than beam search, and other choices than the likeliest.
    method: Literal["beam", "diverse", "sample", "contrastive"] = Field(
        "beam",
        description="`beam`; `diverse`: a beam in groups that keep apart (Vijayakumar et al. 2018); `sample`: draw "
        "`n_best` translations at random; `contrastive`: one that does not say the same again (Su et al. 2022).",
    )
    groups: int | None = Field(
        None, gt=0, description="Groups of a diverse beam; must divide the beam. Chosen: one for each hypothesis."
    )
    diversity: float = Field(
        0.5, ge=0, description="λ of Vijayakumar et al. 2018: how much a group avoids what others have just chosen."
    )
    temperature: float = Field(
        1.0, gt=0, description="Sampling: log-probabilities are divided by it; less than 1 is more careful."
    )
    top_k: int = Field(
        0,
        ge=0,
        description="Sampling: draw from so many of the likeliest tokens; 0: from all. Contrastive search: choose "
        "among so many, 64 at most; 0: among 5.",
    )
    top_p: float = Field(
        1.0, gt=0, le=1, description="Sampling: draw from the likeliest tokens that make up this probability."
    )
    min_p: float = Field(
        0.0, ge=0, le=1, description="Sampling: draw from tokens at least this many times as likely as the likeliest."
    )
    typical: float = Field(
        1.0,
        gt=0,
        le=1,
        description="Sampling: draw from the tokens, as surprising as is expected, that make up this probability "
        "(Meister et al. 2022).",
    )
    seed: int = Field(
        1, ge=0, lt=2**63, description="Sampling: another seed, other draws; a sentence draws the same in any batch."
    )
    degeneration_penalty: float = Field(
        0.6,
        ge=0,
        le=1,
        description="α of Su et al. 2022: how much contrastive search avoids a token whose state is like that of one "
        "written before; 0 is greedy search.",
    )
    mbr: int = Field(
        0,
        ge=0,
        description="Minimum Bayes risk: find so many candidates and choose what is most like all of them, by chrF; 0: "
        "choose the best.",
    )

    # What a translation is told (generation/orders.py)
    min_length: int = Field(0, ge=0, description="Fewest pieces of a translation, as far as its longest allows.")
    max_length: int = Field(
        0, ge=0, description="Most pieces of a translation, whatever the source has; 0: no other limit than the above."
    )
    no_repeat_ngram: int = Field(0, ge=0, description="No n-gram of so many pieces is written twice; 0: it may be.")
    repetition_penalty: float = Field(
        1.0, ge=1, description="θ of Keskar et al. 2019: above 1, pieces that are written already are chosen less."
    )
    banned: list[str] = Field(
        default_factory=list, description="Words and phrases that are never written, each stopped at its last piece."
    )
    must: list[str] = Field(
        default_factory=list, description="Words and phrases that every translation holds; one named twice, two times."
    )
    shortlist: str = Field(
        "", description="A file of words: only their pieces are written, and the end; empty: any piece is."
    )
    guard: bool = Field(
        True, description="Decode again, under stricter rules, what repeats itself or runs on, and say so."
    )
    length_ratio: float | None = Field(
        None, gt=0, description="Target pieces to a source piece, for the guard. Chosen: that of the training pairs."
    )
    precision: Literal["float32", "bf16"] = Field(
        "float32", description="Arithmetic on a GPU; `bf16` is quicker, and rounds. A CPU always takes float32."
    )


class Config(Section):
    """All settings of a run."""

    data: DataConfig = Field(default_factory=DataConfig, description="Where the pairs come from.")
    tokenizer: TokenizerConfig = Field(default_factory=TokenizerConfig, description="How text becomes pieces.")
    model: ModelConfig = Field(default_factory=TransformerConfig, description="What is trained.")
    training: TrainingConfig = Field(default_factory=TrainingConfig, description="How it is trained.")
    search: SearchConfig = Field(default_factory=SearchConfig, description="How it translates.")

    @classmethod
    def load(cls, path: str | Path | None = None, overrides: Iterable[str] = ()) -> "Config":
        """Read a YAML file (none: the defaults) and apply `section.key=value` overrides."""
        return cls.of(read_settings(path, overrides), where=str(path) if path is not None else "settings")

    @classmethod
    def of(cls, settings: Mapping[str, Any], where: str = "settings") -> "Config":
        """Check nested settings; what is wrong is said in one sentence each, with the nearest known name."""
        settings = {name: dict(value) if isinstance(value, Mapping) else value for name, value in settings.items()}
        model = settings.get("model")
        if isinstance(model, dict):
            model.setdefault("family", "transformer")
            settings = _in_family(settings, str(model["family"]))
        try:
            return cls.model_validate(settings)
        except ValidationError as error:
            raise SaccadeError("\n".join(_explain(problem, where) for problem in error.errors())) from None

    def with_changes(self, changes: Mapping[str, Mapping[str, Any]]) -> "Config":
        """A copy with `changes[section][key]` in place, checked again."""
        settings = self.model_dump()
        for section, values in changes.items():
            settings[section].update(values)
        return Config.of(settings)

    def in_family_of(self, base: "Config") -> "Config":
        """The same settings, where what was not given has the defaults of `base`'s family."""
        return Config.of(_in_family(self.model_dump(exclude_unset=True), base.model.family))

    def to_yaml(self) -> str:
        return yaml.safe_dump(self.model_dump(mode="json"), sort_keys=False, allow_unicode=True)

    def save(self, path: str | Path) -> None:
        write_text(path, self.to_yaml())


def read_settings(path: str | Path | None = None, overrides: Iterable[str] = ()) -> dict[str, Any]:
    """The settings of a file with overrides applied, as they were written: nothing checked, nothing filled in."""
    settings = {} if path is None else _read_extended(Path(path))
    for override in overrides:
        _apply_override(settings, override)
    return settings


def merge_settings(settings: dict[str, Any], more: Mapping[str, Any]) -> None:
    """Lay `more` over `settings`, section into section."""
    for name, value in more.items():
        if isinstance(value, Mapping) and isinstance(settings.get(name), dict):
            merge_settings(settings[name], value)
        else:
            settings[name] = dict(value) if isinstance(value, Mapping) else value


def _in_family(settings: Mapping[str, Any], family: str) -> dict[str, Any]:
    """The settings laid over the defaults of a family."""
    merged: dict[str, Any] = copy.deepcopy(FAMILY_DEFAULTS.get(family, {}))
    merge_settings(merged, settings)
    return merged


def is_override(argument: str) -> bool:
    """True for `section.key=value`, as opposed to a file name."""
    name, equals, _ = argument.partition("=")
    return bool(equals) and name.split(".")[0] in Config.model_fields and not Path(argument).exists()


def _read_extended(path: Path, seen: tuple[Path, ...] = ()) -> dict[str, Any]:
    """A file's settings, laid over those of the file that it `extends` (a path relative to its own)."""
    if path.resolve() in seen:
        raise SaccadeError(f"{path}: extends itself, by way of {' → '.join(map(str, seen))}; break the circle")
    settings = _read_yaml(path)
    base = settings.pop("extends", None)
    if base is None:
        return settings
    if not isinstance(base, str):
        raise SaccadeError(f"{path}: extends={base!r} is not the path of a YAML file")
    extended = _read_extended(path.parent / base, (*seen, path.resolve()))
    merge_settings(extended, settings)
    return extended


def _read_yaml(path: Path) -> dict[str, Any]:
    try:
        text = path.read_text(encoding="utf-8")
    except OSError as error:
        raise SaccadeError(f"{path}: cannot read the configuration: {error.strerror}") from None
    except UnicodeDecodeError:
        raise SaccadeError(f"{path}: the configuration is not UTF-8 text; save it as UTF-8") from None
    try:
        settings = yaml.safe_load(text)
    except yaml.YAMLError as error:
        raise SaccadeError(f"{path}: not valid YAML: {error}") from None
    if settings is None:
        return {}
    if not isinstance(settings, dict):
        raise SaccadeError(
            f"{path}: expected sections such as `model:` and `training:`, found {type(settings).__name__}"
        )
    return settings


def _apply_override(settings: dict[str, Any], override: str) -> None:
    name, equals, value = override.partition("=")
    keys = name.split(".")
    if not equals or len(keys) < 2:
        raise SaccadeError(f"{override!r} is not a setting; write section.key=value, e.g. training.max_steps=60")
    try:
        parsed = yaml.safe_load(value)
    except yaml.YAMLError:
        parsed = value
    if isinstance(parsed, bool) and value.strip().lower() not in ("true", "false"):
        parsed = value.strip()  # `data.target=no` is Norwegian; where a truth is meant, "no" is read as one later
    if isinstance(parsed, str):
        try:  # YAML reads 1e-3 as text; nobody who writes it means text
            parsed = float(parsed)
        except ValueError:
            parsed = value.strip()
    section = settings
    for key in keys[:-1]:
        section = section.setdefault(key, {})
        if not isinstance(section, dict):
            raise SaccadeError(f"{override!r}: {key} is a value, not a section")
    section[keys[-1]] = parsed


def _explain(problem: Any, where: str) -> str:
    location = [str(part) for part in problem["loc"] if part not in FAMILIES]
    name = ".".join(location)
    if problem["type"] == "extra_forbidden":
        families = {part for part in problem["loc"] if part in FAMILIES}
        known = fields_of([*location[:-1]], families)
        near = difflib.get_close_matches(location[-1], known, n=1, cutoff=0.5)
        remedy = f"did you mean {'.'.join([*location[:-1], near[0]])}?" if near else f"known here: {', '.join(known)}"
        return f"{where}: unknown setting {name}; {remedy}"
    if problem["type"] == "union_tag_invalid":
        return f"{where}: model.family={problem['input'].get('family')!r} is not known; use {', '.join(FAMILIES)}"
    return f"{where}: {name}={problem['input']!r}: {problem['msg'][0].lower()}{problem['msg'][1:]}"


def fields_of(path: list[str], families: Collection[Any] = ()) -> list[str]:
    """Names of the settings in the section at `path`."""
    section: Any = Config
    for key in path:
        if key.isdigit():  # a place in a list
            continue
        field = getattr(section, "model_fields", {}).get(key)
        if field is None:
            return []
        section = field.annotation
        if get_origin(section) is list:
            section = get_args(section)[0]
        if get_origin(section) in (Union, types.UnionType):
            section = next(
                (kind for kind in get_args(section) if kind.model_fields["family"].annotation in _tags(families)),
                TransformerConfig,
            )
    return list(getattr(section, "model_fields", ()))


def _tags(families: Collection[Any]) -> list[Any]:
    return [Literal[family] for family in families]
