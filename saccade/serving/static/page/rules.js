// Glossary and rules: what a reader asks of every translation, kept in the browser.

import { t } from "./labels.js";
import { read, write } from "./kept.js";
import { element, icon } from "./words.js";

const NONE = { glossary: [], must: "", banned: "", beam: "", length: "", number: 5 };
const FIELDS = ["must", "banned", "beam", "length", "number"];
const listed = (text) => text.split("\n").map((line) => line.trim()).filter(Boolean);

export class Rules {
  constructor(dialog, button) {
    this.dialog = dialog;
    this.badge = button.querySelector(".badge");
    this.body = dialog.querySelector("#terms");
    this.kept = { ...NONE, ...read("rules", {}) };
    button.addEventListener("click", () => this.open());
    dialog.querySelector("#add-term").addEventListener("click", () => this.#row(["", ""]).querySelector("input").focus());
    dialog.querySelector("#forget").addEventListener("click", () => {
      this.kept = { ...NONE, glossary: [] };
      this.#show();
      this.#changed();
    });
    dialog.addEventListener("input", () => this.#gather());
    dialog.addEventListener("keydown", (event) => {
      // Enter in a field is not "done": the next term is near.
      if (event.key !== "Enter" || event.target.tagName !== "INPUT") return;
      event.preventDefault();
      if (event.target.closest("#terms tr:last-child")) this.#row(["", ""]).querySelector("input").focus();
    });
    addEventListener("saccade:tongue", () => dialog.open && this.#show());
    this.#count();
  }

  open() {
    this.#show();
    this.dialog.showModal();
  }

  // What a request is told. `several`: whether the list of translations is open.
  request(several) {
    const { glossary, must, banned, beam, length, number } = this.kept;
    const terms = glossary.filter(([term, becomes]) => term.trim() && becomes.trim());
    const search = {};
    if (beam) search.beam = Number(beam);
    if (length !== "") search.length_penalty = Number(length);
    const told = {
      glossary: Object.fromEntries(terms.map(([term, becomes]) => [term.trim(), becomes.trim()])),
      must: listed(must),
      banned: listed(banned),
      search,
    };
    if (several) told.n_best = Number(number) || NONE.number;
    return told;
  }

  get active() {
    const { glossary, must, banned, search } = this.request(false);
    return Object.keys(glossary).length + must.length + banned.length + Object.keys(search).length;
  }

  #show() {
    this.body.replaceChildren();
    for (const term of this.kept.glossary.length ? this.kept.glossary : [["", ""]]) this.#row(term);
    for (const name of FIELDS) this.dialog.querySelector(`#${name}`).value = this.kept[name];
  }

  #row([term, becomes]) {
    const inputs = [["term", term], ["becomes", becomes]].map(([label, value]) =>
      element("td", {}, element("input", { value, dir: "auto", "aria-label": t(label), autocomplete: "off" })),
    );
    const remove = element("button", { type: "button", title: t("remove"), "aria-label": t("remove") }, icon("clear"));
    const row = element("tr", {}, ...inputs, element("td", {}, remove));
    remove.addEventListener("click", () => {
      row.remove();
      this.#gather();
      this.dialog.querySelector("#add-term").focus();
    });
    this.body.append(row);
    return row;
  }

  #gather() {
    const rows = [...this.body.rows].map((row) => [...row.querySelectorAll("input")].map((input) => input.value));
    this.kept = { glossary: rows.filter((row) => row.some((cell) => cell.trim())) };
    for (const name of FIELDS) {
      const field = this.dialog.querySelector(`#${name}`);
      this.kept[name] = field.validity.valid ? field.value : NONE[name];
    }
    this.#changed();
  }

  #changed() {
    write("rules", this.kept);
    this.#count();
    this.onchange?.();
  }

  #count() {
    this.badge.hidden = !this.active;
    this.badge.textContent = this.active || "";
  }
}
