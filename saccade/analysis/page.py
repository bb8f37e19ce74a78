"""The diagnosis of one folder, or of two side by side, as one HTML file that needs nothing else."""

from collections.abc import Sequence
from html import escape

from saccade.analysis.diagnosis import Diagnosis, Group, Sentence
from saccade.analysis.drawing import COLOURS, alignment, bars, lines

WORST, FLAGGED = 10, 5  # sentences shown

STYLE = """
:root { color-scheme: light dark; --ground: #fbfbfa; --card: #ffffff; --ink: #1c2127; --soft: #5d6874; --line: #e2e5e8;
  --one: #0072b2; --two: #c65200; --mark: #b3261e; }
@media (prefers-color-scheme: dark) { :root { --ground: #14171b; --card: #1c2026; --ink: #e6e9ec; --soft: #9aa5b1;
  --line: #313840; --one: #56b4e9; --two: #f0a13c; --mark: #ff8a80; } }
* { box-sizing: border-box; }
body { margin: 0; background: var(--ground); color: var(--ink); font: 15px/1.5 system-ui, sans-serif; }
main { max-width: 1040px; margin: 0 auto; padding: 28px 20px 60px; }
h1 { font-size: 26px; margin: 0 0 4px; } h2 { font-size: 18px; margin: 34px 0 10px; }
h3 { font-size: 14px; margin: 0 0 6px; font-weight: 600; } p { margin: 4px 0; } .soft, .none { color: var(--soft); }
.grid2 { display: grid; grid-template-columns: repeat(auto-fit, minmax(min(440px, 100%), 1fr)); gap: 14px; }
.card { background: var(--card); border: 1px solid var(--line); border-radius: 10px; padding: 14px 16px; min-width: 0; }
.card svg { max-width: 100%; height: auto; } .scroll svg { max-width: none; } .scroll { overflow-x: auto; }
svg text { fill: var(--soft); font: 11.5px system-ui, sans-serif; } svg .grid { stroke: var(--line); }
svg .value { fill: var(--ink); text-anchor: middle; font-size: 10.5px; } svg .name { fill: var(--soft); }
svg .word { fill: var(--ink); font: 13.5px ui-monospace, monospace; text-anchor: middle; }
svg .ignored { fill: var(--mark); text-decoration: underline dotted; }
svg .link { fill: none; stroke: var(--one); stroke-width: 2; }
table { border-collapse: collapse; width: 100%; } td, th { text-align: left; padding: 3px 14px 3px 0;
  vertical-align: top; border-bottom: 1px solid var(--line); font-weight: 400; }
td { overflow-wrap: anywhere; } th { color: var(--soft); }
.big { font-size: 24px; font-weight: 650; } .key { display: inline-block; width: 11px; height: 11px; border-radius: 3px;
  margin-right: 6px; } .flag { color: var(--mark); } .sentence { margin: 0 0 12px; } .label { color: var(--soft);
  display: inline-block; min-width: 92px; } code { font: 12px ui-monospace, monospace; color: var(--soft); }
"""


def page(diagnoses: Sequence[Diagnosis], comparison: Sequence[str] = ()) -> str:
    """The whole file; `comparison`: what the significance of the difference is, in words."""
    names = " and ".join(each.name for each in diagnoses)
    pairs = len(diagnoses[0].sentences)
    body = [
        f"<h1>{escape(names)}</h1>",
        f'<p class="soft">{pairs:,} pairs translated and looked at, by saccade report</p>',
        _scores(diagnoses, comparison),
        "<h2>Learning</h2>",
        f'<div class="grid2">{_learning(diagnoses)}</div>',
        "<h2>Where it is good and where it is not</h2>",
        f'<div class="grid2">{_groups(diagnoses)}</div>',
        *_trouble(diagnoses),
        *(_differences(diagnoses) if len(diagnoses) > 1 else _worst(diagnoses[0])),
    ]
    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>{escape(names)}</title><style>{STYLE}</style></head><body><main>{''.join(body)}</main></body></html>\n"
    )


def _key(whose: int, name: str) -> str:
    return f'<span class="key" style="background:{COLOURS[whose]}"></span>{escape(name)}'


def _scores(diagnoses: Sequence[Diagnosis], comparison: Sequence[str]) -> str:
    cards = []
    for whose, each in enumerate(diagnoses):
        numbers = " &nbsp; ".join(
            f'<span class="big">{score["value"]:.1f}</span> {escape(str(score["metric"]))}' for score in each.scores
        )
        signed = "<br>".join(f"<code>{escape(str(score['signature']))}</code>" for score in each.scores)
        facts = "".join(
            f"<tr><th>{escape(name)}</th><td>{escape(value)}</td></tr>" for name, value in each.facts.items()
        )
        cards.append(
            f'<div class="card"><h3>{_key(whose, each.name)}</h3><p>{numbers}</p><table>{facts}</table>'
            f"<p>{signed}</p></div>"
        )
    said = "".join(f"<p>{escape(line)}</p>" for line in comparison)
    return f'<h2>Scores</h2><div class="grid2">{"".join(cards)}</div>{said}'


