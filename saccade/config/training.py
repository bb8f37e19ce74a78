"""How a model is trained."""

from typing import Literal

from pydantic import Field

from saccade.config.section import Probability, Section


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
    seed: int = Field(1, ge=-(2**63), lt=2**63, description="Seed of weights, order and dropout.")
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
