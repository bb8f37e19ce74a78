// The page, put together.

import { ask, getKey, Problem, setKey } from "./api.js";
import { Choices } from "./choices.js";
import { Files } from "./files.js";
import { Keys } from "./keys.js";
import { read, write } from "./kept.js";
import { preferred, speak, t } from "./labels.js";
import { Languages } from "./languages.js";
import { Lights } from "./lights.js";
import { Pane } from "./pane.js";
import { Panel } from "./panel.js";
import { Rules } from "./rules.js";
import { Run } from "./run.js";
import { Source } from "./source.js";
import { element } from "./words.js";

const PAUSE = 160; // milliseconds without a key before the text is sent
const find = (id) => document.getElementById(id);
const root = document.documentElement;

const source = new Source(find("source"), find("mirror"));
const languages = new Languages(find("from"), find("to"), find("swap"), find("detected"));
const rules = new Rules(find("rules"), find("open-rules"));
const choices = new Choices(find("choices"));
const panel = new Panel(find("look"), find("close-look"));
const files = new Files(find("drop"), find("file"), find("jobs"), languages);
const keys = new Keys(find("keys"));
const panes = [new Pane(find("pane"), find("panes")), new Pane(find("pane"), find("panes"))];
const lights = new Lights(source, () => shownPanes(), find("arcs"));

let view = "translate";
let pause = 0;
let limit = -1;
let detecting = null;
let run = null;

// A model is not compared with itself: where one alone fits the languages, it has all the room.
const shownPanes = () => (view === "compare" && languages.fitting.length > 1 ? panes : panes.slice(0, 1));
const lay = () => (panes[1].root.hidden = shownPanes().length < 2);

// --- translating

async function translate() {
  clearTimeout(pause);
  detecting?.abort();
  const abort = (detecting = new AbortController());
  try {
    if (await languages.detect(source.field.value, abort.signal)) offerModels();
  } catch (error) {
    if (abort.signal.aborted || !(error instanceof Problem)) return;
  }
  if (!languages.cards.length) return;
  const line = source.current;
  for (const pane of shownPanes()) {
    pane.current = line;
    pane.translation.update(source.lines, rules.request(pane.several));
  }
}

function written() {
  source.draw();
  lights.off();
  choices.close(false);
  const { length } = source.field.value;
  find("clear").hidden = !length;
  offerExamples();
  const near = limit > 0 && length > limit / 2;
  find("count").textContent = near ? `${count(length)} / ${count(limit)}` : length ? t("characters", { count: length }) : "";
  clearTimeout(pause);
  pause = setTimeout(translate, PAUSE);
}

const count = (number) => new Intl.NumberFormat(root.lang).format(number);

function offerModels() {
  const kept = read("models", []);
  const fitting = languages.fitting;
  if (!fitting.length) return;
  panes[0].offer(fitting, kept[0]);
  const others = fitting.filter((card) => card.name !== panes[0].model.name);
  panes[1].offer(fitting, fitting.some((card) => card.name === kept[1]) ? kept[1] : others[0]?.name);
  lay();
  source.field.lang = panes[0].model.source.length === 2 ? panes[0].model.source : ""; // for the spelling checker
  offerExamples();
}

// A model of the built-in corpus knows little else, which nobody would guess.
function offerExamples() {
  const { examples = [], source: language = "" } = panes[0].model ?? {};
  find("examples").hidden = !examples.length || source.field.value !== "";
  if (find("examples").textContent === examples.join("")) return;
  find("examples").replaceChildren(...examples.map((text) => {
    const button = element("button", { type: "button", dir: "auto", lang: language }, text);
    button.addEventListener("click", () => {
      source.field.value = text;
      source.field.focus();
      written();
    });
    return button;
  }));
}

source.field.addEventListener("input", written);
source.onpoint = (at) => (at ? lights.fromSource(at.line, at.word) : lights.off());
source.oncaret = (line) => {
  for (const pane of shownPanes()) pane.show(line);
  panel.draw();
};
find("clear").addEventListener("click", () => clear());

