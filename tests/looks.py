"""Looks made of plain arrays, for tests of what shows them: a sentence in subwords, and one of 512 pieces."""

import math

import numpy as np

from saccade.looking.look import CROSS, DECODER, ENCODER, Array, HeadWeights, Look, Path, Side, Step

SOURCE = "▁The ▁agree ment ▁on ▁the ▁European ▁Economic ▁Area ▁was ▁signed ▁in ▁August ▁1992 . <eos>"
TARGETS = (
    "▁L' accord ▁sur ▁la ▁zone ▁économ ique ▁européenne ▁a ▁été ▁signé ▁en ▁août ▁1992 . <eos>",
    "▁L' accord ▁concernant ▁la ▁zone ▁économ ique ▁européenne ▁a ▁été ▁conclu ▁en ▁août ▁1992 . <eos>",
    "▁Le ▁traité ▁sur ▁l' espace ▁économ ique ▁européen ▁fut ▁signé ▁en ▁août ▁1992 . <eos>",
)
# The source piece that each target piece is a translation of.
LINKS = (
    (0, 1, 3, 4, 7, 6, 6, 5, 8, 8, 9, 10, 11, 12, 13, 14),
    (0, 1, 3, 4, 7, 6, 6, 5, 8, 8, 9, 10, 11, 12, 13, 14),
    (0, 1, 3, 4, 7, 6, 6, 5, 8, 9, 10, 11, 12, 13, 14),
)


def side(pieces: str) -> Side:
    """Pieces with spaces between them; "▁" begins a word, and the end is one of its own."""
    listed = pieces.split(" ")
    words = np.cumsum([i == 0 or piece.startswith(("▁", "<")) for i, piece in enumerate(listed)]) - 1
    texts = tuple(
        "".join(p for p, w in zip(listed, words, strict=True) if w == word).removeprefix("▁")
        for word in range(words[-1] + 1)
    )
    return Side(" ".join(texts[:-1]), tuple(listed), tuple(int(word) for word in words), texts)


def softmax(scores: np.ndarray) -> Array:
    scores = np.exp(scores - scores.max(-1, keepdims=True))
    return (scores / scores.sum(-1, keepdims=True)).astype(np.float32)


def near(rows: int, columns: int, shift: float, width: float) -> np.ndarray:
    """Scores of a head that looks near the same place, `shift` columns on."""
    place = np.arange(rows)[:, None] * (columns / rows) + shift
    return -(((np.arange(columns)[None] - place) / width) ** 2)


def head_scores(rows: int, columns: int, layer: int, head: int, random: np.random.Generator) -> np.ndarray:
    """Scores in a manner that heads are known for: the one before, the one after, here, the end, everywhere."""
    manner = (layer * 3 + head) % 5
    scores = random.normal(0, 0.7, (rows, columns))
    if manner < 3:
        scores += 5 * np.exp(near(rows, columns, manner - 1, 0.9 + 0.3 * layer))
    elif manner == 3:
        scores[:, -1] += 4.5
    return scores


def stack_heads(
    stack: str,
    rows: int,
    columns: int,
    shape: tuple[int, int],
    random: np.random.Generator,
    links: tuple[int, ...] = (),
) -> tuple[HeadWeights, ...]:
    heads = []
    for layer in range(1, shape[0] + 1):
        for head in range(1, shape[1] + 1):
            scores = head_scores(rows, columns, layer, head, random)
            if links and (layer + head) % 2 == 0:
                scores[np.arange(rows), links] += 1.6 + layer
            if stack == DECODER:
                scores[np.triu_indices(rows, 1)] = -np.inf
            heads.append(HeadWeights(stack, layer, head, softmax(scores)))
    return tuple(heads)


def steps(target: Side, random: np.random.Generator) -> tuple[Step, ...]:
    others = ("▁de", "▁des", "▁le", "▁du", "s", "▁une")
    made = []
    for piece in target.pieces:
        p = float(np.clip(random.beta(5, 1.2), 0.12, 0.995))
        rest = np.sort(random.dirichlet(np.ones(5)))[::-1][:4] * (1 - p)
        named = [other for other in random.permutation(others) if other != piece][:4]
        found = [(piece, p), *((str(name), float(q)) for name, q in zip(named, rest, strict=True))]
        made.append(Step(p, tuple(sorted(found, key=lambda each: -each[1]))))
    return tuple(made)


def sentence_look(layers: int = 4, heads: int = 6) -> Look:
    """The example of Bahdanau's Figure 3, cut into pieces, with three translations."""
    random, source = np.random.default_rng(6), side(SOURCE)
    paths = []
    for pieces, links in zip(TARGETS, LINKS, strict=True):
        target = side(pieces)
        count, written = len(target.pieces), steps(target, random)
        found = stack_heads(DECODER, count, count, (layers, heads), random)
        found += stack_heads(CROSS, count, len(source.pieces), (layers, heads), random, links)
        paths.append(Path(target, sum(math.log(step.probability) for step in written), written, found))
    paths.sort(key=lambda path: -path.score)
    read = stack_heads(ENCODER, len(source.pieces), len(source.pieces), (layers, heads), random)
    facts = {"family": "transformer", "source_language": "en", "target_language": "fr", "forced": False}
    return Look("en-fr", source, tuple(paths), read, facts)


def long_look(length: int = 512, layers: int = 6, heads: int = 8) -> Look:
    """One of 512 × 512 with 48 heads of cross-attention."""
    random = np.random.default_rng(512)
    source = side(" ".join(f"▁word{i}" if i % 3 else f"▁a{i}" for i in range(length - 1)) + " <eos>")
    target = side(" ".join(f"▁wort{i}" for i in range(length - 1)) + " <eos>")
    found = stack_heads(CROSS, length, length, (layers, heads), random)
    return Look("long", source, (Path(target, -80.0, steps(target, random), found),))


def odd_look() -> Look:
    """Scripts that run the other way or have no spaces, emoji, controls, markup, and one very long word."""
    source = side(
        "▁שלום ▁עולם ▁東京 都 に ▁👩‍👩‍👧 ▁</script><!--<script> ▁" + "Donaudampfschiff" * 8 + " ▁a\u202eb\nc <eos>"
    )
    target = side("▁مرحبا ▁بالعالم ▁& ▁<b> ▁\U0001f600 ▁" + "x" * 300 + " <eos>")
    random = np.random.default_rng(3)
    found = stack_heads(CROSS, len(target.pieces), len(source.pieces), (1, 2), random)
    return Look("odd </title> & co", source, (Path(target, float("nan"), steps(target, random), found),))
