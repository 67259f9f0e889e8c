// What the memory goes to: one bar per device, each part in its own colour and hatch, the capacity as a line.

import { s } from "./dom.js";
import { textWidth } from "./scale.js";
import { formatBytes, formatShare } from "./units.js";

const KNOWN = ["weights", "kv_cache", "activations", "overhead", "graphs", "non_torch"];

/** The class that colours a ledger row; rows that an engine adds take spare ones. */
export function partClass(name, index) {
  return KNOWN.includes(name) ? `part-${name}` : `part-spare-${index % 3}`;
}

/** The bar of a ledger: its rows, and what is free or missing beside the capacity. */
export function memoryChart(memory, width, say) {
  const height = 96;
  const [left, right, top, thick] = [2, width - 2, 30, 34];
  const capacity = memory.capacity_bytes;
  const whole = Math.max(memory.total_bytes, capacity ?? 0) * (capacity && memory.total_bytes > capacity ? 1.02 : 1);
  const at = (bytes) => left + (bytes / whole) * (right - left);
  const svg = s("svg", { width, height, viewBox: `0 0 ${width} ${height}`, role: "img", class: "chart" });
  svg.setAttribute("aria-label", summary(memory, say));
  svg.append(s("rect", { x: left, y: top, width: right - left, height: thick, rx: 4, class: "track" }));
  let start = 0;
  memory.rows.forEach((row, index) => {
    const [from, to] = [at(start), at(start + row.bytes)];
    start += row.bytes;
    const name = say.term("ledger", row.name);
    const share = row.bytes / whole;
    svg.append(s("g", { class: partClass(row.name, index), "data-formula": `memory.${row.name}` },
      s("rect", { x: from, y: top, width: Math.max(0, to - from - (share > 0.01 ? 1.5 : 0)), height: thick, class: "part" }),
      s("title", {}, `${name}: ${formatBytes(row.bytes)} (${formatShare(row.bytes / memory.total_bytes)})`)));
    if (textWidth(name, 12) + 12 < to - from) {
      svg.append(s("text", { x: from + 8, y: top + thick / 2 + 4, class: `on-part ${partClass(row.name, index)}` }, name));
    }
  });
  if (capacity) svg.append(...capacityLine(memory, at, { left, right, top, thick }, say));
  return svg;
}

function capacityLine(memory, at, box, say) {
  const edge = at(memory.capacity_bytes);
  const over = memory.total_bytes > memory.capacity_bytes;
  const text = `${say("memory.capacity")} ${formatBytes(memory.capacity_bytes)}`;
  const left = edge - textWidth(text) > box.left;
  const parts = [
    s("line", { x1: edge, x2: edge, y1: box.top - 8, y2: box.top + box.thick + 8, class: `capacity ${over ? "over" : ""}` }),
    s("text", { x: left ? edge - 2 : box.left, y: box.top - 12, class: "note strong", "text-anchor": left ? "end" : "start" }, text),
  ];
  const total = at(memory.total_bytes);
  const rest = Math.abs(memory.capacity_bytes - memory.total_bytes);
  const said = `${say(over ? "memory.missing" : "memory.free")} ${formatBytes(rest)}`;
  const middle = (Math.min(edge, total) + Math.max(edge, total)) / 2;
  const room = textWidth(said) / 2;
  const x = Math.min(Math.max(middle, box.left + room), box.right - room);
  parts.push(s("text", { x, y: box.top + box.thick + 22, class: `note strong ${over ? "bad" : "good"}`, "text-anchor": "middle" }, said));
  return parts;
}

function summary(memory, say) {
  const rows = memory.rows.map((row) => `${say.term("ledger", row.name)} ${formatBytes(row.bytes)}`);
  const total = `${say("total")} ${formatBytes(memory.total_bytes)}`;
  const capacity = memory.capacity_bytes ? [`${say("memory.capacity")} ${formatBytes(memory.capacity_bytes)}`] : [];
  return [...rows, total, ...capacity].join("; ");
}
