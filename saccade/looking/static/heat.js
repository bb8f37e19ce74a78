// The heat map: a canvas of one pixel a weight, labels beside it, and a cell that the mouse or the arrow keys move.
const LABEL_FROM = 13; // pixels a cell must have before each of them is labelled
const SLANT_FROM = 18; // and before the names of columns may slant
const FIGURE_FROM = 30,
  LEAST_FIGURE = 0.095; // and before weights are written into cells
const SMALLEST = 2,
  LARGEST = 48,
  MOST_ZOOM = 60;
const SLANT = Math.PI / 3.6,
  OVERHANG = 46; // slanted names of the last columns need room to their right
const KEYS = {
  ArrowUp: [-1, 0],
  ArrowDown: [1, 0],
  ArrowLeft: [0, -1],
  ArrowRight: [0, 1],
  PageUp: [-10, 0],
  PageDown: [10, 0],
  Home: [0, -Infinity],
  End: [0, Infinity],
};

const measuring = el("canvas").getContext("2d"),
  widths = new Map();

function widthOf(text, font) {
  if (!widths.has(font)) widths.set(font, new Map());
  const known = widths.get(font);
  if (!known.has(text)) {
    measuring.font = font;
    known.set(text, measuring.measureText(text).width);
  }
  return known.get(text);
}

// The width of the names of rows.
const namesRoom = (rows, font) => Math.min(150, Math.max(24, ...rows.map((each) => widthOf(each.text, font))) + 14);

// The pixels of a cell with which a map fills its room, its names readable if that can be.
function fittingSize({ matrix, rows }, font, room) {
  const wide = room.width - namesRoom(rows, font) - 8,
    fit = Math.floor(wide / matrix.columns);
  const tall = Math.floor(room.height / matrix.rows);
  if (Math.max(matrix.rows, matrix.columns) > 60)
    return Math.max(SMALLEST, Math.min(fit, Math.floor((1.5 * room.height) / matrix.rows)));
  const size = Math.min(LARGEST, fit, Math.max(tall, LABEL_FROM + 3));
  if (size < SLANT_FROM || size * matrix.columns + OVERHANG <= wide) return Math.max(SMALLEST, size);
  return Math.max(LABEL_FROM, Math.floor((wide - OVERHANG) / matrix.columns));
}

// The height of the names of columns.
function namesRise({ columns }, font, size) {
  const longest = Math.min(130, Math.max(...columns.map((each) => widthOf(each.text, font))) + 4);
  return size >= SLANT_FROM ? Math.sin(SLANT) * longest + 12 : longest + 6;
}

class HeatMap {
  // `act`: what to do when a cell is pointed at (or none), and when it is chosen.
  constructor(act) {
    this.act = act;
    this.canvas = el("canvas", { class: "weights" });
    this.bands = [el("div", { class: "band" }), el("div", { class: "band" })];
    this.mark = el("div", { class: "mark" });
    this.map = el(
      "div",
      {
        class: "map",
        tabindex: 0,
        role: "application",
        "aria-roledescription": say("map"),
        on: {
          pointermove: (event) => this.point(event),
          pointerdown: (event) => {
            this.point(event);
            if (this.cell) this.act.choose(this.cell);
          },
          pointerleave: () => this.act.point(null),
          keydown: (event) => this.key(event),
          focus: () => {
            if (!this.cell && this.map.matches(":focus-visible")) this.act.point({ row: 0, column: 0 });
          },
        },
      },
      this.canvas,
      ...this.bands,
      this.mark,
    );
    this.title = el("h2");
    this.top = el("div", { class: "columns", "aria-hidden": true });
    this.side = el("div", { class: "rows", "aria-hidden": true });
    this.scroller = el(
      "div",
      { class: "scroller" },
      el("div", { class: "plot" }, el("div", { class: "corner" }), this.top, this.side, this.map),
    );
    this.element = el("section", { class: "heat" }, this.title, this.scroller);
    this.cell = null;
  }

  // `shown`: matrix, labels of rows and columns, name of the stack, title. `size`, `rise`: pixels of a cell and of the
  // names above, which maps side by side have in common.
  show(shown, shades, scale, size, rise) {
    this.shown = shown;
    this.size = size;
    const { matrix, rows, columns, name, title } = shown;
    this.title.replaceChildren(el("span", { text: name }), el("small", { text: title }));
    this.map.setAttribute(
      "aria-label",
      say("map_said", { name, title, rows: matrix.rows, columns: matrix.columns }),
    );
    this.element.dataset.stack = shown.stack;
    paint(this.canvas, matrix, shades, scale);
    this.lay();
    this.label(rows, columns, rise);
    this.figures(shades, scale);
    this.focus(null);
  }

  lay() {
    const {
      size,
      shown: { matrix, rows },
    } = this;
    this.map.style.width = this.top.style.width = `${size * matrix.columns}px`;
    this.map.style.height = this.side.style.height = `${size * matrix.rows}px`;
    this.map.style.setProperty("--size", `${size}px`);
    this.map.classList.toggle("ruled", size >= 9);
    this.side.style.width = `${namesRoom(rows, this.font)}px`;
    this.map.style.marginRight = `${size >= SLANT_FROM ? OVERHANG : 0}px`;
  }

