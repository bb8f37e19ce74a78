// What a map shows, in words: for those who point, and for those who listen.
const MOST_LINKS = 60;

const quoted = (each) => el("bdi", { class: "said", text: each.bare });
const valued = (weight) => el("b", { class: "value", text: written(weight) });

// A cell, a row (`column` null) or a column, as one sentence.
function inWords(cell, { matrix, rows, columns }) {
  if (!cell) return [el("span", { class: "hint", text: say("hint") })];
  const { row, column } = cell;
  if (row === null) {
    let sum = 0;
    for (let i = 0; i < matrix.rows; i++) sum += matrix.at(i, column) || 0;
    return parted("looked_at", { to: quoted(columns[column]), weight: valued(sum) });
  }
  const there = column === null ? matrix.strongest(row) : column;
  if (there < 0) return parted("nowhere", { from: quoted(rows[row]) });
  const parts = { from: quoted(rows[row]), to: quoted(columns[there]), weight: valued(matrix.at(row, there)) };
  return parted(column === null ? "looks_most" : "looks", parts);
}

// The strongest link of each row; of a long text, the strongest of them.
function strongestLinks({ matrix, rows, columns }) {
  const links = rows.map((_, row) => ({ row, column: matrix.strongest(row) })).filter(({ column }) => column >= 0);
  const weight = ({ row, column }) => matrix.at(row, column);
  if (links.length > MOST_LINKS) links.sort((a, b) => weight(b) - weight(a)).length = MOST_LINKS;
  return links.map((link) => {
    const [from, to] = [rows[link.row].bare, columns[link.column].bare];
    const parts = { from: el("bdi", { text: from }), to: el("bdi", { text: to }), weight: written(weight(link)) };
    return el("li", {}, ...parted("listed", parts));
  });
}
