// The cards of the planner's answer. Each is made once and updated with every view.

import { rooflineChart, sweepTrail } from "./chart-roofline.js";
import { memoryChart, partClass } from "./chart-memory.js";
import { splitChart } from "./chart-split.js";
import { sweepChart } from "./chart-sweep.js";
import { h, show } from "./dom.js";
import { chartTools, columnsCsv } from "./export.js";
import { figure } from "./popover.js";
import {
  formatBandwidth, formatBytes, formatFlops, formatRate, formatSeconds, formatShare, formatWhole, threeDigits,
} from "./units.js";

/** A card: heading, tools, body. `name` is its anchor for tests and links. */
export function card(name, title, tools, ...body) {
  return h("section", { class: `card card-${name}`, id: name, ariaLabel: title },
    h("header", { class: "card-head" }, h("h2", {}, title), tools ?? null), ...body);
}

/** A table: heads are texts, rows are lists of cells; the first cell of a row is its head. */
export function table(caption, heads, rows, numeric = true) {
  return h("table", { class: numeric ? "numbers" : "" },
    h("caption", { class: "hidden" }, caption),
    h("thead", {}, h("tr", {}, heads.map((head) => h("th", { scope: "col" }, head)))),
    h("tbody", {}, rows.map((row) => h("tr", { class: row.class ?? "" }, row.map((cell, index) => (index === 0 ? h("th", { scope: "row" }, cell) : h("td", { "data-head": typeof heads[index] === "string" ? heads[index] : null }, cell)))))));
}

/** What a table that scrolls by itself is called: not as its card, which is a landmark of its own. */
export const tableName = (say, title) => `${title}: ${say("page.compare.table")}`;

/** The data of a chart as a table that opens below it. */
export function asTable(say, caption) {
  const body = h("div", { class: "scroll", tabIndex: 0, role: "region", ariaLabel: tableName(say, caption) });
  const details = h("details", { class: "as-table" }, h("summary", {}, say("page.as_table")), body);
  let make = null;
  details.addEventListener("toggle", () => details.open && make && show(body, make()));
  return { node: details, set: (next) => { make = next; if (details.open) show(body, make()); } };
}

// Reading a width makes the browser lay out what was just drawn: it is read once, until the page is resized.
let widths = new WeakMap();

function widthOf(node) {
  if (!widths.has(node)) widths.set(node, Math.max(280, Math.floor(node.clientWidth)));
  return widths.get(node);
}

/** The page was resized: widths are read anew. */
export function forgetWidths() {
  widths = new WeakMap();
}

