"""How a folder translates."""

from typing import Literal

from pydantic import Field

from saccade.config.section import Placeholder, Section


class SearchConfig(Section):
    """How the folder translates, unless the call says otherwise."""

    beam: int = Field(5, gt=0, description="Hypotheses kept alive; 1 is greedy search.")
    n_best: int = Field(1, gt=0, description="Translations to return for each sentence; at most the beam.")
    length_penalty: float = Field(
        1.0,
        ge=0,
        le=10,
        description="α of Wu et al. 2016, eq. 14: 0 favours short output, 1 is near the mean per token.",
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