def _card(title: str, drawn: str, below: str = "") -> str:
    said = f'<p class="soft">{escape(below)}</p>' if below else ""
    return f'<div class="card"><h3>{escape(title)}</h3>{drawn}{said}</div>'


def _learning(diagnoses: Sequence[Diagnosis]) -> str:
    losses, scores = [], []
    for whose, each in enumerate(diagnoses):
        losses.append((f"{each.name}: training", whose, True, each.curve["training loss"]))
        losses.append((f"{each.name}: validation", whose, False, each.curve["validation loss"]))
        scores.append((each.name, whose, False, each.curve["validation BLEU"]))
    drawn = _card("Loss, nats a token", lines(losses, "step"), "Dashed: training. Solid: validation.")
    if any(points for *_, points in scores):
        drawn += _card("Validation BLEU", lines(scores, "step"))
    return drawn


def _groups(diagnoses: Sequence[Diagnosis]) -> str:
    def card(title: str, groups: Sequence[list[Group]], label: str) -> str:
        names = max((list(each) for each in groups), key=len)
        series = [[group.score for group in each] + [None] * (len(names) - len(each)) for each in groups]
        drawn = bars([group.name for group in names], series, [group.size for group in names], label)
        return _card(title, drawn)

    return "".join(
        card(title, [getattr(each, part) for each in diagnoses], label)
        for title, part, label in (
            ("chrF, by length of the source", "by_length", "words of the source"),
            ("F1 of words (%), by their frequency", "by_frequency", "times the word came up in training"),
            ("Words of the reference found (%), by position", "by_position", "where the word stands in the reference"),
            ("Sentences (%), by their chrF", "by_score", "chrF of the sentence"),
        )
    )


def _trouble(diagnoses: Sequence[Diagnosis]) -> list[str]:
    parts = ["<h2>Signs of trouble</h2>"]
    kinds = {
        "repetition": "words that follow themselves again and again",
        "under-translation": "more than half of the source words got less than 0.2 attention in all (underlined)",
        "detached attention": "steps look at the end of the source rather than at its words: check for hallucination",
    }
    head = "".join(f"<th>{_key(whose, each.name)}</th>" for whose, each in enumerate(diagnoses))
    rows = ""
    for kind, meaning in kinds.items():
        cells = ""
        for each in diagnoses:
            unknown = kind != "repetition" and not each.attends
            counted = f"{len(each.flagged()[kind]):,} of {len(each.sentences):,}"
            cells += f"<td>{'no attention to look at' if unknown else counted}</td>"
        rows += f"<tr><td>{kind}<br><span class='soft'>{meaning}</span></td>{cells}</tr>"
    parts.append(f'<div class="card"><table><tr><th></th>{head}</tr>{rows}</table></div>')
    for whose, each in enumerate(diagnoses):
        for kind, found in each.flagged().items():
            if found:
                parts.append(f"<h2>{_key(whose, f'{each.name}: {kind}')}</h2>")
                parts += [_sentence(sentence) for sentence in found[:FLAGGED]]
    return parts


def _worst(diagnosis: Diagnosis) -> list[str]:
    worst = sorted(diagnosis.sentences, key=lambda each: each.score)[:WORST]
    return ["<h2>Worst sentences, by chrF</h2>", *(_sentence(each) for each in worst)]


def _differences(diagnoses: Sequence[Diagnosis]) -> list[str]:
    """Where the two differ most, each way."""
    one, other = diagnoses[0].sentences, diagnoses[1].sentences
    order = sorted(range(len(one)), key=lambda i: one[i].score - other[i].score)
    parts = []
    for title, chosen in (
        (f"Where {diagnoses[1].name} is better", [i for i in order[:FLAGGED] if one[i].score < other[i].score]),
        (f"Where {diagnoses[0].name} is better", [i for i in order[::-1][:FLAGGED] if one[i].score > other[i].score]),
    ):
        parts.append(f"<h2>{escape(title)}</h2>")
        for i in chosen:
            cards = "".join(_sentence(each[i], _key(whose, "")) for whose, each in enumerate((one, other)))
            parts.append(f"<div>{cards}</div>")
    return parts


def _sentence(sentence: Sentence, key: str = "") -> str:
    flags = "".join(f' · <span class="flag">{escape(flag)}</span>' for flag in sentence.flags)
    drawn = ""
    if sentence.links:
        missed = sentence.looks.left_out if sentence.looks is not None else []
        drawn = alignment(sentence.source.split(), sentence.translation.split(), sentence.links, missed)
    else:
        drawn = (
            f'<p><span class="label">source</span>{escape(sentence.source)}</p>'
            f'<p><span class="label">translation</span>{escape(sentence.translation)}</p>'
        )
    return (
        f'<div class="card sentence"><h3>{key}line {sentence.number:,} · chrF {sentence.score:.1f}{flags}</h3>{drawn}'
        f'<p><span class="label">reference</span>{escape(sentence.reference)}</p></div>'
    )
