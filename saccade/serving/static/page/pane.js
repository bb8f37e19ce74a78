// A sheet with a translation: its words, what else there is, and what it says of itself.

import { Translation } from "./translation.js";
import { languageName, t, tongue } from "./labels.js";
import { element, placesOf, spaced, spell } from "./words.js";
import { drawLinks } from "./links.js";

export class Pane {
  constructor(template, place) {
    this.root = template.content.firstElementChild.cloneNode(true);
    place.append(this.root);
    this.find = (selector) => this.root.querySelector(selector);
    this.output = this.find(".output");
    this.spans = []; // a list for each line
    this.current = 0; // the line whose list of translations and alignment are shown
    this.several = false;
    this.translation = new Translation();
    Object.assign(this.translation, {
      onupdate: (missing) => this.#update(missing),
      onpart: (line, text) => this.#part(line, text),
      onresult: (line) => this.#result(line),
      ondone: () => this.#done(),
      onproblem: (problem) => this.#problem(problem),
    });
    this.#listen();
    this.#roam();
  }

  offer(cards, name) {
    const select = this.find(".model");
    select.replaceChildren(...cards.map((card) => new Option(card.name, card.name)));
    this.cards = cards;
    this.translation.model = cards.find((card) => card.name === name) ?? cards[0];
    select.value = this.translation.model.name;
    select.disabled = cards.length < 2;
    this.#facts();
  }

  get model() {
    return this.translation.model;
  }

  // (source word, target word) of a line, from 0.
  links(line) {
    return this.translation.shown(line)?.alignment ?? [];
  }

  word(line, word) {
    return this.spans[line]?.[word];
  }

  show(line) {
    this.current = line;
    this.#details();
  }

  retell() {
    this.#facts();
    this.translation.results.forEach((_, line) => this.translation.shown(line) && this.#result(line));
    this.#details();
  }

  #facts() {
    const { family, parameters, source, target } = this.model;
    const count = new Intl.NumberFormat(tongue(), { notation: "compact", maximumSignificantDigits: 3 }).format(parameters);
    this.find(".facts").textContent = t("facts", { family, count });
    this.find(".facts").title = `${languageName(source)} → ${languageName(target)}`;
    this.output.lang = /^[a-z]{2,3}(-|_|$)/.test(target) ? target.replace("_", "-") : "";
    this.find(".see").hidden = !this.model.attends;
    this.root.setAttribute("aria-label", `${t("translation")}: ${this.model.name}`); // two of them stand side by side
  }

