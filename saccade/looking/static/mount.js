// The view as a whole: what is chosen, and what is drawn anew when it changes.
const TALLEST = 600;  // pixels of a map, if its cells are not labelled

class View {
  constructor(element, look, options) {
    this.look = look;
    this.options = options;
    this.id = `look${++mounted}`;
    this.stacks = STACKS.filter((stack) => look.paths.some((_, path) => headsOf(look, path, stack).length)
      || (stack === "encoder" && headsOf(look, 0, stack).length));
    const long = Math.max(look.source.pieces.length, ...look.paths.map((path) => path.target.pieces.length)) > 64;
    this.path = 0;
    this.stack = this.stacks.includes("cross") ? "cross" : this.stacks[0];
    this.sided = [look.source, ...look.paths.map((path) => path.target)];
    this.unit = this.sided.some(splits) ? "words" : "pieces";
    this.scale = long ? "greatest" : "one";
    this.zoom = 0;
    this.chosen = Object.fromEntries(this.stacks.map((stack) => [stack, new Set(this.heads(stack).map(headKey))]));
    this.root = el("div", { class: "saccade-look" });
    this.build();
    element.replaceChildren(this.root);
    this.watch();
    this.step.show(look.paths[0]);
    this.paths.show(look.paths, 0);
    this.ready = this.draw(true);
  }

  heads(stack) {
    return headsOf(this.look, this.path, stack);
  }

  get visible() {
    return this.stack === "all" ? this.stacks : [this.stack];
  }

  get theme() {
    const set = document.documentElement.dataset.theme;
    if (set === "light" || set === "dark") return set;
    return matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light";
  }

  build() {
    const { look, id } = this;
    const written = () => Math.max(0, this.panels.indexOf(this.inLines));  // the map whose texts are shown
    this.lines = new Lines({ point: (cell) => this.point(cell, written()), choose: (cell) => this.choose(cell, written()) });
    this.all = new Heads({ open: (...which) => this.open(...which), toggle: (...which) => this.toggle(...which) });
    this.step = new Steps();
    this.paths = new Paths(`${id}-path`, (path) => this.turnTo(path));
    this.maps = el("div", { class: "maps" });
    this.readout = el("output", { class: "readout", "aria-live": "polite" });
    this.ramp = el("canvas", { class: "ramp" });
    this.greatest = el("span", { class: "greatest", text: "1" });
    const legend = el("div", { class: "legend", "aria-hidden": true }, el("span", { text: "0" }), this.ramp, this.greatest);
    this.told = el("ol");
    const told = el("details", { class: "told" }, el("summary", { text: "Strongest links, in words" }), this.told);
    this.layer = selection("Layer", "layer", (value) => this.pick({ layer: value }));
    this.head = selection("Head", "head", (value) => this.pick({ head: value }));
    const heat = el("section", { class: "card heat-card" }, this.controls(), this.maps,
      el("footer", {}, this.readout, legend), told);
    const side = el("div", { class: "side" }, look.paths.length > 1 ? this.paths.element : null, this.step.element);
    const nothing = el("section", { class: "card" }, el("p", { class: "nothing",
      text: "This model has no attention that could be shown: no weights were given." }));
    const seen = this.stacks.length > 0;
    const many = this.stacks.some((stack) => this.heads(stack).length > 1);
    this.root.replaceChildren(...[this.options.header === false ? null : this.heading(),
      seen ? el("section", { class: "card" }, this.lines.element) : nothing,
      this.middle = el("div", { class: "middle" }, seen ? heat : null, side), many ? this.all.element : null].filter(Boolean));
    this.root.classList.toggle("alone", look.paths.length < 2 && !look.paths.some((path) => path.steps.length));
  }

  heading() {
    const { source_language: from, target_language: to, ...others } = this.look.facts || {};
    const told = Object.entries(others).filter(([, value]) => typeof value === "number" || (typeof value === "string" && value));
    const facts = [...(from && to ? [["languages", `${from} \u2192 ${to}`]] : []), ...told];
    const theme = el("button", { type: "button", class: "plain theme", "aria-label": "Light or dark", text: "\u25d1",
      title: "Light or dark", on: { click: () => {
        document.documentElement.dataset.theme = this.theme === "dark" ? "light" : "dark";
      } } });
    return el("header", { class: "heading" }, el("h1", {}, el("bdi", { text: this.look.model || "Attention" })),
      el("p", { class: "facts" }, ...facts.map(([name, value]) => el("span", {}, el("i", { text: name.replaceAll("_", " ") }), ` ${value}`))),
      theme);
  }

