// Questions to the server, and the rule for sliders: one question at a time, the latest case wins.

/** An answer that says no: the server's error object, or that the server is gone. */
export class Refusal extends Error {
  constructor(error) {
    super(error.what);
    this.error = error;
  }
}

const GONE = { what: "offline", value: null, allowed: null, next: null };

async function take(request) {
  let response;
  try {
    response = await request;
  } catch {
    throw new Refusal(GONE);
  }
  const document = await response.json();
  if (!response.ok) throw new Refusal(document.error);
  return document;
}

export const get = (path) => take(fetch(path));

export const ask = (name, body) =>
  take(fetch(`/api/${name}`, post(body)));

/** The same answer as CSV text. */
export async function askCsv(name, body) {
  const response = await fetch(`/api/${name}?format=csv`, post(body));
  if (!response.ok) throw new Refusal((await response.json()).error);
  return response.text();
}

const post = (body) => ({
  method: "POST",
  headers: { "content-type": "application/json" },
  body: JSON.stringify(body),
});

/** Calls `work` now, or again when it is done with an earlier call: never two at once, none forgotten. */
export function latest(work) {
  let running = false;
  let again = false;
  return async function run() {
    if (running) {
      again = true;
      return;
    }
    running = true;
    do {
      again = false;
      await work();
    } while (again);
    running = false;
  };
}

/** Calls `work` once it has been left alone for so many milliseconds. */
export function afterPause(work, milliseconds) {
  let timer = 0;
  return () => {
    clearTimeout(timer);
    timer = setTimeout(work, milliseconds);
  };
}
