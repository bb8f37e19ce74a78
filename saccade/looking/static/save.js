// The maps as a picture to send: SVG, and PNG made from it.
const MOST_RECTANGLES = 6000; // with more cells the map goes into the file as pixels
const FONT = "Inter, 'Segoe UI', Roboto, 'Helvetica Neue', Arial, sans-serif";

const escaped = (text) =>
  text.replace(/[&<>"]/g, (c) => ({ "&": "&amp;", "<": "&lt;", ">": "&gt;", '"': "&quot;" })[c]);

function cutTo(text, width, font) {
  if (widthOf(text, font) <= width) return text;
  const characters = [...text];
  while (characters.length > 1 && widthOf(`${characters.join("")}\u2026`, font) > width) characters.pop();
  return `${characters.join("")}\u2026`;
}

const sizeIn = ({ matrix }) => Math.max(2, Math.min(26, Math.floor(900 / Math.max(matrix.rows, matrix.columns))));

// One map with its labels, and how much room it takes; `rise`: the height of the names of columns.
function panelSvg(panel, look, left, rise) {
  const { matrix } = panel,
    font = `12px ${FONT}`;
  const size = sizeIn(panel),
    every = Math.ceil(LABEL_FROM / size);
  const rows = panel.rows.map((each) => cutTo(each.text, 150, font));
  const columns = panel.columns.map((each) => cutTo(each.text, 130, font));
  const side = Math.max(...rows.map((text) => widthOf(text, font))) + 8;
  const x = left + side,
    y = 56 + rise,
    parts = [];
  const title = `<tspan class="soft" dx="8">${escaped(panel.title)}</tspan>`;
  parts.push(`<text x="${left}" y="50" class="name">${escaped(panel.name)}${title}</text>`);
  rows.forEach((text, i) => {
    if (i % every) return;
    parts.push(
      `<text x="${x - 6}" y="${y + (i + 0.5) * size + 4}" text-anchor="end" direction="ltr">${escaped(text)}</text>`,
    );
  });
  columns.forEach((text, i) => {
    if (i % every) return;
    const at = `${x + (i + 0.5) * size + 3} ${y - 6}`;
    parts.push(
      `<text transform="translate(${at}) rotate(${(-180 * SLANT) / Math.PI})" direction="ltr">${escaped(text)}</text>`,
    );
  });
  const width = size * matrix.columns,
    height = size * matrix.rows;
  if (matrix.values.length > MOST_RECTANGLES) {
    const canvas = el("canvas");
    paint(canvas, matrix, look.shades, look.scale(panel));
    parts.push(
      `<image x="${x}" y="${y}" width="${width}" height="${height}" preserveAspectRatio="none" ` +
        `style="image-rendering:pixelated" href="${canvas.toDataURL()}"/>`,
    );
  } else {
    matrix.values.forEach((weight, i) => {
      if (Number.isNaN(weight)) return;
      const row = Math.floor(i / matrix.columns),
        column = i % matrix.columns;
      parts.push(
        `<rect x="${x + column * size}" y="${y + row * size}" width="${size - 1}" height="${size - 1}" ` +
          `fill="${colourOf(look.shades, look.scale(panel), weight)}"><title>${escaped(
            `${panel.rows[row].bare} \u2192 ${panel.columns[column].bare}: ${written(weight)}`,
          )}</title></rect>`,
      );
    });
  }
  return { parts, width: side + width + 60, height: y + height + 20 };
}

function pictureOf(look, panels) {
  const parts = [],
    rise = Math.max(...panels.map((panel) => namesRise(panel, `12px ${FONT}`, SLANT_FROM))) + 8;
  let width = 20,
    height = 0;
  for (const panel of panels) {
    const drawn = panelSvg(panel, look, width, rise);
    parts.push(...drawn.parts);
    width += drawn.width;
    height = Math.max(height, drawn.height);
  }
  const { ground, ink, soft } = look.colours;
  const title = cutTo(look.title, width - 60, `13px ${FONT}`);
  const text =
    `<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 ${width} ${height}" width="${width}" height="${height}">` +
    `<style>text{font:12px ${FONT};fill:${ink}}.title{font-size:13px;fill:${soft}}.name{font-weight:600;font-size:14px}` +
    `.soft{fill:${soft};font-weight:400;font-size:12px}</style>` +
    `<rect width="100%" height="100%" fill="${ground}"/><text class="title" x="20" y="26">${escaped(title)}</text>` +
    `${parts.join("")}</svg>`;
  return { text, width, height };
}

function download(blob, name) {
  const url = URL.createObjectURL(blob),
    link = el("a", { href: url, download: name });
  document.body.append(link);
  link.click();
  link.remove();
  setTimeout(() => URL.revokeObjectURL(url), 10000);
}

const saveSvg = (picture, name) => download(new Blob([picture.text], { type: "image/svg+xml" }), `${name}.svg`);

async function savePng(picture, name) {
  const image = new Image(),
    scale = Math.max(1, Math.min(2, 6000 / Math.max(picture.width, picture.height)));
  const bytes = new TextEncoder().encode(picture.text);
  let text = "";
  for (let i = 0; i < bytes.length; i += 32768) text += String.fromCharCode(...bytes.subarray(i, i + 32768));
  image.src = `data:image/svg+xml;base64,${btoa(text)}`;
  await image.decode();
  const canvas = el("canvas", { width: Math.ceil(picture.width * scale), height: Math.ceil(picture.height * scale) });
  canvas.getContext("2d").drawImage(image, 0, 0, canvas.width, canvas.height);
  download(await new Promise((then) => canvas.toBlob(then, "image/png")), `${name}.png`);
}
