// The case that the page shows: its defaults, its address, the questions and the command line it stands for.

export const DEFAULTS = Object.freeze({
  tab: "plan",
  source: "bundled",
  model: "Qwen/Qwen2.5-7B-Instruct",
  config: "",
  params: "8B",
  active_params: "",
  kv_bytes_per_token: "128 KiB",
  weights_bytes: "",
  hand: false,
  devices: Object.freeze(["rtx-4090"]),
  peak: "165 TFLOP/s",
  bandwidth: "1008 GB/s",
  memory: "24 GB",
  weights: "",
  kv_dtype: "",
  batch: 8,
  prompt: 1024,
  output: 256,
  context: null,
  engine: "none",
  engine_version: "",
  tp: 1,
  pp: 1,
  ep: 1,
  dp: 1,
  max_model_len: null,
  max_batched_tokens: null,
  max_sequences: null,
  memory_utilization: null,
  swa_full: false,
  axis: "batch",
  compare_devices: Object.freeze(["rtx-4090", "a100-sxm-80", "h100-sxm"]),
  compare_weights: Object.freeze([""]),
  calc_bytes: 1.42e10,
  calc_flops: 1.42e10,
  calc_bandwidth: 1.008e12,
  calc_peak: 1.652e14,
});

export const TABS = ["plan", "calc", "compare"];
const LISTS = new Set(["devices", "compare_devices", "compare_weights"]);
const NUMBERS = new Set([
  "batch", "prompt", "output", "context", "tp", "pp", "ep", "dp", "max_model_len", "max_batched_tokens",
  "max_sequences", "memory_utilization", "calc_bytes", "calc_flops", "calc_bandwidth", "calc_peak",
]);
const FLAGS = new Set(["hand", "swa_full"]);
const LIMITS = ["max_model_len", "max_batched_tokens", "max_sequences", "memory_utilization"];
const LAYOUT = ["tp", "pp", "ep", "dp"];

export const state = structuredClone(DEFAULTS);

const same = (a, b) => JSON.stringify(a) === JSON.stringify(b);

/** The address of the case: what differs from the defaults, after the #, which no server sees. */
export async function toAddress() {
  const query = new URLSearchParams();
  for (const [name, value] of Object.entries(state)) {
    if (name === "tab" || name === "config" || same(value, DEFAULTS[name])) continue;
    query.set(name, LISTS.has(name) ? value.join(",") : value === null ? "" : String(value));
  }
  if (state.source === "config" && state.config) query.set("config", await pack(state.config));
  const text = query.toString().replaceAll("%2F", "/").replaceAll("%2C", ",");
  return `#${state.tab}${text ? `?${text}` : ""}`;
}

