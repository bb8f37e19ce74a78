// What is shown, as plain arrays: weights unpacked, pieces merged to words, heads averaged.
const STACKS = ["encoder", "decoder", "cross"];
const PACKED_STEPS = 10000,
  PACKED_MISSING = 65535;

class Matrix {
  constructor(rows, columns, values) {
    Object.assign(this, { rows, columns, values });
  }

  at(row, column) {
    return this.values[row * this.columns + column];
  }

  greatest() {
    let top = 0;
    for (const value of this.values) if (value > top) top = value;
    return top;
  }

  // The column that a row is highest in, -1 for a row that looks nowhere.
  strongest(row) {
    let best = -1,
      top = 0;
    for (let column = 0; column < this.columns; column++) {
      if (this.at(row, column) > top) [best, top] = [column, this.at(row, column)];
    }
    return best;
  }
}

// Ten-thousandths in two planes of bytes, the low ones first, deflated: most high bytes are zero.
async function inflated(shape, packed) {
  const bytes = Uint8Array.from(atob(packed), (character) => character.charCodeAt(0));
  const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("deflate-raw"));
  const planes = new Uint8Array(await new Response(stream).arrayBuffer());
  const count = shape[0] * shape[1],
    values = new Float32Array(count);
  for (let i = 0; i < count; i++) {
    const steps = planes[i] | (planes[count + i] << 8);
    values[i] = steps === PACKED_MISSING ? NaN : steps / PACKED_STEPS;
  }
  return values;
}

const number = (value) => (value === null ? NaN : value);

// Weights come as nested lists, as {shape, data} with the numbers in a row, or packed by a page that holds them.
async function unpack(weights) {
  if (Array.isArray(weights)) {
    const columns = weights.length ? weights[0].length : 0;
    return new Matrix(weights.length, columns, Float32Array.from(weights.flat(), number));
  }
  const values =
    weights.packed === undefined
      ? Float32Array.from(weights.data, number)
      : await inflated(weights.shape, weights.packed);
  return new Matrix(weights.shape[0], weights.shape[1], values);
}

const unpacked = new WeakMap();

function matrixOf(head) {
  if (!unpacked.has(head)) unpacked.set(head, unpack(head.weights));
  return unpacked.get(head);
}

function mean(matrices) {
  if (matrices.length === 1) return matrices[0];
  const sum = new Float64Array(matrices[0].values.length);
  for (const matrix of matrices) for (let i = 0; i < sum.length; i++) sum[i] += matrix.values[i];
  return new Matrix(
    matrices[0].rows,
    matrices[0].columns,
    sum.map((value) => value / matrices.length),
  );
}

// A word is looked at as much as its pieces together, and looks where its pieces look on average.
function mergeToWords(matrix, rowWords, columnWords) {
  const rows = Math.max(...rowWords) + 1,
    columns = Math.max(...columnWords) + 1;
  const sums = new Float64Array(rows * columns),
    pieces = new Float64Array(rows);
  rowWords.forEach((word, row) => {
    pieces[word] += 1;
    const from = row * matrix.columns,
      to = word * columns;
    for (let column = 0; column < matrix.columns; column++) {
      sums[to + columnWords[column]] += matrix.values[from + column];
    }
  });
  return new Matrix(
    rows,
    columns,
    sums.map((value, i) => value / pieces[Math.floor(i / columns)]),
  );
}

const headKey = (head) => `${head.layer}.${head.head}`;

function headsOf(look, path, stack) {
  const all = stack === "encoder" ? look.encoder || [] : (look.paths[path] && look.paths[path].heads) || [];
  return all.filter((head) => head.stack === stack);
}

// Decoder inputs: the start, then what was written, without the end.
function shifted(side) {
  const start = `\u27e8${say("start")}\u27e9`;
  return {
    pieces: [start, ...side.pieces.slice(0, -1)],
    words: [0, ...side.words.slice(0, -1).map((word) => word + 1)],
    word_texts: [start, ...side.word_texts],
  };
}

function axesOf(look, path, stack) {
  if (stack === "encoder") return { rows: look.source, columns: look.source };
  const target = look.paths[path].target;
  return { rows: target, columns: stack === "decoder" ? shifted(target) : look.source };
}

const SPECIAL = /^(<.*>|\[.*\]|\u27e8.*\u27e9)$/su;

const ENDS = ["", "<eos>", "</s>"];

function label(piece, begins) {
  const text = ENDS.includes(piece) ? `\u27e8${say("end")}\u27e9` : piece,
    special = SPECIAL.test(text);
  const bare = printable(text.replace(/^\u2581/u, ""));
  const shown = bare.trim() === "" ? "\u2423" : bare;
  return { text: begins || special ? shown : `\u00b7${shown}`, bare: shown, begins: begins || special, special };
}

// The labels of an axis: of its pieces, where "·" says that a piece goes on with a word, or of its words.
function labelsOf(side, unit) {
  if (unit === "words") {
    const count = Math.max(...side.words, -1) + 1;
    return Array.from({ length: count }, (_, word) => label(side.word_texts[word] || "", true));
  }
  return side.pieces.map((piece, i) => label(piece, i === 0 || side.words[i] !== side.words[i - 1]));
}

const splits = (side) => side.words.some((word, i) => i > 0 && word === side.words[i - 1]);
