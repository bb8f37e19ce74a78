// The server, asked. Addresses are relative, so that the page works behind a proxy's path too.

import { t } from "./labels.js";

let key = "";
try {
  key = sessionStorage.getItem("saccade.key") ?? "";
} catch {
  // No storage: the key lasts as long as the page.
}

export function setKey(value) {
  key = value.trim();
  try {
    sessionStorage.setItem("saccade.key", key);
  } catch {
    // As above.
  }
}

export const getKey = () => key;

// Why there is no answer. `wait`: seconds after which it is worth asking again.
export class Problem extends Error {
  constructor(status, message, wait = null) {
    super(message);
    this.status = status;
    this.wait = wait;
  }
}

async function send(path, { body, signal } = {}) {
  const headers = key ? { Authorization: `Bearer ${key}` } : {};
  const form = body instanceof FormData;
  if (body && !form) headers["Content-Type"] = "application/json";
  let answer;
  try {
    const sent = body && !form ? JSON.stringify(body) : body;
    answer = await fetch(path, { method: body ? "POST" : "GET", headers, body: sent, signal });
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new Problem(0, t("offline"), 3);
  }
  if (!answer.ok) throw await problemOf(answer);
  return answer;
}

async function problemOf(answer) {
  let said = "";
  try {
    const body = await answer.json();
    said = typeof body.error === "string" ? body.error : "";
  } catch {
    // A proxy answers in HTML.
  }
  return problem(answer.status, said, Number(answer.headers.get("Retry-After")));
}

// What a status means to the reader; `said`: the server's own words.
export function problem(status, said, wait) {
  const keyless = document.documentElement.dataset.key === "yes" && !key; // which LibreTranslate calls a bad request
  if (status === 401 || status === 403 || (status === 400 && keyless)) return new Problem(403, t("refused"));
  if (status === 413) return new Problem(413, said ? t("large_said", { said }) : t("large"));
  if (status === 429 || status === 503) return new Problem(status, t("busy"), wait || 2);
  return new Problem(status, said || t("failed", { status: String(status) }));
}

export async function ask(path, body = null, signal = undefined) {
  return (await send(path, { body, signal })).json();
}

export async function fetchFile(path) {
  return (await send(path)).blob();
}

// Server-sent events: {event, data} as they come.
export async function* events(path, body = null, signal = undefined) {
  const answer = await send(path, { body, signal });
  const reader = answer.body.pipeThrough(new TextDecoderStream()).getReader();
  let waiting = "";
  try {
    for (;;) {
      const { done, value } = await reader.read();
      if (done) return;
      waiting += value.replaceAll("\r", "");
      const blocks = waiting.split("\n\n");
      waiting = blocks.pop();
      for (const block of blocks) {
        const event = parsed(block);
        if (event) yield event;
      }
    }
  } catch (error) {
    if (error.name === "AbortError" || error instanceof Problem) throw error;
    throw new Problem(0, t("offline"), 3);
  } finally {
    reader.cancel().catch(() => {});
  }
}

function parsed(block) {
  let event = "message";
  const data = [];
  for (const line of block.split("\n")) {
    if (line.startsWith("event:")) event = line.slice(6).trim();
    else if (line.startsWith("data:")) data.push(line.slice(5).trimStart());
  }
  return data.length ? { event, data: JSON.parse(data.join("\n")) } : null; // without data: a comment that keeps it alive
}
