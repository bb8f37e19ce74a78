// The side panel: every head, as the viewer shows it. The viewer is loaded when it is first wanted.

import { ask } from "./api.js";
import { t, tongue } from "./labels.js";

const NARROW = matchMedia("(max-width: 900px)"); // where it lies over all else, as the style says

let viewer = null;

function loadViewer() {
  viewer ??= new Promise((done, failed) => {
    const sheet = Object.assign(document.createElement("link"), { rel: "stylesheet", href: "static/look.css" });
    const script = Object.assign(document.createElement("script"), { src: "static/look.js" });
    script.addEventListener("load", () => done(window.SaccadeLook));
    script.addEventListener("error", () => failed(new Error(t("offline"))));
    document.head.append(sheet, script);
  }).catch((error) => {
    viewer = null;
    throw error;
  });
  return viewer;
}

export class Panel {
  #abort = null;
  #mount = null; // shows what was looked at last

  constructor(root, close) {
    this.root = root;
    this.place = root.querySelector("#look-place");
    this.state = root.querySelector("#look-state");
    this.pane = null;
    close.addEventListener("click", () => this.close());
    addEventListener("saccade:tongue", () => this.view && this.#mount());
    NARROW.addEventListener("change", () => this.#cover());
  }

  get open() {
    return !this.root.hidden;
  }

  toggle(pane) {
    if (this.open && this.pane === pane) return this.close();
    this.pane?.find(".see").setAttribute("aria-expanded", "false");
    this.pane = pane;
    pane.find(".see").setAttribute("aria-expanded", "true");
    this.root.hidden = false;
    document.body.classList.add("looking");
    this.#cover();
    this.root.focus({ preventScroll: true });
    this.drawn = "";
    return this.draw();
  }

  close() {
    if (!this.open) return;
    this.#abort?.abort();
    this.root.hidden = true;
    document.body.classList.remove("looking");
    this.#cover();
    this.pane?.find(".see").setAttribute("aria-expanded", "false");
    this.pane?.find(".see").focus({ preventScroll: true });
    this.view?.destroy();
    this.view = null;
    this.pane = null;
  }

  // What cannot be seen cannot be reached.
  #cover() {
    for (const each of document.querySelectorAll(".skip, .top, main")) each.inert = this.open && NARROW.matches;
  }

  // Of the line that the reader is at. A translation that search alone would not find is given.
  async draw() {
    if (!this.open) return;
    const { translation, current } = this.pane;
    const shown = translation.shown(current);
    if (!shown) return this.#say(t("empty"));
    const text = translation.lines[current];
    const forced = translation.prefixes.has(text) || translation.picks.has(text) || this.ruled?.();
    const body = { text, model: translation.model.name, ...(forced ? { target: shown.text } : { n_best: 3 }) };
    if (this.drawn === JSON.stringify(body)) return;
    this.#abort?.abort();
    const abort = (this.#abort = new AbortController());
    this.#say(t("looking"));
    try {
      const [look, SaccadeLook] = await Promise.all([ask("v1/look", body, abort.signal), loadViewer()]);
      if (abort.signal.aborted) return;
      this.drawn = JSON.stringify(body);
      this.#mount = () => {
        this.view?.destroy();
        this.view = SaccadeLook.mount(this.place, look, { header: false, language: tongue() });
      };
      this.#mount();
      this.#say("");
    } catch (error) {
      if (error.name !== "AbortError") this.#say(error.message);
    }
  }

  #say(text) {
    this.state.textContent = text;
    this.state.hidden = !text;
  }
}