  get font() {
    const style = getComputedStyle(this.element);
    return `${style.fontSize} ${style.fontFamily}`;
  }

  label(rows, columns, rise) {
    const every = Math.ceil(LABEL_FROM / this.size);
    this.top.style.height = `${Math.ceil(rise)}px`;
    this.top.classList.toggle("upright", this.size < SLANT_FROM);
    const make = (each, i, axis) => {
      const node = el("span", {
        dir: "auto",
        text: each.text,
        title: each.text,
        class: each.special ? "special" : null,
      });
      node.style[axis] = `${this.middle(i)}px`;
      node.dataset.place = i;
      return node;
    };
    const kept = (labels, axis) => labels.map((each, i) => (i % every ? null : make(each, i, axis))).filter(Boolean);
    this.side.replaceChildren(...kept(rows, "top"));
    this.top.replaceChildren(...kept(columns, "left"));
  }

  // Weights in figures, where there is room and something to tell.
  figures(shades, scale) {
    const { matrix } = this.shown,
      { size } = this;
    this.map.querySelectorAll(".figure").forEach((node) => node.remove());
    if (size < FIGURE_FROM || matrix.values.length > 2500) return;
    matrix.values.forEach((weight, i) => {
      if (!(weight >= LEAST_FIGURE)) return;
      const node = el("span", {
        class: isPale(shades, scale, weight) ? "figure on-pale" : "figure",
        "aria-hidden": true,
        text: decimal(weight, 2).replace(/^0/, ""),
      });
      node.style.left = `${(i % matrix.columns) * size}px`;
      node.style.top = `${Math.floor(i / matrix.columns) * size}px`;
      this.map.append(node);
    });
  }

  point(event) {
    const box = this.map.getBoundingClientRect(),
      { matrix } = this.shown;
    const within = (place, count) => Math.max(0, Math.min(count - 1, Math.floor(place / this.size)));
    this.act.point({
      row: within(event.clientY - box.top, matrix.rows),
      column: within(event.clientX - box.left, matrix.columns),
    });
  }

  key(event) {
    if (event.key === "Escape") return this.act.point(null);
    const { matrix } = this.shown,
      from = this.cell || { row: 0, column: 0 };
    if (event.key === "Enter" || event.key === " ") {
      event.preventDefault();
      return this.act.choose(from);
    }
    const move = KEYS[event.key];
    if (!move || event.ctrlKey || event.metaKey || event.altKey) return undefined;
    event.preventDefault();
    const step = (place, by, count) => Math.max(0, Math.min(count - 1, place + by));
    this.act.point(
      this.cell
        ? { row: step(from.row, move[0], matrix.rows), column: step(from.column, move[1], matrix.columns) }
        : from,
    );
    return this.keepInSight();
  }

  keepInSight() {
    const { scroller, size, cell } = this;
    if (!cell) return;
    const x = cell.column * size,
      y = cell.row * size;
    const room = { x: scroller.clientWidth - this.side.offsetWidth, y: scroller.clientHeight - this.top.offsetHeight };
    if (x < scroller.scrollLeft) scroller.scrollLeft = x;
    if (x + size > scroller.scrollLeft + room.x) scroller.scrollLeft = x + size - room.x;
    if (y < scroller.scrollTop) scroller.scrollTop = y;
    if (y + size > scroller.scrollTop + room.y) scroller.scrollTop = y + size - room.y;
  }

  // Mark a cell, a whole row (`column` null), a whole column, or nothing.
  focus(cell) {
    this.cell = cell && cell.row !== null && cell.column !== null ? cell : null;
    const { size } = this,
      row = cell ? cell.row : null,
      column = cell ? cell.column : null;
    this.bands[0].hidden = row === null;
    this.bands[1].hidden = column === null;
    this.mark.hidden = !this.cell;
    const set = (node, left, top, width, height) => Object.assign(node.style, { left, top, width, height });
    if (row !== null) set(this.bands[0], "0", `${row * size}px`, "100%", `${size}px`);
    if (column !== null) set(this.bands[1], `${column * size}px`, "0", `${size}px`, "100%");
    if (this.cell) set(this.mark, `${column * size}px`, `${row * size}px`, `${size}px`, `${size}px`);
    for (const [axis, place, labels] of [
      [this.side, row, this.shown.rows],
      [this.top, column, this.shown.columns],
    ]) {
      axis
        .querySelectorAll(".here")
        .forEach((node) => (node.dataset.only ? node.remove() : node.classList.remove("here")));
      if (place === null) continue;
      const there = axis.querySelector(`[data-place="${place}"]`);
      if (there) there.classList.add("here");
      else axis.append(this.lone(labels[place], place, axis === this.side ? "top" : "left"));
    }
  }

  // The name of a cell that is too small to have one of its own.
  lone(each, place, axis) {
    const node = el("span", { dir: "auto", text: each.text, class: "here", "data-place": place, "data-only": 1 });
    node.style[axis] = `${this.middle(place)}px`;
    return node;
  }

  // Where a name stands: at the middle of its cell, yet not beyond the edge of the map.
  middle(place) {
    return Math.max(LABEL_FROM / 2, (place + 0.5) * this.size);
  }
}