/** Take the case over from an address; what it does not name, or names badly, is as by default. */
export async function fromAddress(hash) {
  const [tab, text = ""] = hash.replace(/^#/, "").split(/\?(.*)/s);
  const query = new URLSearchParams(text);
  Object.assign(state, structuredClone(DEFAULTS), { tab: TABS.includes(tab) ? tab : "plan" });
  for (const [name, value] of query) {
    if (!(name in DEFAULTS) || name === "tab" || name === "config") continue;
    if (LISTS.has(name)) state[name] = value.split(",").slice(0, 8);
    else if (FLAGS.has(name)) state[name] = value === "true";
    else if (NUMBERS.has(name)) state[name] = value === "" || !Number.isFinite(Number(value)) ? DEFAULTS[name] : Number(value);
    else state[name] = value;
  }
  if (query.has("config")) state.config = await unpack(query.get("config"));
}

async function through(stream, bytes) {
  const piped = new Blob([bytes]).stream().pipeThrough(stream);
  return new Uint8Array(await new Response(piped).arrayBuffer());
}

async function pack(text) {
  const bytes = await through(new CompressionStream("deflate-raw"), new TextEncoder().encode(text));
  return btoa(String.fromCharCode(...bytes)).replaceAll("+", "-").replaceAll("/", "_").replace(/=+$/, "");
}

async function unpack(text) {
  try {
    const bytes = Uint8Array.from(atob(text.replaceAll("-", "+").replaceAll("_", "/")), (c) => c.charCodeAt(0));
    return new TextDecoder().decode(await through(new DecompressionStream("deflate-raw"), bytes));
  } catch {
    return ""; // a damaged address: the page then asks for a config
  }
}

function modelPart() {
  if (state.source === "config") return { config_text: state.config };
  if (state.source === "sizes") {
    const names = ["params", "active_params", "kv_bytes_per_token", "weights_bytes"];
    return Object.fromEntries(names.filter((name) => state[name]).map((name) => [name, state[name]]));
  }
  return { model: state.model };
}

function devicePart() {
  if (!state.hand) return { device: state.devices[0] };
  const names = ["peak", "bandwidth", "memory"];
  return Object.fromEntries(names.filter((name) => state[name]).map((name) => [name, state[name]]));
}

function loadPart() {
  const part = { batch: state.batch, prompt: state.prompt, output: state.output, engine: state.engine };
  for (const name of ["kv_dtype", "engine_version"]) if (state[name]) part[name] = state[name];
  for (const name of ["context", ...LIMITS]) if (state[name] !== null) part[name] = state[name];
  for (const name of LAYOUT) if (state[name] !== 1) part[name] = state[name];
  if (state.swa_full) part.swa_full = true;
  return part;
}

/** The body of /api/plan for this case. */
export function planBody() {
  return { ...modelPart(), ...devicePart(), ...loadPart(), ...(state.weights ? { weights: state.weights } : {}) };
}

/** The body of /api/compare: the same model and load on other devices and formats. */
export function compareBody() {
  return {
    ...modelPart(),
    ...loadPart(),
    devices: state.compare_devices,
    weights: state.compare_weights.map((name) => name || null),
  };
}

/** Batches (or contexts) for the sweep, half an octave apart, past the case itself. */
export function sweepValues(axis, context) {
  const own = axis === "batch" ? state.batch : context;
  const [first, least] = axis === "batch" ? [1, 256] : [128, 131072];
  const values = new Set([Math.max(own, 1)]);
  const last = Math.max(least, own * 4);
  for (let value = first; value <= last; value *= Math.SQRT2) values.add(Math.round(value));
  values.add(last);
  return [...values].sort((a, b) => a - b);
}

const quoted = (text) => (/^[\w@%+=:,./-]+$/.test(text) ? text : `'${text.replaceAll("'", "'\\''")}'`);
const compact = (text) => String(text).replaceAll(" ", "");

function modelArguments() {
  if (state.source === "config") return ["config.json"];
  if (state.source === "bundled") return [state.model];
  const names = ["params", "active_params", "kv_bytes_per_token", "weights_bytes"];
  return names.filter((name) => state[name]).flatMap((name) => [option(name), compact(state[name])]);
}

const option = (name) => `--${name.replaceAll("_", "-")}`;

function loadArguments() {
  const parts = [];
  const names = ["kv_dtype", "batch", "prompt", "output", "context", "engine", "engine_version", ...LAYOUT, ...LIMITS];
  for (const name of names) {
    const plain = name === "batch" || name === "prompt" || name === "output" ? undefined : DEFAULTS[name];
    if (state[name] !== plain && state[name] !== null) parts.push(option(name), String(state[name]));
  }
  if (state.swa_full) parts.push("--swa-full");
  return parts;
}

/** The command that prints the same answer. */
export function command() {
  const device = state.hand
    ? ["peak", "bandwidth", "memory"].filter((name) => state[name]).flatMap((name) => [option(name), compact(state[name])])
    : ["--device", state.devices[0]];
  const weights = state.weights ? ["--weights", state.weights] : [];
  return ["rooflens", "plan", ...modelArguments(), ...device, ...weights, ...loadArguments()].map(quoted).join(" ");
}

/** The command of the comparison. */
export function compareCommand() {
  const formats = state.compare_weights.map((name) => name || "stored");
  const weights = formats.some((name) => name !== "stored") ? ["--weights", formats.join(",")] : [];
  const parts = ["rooflens", "compare", ...modelArguments(), "--devices", state.compare_devices.join(",")];
  return [...parts, ...weights, ...loadArguments()].map(quoted).join(" ");
}
