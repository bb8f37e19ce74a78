"""What else could stand at a place of a translation: the likeliest next pieces, each followed to its end."""

import asyncio
from contextlib import aclosing

import torch

from saccade.data.batching import collate
from saccade.data.tokenizers import BOS, EOS, PAD, UNK
from saccade.generation.orders import Order
from saccade.serving.pool import Entry
from saccade.serving.problems import Wrong
from saccade.serving.schemas import Alternatives, Part, Result
from saccade.serving.server import Server
from saccade.serving.tickets import Ticket
from saccade.serving.told import Told
from saccade.translator import Translator

# The sentence as the model has it: nothing is split, nothing put in, nothing decoded again.
AS_IT_IS = Told(search={"split": "never", "protect": [], "guard": False})
UNSPACED = "\u2e80"  # the first of the scripts that put no space between words
MORE = 2  # pieces tried to a word that is wanted: several may begin the same


async def alternatives(server: Server, entry: Entry, text: str, prefix: str, count: int, client: str) -> Alternatives:
    """Words that could follow `prefix` in a translation of `text`, and the translations that go on with them."""
    server.check([text, prefix])
    if not text.strip():
        raise Wrong("text is blank, so nothing can stand in its translation; give a sentence")
    with server.counted():
        async with server.pool.use(entry) as loaded:
            translator = loaded.translator
            kind = loaded.kind(AS_IT_IS, dict(AS_IT_IS.search), each=True)
            (job,) = translator.told([text], kind.settings)
            begun = translator.tokenizers.target.encode(prefix.strip()) if prefix.strip() else []
            pieces = await loaded.worker.call(lambda: next_pieces(translator, job.source, begun, MORE * count))
            inbox: asyncio.Queue[Part | Result | Exception] = asyncio.Queue()
            line = kind.pipeline.prepare([text]).lines[0]
            tickets = [
                Ticket(
                    kind,
                    line,
                    [text],
                    [translator.with_order(job, Order(prefix=(*begun, piece)), kind.settings)],
                    number,
                    client,
                    False,
                    inbox.put_nowait,
                )
                for number, (piece, _) in enumerate(pieces)
            ]
            said: dict[int, str] = {}
            async with aclosing(server.answers(loaded, tickets, inbox)) as answers:
                async for event in answers:
                    if isinstance(event, Result):
                        said[event.index] = event.translations[0].text
    before = translator.tokenizers.target.decode(begun)
    return _by_word([(said[i], probability) for i, (_, probability) in enumerate(pieces)], before, count)


def _by_word(found: list[tuple[str, float]], before: str, count: int) -> Alternatives:
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
    """The likeliest pieces to come next, with their probabilities; not the end, nor one that goes on with a word."""
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
        if len(found) == count:
            break
    return found


def _is_spaced(character: str) -> bool:
    """Whether a word after this character begins with a space."""
    return character < UNSPACED
