// All layers and heads as small maps, a stack beside the other. A click opens one; say("add") takes several.
const THUMB = 72; // pixels of a small map's canvas at most

class Heads {
  constructor(act) {
    this.act = act;
    this.several = el("input", { type: "checkbox", name: "several" });
    this.groups = el("div", { class: "groups" });
    this.element = el(
      "section",
      { class: "card heads" },
      el(
        "header",
        {},
        el("h2", { text: say("heads") }),
        el("label", { class: "check" }, this.several, el("span", { text: say("add") })),
      ),
      this.groups,
    );
    this.drawing = 0;
  }

  // `stacks`: name → the heads of it, and what merges a matrix to the unit that is shown.
  show(stacks, shades, scaleName) {
    const drawing = ++this.drawing;
    this.buttons = [];
    this.groups.replaceChildren(...stacks.map((stack) => this.group(stack)));
    this.paint(drawing, shades, scaleName);
  }

  group({ stack, heads, merged }) {
    const layers = layersOf(heads),
      numbers = numbersOf(heads);
    const grid = el("div", { class: "grid", role: "group", "aria-label": say("heads_of", { stack: say(stack) }) });
    grid.style.setProperty("--heads", numbers.length);
    grid.append(el("span", {}), ...numbers.map((n) => el("span", { class: "number", text: n })));
    for (const layer of layers) {
      grid.append(
        el("button", {
          type: "button",
          class: "layer",
          text: layer,
          title: say("whole_layer", { layer }),
          "aria-label": `${say(stack)}, ${say("whole_layer", { layer })}`,
          on: { click: () => this.act.open(stack, heads.filter((head) => head.layer === layer).map(headKey)) },
        }),
      );
      for (const n of numbers)
        grid.append(
          this.thumb(
            stack,
            heads.find((h) => h.layer === layer && h.head === n),
            merged,
          ),
        );
    }
    return el(
      "div",
      { class: "group", "data-stack": stack },
      el("h3", { text: say(stack) }),
      el("p", { class: "axes", text: say("axes"), "aria-hidden": true }),
      grid,
    );
  }

  thumb(stack, head, merged) {
    if (!head) return el("span", {});
    const canvas = el("canvas"),
      name = say("one_head", head);
    const button = el(
      "button",
      {
        type: "button",
        class: "thumb",
        title: name,
        "aria-label": `${say(stack)}, ${name}`,
        "data-head": `${stack}.${headKey(head)}`,
        on: {
          click: (event) => {
            const key = headKey(head);
            if (this.several.checked || event.shiftKey || event.ctrlKey || event.metaKey) this.act.toggle(stack, key);
            else this.act.open(stack, [key]);
          },
          keydown: (event) => this.walk(event, button),
        },
      },
      canvas,
    );
    this.buttons.push({ button, canvas, head, stack, merged });
    return button;
  }

  // Arrow keys walk over the grid as it is seen.
  walk(event, button) {
    const side = { ArrowRight: [1, 0], ArrowLeft: [-1, 0], ArrowDown: [0, 1], ArrowUp: [0, -1] }[event.key];
    if (!side) return;
    event.preventDefault();
    const here = button.getBoundingClientRect();
    const far = ({ button: other }) => {
      const box = other.getBoundingClientRect(),
        x = box.left - here.left,
        y = box.top - here.top;
      const along = x * side[0] + y * side[1],
        aside = Math.abs(x * side[1]) + Math.abs(y * side[0]);
      return along > 2 ? along + 4 * aside : Infinity;
    };
    const next = this.buttons.reduce((a, b) => (far(b) < far(a) ? b : a));
    if (far(next) < Infinity) next.button.focus();
  }

  // One after the other, giving way to the hand in between: there may be hundreds.
  async paint(drawing, shades, scaleName) {
    let since = performance.now();
    for (const { canvas, head, merged } of this.buttons) {
      const small = shrunk(merged(await matrixOf(head)), THUMB);
      if (drawing !== this.drawing) return;
      paint(canvas, small, shades, scaleOf(scaleName, small.greatest()));
      if (performance.now() - since > 12) {
        await new Promise((then) => setTimeout(then));
        since = performance.now();
      }
    }
    this.element.dataset.drawn = drawing;
  }

  mark(chosen) {
    this.groups.querySelectorAll(".group").forEach((group) => {
      const own = (this.buttons || []).filter((each) => each.stack === group.dataset.stack);
      group.classList.toggle("whole", own.length === (chosen[group.dataset.stack] || []).size);
    });
    for (const { button, head, stack } of this.buttons || []) {
      const set = chosen[stack];
      button.setAttribute("aria-pressed", Boolean(set && set.has(headKey(head))));
    }
  }
}
