"""Where pairs come from, which of them are kept, and how their text becomes pieces."""

from typing import Literal

from pydantic import Field

from saccade.config.section import Probability, Section


class CleaningConfig(Section):
    """Which pairs are dropped before training. Each drop is counted, named and shown with examples."""

    enabled: bool = Field(True, description="Clean the corpus. `--no-clean` turns it off and keeps every pair.")
    max_characters: int = Field(2000, gt=0, description="Drop a pair if either side has more characters than this.")
    max_ratio: float = Field(
        9.0,
        gt=1.0,
        allow_inf_nan=True,
        description="Drop a pair if one side has this many times the characters of the other.",
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
