// The words of the page itself, in the reader's language.

import { read, write } from "./kept.js";

export const TONGUES = ["en", "de", "fr", "zh"];

let labels = {};
let spoken = "en";

export const tongue = () => spoken;

// A label, with {name}s filled in.
export function t(key, values = {}) {
  const one = typeof values.count === "number" && new Intl.PluralRules(spoken).select(values.count) === "one";
  const text = (one ? labels[`${key}_one`] : null) ?? labels[key] ?? key;
  return text.replace(/\{(\w+)\}/g, (_, name) => {
    const value = values[name] ?? "";
    return typeof value === "number" ? new Intl.NumberFormat(spoken).format(value) : value;
  });
}

// The name of a language, as the reader calls it.
export function languageName(code) {
  if (!code) return t("unnamed");
  try {
    const name = new Intl.DisplayNames([spoken], { type: "language" }).of(code);
    return name.charAt(0).toLocaleUpperCase(spoken) + name.slice(1);
  } catch {
    return code; // "source" and "target" are what folders say that do not know
  }
}

export function preferred() {
  const asked = [read("tongue", null), ...navigator.languages].filter(Boolean);
  for (const each of asked) {
    const found = TONGUES.find((code) => each.toLowerCase().split("-")[0] === code);
    if (found) return found;
  }
  return "en";
}

export async function speak(code, keep = false) {
  labels = (await import(`./labels/${code}.js`)).default;
  spoken = code;
  if (keep) write("tongue", code);
  document.documentElement.lang = code;
  for (const root of [document, ...[...document.querySelectorAll("template")].map((each) => each.content)]) fill(root);
  dispatchEvent(new Event("saccade:tongue"));
}

const ATTRIBUTES = { aria: "aria-label", title: "title", placeholder: "placeholder" };

export function fill(root) {
  for (const element of root.querySelectorAll("[data-label]")) element.textContent = t(element.dataset.label);
  for (const [name, attribute] of Object.entries(ATTRIBUTES)) {
    for (const element of root.querySelectorAll(`[data-${name}]`)) element.setAttribute(attribute, t(element.dataset[name]));
  }
}