export function verdictCard(say) {
  const status = h("p", { class: "verdict", role: "status" });
  const remedy = h("span", { class: "remedy" });
  const facts = h("p", { class: "facts" });
  const speed = h("p", { class: "speed" });
  const tiles = h("div", { class: "tiles" });
  const title = h("h2", { class: "case" });
  const node = h("section", { class: "card card-verdict", id: "verdict", ariaLabel: say("page.answer") }, title, facts, status, speed, tiles);
  const tile = (key, label, value, below) => h("div", { class: "tile" }, h("p", { class: "tile-label" }, label), h("p", { class: "tile-value" }, key ? figure(key, value, say) : value), h("p", { class: "tile-below" }, below));

  function update({ plan, sentences }, name) {
    const { decode, prefill, memory, workload, model, device } = plan;
    title.textContent = name;
    const layout = ["tp", "pp", "ep", "dp"].filter((one) => workload[one] > 1).map((one) => `${one} ${workload[one]}`).join(", ");
    const kv = model.kv_dtype !== model.weights_format ? [say("plan.title.kv", { dtype: model.kv_dtype })] : [];
    facts.textContent = [
      `${formatCount(model, say)}`, model.weights_format, ...kv,
      say("plan.title.load", { batch: formatWhole(workload.batch), prompt: formatWhole(workload.prompt), output: formatWhole(workload.output) }),
      say("page.context_of", { context: formatWhole(workload.context) }),
      ...(layout ? [layout] : []), ...(workload.engine === "none" ? [] : [workload.engine]),
    ].join(" · ");
    status.className = `verdict ${memory.fits === false ? "no" : memory.fits ? "yes" : "unknown"}`;
    show(status, h("span", { class: "verdict-mark", "aria-hidden": "true" }, memory.fits === false ? "✕" : memory.fits ? "✓" : "?"), h("span", {}, sentences.verdict, remedy));
    remedy.textContent = "";
    speed.textContent = sentences.speed;
    const range = (seconds, per = 1) => say("page.likely", { low: threeDigits(per / seconds.high), high: threeDigits(per / seconds.low) });
    show(tiles,
      tile("decode.sequence", say("page.tile.decode"), `${threeDigits(decode.tokens_per_s_per_sequence)} tok/s`, range(decode.estimate_s)),
      tile("decode.rate", say("page.tile.batch", { batch: formatWhole(workload.batch) }), `${threeDigits(decode.tokens_per_s)} tok/s`, range(decode.estimate_s, decode.tokens)),
      tile("prefill.bound", say(workload.batch > 1 ? "page.tile.prompts" : "page.tile.first"), formatSeconds(prefill.bound_s), say("page.likely", { low: formatSeconds(prefill.estimate_s.low), high: formatSeconds(prefill.estimate_s.high) })),
      tile(memory.max_sequences === null ? null : "sequences", say("page.tile.sequences"), memory.max_sequences === null ? "–" : formatWhole(memory.max_sequences), memory.max_sequences === null ? say("room.unknown") : say("page.of_context", { context: formatWhole(workload.context) })),
    );
    node.dataset.limit = decode.limited_by;
    node.dataset.device = device.id;
  }
  const advise = (document) => { remedy.textContent = document.remedy ? ` ${document.remedy}` : ""; };
  return { node, update, advise };
}

function formatCount(model, say) {
  const count = (value) => `${threeDigits(value / 1e9)} B`;
  return model.active_parameters < model.parameters
    ? say("page.parameters_active", { total: count(model.parameters), active: count(model.active_parameters) })
    : say("page.parameters", { total: count(model.parameters) });
}

export function rooflineCard(say, fileName) {
  const box = h("div", { class: "chart-box" });
  const legend = h("ul", { class: "legend" });
  const told = asTable(say, say("page.roofline"));
  let view = null;
  const title = () => say("page.roofline_of", { device: view.roofs.map((roof) => roof.name).join(", ") });
  const tools = chartTools({ chart: () => box.firstChild, name: fileName, title, csv: () => columnsCsv(pointColumns(view)), say });
  const note = h("p", { class: "quiet" });
  const node = card("roofline", say("page.roofline"), tools, box, legend, note, told.node);

  function update(next) {
    view = next;
    const main = view.roofs[0];
    show(box, rooflineChart({ roofs: view.roofs, trail: view.sweep ? sweepTrail(view.sweep, main, say) : [] }, widthOf(box), say));
    note.textContent = `${say("roofline.sentence", { ridge: threeDigits(main.ridge_flops_per_byte), bandwidth: formatBandwidth(main.bandwidth_bytes_per_s), peak: formatRate(main.peak_flops_per_s) })} ${say("page.roofline.legend")}`;
    show(legend, view.roofs.length < 2 ? [] : view.roofs.map((roof, index) => h("li", { class: `rank-${index} ${roof.error ? "refused" : ""}` },
      h("span", { class: "legend-key", ariaHidden: "true" }),
      h("span", {}, roof.error ? `${roof.name}: ${roof.error.what}` : say("page.roof_of", { name: roof.name, peak: formatRate(roof.peak_flops_per_s), dtype: roof.compute_dtype, bandwidth: formatBandwidth(roof.bandwidth_bytes_per_s) })))));
    told.set(() => table(title(), [say("chart.point"), say("roofline.intensity"), say("page.bound_rate"), say("page.likely_rate"), say("roofline.regime")],
      view.roofs.flatMap((roof, rank) => roof.points.map((point, index) => [
        `${roof.name}, ${point.label ? say(`point.${point.label}`) : say("calc.this")}`, threeDigits(point.intensity_flops_per_byte),
        figure(`roof.${rank}.${index}`, formatRate(point.bound_flops_per_s ?? point.attainable_flops_per_s), say),
        point.estimate_flops_per_s ? `${formatRate(point.estimate_flops_per_s.low)} – ${formatRate(point.estimate_flops_per_s.high)}` : "",
        say(`limit.${point.regime}`),
      ]))));
  }
  return { node, update, box };
}

