"""What the server's own interface takes and gives (`/v1`): the one place where its shapes are written down.

| call                     | takes                | gives                                                            |
|--------------------------|----------------------|------------------------------------------------------------------|
| `POST /v1/translate`     | `TranslateRequest`   | `TranslateAnswer`; with `stream`, server-sent events             |
| `GET /v1/models`         |                      | `Models`                                                         |
| `POST /v1/look`          | `LookRequest`        | a look (`saccade.looking.look`) as JSON                          |
| `POST /v1/alternatives`  | `AlternativesRequest`| `Alternatives`                                                   |
| `GET /v1/watch`          |                      | server-sent events of `WatchEvent`: the run of `serve --watch`   |

Events of a streamed translation: `event: part` with a `Part` whenever more of a text is known (the best hypothesis so
far; it may change), `event: result` with a `Result` when one is finished, in the order they finish, `event: done` with
`{}`, and `event: error` with a `StreamProblem`.
"""

from typing import Any

from pydantic import BaseModel, ConfigDict, Field, model_validator


class Shape(BaseModel):
    """What is sent has no other fields than these."""

    model_config = ConfigDict(extra="forbid")


class Asked(Shape):
    """What comes from outside: JSON can say half a character, which no encoding can write."""

    @model_validator(mode="before")
    @classmethod
    def _whole(cls, given: Any) -> Any:
        return whole(given)


def whole(given: Any, depth: int = 3) -> Any:
    """Texts, and texts in lists and objects, with a sign in the place of halves of characters."""
    if isinstance(given, str):
        return given if given.isascii() else given.encode("utf-8", "replace").decode()
    if isinstance(given, list) and depth:
        return [whole(part, depth - 1) for part in given]
    if isinstance(given, dict) and depth:
        return {whole(name): whole(part, depth - 1) for name, part in given.items()}
    return given


class TranslateRequest(Asked):
    """Texts to translate, and how."""

    text: str | list[str] = Field(description="One text or several; what is too long for the model is split.")
    model: str | None = Field(None, description="Name of a model, as `/v1/models` lists them. Default: the first.")
    source: str | None = Field(None, description="Language of the text, where models are told apart by it; `auto`.")
    target: str | None = Field(None, description="Language to translate to.")
    n_best: int = Field(1, ge=1, le=16, description="Translations of each text, the best first.")
    alignments: bool = Field(False, description="Which word of the source each word of the translation looked at.")
    tokens: bool = Field(False, description="Pieces, with the probability of each.")
    glossary: dict[str, str] = Field(default_factory=dict, description="Terms and what they must become.")
    prefix: str | list[str] | None = Field(None, description="How each translation begins.")
    must: list[str] = Field(default_factory=list, description="Phrases that each translation holds.")
    banned: list[str] = Field(default_factory=list, description="Words that no translation has.")
    search: dict[str, Any] = Field(
        default_factory=dict, description="Search settings for this request: beam, method, temperature, …"
    )
    stream: bool = Field(False, description="Answer in server-sent events, as it is written.")


class Token(Shape):
    """A piece of a translation."""

    piece: str
    probability: float


class Hypothesis(Shape):
    """One translation of a text. Words are what spaces separate."""

    text: str
    score: float = Field(description="Log-probability, natural logarithm.")
    alignment: list[tuple[int, int]] | None = Field(None, description="(source word, target word), from 0.")
    source_words: list[str] | None = None
    target_words: list[str] | None = None
    tokens: list[Token] | None = None


class Result(Shape):
    """The translations of one text."""

    index: int = Field(description="Which of the texts of the request, from 0.")
    translations: list[Hypothesis]
    notes: list[str] = Field(default_factory=list, description="What happened on the way: splits, guards, numbers.")


class Part(Shape):
    """What is known of a translation that is still being written."""

    index: int
    text: str


class Done(Shape):
    """The end of a stream of events."""

    version: str = Field(description="Of the model that answered: another one when its folder has changed since.")


class TranslateAnswer(Shape):
    """The answer to a request, in the order of its texts."""

    model: str
    results: list[Result]
    seconds: float


class LookRequest(Asked):
    """A sentence to look at, one that the model can hold whole."""

    text: str
    target: str | None = Field(None, description="A translation to look at instead of the one that search finds.")
    model: str | None = None
    layers: list[int] | None = Field(None, min_length=1, description="From 1. Default: all.")
    heads: list[int] | None = Field(None, min_length=1, description="From 1. Default: all.")
    n_best: int = Field(1, ge=1, le=8)


class AlternativesRequest(Asked):
    """A place in a translation, and what else could stand there."""

    text: str
    prefix: str = Field(description="The translation up to the word in question, without it.")
    model: str | None = None
    count: int = Field(5, ge=1, le=16)


class Alternatives(Shape):
    """Words that could come next, the likeliest first, each with the whole translation that would follow."""

    words: list[str]
    probabilities: list[float]
    translations: list[str]


class ModelCard(Shape):
    """A model that can be asked for."""

    name: str
    source: str = Field(description="Language code, or empty where the folder does not say.")
    target: str
    family: str
    parameters: int
    attends: bool = Field(description="Whether it has alignments to show.")
    examples: list[str] = Field(description="Texts of its kind to try it with, if it knows the built-in corpus alone.")
    loaded: bool
    engine: str


class Models(Shape):
    """All of them, the first is the default."""

    models: list[ModelCard]


class WatchEvent(Shape):
    """A moment of a run that is training."""

    kind: str = Field(description="`log` (a line of the log), `sample` (a sentence translated anew), `end`.")
    row: dict[str, Any]


class Problem(Shape):
    """Why there is no answer: the field, its value and the remedy. `error` is what LibreTranslate's clients read."""

    error: str


class StreamProblem(Problem):
    """The same where an answer has begun and its status is sent: what the status would have been."""

    status: int
    retry_after: int | None = Field(None, description="Seconds after which to ask again.")
