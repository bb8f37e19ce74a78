"""A look at one sentence: translated or forced, with how sure the model was and where every head looked."""

from collections.abc import Collection, Iterator, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from saccade.analysis.capture import Wanted, capturing, check_wanted
from saccade.analysis.mechanisms import heads_of
from saccade.data.batching import collate
from saccade.data.tokenizers import EOS, Tokenizer
from saccade.errors import SaccadeError
from saccade.looking.look import ENCODER, STACKS, HeadWeights, Look, Path, Side, Step
from saccade.models.heads import HeadName
from saccade.models.protocol import EncoderDecoder, Memory
from saccade.translator import Translator

LOGITS = 2**24  # numbers of the vocabulary's distribution that are held at once: 64 MB


def look_at(
    translator: Translator,
    text: str,
    target: str | None = None,
    layers: Collection[int] | None = None,
    heads: Collection[int] | None = None,
    n_best: int = 1,
    alternatives: int = 5,
    *,
    stacks: Collection[str] | None = None,
    name: str = "",
    **search: Any,
) -> Look:
    """Translate `text`, or write `target` for it, and tell all that can be seen of how.

    `layers` and `heads` (from 1) and `stacks` (encoder, decoder, cross): whose weights to capture; None: all. `n_best`:
    so many translations, each with the weights of its own path. `alternatives`: pieces that are named at each step.
    `name`: what the model is called in titles. Other keywords override the folder's search settings.

    The model reads the sentence whole: nothing is split, and what its positions cannot hold is refused.
    """
    wanted = _wanted(stacks, layers, heads)
    if n_best < 1 or alternatives < 0:
        raise SaccadeError(f"n_best={n_best}, alternatives={alternatives}: ask for 1 path or more, 0 pieces or more")
    if not text.strip():
        raise SaccadeError("the text is blank, so there is nothing to look at; give a sentence")
    model = translator.model.eval()
    check_wanted(model, wanted)
    source = translator.tokenizers.source.encode(text)
    _check_length(translator, "the text", source)
    if target is None:
        targets = _found(translator, text, source, n_best, search)
    else:
        targets = [translator.tokenizers.target.encode(target)]
        _check_length(translator, "the target", targets[0], source)
    encoder, seen = _captured(translator, source, targets, wanted, alternatives)
    sides = [_side(translator.tokenizers.target, ids, target) for ids in targets]
    return Look(
        model=name or translator.name or _title(translator),
        source=_side(translator.tokenizers.source, source, text),
        paths=tuple(Path(side, *rest) for side, rest in zip(sides, seen, strict=True)),
        encoder=encoder,
        facts=_facts(translator, forced=target is not None),
    )


def _wanted(stacks: Collection[str] | None, layers: Collection[int] | None, heads: Collection[int] | None) -> Wanted:
    for stack in stacks or ():
        if stack not in STACKS:
            raise SaccadeError(f"stack {stack!r} is not known; use {', '.join(STACKS)}")
    from_zero = [None if numbers is None else [number - 1 for number in numbers] for numbers in (layers, heads)]
    return Wanted(stacks, *from_zero)


def _check_length(translator: Translator, what: str, ids: Sequence[int], before: Sequence[int] | None = None) -> None:
    """Refuse what the model's positions cannot hold; `before`: what stands in the same sequence, if they share one."""
    longest = translator.longest
    if longest is None:
        return
    # In one sequence a source leaves room for something to be written.
    pieces = len(ids) + (2 if translator.one_sequence and before is None else 1)
    if translator.one_sequence and before is not None:
        pieces += len(before) + 1
        what += " with its source"
    if pieces > longest:
        raise SaccadeError(
            f"{what} has {pieces:,} pieces, ends counted, and the model holds {longest:,} (model.max_positions); look "
            "at a shorter sentence"
        )


def _found(
    translator: Translator, text: str, source: Sequence[int], n_best: int, search: dict[str, Any]
) -> list[list[int]]:
    """The pieces of the best translations."""
    settings = translator.config.search
    told = {"n_best": n_best, "max_source": max(settings.max_source, len(source)), **search}
    if n_best > told.get("beam", settings.beam):
        told["beam"] = n_best
    (made,) = translator.stream([text], **told)
    return [each.ids for each in made.n_best or [made]]


