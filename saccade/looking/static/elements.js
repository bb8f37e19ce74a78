// Elements of the page, and how texts and numbers are written in it.
const SVG = "http://www.w3.org/2000/svg";

function fill(node, attributes, children) {
  for (const [name, value] of Object.entries(attributes)) {
    if (value === null || value === undefined || value === false) continue;
    if (name === "text") node.textContent = value;
    else if (name === "on") for (const [event, act] of Object.entries(value)) node.addEventListener(event, act);
    else node.setAttribute(name, value === true && !name.startsWith("aria-") ? "" : value);
  }
  node.append(...children.filter((child) => child !== null && child !== undefined));
  return node;
}

const el = (tag, attributes = {}, ...children) => fill(document.createElement(tag), attributes, children);
const svg = (tag, attributes = {}, ...children) => fill(document.createElementNS(SVG, tag), attributes, children);

// What would end a line or turn the direction of what follows is written as a sign of its own.
const UNSEEN = /[\u0000-\u001f\u007f-\u009f\u200e\u200f\u2028-\u202e\u2066-\u2069]/g;
const printable = (text) => text.replace(UNSEEN, "\u00b7");

// A weight with three decimals; a small one is not called nothing.
function written(weight) {
  if (Number.isNaN(weight)) return say("no_number");
  return weight > 0 && weight < 0.0005 ? `< ${decimal(0.001, 3)}` : decimal(weight, 3);
}

const percent = (p) => (p > 0 && p < 0.0005 ? `< ${decimal(0.1, 1)}%` : `${decimal(100 * p, p >= 0.0995 ? 0 : 1)}%`);

let mounted = 0; // keeps the radio buttons of two looks on one page apart

// A row of choices of which one holds: native radio buttons, so that the keyboard is the browser's own.
function choice(legend, name, options, value, act) {
  const parts = options.map(([key, text]) => {
    const input = el("input", { type: "radio", name, value: key, on: { change: () => act(key) } });
    input.checked = key === value;
    return el("label", {}, input, el("span", { text }));
  });
  const set = el("fieldset", { class: "choice" }, el("legend", { class: "unseen", text: legend }), ...parts);
  set.choose = (key) =>
    set.querySelectorAll("input").forEach((input) => {
      input.checked = input.value === key;
    });
  return set;
}

function selection(label, name, act) {
  const select = el("select", { name, on: { change: () => act(select.value) } });
  const box = el("label", { class: "selection" }, el("span", { text: label }), select);
  box.offer = (options, value) => {
    select.replaceChildren(...options.map(([key, text]) => el("option", { value: key, text })));
    select.value = value;
  };
  return box;
}
