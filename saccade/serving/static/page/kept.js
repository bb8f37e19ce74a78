// What the browser keeps between visits. One that keeps nothing, or something else's values, is no reason to fail.

export function read(name, otherwise) {
  try {
    return JSON.parse(localStorage.getItem(`saccade.${name}`)) ?? otherwise;
  } catch {
    return otherwise;
  }
}

export function write(name, value) {
  try {
    localStorage.setItem(`saccade.${name}`, JSON.stringify(value));
  } catch {
    // Private windows and full disks.
  }
}