function clear() {
  source.field.value = "";
  written();
  translate();
  source.field.focus();
}

for (const pane of panes) {
  pane.wantsLinks = false;
  pane.oncut = (line, words) => source.cut(line, words);
  pane.onchanged = () => lights.off();
  pane.onpoint = (from, at) => {
    if (choices.open) return null; // the word that is asked about stays lit
    if (!at) return lights.off();
    return at.source === undefined ? lights.fromTarget(from, at.line, at.word) : lights.fromSource(at.line, at.source);
  };
  pane.onword = (from, at) => {
    from.show(at.line);
    lights.fromTarget(from, at.line, at.word);
    choices.show(from, at);
  };
  pane.onmodel = () => {
    write("models", panes.map((each) => each.model.name));
    offerExamples();
    translate();
  };
  pane.onseveral = (from) => from.translation.update(source.lines, rules.request(from.several));
  pane.onlook = (from) => panel.toggle(from);
  pane.onsaid = (from) => {
    tell(from.translation.text.trim());
    back(from);
    if (panel.pane === from) panel.draw();
  };
  pane.oncopied = () => tell(t("copied"), true);
  pane.onrefused = () => askKey(true);
}

// After a word was chosen, or was written anew under the keyboard, the reader goes on from it, unless gone elsewhere.
function back(pane) {
  const at = pane.root.dataset.back?.split(".");
  if (!at) return;
  delete pane.root.dataset.back;
  const span = pane.word(Number(at[0]), Number(at[1])) ?? pane.output.querySelector(".word[role]");
  const elsewhere = document.activeElement !== document.body && !document.activeElement.closest("[hidden]");
  if (span && !elsewhere) pane.enter(span);
}

languages.onchange = () => {
  offerModels();
  translate();
};
languages.onswap = () => {
  const { whole, lines, text } = panes[0].translation;
  if (whole && lines.join("\n") === source.field.value && text.trim()) source.field.value = text.trim();
  offerModels();
  written();
};
rules.onchange = () => {
  files.tell();
  clearTimeout(pause);
  pause = setTimeout(translate, 2 * PAUSE);
};
choices.onclose = () => lights.off();
panel.ruled = files.ruled = () => rules.active > 0;

// --- what is said to those who do not see, and to all

let hush = 0;

function tell(text, seen = false) {
  const place = find("told");
  place.textContent = text;
  place.classList.toggle("unseen", !seen);
  place.classList.toggle("toast", seen);
  clearTimeout(hush);
  if (seen) hush = setTimeout(() => place.classList.replace("toast", "unseen"), 1600);
}

// --- views

function show() {
  const asked = location.hash.slice(1) || (root.dataset.watch === "yes" ? "run" : "");
  const link = document.querySelector(`nav a[data-view="${CSS.escape(asked)}"]`);
  if (asked && !link) return; // the skip link
  view = link && !link.hidden ? asked : languages.cards.length || root.dataset.watch !== "yes" ? "translate" : "run";
  for (const each of document.querySelectorAll("nav a")) {
    if (each.dataset.view === view) {
      each.setAttribute("aria-current", "page");
      each.scrollIntoView({ block: "nearest", inline: "nearest" }); // on a narrow screen they are more than a line
    } else each.removeAttribute("aria-current");
  }
  const texts = view === "translate" || view === "compare";
  find("view-text").hidden = !texts;
  find("view-files").hidden = view !== "files";
  find("view-run").hidden = view !== "run";
  document.body.dataset.view = view;
  entitle();
  choices.close(false);
  lights.off();
  lay();
  for (const pane of panes) pane.wantsLinks = view === "compare";
  if (!texts) panel.close();
  files.tell();
  if (texts && languages.cards.length) translate();
  if (view === "run") {
    run ??= new Run(find("view-run"));
    run.onsample = () => languages.cards.length || starting || start(); // it translates now, so it is served
    run.follow();
  } else run?.rest();
}

