// What a map shows, in words: for those who point, and for those who listen.
const MOST_LINKS = 60;

const quoted = (each) => el("bdi", { class: "said", text: each.bare });
const valued = (weight) => el("b", { class: "value", text: written(weight) });

// A cell, a row (`column` null) or a column, as one sentence.
function inWords(cell, { matrix, rows, columns }) {
  if (!cell) return [el("span", { class: "hint", text: "Point at a cell, or move with the arrow keys." })];
  const { row, column } = cell;
  if (row === null) {
    let sum = 0;
    for (let i = 0; i < matrix.rows; i++) sum += matrix.at(i, column) || 0;
    return [quoted(columns[column]), " is looked at ", valued(sum), " in all"];
  }
  const there = column === null ? matrix.strongest(row) : column;
  if (there < 0) return [quoted(rows[row]), " looks nowhere"];
  const looks = column === null ? " looks most at " : " looks at ";
  return [quoted(rows[row]), looks, quoted(columns[there]), " ", valued(matrix.at(row, there))];
}

// The strongest link of each row; of a long text, the strongest of them.
function strongestLinks({ matrix, rows, columns }) {
  const links = rows.map((_, row) => ({ row, column: matrix.strongest(row) })).filter(({ column }) => column >= 0);
  const weight = ({ row, column }) => matrix.at(row, column);
  if (links.length > MOST_LINKS) links.sort((a, b) => weight(b) - weight(a)).length = MOST_LINKS;
  return links.map((link) => {
    const [from, to] = [rows[link.row].bare, columns[link.column].bare];
    const parts = [el("bdi", { text: from }), " looks most at ", el("bdi", { text: to }), `, ${written(weight(link))}`];
    return el("li", {}, ...parts);
  });
}