  controls() {
    const { id } = this, name = (stack) => [stack, STACK_NAMES[stack]];
    const stacks = [...this.stacks.map(name), ...(this.stacks.length > 1 ? [["all", "Side by side"]] : [])];
    this.stackChoice = choice("Attention", `${id}-stack`, stacks, this.stack, (stack) => { this.stack = stack; this.draw(); });
    const unit = choice("Unit", `${id}-unit`, [["words", "Words"], ["pieces", "Pieces"]], this.unit,
      (value) => { this.unit = value; this.draw(true); });
    const scale = selection("Colour", "scale", (value) => { this.scale = value; this.draw(true); });
    scale.offer(Object.entries(SCALES), this.scale);
    const button = (text, title, click) => el("button", { type: "button", class: "plain", text, title, "aria-label": title, on: { click } });
    const zoom = (by) => { this.zoom = Math.max(-4, Math.min(8, this.zoom + by)); this.draw(); };
    return el("header", { class: "controls" }, this.stacks.length > 1 ? this.stackChoice : null,
      this.sided.some(splits) ? unit : null, this.layer, this.head, scale,
      el("span", { class: "buttons" }, button("\u2212", "Smaller cells", () => zoom(-1)), button("+", "Larger cells", () => zoom(1)),
        button("SVG", "Save the map as SVG", () => saveSvg(this.picture(), "attention")),
        button("PNG", "Save the map as PNG", () => savePng(this.picture(), "attention"))));
  }

  // The weights of a stack as they are shown: mean of the chosen heads, in the unit that is asked for.
  async shown(stack) {
    const axes = axesOf(this.look, this.path, stack), heads = this.heads(stack);
    const taken = heads.filter((head) => this.chosen[stack].has(headKey(head)));
    const matrix = this.merged(stack, mean(await Promise.all((taken.length ? taken : heads).map(matrixOf))));
    return { stack, matrix, rows: labelsOf(axes.rows, this.unit), columns: labelsOf(axes.columns, this.unit),
      name: STACK_NAMES[stack], title: this.titleOf(heads, taken) };
  }

  merged(stack, matrix) {
    const axes = axesOf(this.look, this.path, stack), [rows, columns] = [axes.rows.pieces.length, axes.columns.pieces.length];
    if (matrix.rows !== rows || matrix.columns !== columns) {
      throw new Error(`${stack}: weights are ${matrix.rows} × ${matrix.columns}, but there are ${rows} and ${columns} pieces`);
    }
    return this.unit === "words" ? mergeToWords(matrix, axes.rows.words, axes.columns.words) : matrix;
  }

  titleOf(heads, taken) {
    if (taken.length === 1) return heads.length === 1 ? "" : `layer ${taken[0].layer}, head ${taken[0].head}`;
    if (!taken.length || taken.length === heads.length) return `mean of all ${heads.length} heads`;
    const layers = new Set(taken.map((head) => head.layer));
    const whole = layers.size === 1 && heads.filter((head) => layers.has(head.layer)).length === taken.length;
    return whole ? `layer ${taken[0].layer}, mean of ${taken.length} heads` : `mean of ${taken.length} heads`;
  }

