// The view as a whole: what is chosen, and what is drawn anew when it changes.
const TALLEST = 520; // pixels of a map, if its cells are not labelled

class View {
  constructor(element, look, options) {
    this.look = look;
    this.options = options;
    this.id = `look${++mounted}`;
    this.stacks = STACKS.filter(
      (stack) =>
        look.paths.some((_, path) => headsOf(look, path, stack).length) ||
        (stack === "encoder" && headsOf(look, 0, stack).length),
    );
    const long = Math.max(look.source.pieces.length, ...look.paths.map((path) => path.target.pieces.length)) > 64;
    this.path = 0;
    this.stack = this.stacks.includes("cross") ? "cross" : this.stacks[0];
    this.sided = [look.source, ...look.paths.map((path) => path.target)];
    this.unit = this.sided.some(splits) ? "words" : "pieces";
    this.scale = long ? "greatest" : "one";
    this.zoom = 0;
    this.chosen = Object.fromEntries(this.stacks.map((stack) => [stack, new Set(this.heads(stack).map(headKey))]));
    this.root = el("div", { class: "saccade-look" });
    build(this);
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

  // Which of the maps is described when none is pointed at: that of the alignment, if there is one.
  get first() {
    return Math.max(
      0,
      this.panels.findIndex((panel) => panel.stack === "cross"),
    );
  }

  get theme() {
    const set = document.documentElement.dataset.theme;
    if (set === "light" || set === "dark") return set;
    return matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light";
  }

  // The weights of a stack as they are shown: mean of the chosen heads, in the unit that is asked for.
  async shown(stack) {
    const path = this.path,
      axes = axesOf(this.look, path, stack),
      heads = this.heads(stack);
    const taken = heads.filter((head) => this.chosen[stack].has(headKey(head)));
    const matrix = this.merged(path, stack, mean(await Promise.all((taken.length ? taken : heads).map(matrixOf))));
    return {
      stack,
      matrix,
      rows: labelsOf(axes.rows, this.unit),
      columns: labelsOf(axes.columns, this.unit),
      name: say(stack),
      title: titleOf(heads, taken),
    };
  }

  // Of the path that the weights belong to: another may have been chosen while they were unpacked.
  merged(path, stack, matrix) {
    const axes = axesOf(this.look, path, stack),
      [rows, columns] = [axes.rows.pieces.length, axes.columns.pieces.length];
    if (matrix.rows !== rows || matrix.columns !== columns) {
      throw new Error(
        `${stack}: weights are ${matrix.rows} × ${matrix.columns}, but there are ${rows} and ${columns} pieces`,
      );
    }
    return this.unit === "words" ? mergeToWords(matrix, axes.rows.words, axes.columns.words) : matrix;
  }

  async draw(thumbs = false) {
    const drawing = (this.drawing = (this.drawing || 0) + 1);
    if (!this.stacks.length) {
      this.root.dataset.drawn = drawing;
      return;
    }
    const panels = await Promise.all(this.visible.map((stack) => this.shown(stack)));
    if (drawing !== this.drawing) return;
    const start = performance.now();
    this.panels = panels;
    this.shades = shadesOf(this.theme);
    this.place(panels.length);
    const room = this.room(panels.length),
      { font } = this.heats[0];
    const fits = panels.map((panel) => fittingSize(panel, font, room));
    const size = Math.max(SMALLEST, Math.min(MOST_ZOOM, Math.round(Math.min(...fits) * 1.5 ** this.zoom)));
    const rise = Math.max(...panels.map((panel) => namesRise(panel, font, size)));
    this.heats.forEach((heat, i) => heat.show(panels[i], this.shades, this.scaleFor(panels[i]), size, rise));
    this.offer();
    paintRamp(this.ramp, this.shades);
    this.greatest.textContent =
      this.scale === "one" ? "1" : panels.map((panel) => written(panel.matrix.greatest())).join(" / ");
    this.told.replaceChildren(...strongestLinks(panels[this.first]));
    this.all.mark(this.chosen);
    if (thumbs) this.thumbs();
    this.point(null, this.first);
    this.root.dataset.drawn = drawing;
    this.root.dataset.milliseconds = (performance.now() - start).toFixed(1);
  }

  // So many maps; those that are there already stay, with the keyboard's focus and how far they are scrolled.
  place(count) {
    if (this.heats && this.heats.length === count) return;
    this.heats = Array.from(
      { length: count },
      (_, i) =>
        new HeatMap({
          point: (cell) => this.point(cell, i),
          choose: (cell) => this.choose(cell, i),
        }),
    );
    this.maps.replaceChildren(...this.heats.map((heat) => heat.element));
    this.maps.classList.toggle("several", count > 1);
    this.middle.classList.toggle("wide", count > 1);
  }

  room(count) {
    const width = this.maps.clientWidth || 700,
      share = width >= 640 ? count : 1;
    return { width: (width - 22 * (share - 1)) / share, height: count > 1 ? TALLEST * 0.7 : TALLEST };
  }

  scaleFor(panel) {
    return scaleOf(this.scale, panel.matrix.greatest());
  }

  thumbs() {
    const path = this.path;
    this.all.show(
      this.stacks.map((stack) => ({
        stack,
        heads: this.heads(stack),
        merged: (matrix) => this.merged(path, stack, matrix),
      })),
      this.shades,
      this.scale,
    );
    this.all.mark(this.chosen);
  }

  // The texts above and below are those of the map that was pointed at last.
  write(panel) {
    if (this.inLines === panel) return;
    this.inLines = panel;
    const looking = panel.stack === "encoder" ? say("as_read") : say("as_written");
    this.lines.show(panel, panel.stack === "decoder" ? say("so_far") : say("source"), looking);
  }

  point(cell, which) {
    if (!this.panels) return; // nothing is unpacked yet
    const panel = this.panels[which];
    if (cell || !this.panels.includes(this.inLines)) this.write(panel);
    this.heats.forEach((heat, i) => heat.focus(i === which ? cell : null));
    if (cell && cell.column !== null) this.lines.reveal(cell);
    this.lines.draw(cell);
    this.readout.replaceChildren(...inWords(cell, panel));
    this.hint(this.heats[which]);
  }

  // The value beside its cell: the line below a tall map may be out of sight.
  hint(heat) {
    const { cell, shown } = heat;
    this.tip.hidden = !cell;
    if (!cell) return;
    this.tip.replaceChildren(
      el("bdi", { text: shown.rows[cell.row].bare }),
      " \u2192 ",
      el("bdi", { text: shown.columns[cell.column].bare }),
      el("b", { text: written(shown.matrix.at(cell.row, cell.column)) }),
    );
    const frame = this.root.getBoundingClientRect(),
      box = heat.mark.getBoundingClientRect();
    const most = frame.width - this.tip.offsetWidth - 2;
    this.tip.style.left = `${Math.max(2, Math.min(most, box.right - frame.left + 10))}px`;
    this.tip.style.top = `${box.bottom - frame.top + 10}px`;
  }

  // A row of the target is a step, or the steps of a word's pieces.
  choose(cell, which) {
    const panel = this.panels[which];
    if (panel.stack === "encoder" || cell.row === null) return;
    const { words } = this.look.paths[this.path].target;
    if (this.unit === "pieces") this.step.choose(cell.row);
    else this.step.choose(words.indexOf(cell.row), false, words.lastIndexOf(cell.row));
  }

  // What the lists of layers and heads offer, and which of it holds.
  offer() {
    const stack = this.visible.includes("cross") ? "cross" : this.visible[0],
      heads = this.heads(stack);
    this.named = nameOf(heads, this.chosen[stack]);
    const several = this.named ? [] : [["several", say("several")]],
      [layer, head] = this.named || ["several", "several"];
    const numbered = (numbers) => numbers.map((n) => [String(n), String(n)]);
    this.layer.offer([...several, ["all", say("all")], ...numbered(layersOf(heads))], layer);
    this.head.offer([...several, ["mean", say("mean")], ...numbered(numbersOf(heads))], head);
    this.layer.hidden = this.head.hidden = heads.length < 2;
  }

  pick(change) {
    const [layer, head] = this.named || ["all", "mean"],
      wanted = { layer, head, ...change };
    for (const stack of this.visible) {
      const keys = fitting(this.heads(stack), wanted.layer, wanted.head).map(headKey);
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
    const set = this.chosen[stack],
      all = set.size === this.heads(stack).length && set.size > 1;
    if (all) set.clear(); // the first to be taken, not the first to be left out
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
    const style = getComputedStyle(this.root),
      of = (name) => style.getPropertyValue(name).trim();
    const path = this.look.paths[this.path];
    return pictureOf(
      {
        shades: this.shades,
        scale: (panel) => this.scaleFor(panel),
        colours: { ground: of("--card"), ink: of("--ink"), soft: of("--soft") },
        title: printable([this.look.model, this.look.source.text, path && path.target.text].filter(Boolean).join(" \u00b7 ")).slice(
          0,
          160,
        ),
      },
      this.panels,
    );
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
      else if (width) this.lines.draw(this.lines.cell);
      width = this.root.clientWidth;
    });
    size.observe(this.root);
    this.stop = () => {
      media.removeEventListener("change", redraw);
      theme.disconnect();
      size.disconnect();
    };
  }
}

// Show a look, as JSON, in an element of any page. `header: false` leaves out the line with the model's name;
// `language`: of what the view says.
function mount(element, look, options = {}) {
  speak(options.language);
  let view = new View(element, look, options);
  return {
    get ready() {
      return view.ready;
    },
    update(next) {
      view.stop();
      view = new View(element, next, options);
    },
    destroy() {
      view.stop();
      element.replaceChildren();
    },
  };
}

globalThis.SaccadeLook = Object.freeze({ mount });
