// One model's translations of the lines of a text, asked for as they change.

import { ask, events, Problem, problem } from "./api.js";
import { t } from "./labels.js";

const AT_ONCE = 200; // lines of a request; the first of a long text are there while the last still wait
const KEPT = 2000; // answers: who deletes a word and writes it again waits for nothing

const NOTHING = { hypotheses: [], notes: [] };

export class Translation {
  #cache = new Map();
  #abort = null;
  #timer = 0;
  #versions = new Map(); // of the model that answered last, by its name

  constructor() {
    this.model = null; // its card
    this.lines = [];
    this.results = []; // one a line: {text, hypotheses, pick, notes}, or null where there is nothing yet
    this.prefixes = new Map(); // what a reader chose a translation to begin with, by line
    this.picks = new Map(); // which of several translations, by line
  }

  stop() {
    clearTimeout(this.#timer);
    this.#abort?.abort();
    this.#abort = null;
  }

  // Bring the results up to date with the lines. Calls onpart(line, text), onresult(line), ondone(), onproblem(problem).
  async update(lines, told) {
    this.stop();
    const abort = (this.#abort = new AbortController());
    for (const map of [this.prefixes, this.picks]) {
      for (const line of [...map.keys()]) if (!lines.includes(line)) map.delete(line);
    }
    const before = this.results;
    this.lines = lines;
    this.told = told;
    this.results = lines.map((_, line) => before[line] ?? null);
    const missing = [];
    lines.forEach((text, line) => {
      const known = text.trim() ? this.#cache.get(this.#key(text)) : NOTHING;
      if (known) return this.#settle(line, known);
      if (this.results[line]) this.results[line].old = true;
      missing.push(line);
    });
    this.onupdate?.(new Set(missing));
    if (!missing.length) return this.ondone?.();
    try {
      const changed = await this.#askAll(missing, abort);
      if (abort.signal.aborted) return;
      if (changed) return this.again(); // what stands there of the model before is translated anew
      this.ondone?.();
    } catch (error) {
      if (abort.signal.aborted || error.name === "AbortError") return;
      this.#failed(error instanceof Problem ? error : new Problem(0, String(error.message ?? error)));
    }
  }

  again() {
    return this.update(this.lines, this.told);
  }

  // Other words that could stand where the text of a translation is cut.
  alternatives(line, prefix) {
    return ask("v1/alternatives", { text: this.lines[line], prefix, model: this.model.name, count: 6 });
  }

  begin(line, prefix) {
    if (prefix) this.prefixes.set(this.lines[line], prefix);
    else this.prefixes.delete(this.lines[line]);
    this.picks.delete(this.lines[line]);
    return this.again();
  }

  pick(line, which) {
    this.picks.set(this.lines[line], which);
    if (this.results[line]) this.results[line].pick = which;
    this.onresult?.(line);
  }

  // The translation that is shown of a line.
  shown(line) {
    const result = this.results[line];
    return result && result.source === this.lines[line] ? (result.hypotheses[result.pick] ?? null) : null;
  }

  get whole() {
    return this.lines.every((text, line) => !text.trim() || this.shown(line));
  }

  // What is being translated anew is left out: what stood there is of another text.
  get text() {
    return this.lines.map((_, line) => this.shown(line)?.text ?? "").join("\n");
  }

  #key(text) {
    return JSON.stringify([this.model.name, this.told, this.prefixes.get(text) ?? "", text]);
  }

  #settle(line, { hypotheses, notes }) {
    const source = this.lines[line];
    const pick = Math.min(this.picks.get(source) ?? 0, Math.max(0, hypotheses.length - 1));
    const before = this.results[line];
    if (before && !before.old && before.source === source && before.hypotheses === hypotheses && before.pick === pick) return;
    this.results[line] = { source, hypotheses, notes, pick };
    this.onresult?.(line);
  }

  // A line that is refused does not keep the others from being translated. The server counts those that it was sent.
  async #askAll(missing, abort) {
    let refused = null;
    let changed = false;
    let rest = missing;
    while (rest.length) {
      try {
        changed = this.#isNew(await this.#ask(rest.slice(0, AT_ONCE), abort), rest.slice(0, AT_ONCE)) || changed;
        rest = rest.slice(AT_ONCE);
      } catch (error) {
        const named = error instanceof Problem && error.wait === null && error.message.match(/^line (\d+): /);
        const line = named ? rest[Number(named[1]) - 1] : undefined;
        if (line === undefined) throw error;
        refused ??= new Problem(error.status, error.message.replace(named[0], `line ${line + 1}: `));
        this.#settle(line, NOTHING);
        rest = rest.filter((each) => each !== line && !this.shown(each));
      }
    }
    if (refused) throw refused;
    return changed;
  }

  // Whether another model of that name has answered than the one before, whose answers are then forgotten.
  #isNew(version, answered) {
    if (!version) return false; // called off
    const before = this.#versions.get(this.model.name);
    this.#versions.set(this.model.name, version);
    if (!before || version === before) return false;
    const fresh = answered.map((line) => this.#key(this.lines[line])).map((key) => [key, this.#cache.get(key)]);
    this.#cache = new Map(fresh.filter(([, known]) => known));
    return true;
  }

  async #ask(missing, abort) {
    const texts = missing.map((line) => this.lines[line]);
    const begins = texts.map((text) => this.prefixes.get(text) ?? "");
    const body = { text: texts, model: this.model.name, alignments: true, stream: true, ...this.told };
    if (begins.some(Boolean)) body.prefix = begins;
    let finished = null;
    for await (const { event, data } of events("v1/translate", body, abort.signal)) {
      if (abort.signal.aborted) return null;
      if (event === "part") this.onpart?.(missing[data.index], data.text);
      else if (event === "result") this.#keep(missing[data.index], data);
      else if (event === "error") throw problem(data.status, data.error, data.retry_after);
      else if (event === "done") finished = data;
    }
    if (!finished) throw new Problem(0, t("cut"), 2);
    return finished.version;
  }

  #keep(line, { translations, notes }) {
    const known = { hypotheses: translations, notes: notes ?? [] };
    this.#cache.set(this.#key(this.lines[line]), known);
    if (this.#cache.size > KEPT) this.#cache.delete(this.#cache.keys().next().value);
    this.#settle(line, known);
  }

  // A server that is busy, or away, is asked again; anything else is for the reader.
  #failed(problem) {
    this.onproblem?.(problem);
    if (problem.wait !== null) this.#timer = setTimeout(() => this.again(), problem.wait * 1000);
  }
}