function pointColumns(view) {
  const points = view.roofs.flatMap((roof) => roof.points.map((point) => ({ device: roof.device, ...point })));
  const likely = (end) => points.map((point) => point.estimate_flops_per_s?.[end] ?? "");
  return {
    device: points.map((point) => point.device),
    phase: points.map((point) => point.label ?? ""),
    intensity_flops_per_byte: points.map((point) => point.intensity_flops_per_byte),
    bound_flops_per_s: points.map((point) => point.bound_flops_per_s ?? point.attainable_flops_per_s),
    estimate_low_flops_per_s: likely("low"), estimate_mid_flops_per_s: likely("mid"), estimate_high_flops_per_s: likely("high"),
  };
}

export function memoryCard(say) {
  const box = h("div", { class: "chart-box" });
  const rows = h("div", { class: "scroll" });
  const room = h("p", {});
  let memory = null;
  const csv = () => columnsCsv({
    name: memory.rows.map((row) => row.name), bytes: memory.rows.map((row) => row.bytes),
    low_bytes: memory.rows.map((row) => row.low_bytes ?? ""), high_bytes: memory.rows.map((row) => row.high_bytes ?? ""),
    evidence: memory.rows.map((row) => row.evidence),
  });
  const tools = chartTools({ chart: () => box.firstChild, name: "rooflens-memory", title: () => say("chart.memory.title"), csv, say });
  const node = card("memory", `${say("memory.title")} · ${say("memory.per_device")}`, tools, box, rows, room);

  function update({ plan, sentences }) {
    memory = plan.memory;
    show(box, memoryChart(memory, widthOf(box), say));
    const line = (row, index) => [
      h("span", { class: `swatch ${partClass(row.name, index)}` }, say.term("ledger", row.name)),
      figure(`memory.${row.name}`, formatBytes(row.bytes), say), formatShare(row.bytes / memory.total_bytes), say.term("evidence", row.evidence),
    ];
    const sums = [[say("total"), figure("total", formatBytes(memory.total_bytes), say), "", ""]];
    if (memory.capacity_bytes !== null) {
      const over = memory.total_bytes > memory.capacity_bytes;
      sums.push([say("memory.capacity"), figure("capacity", formatBytes(memory.capacity_bytes), say), "", say.term("evidence", plan.device.evidence.memory_bytes ?? "spec")]);
      sums.push([say(over ? "memory.missing" : "memory.free"), figure("free", formatBytes(Math.abs(memory.capacity_bytes - memory.total_bytes)), say, over ? "bad" : "good"), "", ""]);
    }
    sums.forEach((row) => { row.class = "sum"; });
    const outside = memory.outside.map((row) => [say.term("ledger", row.name), figure(`memory.${row.name}`, formatBytes(row.bytes), say), say("page.outside"), say.term("evidence", row.evidence)]);
    show(rows, table(say("chart.memory.title"), [say("memory.item"), say("memory.size"), say("memory.share"), say("evidence")], [...memory.rows.map(line), ...sums, ...outside]));
    room.textContent = sentences.room;
  }
  return { node, update };
}

