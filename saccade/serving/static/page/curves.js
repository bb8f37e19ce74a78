// Curves of a run, as SVG.

import { t, tongue } from "./labels.js";
import { element, svg } from "./words.js";

const WIDTH = 360, HEIGHT = 190, LEFT = 46, RIGHT = 14, TOP = 10, BOTTOM = 30;
const DIGIT = 7; // as wide as a digit is, nearly
const POINTS = 400; // more would not be seen

// Round numbers that divide a range into about `wanted` parts.
function ticks(low, high, wanted) {
  const rough = (high - low) / wanted || 1;
  const power = 10 ** Math.floor(Math.log10(rough));
  const step = power * [1, 2, 2.5, 5, 10].find((each) => each * power >= rough);
  const found = [];
  for (let n = Math.ceil(low / step); n * step <= high + step * 1e-6; n++) found.push(n * step || 0); // 0, never -0
  return found;
}

export function thin(points) {
  const every = Math.ceil(points.length / POINTS);
  return points.filter((_, index) => index % every === 0 || index === points.length - 1);
}

// `curves`: [{label, points: [[step, value], …], kind: "" | "second"}], those that come first lie above.
export function chart(title, curves) {
  const drawn = curves.filter(({ points }) => points.length);
  const card = element("section", { className: "tile" });
  const last = drawn[0]?.points.at(-1)?.[1];
  const number = new Intl.NumberFormat(tongue(), { maximumSignificantDigits: 4 });
  const keys = drawn.length > 1 ? drawn.map(({ label, kind }) => element("span", { className: `key ${kind}` }, label)) : [];
  const shown = last === undefined ? "–" : number.format(last);
  card.append(element("h3", {}, title, ...keys, element("span", { className: "last" }, shown)));
  if (drawn.length) card.append(lines(title, drawn, number));
  return card;
}

function lines(title, curves, number) {
  const all = curves.flatMap(({ points }) => points);
  const steps = all.map(([step]) => step);
  const values = all.map(([, value]) => value);
  let [low, high] = [Math.min(...values), Math.max(...values)];
  if (low === high) [low, high] = [low - 0.5, high + 0.5];
  const [first, end] = [Math.min(0, ...steps), Math.max(...steps, 1)];
  const marks = ticks(low, high, 4).map((tick) => [tick, number.format(tick)]);
  const left = Math.max(LEFT, 12 + DIGIT * Math.max(...marks.map(([, text]) => text.length)));
  const x = (step) => left + ((step - first) / (end - first)) * (WIDTH - left - RIGHT);
  const y = (value) => TOP + ((high - value) / (high - low)) * (HEIGHT - TOP - BOTTOM);
  const parts = [];
  for (const [tick, text] of marks) {
    parts.push(svg("line", { class: "grid", x1: left, x2: WIDTH - RIGHT, y1: y(tick), y2: y(tick) }));
    parts.push(label(left - 8, y(tick) + 4, "end", text));
  }
  for (const tick of ticks(first, end, 4)) {
    const text = number.format(tick);
    const inside = x(tick) + (DIGIT * text.length) / 2 < WIDTH - 2; // else it would be cut off
    parts.push(label(inside ? x(tick) : WIDTH - 2, HEIGHT - 10, inside ? "middle" : "end", text));
  }
  for (const { points, kind } of [...curves].reverse()) {
    const path = thin(points).map(([step, value]) => `${x(step).toFixed(1)},${y(value).toFixed(1)}`).join(" ");
    parts.push(svg("polyline", { points: path, class: kind }));
  }
  const [step, value] = curves[0].points.at(-1);
  parts.push(svg("circle", { cx: x(step), cy: y(value), r: 3.2 }));
  const said = `${title}: ${number.format(value)} (${t("run_step", { step })})`;
  return svg("svg", { class: "chart", viewBox: `0 0 ${WIDTH} ${HEIGHT}`, role: "img", "aria-label": said }, ...parts);
}

function label(x, y, anchor, text) {
  const made = svg("text", { x, y, "text-anchor": anchor });
  made.textContent = text;
  return made;
}