@torch.inference_mode()
def _captured(
    translator: Translator,
    source: Sequence[int],
    targets: Sequence[Sequence[int]],
    wanted: Wanted,
    alternatives: int,
) -> tuple[tuple[HeadWeights, ...], list[tuple[float, tuple[Step, ...], tuple[HeadWeights, ...]]]]:
    """The encoder's heads; for each target its score, its steps and the decoder's heads. The source is read once."""
    model, device = translator.model, translator.device
    batches = [collate([(list(source), list(target))], [0]).to(device) for target in targets]
    mask = batches[0].source_mask
    with capturing(model, mask, wanted, "cpu") as read:
        memory: Memory = model.encode(batches[0].source, mask)
    encoder: dict[HeadName, Tensor] = {name: weights for name, weights in read.items() if name.stack == ENCODER}
    seen = []
    for batch in batches:
        with capturing(model, mask, wanted, "cpu") as written:
            hidden = model.decode(batch.inputs, model.init_state(memory)).hidden[0]
        # One sequence is read when it is written: its source does not see the target, and is the same for all paths.
        encoder |= {name: weights for name, weights in written.items() if name.stack == ENCODER}
        own = {name: weights.expand(-1, len(hidden), -1) for name, weights in read.items() if name.stack != ENCODER}
        own |= {name: weights for name, weights in written.items() if name.stack != ENCODER}
        steps = tuple(_steps(model, hidden, batch.gold[0], translator.tokenizers.target, alternatives))
        score = sum(step_score for _, step_score in steps)
        seen.append((score, tuple(step for step, _ in steps), _heads(own)))
    return _heads(encoder), seen


def _steps(
    model: EncoderDecoder, hidden: Tensor, gold: Tensor, tokenizer: Tokenizer, alternatives: int
) -> Iterator[tuple[Step, float]]:
    """Each step of one target (T, E), with the log-probability of what was written."""
    at_once = max(1, LOGITS // tokenizer.size)
    for start in range(0, len(gold), at_once):
        logits = model.logits(hidden[start : start + at_once])
        log_probs = logits.to(torch.promote_types(logits.dtype, torch.float32)).log_softmax(-1)
        written = log_probs.gather(1, gold[start : start + at_once].unsqueeze(1)).squeeze(1)
        best, ids = log_probs.topk(min(alternatives, log_probs.size(1)), dim=1)
        for log_prob, p, likeliest, them in zip(
            written.tolist(), written.exp().tolist(), best.exp().tolist(), ids.tolist(), strict=True
        ):
            yield Step(p, tuple(zip(tokenizer.pieces(them), likeliest, strict=True))), log_prob


def _heads(found: dict[HeadName, Tensor]) -> tuple[HeadWeights, ...]:
    return tuple(
        HeadWeights(name.stack, name.layer + 1, name.head + 1, np.ascontiguousarray(weights[0].float().numpy()))
        for name, weights in found.items()
    )


def _side(tokenizer: Tokenizer, ids: Sequence[int], text: str | None) -> Side:
    ended = [*ids, EOS]
    return Side(
        tokenizer.decode(ids) if text is None else text,
        tuple(tokenizer.pieces(ended)),
        tuple(tokenizer.words(ended)),
        tuple(tokenizer.word_texts(ended)),
    )


def _title(translator: Translator) -> str:
    data = translator.config.data
    return f"{data.source}-{data.target}" if data.source and data.target else str(translator.config.model.family)


def _facts(translator: Translator, forced: bool) -> dict[str, Any]:
    """What is worth saying beside the numbers."""
    model, data = translator.config.model, translator.config.data
    layers: dict[str, dict[str, int]] = {}
    for site, heads in heads_of(translator.model).items():
        of = layers.setdefault(site.stack, {"layers": 0, "heads": 0})
        of["layers"], of["heads"] = max(of["layers"], site.layer + 1), max(of["heads"], heads)
    return {
        "family": model.family,
        "wiring": getattr(model, "wiring", ""),
        "source_language": data.source,
        "target_language": data.target,
        "forced": forced,
        "attentions": layers,
    }
