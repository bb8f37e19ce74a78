// A run that is training: its curves, and sentences translated anew, with the attention as it sharpens.

import { events, Problem } from "./api.js";
import { chart } from "./curves.js";
import { t, tongue } from "./labels.js";
import { element } from "./words.js";

const SHOWN = 12; // moments of a sentence's attention

export class Run {
  #abort = null;
  #drawing = 0;
  #drawn = []; // the moments that each card was drawn from

  constructor(root) {
    this.state = root.querySelector("#run-state");
    this.charts = root.querySelector("#charts");
    this.place = root.querySelector("#samples");
    this.#forget();
    addEventListener("saccade:theme", () => this.retell());
    matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => this.retell());
  }

  #forget() {
    this.training = new Map(); // by step, so that a line that comes again changes nothing
    this.validation = new Map();
    this.samples = new Map(); // by source: [{step, …}, …]
    this.ended = false;
  }

  // The server begins with all that was logged so far; a connection that breaks is made again.
  async follow() {
    if (this.#abort) return;
    const abort = (this.#abort = new AbortController());
    this.state.textContent = t("run_waiting");
    while (!abort.signal.aborted) {
      this.#forget();
      let wait = 2;
      try {
        for await (const { data } of events("v1/watch", null, abort.signal)) this.#take(data);
        if (this.ended) return;
      } catch (error) {
        if (abort.signal.aborted) return;
        this.state.textContent = error.message;
        if (error instanceof Problem && error.wait === null) return;
        wait = error.wait ?? wait;
      }
      await new Promise((done) => setTimeout(done, wait * 1000));
    }
  }

  rest() {
    this.#abort?.abort();
    this.#abort = null;
  }

  retell() {
    this.#drawn = [];
    this.#soon();
  }

  #take({ kind, row }) {
    if (kind === "log" && row.valid_loss !== undefined) this.validation.set(row.step, row);
    else if (kind === "log" && row.loss !== undefined) this.training.set(row.step, row);
    else if (kind === "sample") this.#keep(row);
    else if (kind === "end") this.ended = true;
    this.#soon();
  }

  #keep(row) {
    this.onsample?.();
    const known = this.samples.get(row.source) ?? [];
    this.samples.set(row.source, [...known.filter(({ step }) => step !== row.step), row].sort((a, b) => a.step - b.step));
  }

  // Many lines come at once when the page opens; they are drawn once.
  #soon() {
    cancelAnimationFrame(this.#drawing);
    this.#drawing = requestAnimationFrame(() => this.#draw());
  }

  #draw() {
    this.#tell();
    const of = (rows, name) => [...rows.values()].filter((row) => Number.isFinite(row[name])).map((row) => [row.step, row[name]]);
    const training = { label: t("training"), points: of(this.training, "loss"), kind: "second" };
    const validation = { label: t("validation"), points: of(this.validation, "valid_loss"), kind: "" };
    const bleu = of(this.validation, "valid_bleu");
    const rate = of(this.training, "learning_rate");
    const cards = [chart(t("loss"), validation.points.length ? [validation, training] : [{ ...training, kind: "" }])];
    if (bleu.length) cards.push(chart(t("bleu"), [{ label: "", points: bleu, kind: "" }]));
    if (rate.length) cards.push(chart(t("rate"), [{ label: "", points: rate, kind: "" }]));
    this.charts.replaceChildren(...cards);
    this.#drawSamples();
  }

  // Lines of the log come more often than checkpoints: a card of which nothing is new stays, with its focus, and where a
  // reader has scrolled it to. The newest moment is in sight until then.
  #drawSamples() {
    [...this.samples].forEach(([source, moments], index) => {
      if (this.#drawn[index] === moments) return;
      this.#drawn[index] = moments;
      const card = sample(source, moments);
      const before = this.place.children[index];
      const row = before?.querySelector(".moments");
      const held = row && row === document.activeElement;
      const back = row && row.scrollLeft + row.clientWidth < row.scrollWidth - 1 ? row.scrollLeft : null;
      if (before) before.replaceWith(card);
      else this.place.append(card);
      const shown = card.querySelector(".moments");
      if (!shown) return;
      shown.scrollLeft = back ?? shown.scrollWidth;
      if (held) shown.focus({ preventScroll: true });
    });
    while (this.place.children.length > this.samples.size) this.place.lastChild.remove();
    this.#drawn.length = this.samples.size;
  }

  #tell() {
    const rows = [...this.training.values()];
    const last = rows.at(-1) ?? [...this.validation.values()].at(-1);
    if (!last) return;
    const speed = last.tokens_per_second && !this.ended ? ` · ${t("run_speed", { speed: Math.round(last.tokens_per_second) })}` : "";
    const end = this.ended ? ` · ${t("run_end")}` : "";
    this.state.textContent = t("run_step", { step: last.step }) + speed + end;
  }
}

function sample(source, moments) {
  const last = moments.at(-1);
  const parts = [
    element("p", { className: "source", dir: "auto" }, source),
    element("p", { className: "now", dir: "auto" }, last.translation || "∅"),
  ];
  if (last.reference) parts.push(element("p", { className: "reference", dir: "auto" }, t("reference", { text: last.reference })));
  const seen = moments.filter((moment) => moment.attention?.length && moment.attention[0].length);
  const every = Math.max(1, Math.ceil(seen.length / SHOWN));
  const shown = seen.filter((_, index) => (seen.length - 1 - index) % every === 0);
  if (shown.length) parts.push(element("div", { className: "moments", tabIndex: 0, role: "group", "aria-label": source }, ...shown.map(moment)));
  return element("article", { className: "tile sample" }, ...parts);
}

// One moment: rows are what was written, columns what was read, darker where it looked.
function moment({ step, attention, translation }) {
  const canvas = element("canvas", { role: "img", "aria-label": `${t("sharpens", { step })}: ${translation}` });
  const [rows, columns] = [attention.length, attention[0].length];
  [canvas.width, canvas.height] = [columns, rows];
  const cell = Math.max(6, Math.min(16, Math.floor(150 / Math.max(rows, columns))));
  canvas.style.width = `${columns * cell}px`;
  canvas.style.height = `${rows * cell}px`;
  const pen = canvas.getContext("2d");
  pen.fillStyle = getComputedStyle(document.querySelector(".brand .icon")).color; // the accent; 0 is the card itself
  attention.forEach((row, y) => {
    row.forEach((weight, x) => {
      pen.globalAlpha = Math.max(0, Math.min(1, weight));
      pen.fillRect(x, y, 1, 1);
    });
  });
  const number = new Intl.NumberFormat(tongue()).format(step);
  const said = element("span", { dir: "auto", title: translation }, translation);
  return element("figure", {}, canvas, element("figcaption", {}, element("b", {}, number), said));
}