// By which a tab and an entry of the browser's history are known.
function entitle() {
  document.querySelector("h1").textContent = t(view);
  document.title = `${t(view)} – Saccade`;
}

addEventListener("hashchange", show);
addEventListener("online", () => translate());

// --- key, help, languages of the page

function askKey(refused = false) {
  find("open-key").hidden = false;
  find("key-refused").hidden = !refused || !getKey(); // else a key that is wrong looks like one that was not sent
  if (!document.querySelector("dialog[open]")) find("key-box").showModal();
  find("key").value = getKey();
}

find("open-key").addEventListener("click", () => askKey());
find("key-box").addEventListener("close", () => {
  setKey(find("key").value);
  if (getKey()) start();
});
find("open-help").addEventListener("click", () => find("help").showModal());
for (const dialog of document.querySelectorAll("dialog")) {
  dialog.addEventListener("click", (event) => event.target === dialog && dialog.close()); // beside it
}
find("tongue").addEventListener("change", (event) => speak(event.target.value, true));
addEventListener("saccade:tongue", () => {
  find("tongue").value = root.lang;
  keys.draw();
  files.tell();
  for (const pane of panes) if (pane.model) pane.retell();
  entitle();
  run?.retell();
});

keys.on("KeyT", "keys_text", () => {
  location.hash = "translate";
  source.field.focus();
});
keys.on("KeyW", "keys_output", () => panes[0].output.querySelector('[tabindex="0"]')?.focus());
keys.on("KeyC", "copy", () => panes[0].copy());
keys.on("KeyX", "clear", () => clear());
keys.on("KeyS", "swap", () => find("swap").click());
keys.on("KeyN", "best", () => panes[0].find(".more").click());
keys.on("KeyL", "look", () => (panel.open ? panel.close() : panes[0].find(".see").click()));
keys.on("KeyG", "rules", () => rules.open());
keys.on("KeyM", "compare", () => (location.hash = "compare"));
keys.on("Slash", "shortcuts", () => find("help").showModal());
keys.on("Escape", "keys_escape", () => {
  if (document.querySelector("dialog[open]")) return false; // the browser closes it
  if (choices.open) return choices.close();
  if (panel.open) return panel.close();
  return false;
});

// --- start

const facts = () => Promise.all([ask("v1/models"), ask("frontend/settings").catch(() => ({}))]);

let starting = false;

async function start(first = null) {
  if (root.dataset.key === "yes" && !getKey()) return askKey();
  starting = true;
  try {
    const [{ models }, settings] = await (first ?? facts());
    find("open-key").hidden = !settings.keyRequired && root.dataset.key !== "yes";
    limit = settings.charLimit ?? -1;
    if (limit > 0) source.field.maxLength = limit;
    files.offer(find("file"), settings.supportedFilesFormat ?? []);
    languages.offer(models);
    offerModels();
    const offered = {
      translate: models.length > 0,
      compare: new Set(models.map((card) => `${card.source} ${card.target}`)).size < models.length, // two for the same
      files: models.length > 0 && settings.supportedFilesFormat?.length > 0,
      run: root.dataset.watch === "yes",
    };
    for (const link of document.querySelectorAll("nav a")) link.hidden = !offered[link.dataset.view];
    document.body.dataset.ready = "yes";
    show();
    if (source.field.value) written(); // a browser that goes back brings the text with it
  } catch (error) {
    if (error.status === 403) return askKey(true);
    panes[0].find(".problem span").textContent = error.message;
    panes[0].find(".problem").hidden = false;
    if (error.wait) setTimeout(() => start(), error.wait * 1000);
    else throw error;
  } finally {
    starting = false;
  }
}

lay(); // before it is known what there is to compare
// The server is asked while the labels are still on their way.
const asked = root.dataset.key === "yes" && !getKey() ? null : facts();
asked?.catch(() => {});
await speak(preferred());
await start(asked);
