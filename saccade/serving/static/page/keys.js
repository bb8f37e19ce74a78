// Shortcuts, and the list of them. With Alt, so that writing is not disturbed; on a Mac, where Alt writes, with Control too.

import { t } from "./labels.js";
import { element } from "./words.js";

const MAC = navigator.platform.startsWith("Mac");
const WITH = MAC ? ["⌃", "⌥"] : ["Alt"];

export class Keys {
  constructor(list) {
    this.list = list;
    this.known = [];
    addEventListener("keydown", (event) => this.#pressed(event));
  }

  // `code`: a key by its place on the keyboard (KeyC), or by name (Escape).
  on(code, label, action) {
    this.known.push({ code, label, action });
  }

  draw() {
    const rows = this.known.map(({ code, label }) => {
      const names = code === "Escape" ? ["Esc"] : [...WITH, code.replace("Key", "").replace("Slash", "/")];
      return [element("dt", {}, ...names.map((name) => element("kbd", {}, name))), element("dd", {}, t(label))];
    });
    const words = [["←", "→"], "keys_words"];
    rows.push([element("dt", {}, ...words[0].map((name) => element("kbd", {}, name))), element("dd", {}, t(words[1]))]);
    rows.push([element("dt", {}, element("kbd", {}, "Enter")), element("dd", {}, t("keys_other"))]);
    this.list.replaceChildren(...rows.flat());
  }

  #pressed(event) {
    const found = this.known.find(({ code }) =>
      code === "Escape" ? event.key === "Escape" : event.altKey && event.ctrlKey === MAC && !event.metaKey && event.code === code,
    );
    if (!found || (found.code !== "Escape" && document.querySelector("dialog[open]"))) return;
    if (found.action() !== false) event.preventDefault();
  }
}
