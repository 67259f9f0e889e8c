// Where a decode step goes: what must be read, computed and sent, on one time scale, and what is likely on top.

import { s } from "./dom.js";
import { textWidth } from "./scale.js";
import { formatSeconds } from "./units.js";

/** Rows of bars: bytes (weights, then cache), arithmetic, links, and the bound with the likely overhead. */
export function splitChart(decode, width, say) {
  const split = decode.split_s;
  const likely = decode.estimate_s;
  const rows = [
    { name: say("split.row.read"), parts: [["weights", split.weights, say("sweep.weights")], ["kv_cache", split.kv, say("sweep.kv")]], limit: "memory" },
    { name: say("split.compute"), parts: [["compute", split.compute, ""]], limit: "compute" },
  ];
  if (decode.communication_s) rows.push({ name: say("limit.communication"), parts: [["communication", decode.communication_s, ""]], limit: "communication" });
  const overhead = Math.max(likely.mid - decode.bound_s, 0);
  rows.push({ name: say("split.row.likely"), parts: [["bound", decode.bound_s, say("evidence.bound")], ["overhead", overhead, say("split.row.overhead")]], range: likely });
  const left = Math.min(width * 0.34, Math.max(...rows.map((row) => textWidth(row.name, 12))) + 14);
  const right = width - 70;
  const end = Math.max(likely.high, decode.bound_s);
  const at = (seconds) => left + (seconds / end) * (right - left);
  const step = 42;
  const height = rows.length * step + 10;
  const svg = s("svg", { width, height, viewBox: `0 0 ${width} ${height}`, role: "img", class: "chart" });
  svg.setAttribute("aria-label", rows.map((row) => `${row.name} ${formatSeconds(total(row))}`).join("; "));
  const bound = at(decode.bound_s);
  rows.forEach((row, index) => svg.append(...bar(row, index * step + 6, at, left, decode, say)));
  svg.append(s("line", { x1: bound, x2: bound, y1: 0, y2: height - 4, class: "bound-line" }));
  return svg;
}

const total = (row) => row.parts.reduce((sum, [, seconds]) => sum + seconds, 0);

function bar(row, top, at, left, decode, say) {
  const thick = 24;
  const hidden = row.limit && row.limit !== decode.limited_by;
  const parts = [s("text", { x: 0, y: top + 16, class: "note" }, row.name)];
  let start = 0;
  for (const [kind, seconds, name] of row.parts) {
    const [from, to] = [at(start), at(start + seconds)];
    start += seconds;
    parts.push(s("g", { class: `split-${kind} ${hidden ? "hidden-part" : ""}`, "data-formula": row.range ? "decode.estimate" : kind === "weights" || kind === "kv_cache" ? "decode.bytes" : "decode.bound" },
      s("rect", { x: from, y: top, width: Math.max(to - from - 1, seconds ? 1 : 0), height: thick, rx: 2, class: "part" }),
      s("title", {}, `${name || row.name}: ${formatSeconds(seconds)}`)));
    if (name && textWidth(name, 12) + 12 < to - from) {
      parts.push(s("text", { x: from + 7, y: top + 16, class: `on-part split-${kind}` }, name));
    }
  }
  let edge = at(start);
  if (row.range) {
    const middle = top + thick / 2;
    const [low, high] = [at(row.range.low), at(row.range.high)];
    parts.push(s("path", { d: `M${low} ${middle}H${high}M${low} ${middle - 6}v12M${high} ${middle - 6}v12`, class: "range" }));
    edge = Math.max(edge, high);
  }
  const shown = row.range ? row.range.mid : start;
  parts.push(s("text", { x: edge + 7, y: top + 16, class: "note strong" }, formatSeconds(shown)));
  return parts;
}