export function splitCard(say) {
  const box = h("div", { class: "chart-box" });
  const because = h("p", {});
  const tools = chartTools({ chart: () => box.firstChild, name: "rooflens-step", title: () => say("page.split"), say });
  const heading = card("split", say("page.split"), tools, box, because);
  function update({ plan, sentences }) {
    show(box, splitChart(plan.decode, widthOf(box), say));
    because.textContent = `${sentences.split} ${sentences.ridge}`;
  }
  return { node: heading, update };
}

export function sweepCard(say, axisChoice) {
  const box = h("div", { class: "chart-box" });
  const knee = h("p", { class: "knee-sentence" });
  const told = asTable(say, say("page.sweep"));
  let sweep = null;
  const title = () => say("chart.sweep.title", { axis: say(`axis.${sweep.axis}`) });
  const tools = chartTools({ chart: () => box.firstChild, name: "rooflens-sweep", title, csv: () => columnsCsv(sweep.columns), say });
  tools.prepend(axisChoice);
  const node = card("sweep", say("page.sweep"), tools, box, knee, told.node);
  function update(view) {
    sweep = view.sweep;
    show(box, sweepChart(sweep, view.plan.workload[sweep.axis], widthOf(box), say));
    show(knee, view.sentences.knee, " ", sweep.knee.value === null ? null : figure("knee", say("page.how.short"), say));
    const c = sweep.columns;
    told.set(() => table(title(), [say(`axis.${sweep.axis}`), say("sweep.step"), say("sweep.weights"), say("sweep.kv"), say("sweep.compute"), say("sweep.tokens_per_s"), say("sweep.per_sequence"), say("sweep.memory")],
      c.batch.map((_, i) => [
        formatWhole(c[sweep.axis][i]), figure(`sweep.${i}`, formatSeconds(c.bound_s[i]), say), formatSeconds(c.weights_s[i]), formatSeconds(c.kv_s[i]), formatSeconds(c.compute_s[i]),
        threeDigits(c.tokens_per_s[i]), threeDigits(c.tokens_per_s_per_sequence[i]), `${formatBytes(c.total_bytes[i])}${c.fits && !c.fits[i] ? ` (${say("sweep.full")})` : ""}`,
      ])));
  }
  return { node, update };
}

export function boundsCard(say) {
  const body = h("div", { class: "scroll", tabIndex: 0, role: "region", ariaLabel: tableName(say, say("page.bounds")) });
  const roof = h("p", { class: "quiet" });
  const node = card("bounds", say("page.bounds"), null, roof, body);
  function update({ plan }) {
    const { prefill, decode, device } = plan;
    show(roof, `${formatRate(device.peak_flops_per_s)} ${device.compute_dtype} · ${formatBandwidth(device.bandwidth_bytes_per_s)} · ${say("f.title.ridge")} `, figure("ridge", `${threeDigits(device.ridge_flops_per_byte)} FLOP/B`, say));
    const both = (name, text, kind) => [say(`speed.${name}`), ...["prefill", "decode"].map((phase) => figure(`${phase}.${KEYS[name]}`, text(plan[phase]), say)), say(`evidence.${kind}`)];
    const under = (text, small) => [text, h("small", {}, small)];
    const range = (phase) => under(formatSeconds(phase.estimate_s.mid), `${formatSeconds(phase.estimate_s.low)} – ${formatSeconds(phase.estimate_s.high)}`);
    const rates = (phase) => under(threeDigits(phase.tokens / phase.estimate_s.mid), `${threeDigits(phase.tokens / phase.estimate_s.high)} – ${threeDigits(phase.tokens / phase.estimate_s.low)}`);
    const times = (phase) => under(threeDigits(phase.intensity_flops_per_byte), say("page.times_ridge", { times: threeDigits(phase.intensity_flops_per_byte / device.ridge_flops_per_byte) }));
    const rows = [
      [say("speed.limited_by"), say(`limit.${prefill.limited_by}`), say(`limit.${decode.limited_by}`), say("evidence.bound")],
      both("bound", (phase) => formatSeconds(phase.bound_s), "bound"),
      both("op_roofline", (phase) => formatSeconds(phase.op_roofline_s), "roofline"),
      both("estimate", range, "estimate"),
      both("tokens_per_s", (phase) => threeDigits(phase.tokens_per_s), "bound"),
      [say("page.per_sequence"), "", figure("decode.sequence", threeDigits(decode.tokens_per_s_per_sequence), say), say("evidence.bound")],
      both("likely", rates, "estimate"),
      both("tokens", (phase) => formatWhole(phase.tokens), "exact"),
      both("flops", (phase) => formatFlops(phase.flops), "exact"),
      both("bytes", (phase) => formatBytes(phase.bytes), "exact"),
      both("intensity", times, "exact"),
      both("mfu", (phase) => formatShare(phase.mfu_ceiling), "bound"),
      both("mbu", (phase) => formatShare(phase.mbu_ceiling), "bound"),
    ];
    if (plan.ridge_batch) rows.push([say("ridge_batch"), "", figure("ridge_batch", threeDigits(plan.ridge_batch), say), say("evidence.bound")]);
    rows[1].class = "key";
    show(body, table(say("page.bounds"), [h("span", { class: "hidden" }, say("memory.item")), say("prefill"), say("decode"), say("evidence")], rows));
  }
  return { node, update };
}

