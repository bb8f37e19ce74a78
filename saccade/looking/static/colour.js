// Weights as colours: paper to deep blue, or in the dark from the ground over blue to gold, as cividis goes. Either
// grows darker or lighter all the way, so that every common kind of colour blindness tells weak from strong.
const RAMPS = {
  light: ["#f4f4f0", "#d3e0ec", "#a3c2df", "#6a9aca", "#386fab", "#184482", "#071d49"],
  dark: ["#1a1f28", "#1a3761", "#2f5482", "#5f7890", "#9c9f7f", "#dac666", "#fff08a"],
};
const SHADES = 256;

const triplet = (hex) => [1, 3, 5].map((at) => parseInt(hex.slice(at, at + 2), 16));

function shadesOf(theme) {
  const stops = RAMPS[theme].map(triplet),
    shades = new Uint8ClampedArray(SHADES * 3);
  for (let i = 0; i < SHADES; i++) {
    const place = (i / (SHADES - 1)) * (stops.length - 1),
      stop = Math.min(Math.floor(place), stops.length - 2);
    for (let c = 0; c < 3; c++) {
      shades[i * 3 + c] = Math.round(stops[stop][c] + (place - stop) * (stops[stop + 1][c] - stops[stop][c]));
    }
  }
  return shades;
}

// How a weight becomes a share of the ramp: up to 1, up to the greatest there is, or by its root to see faint ones.
const SCALES = ["one", "greatest", "root"];

function scaleOf(name, greatest) {
  const top = name === "one" ? 1 : greatest || 1;
  return { name, top, share: name === "root" ? (w) => Math.sqrt(w / top) : (w) => w / top };
}

const shadeAt = (scale, weight) => Math.round(Math.min(1, Math.max(0, scale.share(weight))) * (SHADES - 1));

function colourOf(shades, scale, weight) {
  const i = shadeAt(scale, weight) * 3;
  return `#${[0, 1, 2].map((c) => shades[i + c].toString(16).padStart(2, "0")).join("")}`;
}

// Whether what is written on a cell must be dark.
function isPale(shades, scale, weight) {
  const i = shadeAt(scale, weight) * 3;
  return 0.3 * shades[i] + 0.59 * shades[i + 1] + 0.11 * shades[i + 2] > 140;
}

// One pixel a weight; the style sheet makes cells of them. What is no number stays clear, and the ground shows.
function paint(canvas, matrix, shades, scale) {
  canvas.width = matrix.columns;
  canvas.height = matrix.rows;
  const image = new ImageData(matrix.columns, matrix.rows);
  matrix.values.forEach((weight, i) => {
    if (Number.isNaN(weight)) return;
    const from = shadeAt(scale, weight) * 3;
    image.data[i * 4] = shades[from];
    image.data[i * 4 + 1] = shades[from + 1];
    image.data[i * 4 + 2] = shades[from + 2];
    image.data[i * 4 + 3] = 255;
  });
  canvas.getContext("2d").putImageData(image, 0, 0);
}

// The greatest of each block, so that no strong link is lost in a small picture.
function shrunk(matrix, most) {
  const rows = Math.min(matrix.rows, most),
    columns = Math.min(matrix.columns, most);
  if (rows === matrix.rows && columns === matrix.columns) return matrix;
  const small = new Matrix(rows, columns, new Float32Array(rows * columns));
  for (let row = 0; row < matrix.rows; row++) {
    const to = Math.floor((row * rows) / matrix.rows) * columns;
    for (let column = 0; column < matrix.columns; column++) {
      const i = to + Math.floor((column * columns) / matrix.columns),
        weight = matrix.at(row, column);
      if (weight > small.values[i]) small.values[i] = weight;
    }
  }
  return small;
}

function paintRamp(canvas, shades) {
  const steps = new Matrix(
    1,
    SHADES,
    Float32Array.from({ length: SHADES }, (_, i) => i / (SHADES - 1)),
  );
  paint(canvas, steps, shades, scaleOf("one", 1));
}
