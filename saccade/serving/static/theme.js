// Light or dark. A script of its own, run before the page is drawn: who chose dark never sees a flash of light.
"use strict";
(() => {
  const root = document.documentElement;
  const kept = (value) => {
    try {
      if (value === undefined) return localStorage.getItem("saccade.theme");
      localStorage.setItem("saccade.theme", value);
    } catch {
      // A browser that keeps nothing follows the system.
    }
    return null;
  };
  const chosen = kept();
  if (chosen === "light" || chosen === "dark") root.dataset.theme = chosen;

  addEventListener("DOMContentLoaded", () => {
    document.getElementById("theme").addEventListener("click", () => {
      const dark = root.dataset.theme ? root.dataset.theme === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
      root.dataset.theme = dark ? "light" : "dark";
      kept(root.dataset.theme);
      dispatchEvent(new Event("saccade:theme"));
    });
  });
})();
