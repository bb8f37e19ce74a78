// The two texts, what is looked at above and what looks below, and lines between them: the stronger, the darker.
const FAINTEST = 0.02; // of the lines of one word
const FAINTEST_ALL = 0.06; // of the lines of all words
const MOST_WORDS = 140; // more than these have no lines until one is pointed at

class Lines {
  constructor(act) {
    this.act = act;
    this.drawn = svg("svg", { class: "links", "aria-hidden": true });
    const again = () => this.draw(this.cell);
    this.above = el("p", { class: "text above", on: { scroll: again } });
    this.below = el("p", { class: "text below", on: { scroll: again } });
    this.names = [el("span", { class: "side-name" }), el("span", { class: "side-name" })];
    this.element = el(
      "div",
      { class: "lines", on: { pointerleave: () => act.point(null) } },
      this.drawn,
      this.names[0],
      this.above,
      this.names[1],
      this.below,
    );
  }

  show(shown, above, below) {
    this.shown = shown;
    this.names[0].textContent = above;
    this.names[1].textContent = below;
    const key = JSON.stringify([shown.columns, shown.rows]);
    if (key !== this.key) {
      // another head of the same words leaves them as they are
      this.key = key;
      this.nodes = {
        column: this.write(this.above, shown.columns, "column"),
        row: this.write(this.below, shown.rows, "row"),
      };
    }
    const long = shown.matrix.rows > MOST_WORDS || shown.matrix.columns > MOST_WORDS;
    this.element.classList.toggle("long", long);
    this.draw(null);
  }

  write(paragraph, labels, axis) {
    const nodes = labels.map((each, i) =>
      el("span", {
        class: `word${each.special ? " special" : ""}${each.begins ? "" : " goes-on"}`,
        dir: "auto",
        text: each.bare,
        "data-place": i,
        on: {
          pointerenter: () => this.act.point({ row: null, column: null, [axis]: i }),
          click: () => axis === "row" && this.act.choose({ row: i, column: null }),
        },
      }),
    );
    // Right-to-left text runs as it does in a book; a word of it decides for the paragraph.
    paragraph.dir = /[\u0591-\u08ff\ufb1d-\ufdff\ufe70-\ufefc]/u.test(labels.map((each) => each.bare).join(""))
      ? "rtl"
      : "ltr";
    paragraph.replaceChildren(...nodes);
    return nodes;
  }

  // Where a line meets a word; a word that is scrolled away is met at the edge of its text.
  spot(axis, place, frame) {
    const text = (axis === "row" ? this.below : this.above).getBoundingClientRect();
    const box = this.nodes[axis][place].getBoundingClientRect(),
      edge = axis === "row" ? box.top : box.bottom;
    return [box.left + box.width / 2 - frame.left, Math.max(text.top, Math.min(text.bottom, edge)) - frame.top];
  }

  // In a long text, bring a word and what it looks at most into sight.
  reveal(cell) {
    if (!cell || cell.row === null || !this.element.classList.contains("long")) return;
    const best = this.shown.matrix.strongest(cell.row);
    for (const [text, node] of [
      [this.below, this.nodes.row[cell.row]],
      [this.above, this.nodes.column[best]],
    ]) {
      if (node) text.scrollTop = node.offsetTop - text.clientHeight / 2 + node.offsetHeight / 2;
    }
  }

  draw(cell) {
    if (!this.shown) return;
    this.cell = cell;
    const { matrix } = this.shown,
      links = [];
    const add = (row, column, least) => {
      const weight = matrix.at(row, column);
      if (weight >= least) links.push([weight, row, column]);
    };
    if (cell && cell.row !== null) {
      for (let column = 0; column < matrix.columns; column++) add(cell.row, column, FAINTEST);
    } else if (cell) {
      for (let row = 0; row < matrix.rows; row++) add(row, cell.column, FAINTEST);
    } else if (matrix.rows <= MOST_WORDS && matrix.columns <= MOST_WORDS) {
      for (let row = 0; row < matrix.rows; row++) {
        for (let column = 0; column < matrix.columns; column++) add(row, column, FAINTEST_ALL);
      }
    }
    links.sort((a, b) => a[0] - b[0]);
    const frame = this.element.getBoundingClientRect();
    this.drawn.setAttribute("viewBox", `0 0 ${frame.width} ${frame.height}`);
    this.drawn.replaceChildren(...links.map(([weight, row, column]) => this.link(weight, row, column, frame)));
    this.light(cell, links);
  }

  link(weight, row, column, frame) {
    const [x0, y0] = this.spot("column", column, frame),
      [x1, y1] = this.spot("row", row, frame),
      middle = (y0 + y1) / 2;
    return svg("path", {
      d:
        `M${x0.toFixed(1)} ${y0.toFixed(1)}C${x0.toFixed(1)} ${middle.toFixed(1)} ${x1.toFixed(1)} ` +
        `${middle.toFixed(1)} ${x1.toFixed(1)} ${y1.toFixed(1)}`,
      "stroke-opacity": Math.min(1, weight).toFixed(3),
      "data-row": row,
      "data-column": column,
    });
  }

  light(cell, links) {
    const lit = { row: new Set(), column: new Set() };
    if (cell) {
      if (cell.row !== null) lit.row.add(cell.row);
      else lit.column.add(cell.column);
      for (const [weight, row, column] of links)
        if (weight >= 0.1) {
          lit.row.add(row);
          lit.column.add(column);
        }
    }
    this.element.classList.toggle("pointed", Boolean(cell));
    for (const axis of ["row", "column"]) {
      const here = cell && cell[axis] !== null ? cell[axis] : -1;
      this.nodes[axis].forEach((node, i) => {
        node.classList.toggle("lit", lit[axis].has(i));
        node.classList.toggle("here", i === here);
      });
    }
  }
}
