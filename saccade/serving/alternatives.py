"""What else could stand at a place of a translation: the likeliest next pieces, each followed to its end."""

from collections.abc import Sequence

import torch

from saccade.data.batching import collate
from saccade.data.tokenizers import BOS, EOS, PAD, UNK
from saccade.generation.orders import Job, Order
from saccade.serving.listening import Tell
from saccade.serving.schemas import Alternatives
from saccade.serving.tickets import Kind, Ticket
from saccade.serving.told import Told
from saccade.translator import Translator

# The sentence as the model has it: nothing is split, nothing put in, nothing decoded again.
AS_IT_IS = Told(search={"split": "never", "protect": [], "guard": False})
UNSPACED = "\u2e80"  # the first of the scripts that put no space between words
MORE = 2  # pieces tried to a word that is wanted: several may begin the same


def following(
    kind: Kind, text: str, job: Job, begun: list[int], pieces: Sequence[int], client: str, deliver: Tell
) -> list[Ticket]:
    """The text once for each of the pieces, told to go on with it."""
    line = kind.pipeline.prepare([text]).lines[0]
    orders = [Order(prefix=(*begun, piece)) for piece in pieces]
    jobs = [kind.translator.with_order(job, order, kind.settings) for order in orders]
    return [Ticket(kind, line, [text], [job], number, client, False, deliver) for number, job in enumerate(jobs)]


def by_word(found: list[tuple[str, float]], before: str, count: int) -> Alternatives:
    """Those that go on with the same word as one, in the words of the likeliest of them."""
    likelihood: dict[str, float] = {}
    translations: dict[str, str] = {}
    for text, probability in found:
        rest = text[len(before) :].split() if text.startswith(before) else []
        if rest:
            likelihood[rest[0]] = likelihood.get(rest[0], 0.0) + probability
            translations.setdefault(rest[0], text)
    words = sorted(likelihood, key=lambda word: -likelihood[word])[:count]
    return Alternatives(
        words=words,
        probabilities=[likelihood[word] for word in words],
        translations=[translations[word] for word in words],
    )


@torch.inference_mode()
def next_pieces(translator: Translator, source: list[int], begun: list[int], count: int) -> list[tuple[int, float]]:
    """The likeliest pieces to come next, with their probabilities; not the end, nor one that goes on with a word.

    `MORE` than `count`, which is in words.
    """
    batch = collate([(source, begun)], [0]).to(translator.device)
    hidden = translator.model(batch.source, batch.source_mask, batch.inputs).hidden[:, len(begun)]
    probabilities = translator.model.logits(hidden).float().softmax(-1)[0]
    forbidden = {PAD, BOS, EOS, UNK, *translator.never_written}
    target = translator.tokenizers.target
    spaced = bool(begun) and _is_spaced(target.decode(begun)[-1:])
    found = []
    for piece in probabilities.argsort(descending=True).tolist():
        spelled = target.piece_bytes[piece]
        goes_on = spaced and not spelled.startswith(b" ") and _is_spaced(spelled.decode(errors="replace")[:1])
        if piece not in forbidden and not goes_on:
            found.append((piece, float(probabilities[piece])))
        if len(found) == MORE * count:
            break
    return found


def _is_spaced(character: str) -> bool:
    """Whether a word after this character begins with a space."""
    return character < UNSPACED
