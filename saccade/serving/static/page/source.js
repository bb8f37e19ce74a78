// The text to translate. A text field has no words, so the same text lies beneath it, and its words light up.

import { placesOf, spaced, spell, element } from "./words.js";

export class Source {
  constructor(field, mirror) {
    this.field = field;
    this.mirror = mirror;
    this.spans = []; // a list for each line
    this.cuts = new Map(); // a line's words, as a model cut them
    field.addEventListener("mousemove", (event) => this.#point(event));
    field.addEventListener("mouseleave", () => this.onpoint?.(null));
    field.addEventListener("click", () => this.#caret());
    field.addEventListener("keyup", (event) => {
      if (event.key.startsWith("Arrow") || event.key === "Home" || event.key === "End") this.#caret();
    });
    this.draw();
  }

  get lines() {
    return this.field.value.split("\n");
  }

  // The line of the caret; where there is nothing, the first that has something.
  get current() {
    const lines = this.lines;
    const line = this.field.value.slice(0, this.field.selectionStart).split("\n").length - 1;
    if (lines[line]?.trim()) return line;
    const before = lines.slice(0, line).findLastIndex((each) => each.trim());
    return before >= 0 ? before : Math.max(0, lines.findIndex((each) => each.trim()));
  }

  // Lines that stay as they were keep their elements: only what is written is laid out anew.
  draw() {
    const lines = this.lines;
    for (const known of [...this.cuts.keys()]) if (!lines.includes(known)) this.cuts.delete(known);
    lines.forEach((text, line) => {
      const row = this.mirror.children[line] ?? this.mirror.appendChild(element("div", { dir: "auto" }));
      const places = this.cuts.get(text) ?? spaced(text);
      if (row.textContent === text && this.spans[line]?.length === places.length) return;
      const make = (word) => {
        const span = element("span", { className: "word" });
        Object.assign(span.dataset, { line, word });
        return span;
      };
      this.spans[line] = spell(row, text, places, make);
      if (!text) row.append(document.createElement("br"));
    });
    while (this.mirror.children.length > lines.length) this.mirror.lastChild.remove();
    this.spans.length = lines.length;
    for (const each of [this.field, this.mirror]) each.classList.toggle("long", this.field.value.length > 280);
  }

  // A model has its own idea of what words are.
  cut(line, words) {
    const text = this.lines[line];
    if (text === undefined || !words) return;
    const places = placesOf(text, words);
    if (places.length === this.spans[line]?.length) return;
    this.cuts.set(text, places);
    this.draw();
  }

  word(line, word) {
    return this.spans[line]?.[word];
  }

  #point(event) {
    const under = document.elementsFromPoint(event.clientX, event.clientY);
    const span = under.find((each) => each.parentElement?.parentElement === this.mirror && each.classList.contains("word"));
    this.onpoint?.(span ? { line: Number(span.dataset.line), word: Number(span.dataset.word) } : null);
  }

  #caret() {
    const before = this.field.value.slice(0, this.field.selectionStart);
    const line = before.split("\n").length - 1;
    const column = before.length - (before.lastIndexOf("\n") + 1);
    const places = this.cuts.get(this.lines[line]) ?? spaced(this.lines[line]);
    const word = places.findIndex(([start, end]) => start <= column && column <= end);
    this.onpoint?.(word < 0 ? null : { line, word });
    this.oncaret?.(line);
  }
}
