// Files: dropped here, translated there, and given back.

import { ask, fetchFile } from "./api.js";
import { languageName, t } from "./labels.js";
import { element } from "./words.js";

export class Files {
  constructor(drop, input, list, languages) {
    Object.assign(this, { drop, list, languages });
    input.addEventListener("change", () => {
      this.take([...input.files]);
      input.value = "";
    });
    for (const name of ["dragenter", "dragover"]) {
      drop.addEventListener(name, (event) => {
        event.preventDefault();
        drop.classList.add("over");
      });
    }
    for (const name of ["dragleave", "drop"]) drop.addEventListener(name, () => drop.classList.remove("over"));
    drop.addEventListener("drop", (event) => {
      event.preventDefault();
      this.take([...event.dataTransfer.files]);
    });
    // A file that misses the place must not replace the page.
    for (const name of ["dragover", "drop"]) addEventListener(name, (event) => event.preventDefault());
  }

  offer(input, formats) {
    this.formats = formats;
    input.accept = formats.join(",");
    this.tell();
  }

  tell() {
    document.getElementById("formats").textContent = this.formats?.length ? this.formats.join("  ") : "";
    const model = this.languages.fitting[0];
    if (!model) return;
    const source = this.languages.source === "auto" ? t("detect") : languageName(model.source);
    const parts = [`${source} → ${languageName(model.target)}`, ...(this.ruled?.() ? [t("unruled")] : [])];
    document.getElementById("how").textContent = parts.join(" · ");
  }

  async take(files) {
    for (const file of files) await this.#translate(file);
  }

  async #translate(file) {
    const state = element("span", { className: "soft" }, t("translating"));
    const row = element("li", { className: "job" }, element("span", { className: "name", dir: "auto" }, file.name), state);
    row.setAttribute("aria-busy", "true");
    this.list.prepend(row);
    try {
      const { source, target } = this.languages.fitting[0];
      const form = new FormData();
      form.append("file", file);
      form.append("source", this.languages.source === "auto" ? "auto" : source);
      form.append("target", target);
      const { translatedFileUrl: url } = await ask("translate_file", form);
      const blob = await fetchFile(samePlace(url));
      const name = named(file.name, target);
      const link = element("a", { href: URL.createObjectURL(blob), download: name, className: "button" }, t("download"));
      link.setAttribute("aria-label", `${t("download")}: ${name}`);
      state.replaceWith(link);
    } catch (problem) {
      state.className = "bad";
      state.textContent = problem.message;
      const again = element("button", { type: "button", className: "link" }, t("retry"));
      again.addEventListener("click", () => {
        row.remove();
        this.#translate(file);
      });
      row.append(again);
    }
    row.setAttribute("aria-busy", "false");
  }
}

// Behind a proxy the server may not know by which name it was called; the page does.
function samePlace(url) {
  const { pathname, search } = new URL(url, location.href);
  const at = pathname.indexOf("/download_file");
  return (at < 0 ? pathname : pathname.slice(at + 1)) + search;
}

function named(name, target) {
  const dot = name.lastIndexOf(".");
  return dot > 0 ? `${name.slice(0, dot)}.${target}${name.slice(dot)}` : `${name}.${target}`;
}
