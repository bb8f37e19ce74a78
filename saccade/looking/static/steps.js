// How sure the model was: the translations, the probability of each piece, and what else might have stood there.
const MOST_SHOWN = 8;

class Paths {
  constructor(name, act) {
    Object.assign(this, { name, act });
    this.list = el("div", { class: "paths", role: "radiogroup", "aria-label": say("translations") });
    this.element = el(
      "section",
      { class: "card" },
      el("header", {}, el("h2", { text: say("translations") }), el("small", { text: say("score") })),
      this.list,
    );
  }

  show(paths, chosen) {
    const scores = paths.map((path) => path.score).filter((score) => score !== null);
    const [best, worst] = [Math.max(...scores), Math.min(...scores)];
    this.list.replaceChildren(
      ...paths.map((path, i) => {
        const input = el("input", { type: "radio", name: this.name, value: i, on: { change: () => this.act(i) } });
        input.checked = i === chosen;
        const bar = el("i");
        bar.style.width = `${path.score === null ? 0 : 100 * Math.exp(path.score - best)}%`;
        return el(
          "label",
          { class: "path", title: best > worst ? say("bar") : null },
          input,
          el("b", { text: i + 1 }),
          el("bdi", { text: printable(path.target.text) }),
          el("span", { class: "score", text: path.score === null ? "" : decimal(path.score, 2) }),
          el("span", { class: "bar" }, bar),
        );
      }),
    );
  }
}

class Steps {
  constructor() {
    this.chips = el("div", {
      class: "chips",
      role: "listbox",
      "aria-label": say("chips"),
    });
    this.choices = el("div", { class: "alternatives", "aria-live": "polite" });
    this.element = el(
      "section",
      { class: "card steps" },
      el("header", {}, el("h2", { text: say("steps") }), el("small", { text: say("chances") })),
      this.chips,
      this.choices,
    );
    this.chips.addEventListener("keydown", (event) => {
      const by = { ArrowRight: 1, ArrowDown: 1, ArrowLeft: -1, ArrowUp: -1, Home: -1e9, End: 1e9 }[event.key];
      if (!by) return;
      event.preventDefault();
      this.choose(Math.max(0, Math.min(this.path.steps.length - 1, this.chosen[0] + by)), true);
    });
  }

  show(path) {
    this.path = path;
    this.element.hidden = !path || path.steps.length === 0;
    if (this.element.hidden) return;
    this.labels = labelsOf(path.target, "pieces");
    this.nodes = path.steps.map((step, i) => {
      const each = this.labels[i] || label("", true),
        bar = el("i");
      bar.style.width = `${Math.min(100, 100 * step.probability)}%`;
      return el(
        "span",
        {
          class: `chip${each.special ? " special" : ""}${step.probability < 0.5 ? " unsure" : ""}`,
          role: "option",
          tabindex: -1,
          "aria-label": `${each.bare}, ${percent(step.probability)}`,
          on: { click: () => this.choose(i, true) },
        },
        el("bdi", { text: each.text }),
        bar,
      );
    });
    this.chips.replaceChildren(...this.nodes);
    // The least sure step is where a reader wants to look first.
    const least = path.steps.reduce((low, step, i) => (step.probability < path.steps[low].probability ? i : low), 0);
    this.choose(least);
  }

  choose(first, focused = false, last = first) {
    if (!this.nodes || this.element.hidden || first >= this.nodes.length) return;
    this.chosen = [first, Math.min(last, this.nodes.length - 1)];
    this.nodes.forEach((node, i) => {
      const here = i >= first && i <= this.chosen[1];
      node.setAttribute("aria-selected", here);
      node.tabIndex = i === first ? 0 : -1;
    });
    const node = this.nodes[first];
    if (focused) node.focus({ preventScroll: true });
    this.chips.scrollTop = Math.max(0, node.offsetTop - this.chips.clientHeight / 2);
    const parts = [];
    for (let i = first; i <= this.chosen[1]; i++) parts.push(this.table(i));
    this.choices.replaceChildren(...parts);
  }

  table(i) {
    const step = this.path.steps[i],
      written = this.path.target.pieces[i] ?? "";
    const offered = step.alternatives
      .slice(0, MOST_SHOWN)
      .map(([piece, p]) => ({ piece, p, chosen: piece === written }));
    if (!offered.some((each) => each.chosen)) offered.push({ piece: written, p: step.probability, chosen: true });
    const lines = offered.map(({ piece, p, chosen }) => {
      const bar = el("i");
      bar.style.width = `${Math.min(100, 100 * p)}%`;
      const begins = piece.startsWith("\u2581") || (chosen && this.labels[i] && this.labels[i].begins);
      return el(
        "div",
        { class: chosen ? "alternative chosen" : "alternative" },
        el("bdi", { text: label(piece, begins).text }),
        el("span", { class: "bar" }, bar),
        el("span", { class: "score", text: percent(p) }),
        chosen ? el("span", { class: "unseen", text: `, ${say("written")}` }) : null,
      );
    });
    return el("div", { class: "step" }, el("p", { text: say("step", { step: i + 1, count: this.path.steps.length }) }), ...lines);
  }
}
