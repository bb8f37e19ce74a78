// Other words for one that was written: a small menu beneath it.

import { t, tongue } from "./labels.js";
import { element } from "./words.js";

export class Choices {
  constructor(root) {
    this.root = root;
    this.asked = 0;
    root.addEventListener("keydown", (event) => this.#key(event));
    addEventListener("pointerdown", (event) => {
      if (!this.root.hidden && !this.root.contains(event.target) && !this.anchor?.contains(event.target)) this.close(false);
    });
    addEventListener("resize", () => this.close(false));
  }

  get open() {
    return !this.root.hidden;
  }

  async show(pane, { line, word, span }) {
    const same = this.open && this.anchor === span;
    this.close(false);
    if (same) return;
    const asked = ++this.asked;
    this.anchor = span;
    const { translation } = pane;
    const before = translation.shown(line)?.text.slice(0, Number(span.dataset.start)) ?? "";
    this.#fill(element("p", { className: "soft" }, t("looking")));
    span.setAttribute("aria-expanded", "true");
    try {
      const found = await translation.alternatives(line, before.trimEnd());
      if (asked !== this.asked) return;
      const rows = found.words.map((each, index) => this.#choice(each, found, index, before, () => {
        this.close(false);
        pane.root.dataset.back = `${line}.${word}`;
        translation.begin(line, before + each);
      }, each === span.textContent));
      this.#fill(...(rows.length ? rows : [element("p", { className: "soft" }, t("none"))]));
      (this.root.querySelector("[aria-current]") ?? this.root.querySelector("button"))?.focus();
    } catch (problem) {
      if (asked === this.asked) this.#fill(element("p", { className: "bad", role: "alert" }, problem.message));
    }
  }

  close(back = true) {
    this.asked += 1;
    if (this.root.hidden) return;
    this.root.hidden = true;
    this.anchor?.removeAttribute("aria-expanded");
    const { anchor } = this;
    this.anchor = null;
    this.onclose?.();
    if (back && anchor?.isConnected) anchor.focus();
  }

  #choice(word, { probabilities, translations }, index, before, choose, current) {
    const share = probabilities[index] ?? 0;
    const percent = new Intl.NumberFormat(tongue(), { style: "percent", maximumFractionDigits: share < 0.0995 ? 1 : 0 });
    const likely = share > 0 && share < 0.0005 ? `< ${percent.format(0.001)}` : percent.format(share);
    const bar = element("span", { className: "bar" });
    bar.style.setProperty("--share", share);
    const rest = translations[index] ?? "";
    const after = rest.startsWith(before + word) ? rest.slice((before + word).length) : rest;
    const button = element(
      "button",
      { type: "button", role: "menuitem", tabIndex: -1 },
      element("span", { className: "line", dir: "auto" }, element("b", {}, word), element("span", { className: "soft" }, after)),
      element("span", { className: "share soft" }, bar, element("span", { className: "likely" }, likely)),
    );
    if (current) button.setAttribute("aria-current", "true");
    button.addEventListener("click", choose);
    return button;
  }

  #fill(...children) {
    this.root.replaceChildren(...children);
    this.root.hidden = false;
    const word = this.anchor.getBoundingClientRect();
    const { width, height } = this.root.getBoundingClientRect();
    const below = word.bottom + 6 + height <= innerHeight || word.top < height + 12;
    const top = below ? word.bottom + 6 : word.top - height - 6;
    const left = Math.max(8, Math.min(word.left - 12, document.documentElement.clientWidth - width - 8));
    this.root.style.top = `${top + scrollY}px`;
    this.root.style.left = `${left + scrollX}px`;
  }

  #key(event) {
    const rows = [...this.root.querySelectorAll("button")];
    const here = rows.indexOf(document.activeElement);
    const next = { ArrowDown: here + 1, ArrowUp: here - 1, Home: 0, End: rows.length - 1 }[event.key];
    if (event.key === "Tab") this.close();
    if (next === undefined || !rows.length) return;
    event.preventDefault();
    rows[(next + rows.length) % rows.length].focus();
  }
}
