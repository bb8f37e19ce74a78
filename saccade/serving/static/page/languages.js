// Which model: by languages where there are several, by name where several have the same.

import { ask } from "./api.js";
import { languageName, t } from "./labels.js";
import { read, write } from "./kept.js";

const AUTO = "auto";
const distinct = (values) => [...new Set(values)];

export class Languages {
  constructor(from, to, swap, detected) {
    Object.assign(this, { from, to, swap, detected });
    this.cards = [];
    this.found = ""; // the language that was detected
    from.addEventListener("change", () => this.#chosen());
    to.addEventListener("change", () => this.#chosen());
    swap.addEventListener("click", () => this.#swapped());
    addEventListener("saccade:tongue", () => this.#draw());
  }

  offer(cards) {
    this.cards = cards;
    const kept = read("languages", {});
    this.source = kept.source ?? cards[0]?.source ?? "";
    this.target = kept.target ?? cards[0]?.target ?? "";
    this.#draw();
  }

  get sources() {
    return distinct(this.cards.map((card) => card.source));
  }

  // Models for the languages that are chosen, or found; the server's first comes first.
  get fitting() {
    const source = this.source === AUTO ? this.found : this.source;
    const exact = this.cards.filter((card) => card.source === source && card.target === this.target);
    if (exact.length) return exact;
    const towards = this.cards.filter((card) => card.target === this.target);
    return towards.length ? towards : this.cards;
  }

  // Asks for the language of a text, where it matters; whether that changed the models that fit.
  async detect(text, signal) {
    if (this.source !== AUTO || !text.trim()) return false;
    const guesses = await ask("detect", { q: text.slice(0, 2000) }, signal);
    const best = guesses.find((guess) => this.sources.includes(guess.language));
    const changed = (best?.language ?? "") !== this.found;
    this.found = best?.language ?? "";
    this.#say();
    return changed;
  }

  #draw() {
    const several = this.sources.length > 1;
    fill(this.from, several ? [AUTO, ...this.sources] : this.sources, (code) => (code === AUTO ? t("detect") : languageName(code)));
    if (![...this.from.options].some((option) => option.value === this.source)) this.source = this.sources[0] ?? "";
    this.from.value = this.source;
    const from = this.source === AUTO ? this.cards : this.cards.filter((card) => card.source === this.source);
    const targets = distinct(from.map((card) => card.target));
    fill(this.to, targets, languageName);
    if (!targets.includes(this.target)) this.target = targets[0] ?? "";
    this.to.value = this.target;
    this.from.disabled = this.from.options.length < 2;
    this.to.disabled = this.to.options.length < 2;
    this.swap.disabled = !this.#back();
    this.#say();
  }

  #back() {
    const source = this.source === AUTO ? this.found : this.source;
    return this.cards.find((card) => card.source === this.target && card.target === source);
  }

  #swapped() {
    const back = this.#back();
    if (!back) return;
    [this.source, this.target] = [back.source, back.target];
    this.#keep();
    this.onswap?.();
  }

  #chosen() {
    this.source = this.from.value;
    this.target = this.to.value;
    this.found = "";
    this.#keep();
    this.onchange?.();
  }

  #keep() {
    write("languages", { source: this.source, target: this.target });
    this.#draw();
  }

  #say() {
    const said = this.source === AUTO && this.found ? t("detected", { language: languageName(this.found) }) : "";
    if (this.detected.textContent !== said) this.detected.textContent = said;
    this.swap.disabled = !this.#back();
  }
}

function fill(select, codes, name) {
  select.replaceChildren(...codes.map((code) => new Option(name(code), code)));
}
