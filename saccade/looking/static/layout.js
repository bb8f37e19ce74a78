// Where everything stands, and the controls; what they do is the view's.
function build(view) {
  const { look, id } = view;
  const shown = () => Math.max(0, (view.panels || []).indexOf(view.inLines)); // the map whose texts are shown
  view.lines = new Lines({
    point: (cell) => view.point(cell, shown()),
    choose: (cell) => view.choose(cell, shown()),
  });
  view.all = new Heads({ open: (...which) => view.open(...which), toggle: (...which) => view.toggle(...which) });
  view.step = new Steps();
  view.paths = new Paths(`${id}-path`, (path) => view.turnTo(path));
  view.maps = el("div", { class: "maps" });
  view.readout = el("output", { class: "readout", "aria-live": "polite" });
  view.ramp = el("canvas", { class: "ramp" });
  view.greatest = el("span", { class: "greatest", text: "1" });
  const legend = el(
    "div",
    { class: "legend", "aria-hidden": true },
    el("span", { text: "0" }),
    view.ramp,
    view.greatest,
  );
  view.tip = el("div", { class: "tip", "aria-hidden": true, hidden: true });
  view.told = el("ol");
  const told = el("details", { class: "told" }, el("summary", { text: say("links") }), view.told);
  view.layer = selection(say("layer"), "layer", (value) => view.pick({ layer: value }));
  view.head = selection(say("head"), "head", (value) => view.pick({ head: value }));
  const heat = el(
    "section",
    { class: "card heat-card" },
    controls(view),
    view.maps,
    el("footer", {}, view.readout, legend),
    told,
  );
  const side = el("div", { class: "side" }, look.paths.length > 1 ? view.paths.element : null, view.step.element);
  const nothing = el(
    "section",
    { class: "card" },
    el("p", { class: "nothing", text: say("nothing") }),
  );
  const seen = view.stacks.length > 0;
  const many = view.stacks.some((stack) => view.heads(stack).length > 1);
  view.root.replaceChildren(
    ...[
      view.options.header === false ? null : heading(view),
      seen ? el("section", { class: "card" }, view.lines.element) : nothing,
      (view.middle = el("div", { class: "middle" }, seen ? heat : null, side)),
      many ? view.all.element : null,
      view.tip,
    ].filter(Boolean),
  );
  view.root.classList.toggle("alone", look.paths.length < 2 && !look.paths.some((path) => path.steps.length));
}

function heading(view) {
  const { source_language: from, target_language: to, ...others } = view.look.facts || {};
  const told = Object.entries(others).filter(
    ([, value]) => typeof value === "number" || (typeof value === "string" && value),
  );
  const facts = [...(from && to ? [["languages", `${from} \u2192 ${to}`]] : []), ...told];
  const theme = el("button", {
    type: "button",
    class: "plain theme",
    "aria-label": say("theme"),
    text: "\u25d1",
    title: say("theme"),
    on: {
      click: () => {
        document.documentElement.dataset.theme = view.theme === "dark" ? "light" : "dark";
      },
    },
  });
  return el(
    "header",
    { class: "heading" },
    el("h1", {}, el("bdi", { text: view.look.model || say("attention") })),
    el(
      "p",
      { class: "facts" },
      ...facts.map(([name, value]) => el("span", {}, el("i", { text: name.replaceAll("_", " ") }), ` ${value}`)),
    ),
    theme,
  );
}

function controls(view) {
  const { id } = view,
    name = (stack) => [stack, say(stack)];
  const stacks = [...view.stacks.map(name), ...(view.stacks.length > 1 ? [["all", say("together")]] : [])];
  view.stackChoice = choice(say("attention"), `${id}-stack`, stacks, view.stack, (stack) => {
    view.stack = stack;
    view.draw();
  });
  const unit = choice(
    say("unit"),
    `${id}-unit`,
    [
      ["words", say("words")],
      ["pieces", say("pieces")],
    ],
    view.unit,
    (value) => {
      view.unit = value;
      view.draw(true);
    },
  );
  const scale = selection(say("colour"), "scale", (value) => {
    view.scale = value;
    view.draw(true);
  });
  scale.offer(
    SCALES.map((name) => [name, say(name)]),
    view.scale,
  );
  const button = (text, title, click) =>
    el("button", { type: "button", class: "plain", text, title, "aria-label": title, on: { click } });
  const zoom = (by) => {
    view.zoom = Math.max(-4, Math.min(8, view.zoom + by));
    view.draw();
  };
  return el(
    "header",
    { class: "controls" },
    view.stacks.length > 1 ? view.stackChoice : null,
    view.sided.some(splits) ? unit : null,
    view.layer,
    view.head,
    scale,
    el(
      "span",
      { class: "buttons" },
      button("\u2212", say("smaller"), () => zoom(-1)),
      button("+", say("larger"), () => zoom(1)),
      button("SVG", say("save_svg"), () => saveSvg(view.picture(), "attention")),
      button("PNG", say("save_png"), () => savePng(view.picture(), "attention")),
    ),
  );
}
