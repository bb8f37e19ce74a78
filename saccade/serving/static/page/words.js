// Words in texts: where they stand, and the elements that show them.

// Words as the server cut them, found in the text one after the other.
export function placesOf(text, words) {
  if (!words) return spaced(text);
  const places = [];
  let from = 0;
  for (const word of words) {
    const start = text.indexOf(word, from);
    if (start < 0) return spaced(text);
    from = start + word.length;
    places.push([start, from]);
  }
  return places;
}

export function spaced(text) {
  return [...text.matchAll(/\S+/gu)].map((match) => [match.index, match.index + match[0].length]);
}

const MANY = 2000; // words of a line; a book in one line is shown, but its words do not light up

// Fill an element with a text whose words are elements; gives them.
export function spell(element, text, places, make) {
  if (places.length > MANY) {
    element.textContent = text;
    return [];
  }
  const spans = [];
  const nodes = [];
  let from = 0;
  for (const [start, end] of places) {
    if (start > from) nodes.push(text.slice(from, start));
    const span = make(spans.length);
    span.textContent = text.slice(start, end);
    spans.push(span);
    nodes.push(span);
    from = end;
  }
  if (from < text.length) nodes.push(text.slice(from));
  element.replaceChildren(...nodes);
  return spans;
}

export function element(name, properties = {}, ...children) {
  const made = document.createElement(name);
  for (const [key, value] of Object.entries(properties)) {
    if (key in made) made[key] = value;
    else made.setAttribute(key, value);
  }
  made.append(...children);
  return made;
}

export function svg(name, attributes = {}, ...children) {
  const made = document.createElementNS("http://www.w3.org/2000/svg", name);
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  made.append(...children);
  return made;
}

export function icon(name) {
  return svg("svg", { class: "icon", "aria-hidden": "true" }, svg("use", { href: `#i-${name}` }));
}
