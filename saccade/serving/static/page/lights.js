// Where the eye jumps: words of a text and of its translations that belong together light up, joined by an arc.

import { lightLinks } from "./links.js";
import { svg } from "./words.js";

const FAR = 330; // pixels: a longer line would cross too much

export class Lights {
  constructor(source, panes, layer) {
    Object.assign(this, { source, panes, layer });
    this.lit = [];
  }

  off() {
    for (const span of this.lit) span.classList.remove("lit", "asked");
    this.lit = [];
    this.layer.replaceChildren();
    for (const pane of this.panes()) lightLinks(pane.find(".links"), []);
  }

  // A word of the source: what each model wrote for it.
  fromSource(line, word) {
    this.off();
    for (const pane of this.panes()) {
      const pairs = pane.links(line).filter(([source]) => source === word);
      this.#draw(pane, line, pairs);
    }
    this.#on(this.source.word(line, word), "asked");
  }

  // A word of a translation: what it was written for; other models join in with what they made of that.
  fromTarget(pane, line, word) {
    this.off();
    const pairs = pane.links(line).filter(([, target]) => target === word);
    const sources = new Set(pairs.map(([source]) => source));
    this.#draw(pane, line, pairs);
    for (const other of this.panes()) {
      if (other !== pane) this.#draw(other, line, other.links(line).filter(([source]) => sources.has(source)));
    }
    this.#on(pane.word(line, word), "asked");
  }

  #draw(pane, line, pairs) {
    for (const [source, target] of pairs) {
      const [from, to] = [this.source.word(line, source), pane.word(line, target)];
      if (!from || !to) continue;
      this.#on(from, "lit");
      this.#on(to, "lit");
      const [start, end] = [from.getBoundingClientRect(), to.getBoundingClientRect()];
      if (end.top - start.bottom < FAR) this.layer.append(this.#arc(start, end));
    }
    if (line === pane.current) lightLinks(pane.find(".links"), pairs);
  }

  #on(span, name) {
    if (!span) return;
    span.classList.add(name);
    this.lit.push(span);
  }

  #arc(from, to) {
    const origin = this.layer.getBoundingClientRect();
    const [a, b] = [from, to].map((box) => box.left + box.width / 2 - origin.left);
    if (to.top > from.bottom + 40) {
      // One above the other: straight down.
      const [top, bottom] = [from.bottom + 1 - origin.top, to.top - 1 - origin.top];
      const middle = (top + bottom) / 2;
      return svg("path", { d: `M${a} ${top}C${a} ${middle} ${b} ${middle} ${b} ${bottom}` });
    }
    const [up, down] = [from, to].map((box) => box.top + 2 - origin.top);
    const height = Math.min(30, 18 + Math.abs(b - a) * 0.04); // below the names that stand over the first line
    return svg("path", { d: `M${a} ${up}C${a} ${up - height} ${b} ${down - height} ${b} ${down}` });
  }
}