  async draw(thumbs = false) {
    if (!this.stacks.length) return;
    const drawing = this.drawing = (this.drawing || 0) + 1;
    const panels = await Promise.all(this.visible.map((stack) => this.shown(stack)));
    if (drawing !== this.drawing) return;
    const start = performance.now();
    this.panels = panels;
    this.shades = shadesOf(this.theme);
    this.heats = panels.map((_, i) => new HeatMap({
      point: (cell) => this.point(cell, i), choose: (cell) => this.choose(cell, i),
    }));
    // A map that had the focus keeps it.
    const focused = [...this.maps.children].findIndex((map) => map.contains(document.activeElement));
    this.maps.replaceChildren(...this.heats.map((heat) => heat.element));
    this.maps.classList.toggle("several", panels.length > 1);
    this.middle.classList.toggle("wide", panels.length > 1);
    this.heats.forEach((heat, i) => heat.show(panels[i], this.shades, this.scaleFor(panels[i]), this.room(panels.length), this.zoom));
    if (focused >= 0 && this.heats[focused]) this.heats[focused].map.focus();
    this.offer();
    paintRamp(this.ramp, this.shades);
    this.greatest.textContent = this.scale === "one" ? "1" : panels.map((panel) => written(panel.matrix.greatest())).join(" / ");
    this.tell(panels.find((panel) => panel.stack === "cross") || panels[0]);
    this.all.mark(this.chosen);
    if (thumbs) this.thumbs();
    this.point(null);
    this.root.dataset.drawn = drawing;
    this.root.dataset.milliseconds = (performance.now() - start).toFixed(1);
  }

  room(count) {
    const width = this.maps.clientWidth || 700, share = width >= 640 ? count : 1;
    return { width: (width - 22 * (share - 1)) / share, height: count > 1 ? TALLEST * 0.7 : TALLEST };
  }

  scaleFor(panel) {
    return scaleOf(this.scale, panel.matrix.greatest());
  }

  thumbs() {
    this.all.show(this.stacks.map((stack) => ({
      stack, heads: this.heads(stack), merged: (matrix) => this.merged(stack, matrix),
    })), this.shades, this.scale);
    this.all.mark(this.chosen);
  }

  // The texts above and below are those of the map that was pointed at last.
  write(panel) {
    if (this.inLines === panel) return;
    this.inLines = panel;
    const looking = panel.stack === "encoder" ? "as it is read" : "as it is written";
    this.lines.show(panel, panel.stack === "decoder" ? "written so far" : "source", looking);
  }

  point(cell, which = 0) {
    const panel = this.panels[which];
    if (cell || !this.panels.includes(this.inLines)) this.write(panel);
    this.heats.forEach((heat, i) => heat.focus(i === which ? cell : null));
    if (cell && cell.column !== null) this.lines.reveal(cell);
    this.lines.draw(cell);
    this.readout.replaceChildren(...this.say(cell, panel));
  }

  say(cell, panel) {
    if (!cell) return [el("span", { class: "hint", text: "Point at a cell, or move with the arrow keys." })];
    const { row, column } = cell, { matrix, rows, columns } = panel;
    const word = (each) => el("bdi", { class: "said", text: each.bare });
    if (row !== null && column !== null) {
      return [word(rows[row]), " looks at ", word(columns[column]), " ", el("b", { class: "value", text: written(matrix.at(row, column)) })];
    }
    if (row !== null) {
      const best = matrix.strongest()[row];
      return best < 0 ? [word(rows[row]), " looks nowhere"] : [word(rows[row]), " looks most at ", word(columns[best]), " ",
        el("b", { class: "value", text: written(matrix.at(row, best)) })];
    }
    let sum = 0;
    for (let i = 0; i < matrix.rows; i++) sum += matrix.at(i, column) || 0;
    return [word(columns[column]), " is looked at ", el("b", { class: "value", text: written(sum) }), " in all"];
  }

  // A row of the target is a step, or the steps of a word's pieces.
  choose(cell, which) {
    const panel = this.panels[which];
    if (panel.stack === "encoder" || cell.row === null) return;
    const { words } = this.look.paths[this.path].target;
    if (this.unit === "pieces") this.step.choose(cell.row);
    else this.step.choose(words.indexOf(cell.row), false, words.lastIndexOf(cell.row));
  }

  tell(panel) {
    const { matrix, rows, columns } = panel, strongest = matrix.strongest();
    const links = strongest.map((column, row) => ({ row, column })).filter((each) => each.column >= 0);
    const weight = ({ row, column }) => matrix.at(row, column);
    if (links.length > 60) links.sort((a, b) => weight(b) - weight(a)).length = 60;
    this.told.replaceChildren(...links.map((each) => el("li", {}, el("bdi", { text: rows[each.row].bare }), " looks most at ",
      el("bdi", { text: columns[each.column].bare }), `, ${written(weight(each))}`)));
  }

