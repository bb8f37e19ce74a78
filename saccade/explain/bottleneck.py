"""One vector for a whole sentence against attention   (Cho et al. 2014; Bahdanau et al. 2015, 1 and 5.2.2)."""

from typing import NamedTuple

import torch
from torch import Tensor

from saccade.config import Config
from saccade.data.batching import Batch, collate
from saccade.data.tokenizers import SPECIALS
from saccade.explain.fitting import fit
from saccade.explain.records import Explanation, Table, Trial
from saccade.generation.loop import generate
from saccade.generation.search import Greedy
from saccade.looking.plots import Curves, Plot, Series
from saccade.models.build import build_model, count_parameters, with_shape
from saccade.models.protocol import EncoderDecoder
from saccade.training.objectives import CrossEntropy

LETTERS, EMBEDDING, WIDTH, ROWS, PEAK = 16, 32, 64, 32, 1e-2
SHORTEST, LONGEST = 2, 20
LENGTHS, UNSEEN = range(SHORTEST, LONGEST + 1, 2), 64
VOCABULARY = LETTERS + len(SPECIALS)


class Learned(NamedTuple):
    """What a model has learned: the share of letters it copies to their place, by length."""

    width: int
    parameters: int
    loss: float  # over the last tenth of the steps, nats a letter
    accuracy: list[float]


def explain(trial: Trial) -> Explanation:
    """Copying at every length, by a decoder with one vector and by one with attention."""
    # Bahdanau's score with its matrices drawn as one ordinary matrix: it starts to look earlier in so short a training.
    attention = learn("attention", ["model.wiring=bahdanau", "model.score=concat", f"model.width={WIDTH}"], trial)
    width = matching_width(attention.parameters)
    vector = learn("one vector", ["model.wiring=cho", f"model.width={width}"], trial)
    short, long = LENGTHS[0], LENGTHS[-1]
    paragraphs = (
        f"The task: copy a sequence of {SHORTEST} to {LONGEST} random letters ({LETTERS} of them). One decoder is told "
        f"of the source by a single vector of {width} numbers, whatever the length (wiring `cho`); the other looks at "
        "all states of its encoder at each step (wiring `bahdanau`).",
        f"Both had {trial.steps} steps on the same {trial.steps * ROWS:,} sequences, with {vector.parameters:,} and "
        f"{attention.parameters:,} parameters. Share of letters in their place, on unseen sequences, greedy search: "
        f"the vector {vector.accuracy[0]:.0%} at length {short} and {vector.accuracy[-1]:.0%} at length {long}; "
        f"attention {attention.accuracy[0]:.0%} and {attention.accuracy[-1]:.0%} (guessing: {1 / LETTERS:.0%}).",
        "A vector of fixed size must hold more the longer the source is. Attention keeps one state a letter: its "
        "memory grows with what it reads.",
    )
    rows = tuple(
        (str(length), f"{vector.accuracy[i]:.1%}", f"{attention.accuracy[i]:.1%}") for i, length in enumerate(LENGTHS)
    )
    title = f"letters in their place, on {UNSEEN} unseen sequences of each length"
    table = Table(title, ("length", "one vector", "attention"), rows)
    numbers = {"lengths": list(LENGTHS), "vector": vector._asdict(), "attention": attention._asdict()}
    return Explanation("The bottleneck of one vector", paragraphs, (table,), _plot(vector, attention), numbers)


def learn(name: str, settings: list[str], trial: Trial) -> Learned:
    """Train to copy; every model sees the same sequences in the same order."""
    torch.manual_seed(trial.seed)
    model, generator = _model(settings), trial.generator()
    objective = CrossEntropy(model, 0.0)

    def loss() -> Tensor:
        length = int(torch.randint(SHORTEST, LONGEST + 1, (), generator=generator))
        found = objective(_sequences(ROWS, length, generator))
        return found.total / found.tokens

    with trial.display.task(f"training: {name}", trial.steps) as progress:
        losses = fit(model, loss, steps=trial.steps, peak=PEAK, after=progress)
    last = losses[-max(1, trial.steps // 10) :]
    model.eval()
    accuracy = [_accuracy(model, length, generator) for length in LENGTHS]
    return Learned(_width(settings), count_parameters(model), sum(last) / len(last), accuracy)


def matching_width(parameters: int) -> int:
    """The width at which `cho` has the nearest number of parameters."""

    def distance(width: int) -> int:
        with torch.device("meta"):  # counted, never filled
            return abs(count_parameters(_model(["model.wiring=cho", f"model.width={width}"])) - parameters)

    return min(range(WIDTH // 2, 2 * WIDTH), key=distance)


def _model(settings: list[str]) -> EncoderDecoder:
    common = ["model.family=rnn", f"model.embedding={EMBEDDING}", "model.dropout=0.0"]
    config = Config.load(None, [*common, *settings])
    config = config.model_copy(update={"model": with_shape(config.model, joint=True)})
    return build_model(config, VOCABULARY, VOCABULARY)


def _width(settings: list[str]) -> int:
    return next(int(setting.partition("=")[2]) for setting in settings if setting.startswith("model.width="))


def _sequences(rows: int, length: int, generator: torch.Generator) -> Batch:
    letters = torch.randint(len(SPECIALS), VOCABULARY, (rows, length), generator=generator).tolist()
    return collate([(row, row) for row in letters], range(rows))


def _accuracy(model: EncoderDecoder, length: int, generator: torch.Generator) -> float:
    batch = _sequences(UNSEEN, length, generator)
    # A letter more than is right, and the end: what stops late or early loses nothing but what it misplaced.
    limits = torch.full((UNSEEN,), length + 2)
    found = [best[0].tokens for best in generate(model, batch.source, batch.source_mask, Greedy(), limits)]
    pairs = zip(found, batch.gold.tolist(), strict=True)
    right = sum(a == b for copy, gold in pairs for a, b in zip(copy, gold[:length], strict=False))
    return right / (UNSEEN * length)


def _plot(vector: Learned, attention: Learned) -> Plot:
    series = (
        Series.of("attention (bahdanau)", LENGTHS, attention.accuracy),
        Series.of("one vector (cho)", LENGTHS, vector.accuracy),
        Series.of("guessing", (SHORTEST, LONGEST), (1 / LETTERS, 1 / LETTERS), theory=True),
    )
    panel = Curves("copying", "length of the sequence (letters)", "letters in their place (share)", series)
    return Plot("One vector against attention, after the same training", (panel,))
