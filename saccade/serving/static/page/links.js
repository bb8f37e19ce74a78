// The alignment of a sentence, drawn: its words above, those of the translation below, a line from each to its source.

import { svg } from "./words.js";

const GAP = 14, ABOVE = 20, BELOW = 104, HEIGHT = 116;

let ruler = null;

function widthOf(word) {
  ruler ??= document.createElement("canvas").getContext("2d");
  ruler.font = `15px ${getComputedStyle(document.body).fontFamily}`;
  return ruler.measureText(word).width;
}

function row(words, y, kind) {
  let x = 4;
  const places = [];
  const texts = words.map((word, index) => {
    const width = widthOf(word);
    places.push(x + width / 2);
    const text = svg("text", { x: x + width / 2, y, class: kind, "data-word": index });
    text.textContent = word;
    x += width + GAP;
    return text;
  });
  return { places, texts, width: x };
}

// onpoint({word} | {source} | null): the pointer is over a word of the translation, of the source, or over none.
export function drawLinks(figure, { source_words: above, target_words: below, alignment }, onpoint) {
  if (!above || !below) return figure.replaceChildren();
  const tops = row(above, ABOVE, "source");
  const bottoms = row(below, BELOW, "target");
  const width = Math.max(tops.width, bottoms.width);
  const shift = { tops: (width - tops.width) / 2, bottoms: (width - bottoms.width) / 2 };
  const paths = alignment.map(([source, target]) => {
    const [a, b] = [tops.places[source] + shift.tops, bottoms.places[target] + shift.bottoms];
    const middle = (ABOVE + BELOW) / 2 - 4;
    const d = `M${a} ${ABOVE + 9}C${a} ${middle} ${b} ${middle} ${b} ${BELOW - 19}`;
    return svg("path", { d, "data-source": source, "data-target": target });
  });
  const said = alignment.map(([source, target]) => `${below[target]}: ${above[source]}`).join("; ");
  const drawn = svg(
    "svg",
    { viewBox: `0 0 ${width} ${HEIGHT}`, width, height: HEIGHT, role: "img", "aria-label": said },
    ...paths,
    svg("g", { transform: `translate(${shift.tops} 0)` }, ...tops.texts),
    svg("g", { transform: `translate(${shift.bottoms} 0)` }, ...bottoms.texts),
  );
  drawn.addEventListener("mouseover", ({ target }) => {
    const word = Number(target.dataset?.word ?? target.dataset?.target ?? NaN);
    if (Number.isNaN(word)) return onpoint(null);
    onpoint(target.classList.contains("source") ? { source: word } : { word });
  });
  drawn.addEventListener("mouseleave", () => onpoint(null));
  figure.replaceChildren(drawn);
}

// Light up what belongs to some links, and dim the rest.
export function lightLinks(figure, pairs) {
  const drawn = figure.querySelector("svg");
  if (!drawn) return;
  drawn.classList.toggle("lit", pairs.length > 0);
  const sources = new Set(pairs.map(([source]) => source));
  const targets = new Set(pairs.map(([, target]) => target));
  for (const path of drawn.querySelectorAll("path")) {
    const on = targets.has(Number(path.dataset.target)) && sources.has(Number(path.dataset.source));
    path.classList.toggle("on", on);
  }
  for (const text of drawn.querySelectorAll("text")) {
    const set = text.classList.contains("source") ? sources : targets;
    text.classList.toggle("on", set.has(Number(text.dataset.word)));
  }
}