  // What the lists of layers and heads offer, and which of it holds.
  offer() {
    const stack = this.visible.includes("cross") ? "cross" : this.visible[0];
    const heads = this.heads(stack), chosen = this.chosen[stack];
    const layers = [...new Set(heads.map((head) => head.layer))], numbers = [...new Set(heads.map((head) => head.head))];
    const taken = heads.filter((head) => chosen.has(headKey(head)));
    const fits = (layer, n) => heads.filter((h) => (layer === "all" || h.layer === +layer) && (n === "mean" || h.head === +n));
    const pairs = [...layers.map(String), "all"].flatMap((layer) => ["mean", ...numbers.map(String)].map((n) => [layer, n]));
    const same = ([layer, n]) => fits(layer, n).length === taken.length && fits(layer, n).every((h) => chosen.has(headKey(h)));
    const named = heads.length === taken.length ? ["all", "mean"] : pairs.find(same);
    const [layer, head] = this.named = named || ["several", "several"];
    const several = named ? [] : [["several", "chosen"]];
    this.layer.offer([...several, ["all", "all"], ...layers.map((n) => [String(n), String(n)])], layer);
    this.head.offer([...several, ["mean", "mean of all"], ...numbers.map((n) => [String(n), String(n)])], head);
    this.layer.hidden = this.head.hidden = heads.length < 2;
  }

  pick(change) {
    const [layer, head] = this.named;
    const wanted = { layer: layer === "several" ? "all" : layer, head: head === "several" ? "mean" : head, ...change };
    for (const stack of this.visible) {
      const keys = this.heads(stack).filter((each) => (wanted.layer === "all" || each.layer === +wanted.layer)
        && (wanted.head === "mean" || each.head === +wanted.head)).map(headKey);
      if (keys.length) this.chosen[stack] = new Set(keys);
    }
    this.draw();
  }

  open(stack, keys) {
    this.chosen[stack] = new Set(keys);
    if (this.stack !== "all") this.stack = stack;
    this.stackChoice.choose(this.stack);
    this.draw();
  }

  toggle(stack, key) {
    const set = this.chosen[stack], all = set.size === this.heads(stack).length && set.size > 1;
    if (all) set.clear();  // the first to be taken, not the first to be left out
    if (!set.delete(key)) set.add(key);
    if (!set.size) this.heads(stack).forEach((head) => set.add(headKey(head)));
    this.open(stack, [...set]);
  }

  turnTo(path) {
    this.path = path;
    this.step.show(this.look.paths[path]);
    this.draw(true);
  }

  picture() {
    const style = getComputedStyle(this.root), of = (name) => style.getPropertyValue(name).trim();
    const translation = this.look.paths[this.path];
    return pictureOf({
      shades: this.shades, scale: (panel) => this.scaleFor(panel),
      colours: { ground: of("--card"), ink: of("--ink"), soft: of("--soft") },
      title: printable([this.look.model, this.look.source.text, translation ? translation.target.text : ""].filter(Boolean).join(" \u00b7 ")).slice(0, 160),
    }, this.panels);
  }

  watch() {
    const redraw = () => this.draw(true);
    const media = matchMedia("(prefers-color-scheme: dark)");
    media.addEventListener("change", redraw);
    const theme = new MutationObserver(redraw);
    theme.observe(document.documentElement, { attributes: true, attributeFilter: ["data-theme"] });
    let width = 0;
    const size = new ResizeObserver(() => {
      if (Math.abs(this.root.clientWidth - width) > 1 && width) this.draw();
      else if (width) this.lines.draw(null);
      width = this.root.clientWidth;
    });
    size.observe(this.root);
    this.stop = () => { media.removeEventListener("change", redraw); theme.disconnect(); size.disconnect(); };
  }
}

// Show a look, as JSON, in an element of any page. `header: false` leaves out the line with the model's name.
function mount(element, look, options = {}) {
  let view = new View(element, look, options);
  return {
    get ready() { return view.ready; },
    update(next) { view.stop(); view = new View(element, next, options); },
    destroy() { view.stop(); element.replaceChildren(); },
  };
}

globalThis.SaccadeLook = Object.freeze({ mount });