const KEYS = {
  bound: "bound", op_roofline: "op_roofline", estimate: "estimate", tokens_per_s: "rate", likely: "likely", tokens: "tokens",
  flops: "flops", bytes: "bytes", intensity: "intensity", mfu: "mfu", mbu: "mbu",
};

export function adviceCard(say) {
  const body = h("div", { class: "advice" });
  const node = card("advice", say("page.advice"), null, h("p", { class: "quiet" }, say("page.advice.aside")), body);
  const gain = (index, what, value) => (value === null ? "" : figure(`advice.${index}.${what}`, `${value.toFixed(2)}×`, say));
  let shown = null;
  function update(document) {
    shown = document;
    node.classList.remove("stale");
    node.hidden = document.advice.length === 0;
    const gaining = document.advice.map((one, index) => ({ ...one, index })).filter((one) => one.gains);
    const rest = document.advice.filter((one) => !one.gains);
    const saved = (index, bytes) => (bytes ? figure(`advice.${index}.memory`, `${bytes < 0 ? "−" : ""}${formatBytes(Math.abs(bytes))}`, say) : "");
    const rows = gaining.map((one) => [
      h("span", {}, one.name, one.change ? h("small", {}, one.change) : null), gain(one.index, "decode", one.decode_gain), gain(one.index, "prefill", one.prefill_gain), saved(one.index, one.memory_saved_bytes), h("span", { class: "why" }, one.reason),
    ]);
    show(body,
      gaining.length ? h("div", { class: "scroll", tabIndex: 0, role: "region", ariaLabel: tableName(say, say("page.advice")) },
        table(say("page.advice"), [say("page.advice.technique"), say("decode"), say("page.advice.first"), say("page.advice.saves"), say("page.advice.why")], rows)) : null,
      rest.length ? h("details", {}, h("summary", {}, say("page.advice.nothing", { count: rest.length })), h("ul", { class: "plain" }, rest.map((one) => h("li", {}, h("strong", {}, one.name), ` ${one.reason}`)))) : null);
  }
  return { node, update, shown: () => shown, stale: () => node.classList.add("stale") };
}