  #listen() {
    this.find(".model").addEventListener("change", (event) => {
      this.translation.model = this.cards.find((card) => card.name === event.target.value);
      this.#facts();
      this.onmodel?.(this);
    });
    this.find(".more").addEventListener("click", () => {
      this.several = !this.several;
      this.find(".more").setAttribute("aria-pressed", this.several);
      this.onseveral?.(this);
    });
    this.find(".copy").addEventListener("click", () => this.copy());
    this.find(".see").addEventListener("click", () => this.onlook?.(this));
    this.find(".free").addEventListener("click", () => {
      this.translation.prefixes.clear();
      this.translation.picks.clear();
      this.translation.again();
      this.output.querySelector(".word")?.focus();
    });
    this.find(".problem button").addEventListener("click", () => this.translation.again());
  }

  // The words are one stop of the tab key; arrows go from word to word.
  #roam() {
    const at = (event) => {
      const span = event.target.closest(".word");
      return span && { line: Number(span.dataset.line), word: Number(span.dataset.word), span };
    };
    // Events of the mouse, as the text has them: those of pointers come first, and leaving the text would put it out.
    this.output.addEventListener("mouseover", (event) => at(event) && this.onpoint?.(this, at(event)));
    this.output.addEventListener("mouseleave", () => this.onpoint?.(this, null));
    this.output.addEventListener("focusin", (event) => at(event) && this.onpoint?.(this, at(event)));
    this.output.addEventListener("focusout", () => this.onpoint?.(this, null));
    this.output.addEventListener("click", (event) => {
      const found = at(event);
      if (found && !String(getSelection())) this.onword?.(this, found);
    });
    this.output.addEventListener("keydown", (event) => {
      const found = at(event);
      if (!found) return;
      if (event.key === "Enter" || event.key === " ") {
        event.preventDefault();
        this.onword?.(this, found);
      }
      const all = [...this.output.querySelectorAll(".word[role]")];
      const here = all.indexOf(found.span);
      const back = getComputedStyle(found.span.parentElement).direction === "rtl" ? "ArrowRight" : "ArrowLeft";
      const on = back === "ArrowLeft" ? "ArrowRight" : "ArrowLeft";
      const next = { [back]: here - 1, [on]: here + 1, Home: 0, End: all.length - 1 }[event.key];
      if (next === undefined || !all[next]) return;
      event.preventDefault();
      found.span.tabIndex = -1;
      all[next].tabIndex = 0;
      all[next].focus();
    });
  }

  enter(span) {
    this.output.querySelectorAll('[tabindex="0"]').forEach((each) => (each.tabIndex = -1));
    span.tabIndex = 0;
    span.focus();
  }

  #row(line) {
    while (this.output.children.length <= line) this.output.append(element("p", { dir: "auto" }));
    return this.output.children[line];
  }

  #update(missing) {
    this.find(".problem").hidden = true;
    const lines = this.translation.lines;
    while (this.output.children.length > lines.length) this.output.lastChild.remove();
    this.spans.length = lines.length;
    this.output.setAttribute("aria-busy", missing.size > 0);
    const text = lines.join("\n");
    this.output.classList.toggle("long", text.length > 280);
    for (const line of missing) {
      this.#row(line).classList.add("waiting");
      this.#row(line).querySelectorAll("[role]").forEach((span) => span.removeAttribute("role"));
    }
    this.onchanged?.(this);
  }

  // The word of a row that has the keyboard's focus, which is to go on from there once the row is written anew.
  #held(row) {
    return row.contains(document.activeElement) ? document.activeElement.closest(".word") : null;
  }

  // What is known so far: words that cannot be asked about yet.
  #part(line, text) {
    const row = this.#row(line);
    const before = this.spans[line]?.length ?? 0;
    row.classList.replace("waiting", "writing") || row.classList.add("writing");
    const held = this.#held(row);
    if (held) this.root.dataset.back = `${line}.${held.dataset.word}`;
    this.spans[line] = spell(row, text, spaced(text), (word) => element("span", { className: word >= before ? "word new" : "word" }));
  }

  #result(line) {
    const row = this.#row(line);
    row.classList.remove("waiting", "writing");
    const held = this.#held(row);
    const shown = this.translation.shown(line);
    const text = shown?.text ?? "";
    const fixed = this.translation.prefixes.get(this.translation.lines[line])?.length ?? 0;
    const places = placesOf(text, shown?.target_words);
    this.spans[line] = spell(row, text, places, (word) => {
      const span = element("span", { className: places[word][1] <= fixed ? "word fixed" : "word", role: "button", tabIndex: -1 });
      span.setAttribute("aria-haspopup", "menu");
      const read = this.links(line).filter(([, target]) => target === word).map(([source]) => shown.source_words[source]);
      if (read.length) span.setAttribute("aria-description", t("written_for", { words: read.join(" ") })); // what lights up, said
      Object.assign(span.dataset, { line, word, start: places[word][0] });
      return span;
    });
    if (!text) row.append(document.createElement("br"));
    const again = held && (this.spans[line][held.dataset.word] ?? this.spans[line].at(-1));
    if (again) this.enter(again);
    const first = this.output.querySelector(".word[role]");
    if (first && !this.output.querySelector('.word[tabindex="0"]')) first.tabIndex = 0;
    if (shown?.source_words) this.oncut?.(line, shown.source_words);
    this.onchanged?.(this);
    if (line === this.current) this.#details();
  }

  #done() {
    this.output.setAttribute("aria-busy", "false");
    this.#details();
    this.onsaid?.(this);
  }

  #problem(problem) {
    this.output.setAttribute("aria-busy", "false");
    for (const row of this.output.querySelectorAll(".writing")) row.classList.replace("writing", "waiting");
    const place = this.find(".problem");
    place.firstElementChild.textContent = problem.wait === null ? problem.message : `${problem.message} ${t("wait", { seconds: problem.wait })}`;
    place.hidden = false;
    this.#details(); // those that are shown may be of another text
    if (problem.status === 403) this.onrefused?.();
  }

  // The list of translations, the alignment, notes, and whether words were chosen.
  #details() {
    const { translation, current } = this;
    const result = translation.results[current];
    const fresh = result && result.source === translation.lines[current];
    this.find(".free").hidden = !translation.prefixes.size && ![...translation.picks.values()].some(Boolean);
    const notes = fresh ? result.notes : [];
    this.find(".notes").hidden = !notes.length;
    this.find(".notes").textContent = notes.join(" · ");
    const best = this.find(".best");
    best.hidden = !this.several || !fresh || result.hypotheses.length < 1;
    if (!best.hidden) {
      const { hypotheses, pick } = result;
      const first = (each, which) => hypotheses.findIndex(({ text }) => text === each.text) === which; // samples may agree
      best.replaceChildren(...hypotheses.flatMap((each, which) => (first(each, which) ? [this.#choice(each, which, pick)] : [])));
    }
    const links = this.find(".links");
    links.hidden = !this.wantsLinks || !fresh || !this.links(current).length;
    if (!links.hidden) drawLinks(links, translation.shown(current), (at) => this.onpoint?.(this, at && { line: current, ...at }));
  }

  #number(score) {
    const digits = { minimumFractionDigits: 2, maximumFractionDigits: 2 };
    return new Intl.NumberFormat(tongue(), digits).format(score).replace("-", "−");
  }

  #choice(hypothesis, which, pick) {
    const button = element("button", { type: "button", dir: "auto" }, hypothesis.text || "∅");
    button.setAttribute("aria-pressed", which === pick);
    button.addEventListener("click", () => {
      this.translation.pick(this.current, which);
      this.find('.best [aria-pressed="true"]')?.focus();
      this.onsaid?.(this);
    });
    const score = element("span", { className: "soft score", title: t("score") }, this.#number(hypothesis.score));
    return element("li", {}, button, score);
  }

  async copy() {
    const { text } = this.translation;
    try {
      await navigator.clipboard.writeText(text);
    } catch {
      // Served over plain HTTP the clipboard is closed, but a selection may still be copied.
      const field = element("textarea", { value: text, className: "unseen" });
      document.body.append(field);
      field.select();
      document.execCommand("copy");
      field.remove();
    }
    this.oncopied?.();
  }
}