/** Operators are asked for when they are opened, and again when the case has changed meanwhile. */
export function operatorsCard(say, load) {
  const body = h("div", {});
  const details = h("details", { class: "card card-operators", id: "operators" }, h("summary", {}, h("h2", {}, say("page.operators"))), h("p", { class: "quiet" }, say("page.operators.aside")), body);
  let shown = null;
  const part = (name, rows) => {
    const most = Math.max(...rows.map((row) => row.bound_s));
    return [h("h3", {}, say(name)), h("div", { class: "scroll", tabIndex: 0, role: "region", ariaLabel: say(name) }, table(say(name),
      [say("page.operator"), say("page.count"), say("speed.flops"), say("split.weights"), say("split.kv_cache"), say("page.time"), say("speed.limited_by")],
      rows.map((row, index) => ({ ...row, index })).filter((row) => row.flops || row.weight_bytes || row.kv_bytes).map((row) => [h("code", {}, row.name), formatWhole(row.count), formatFlops(row.flops), formatBytes(row.weight_bytes), formatBytes(row.kv_bytes),
        h("span", {}, h("meter", { value: row.bound_s, max: most, ariaLabel: row.name }), " ", figure(`operator.${name}.${row.index}`, formatSeconds(row.bound_s), say)), say(`limit.${row.compute_s > row.memory_s ? "compute" : "memory"}`)])))];
  };
  async function refresh() {
    if (!details.open) return;
    const document = await load();
    shown = document ?? shown;
    if (document) show(body, part("decode", document.decode), part("prefill", document.prefill));
  }
  details.addEventListener("toggle", refresh);
  return { node: details, refresh, shown: () => shown, open: () => { details.open = true; details.scrollIntoView({ behavior: "smooth" }); } };
}

export function notesCard(say) {
  const list = h("ul", { class: "plain" });
  const node = card("notes", say("notes"), null, list);
  return {
    node,
    update: ({ plan }) => { node.hidden = !plan.notes.length; show(list, plan.notes.map((note) => h("li", {}, note))); },
  };
}

/** The command line of the case, with a button that copies it, and the whole answer as files. */
export function commandCard(say, { name = "command", saveJson, saveCsv }) {
  const code = h("code", { class: "command", tabIndex: 0, ariaLabel: say("page.command") });
  const copied = h("span", { class: "quiet", role: "status" });
  const copy = (text) => async () => {
    await navigator.clipboard.writeText(text());
    copied.textContent = say("page.copied");
    setTimeout(() => { copied.textContent = ""; }, 2000);
  };
  const hint = h("p", { class: "quiet" });
  const node = card(name, say("page.take"), null, h("div", { class: "command-line" }, code, h("button", { type: "button", class: "copy-command", on: { click: copy(() => code.textContent) } }, say("page.copy"))), hint,
    h("div", { class: "actions" },
      h("button", { type: "button", class: "copy-address", on: { click: copy(() => location.href) } }, say("page.copy_address")),
      saveJson ? h("button", { type: "button", class: "save-json", on: { click: saveJson } }, say("page.save.json")) : null,
      saveCsv ? h("button", { type: "button", class: "save-csv", on: { click: saveCsv } }, say("page.save.csv")) : null, copied));
  return { node, update: (text, note = "") => { code.textContent = text; hint.textContent = note; hint.hidden = !note; } };
}

/** What a refusal says: what is wrong, the value, what is allowed, what to do. */
export function errorBox(say) {
  const node = h("div", { class: "card error", role: "alert", hidden: true });
  function set(error) {
    node.hidden = !error;
    if (!error) return;
    const offline = error.what === "offline";
    show(node, h("h2", {}, say(offline ? "page.offline" : "page.cannot")), h("p", {}, offline ? say("page.offline.next") : error.what),
      error.value !== null && error.value !== undefined ? h("p", {}, `${say("page.error.value")}: `, h("code", {}, String(error.value))) : null,
      error.allowed ? h("p", {}, `${say("page.error.allowed")}: ${error.allowed}`) : null,
      error.next ? h("p", {}, `→ ${error.next}`) : null);
  }
  return { node, set };
}
