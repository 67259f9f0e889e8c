// Devices and formats side by side: memory over capacity, and the decode rate with its likely range.

import { s } from "./dom.js";
import { textWidth } from "./scale.js";
import { formatBytes, threeDigits } from "./units.js";

/** One row per combination: [name, plan or null, reason]. */
export function compareChart(rows, width, say) {
  const wide = width > 620;
  const step = wide ? 46 : 78;
  const left = wide ? Math.min(width * 0.3, Math.max(...rows.map((row) => textWidth(row.name, 13))) + 18) : 2;
  const gap = 28;
  const half = (width - left - gap) / 2;
  const head = 26;
  const height = head + rows.length * step + 6;
  const svg = s("svg", { width, height, viewBox: `0 0 ${width} ${height}`, role: "img", class: "chart" });
  svg.setAttribute("aria-label", rows.map((row) => describe(row, say)).join("; "));
  const plans = rows.map((row) => row.plan).filter(Boolean);
  const mostBytes = Math.max(1, ...plans.map((plan) => Math.max(plan.memory.total_bytes, plan.memory.capacity_bytes ?? 0)));
  const mostRate = Math.max(1e-9, ...plans.map((plan) => plan.decode.tokens_per_s_per_sequence));
  const memory = (bytes) => left + (bytes / mostBytes) * half;
  const rate = (value) => left + half + gap + (value / mostRate) * (half - 58);
  svg.append(s("text", { x: left, y: 14, class: "panel-title" }, say("memory.title")));
  svg.append(s("text", { x: left + half + gap, y: 14, class: "panel-title" }, say("chart.compare.rate")));
  rows.forEach((row, index) => {
    const top = head + index * step + (wide ? 6 : 26);
    svg.append(s("text", { x: wide ? 0 : left, y: wide ? top + 19 : top - 8, class: "note strong" }, row.name));
    if (!row.plan) {
      svg.append(s("text", { x: left + (wide ? 0 : 0), y: top + 19, class: "note bad" }, say("compare.refused")));
      return;
    }
    svg.append(...memoryBar(row.plan.memory, top, memory, say), ...rateBar(row.plan, top, rate, say));
  });
  return svg;
}

function describe(row, say) {
  if (!row.plan) return `${row.name}: ${row.reason}`;
  const rate = say("chart.compare.figure", { rate: threeDigits(row.plan.decode.tokens_per_s_per_sequence) });
  return `${row.name}: ${row.plan.memory.fits === false ? say("chart.compare.no") : rate}`;
}

function memoryBar(memory, top, at, say) {
  const over = memory.fits === false;
  const parts = [];
  if (memory.capacity_bytes) {
    parts.push(s("rect", { x: at(0), y: top, width: at(memory.capacity_bytes) - at(0), height: 28, rx: 3, class: "track" }));
  }
  const total = memory.total_bytes;
  parts.push(s("g", { class: over ? "part-over" : "part-weights" },
    s("rect", { x: at(0), y: top + 5, width: Math.max(at(total) - at(0), 1), height: 18, rx: 2, class: "part" }),
    s("title", {}, `${formatBytes(total)}${memory.capacity_bytes ? ` / ${formatBytes(memory.capacity_bytes)}` : ""}`)));
  const text = formatBytes(total);
  const inside = textWidth(text) + 12 < at(total) - at(0);
  parts.push(s("text", { x: inside ? at(0) + 7 : at(total) + 5, y: top + 18, class: inside ? `on-part ${over ? "part-over" : "part-weights"}` : "note" }, text));
  return parts;
}

function rateBar(plan, top, at, say) {
  const decode = plan.decode;
  const over = plan.memory.fits === false;
  const bound = at(decode.tokens_per_s_per_sequence);
  const [low, mid, high] = ["high", "mid", "low"].map((end) => at(1 / decode.estimate_s[end]));
  return [
    s("g", { class: `rate-bar ${over ? "no-fit" : ""}` },
      s("rect", { x: at(0), y: top + 5, width: Math.max(bound - at(0), 1), height: 18, rx: 2, class: "part" }),
      s("path", { d: `M${low} ${top + 14}H${high}M${low} ${top + 9}v10M${high} ${top + 9}v10M${mid} ${top + 8}v12`, class: "range" }),
      s("title", {}, `${threeDigits(decode.tokens_per_s_per_sequence)} tok/s`)),
    s("text", { x: bound + 6, y: top + 18, class: `note ${over ? "bad" : "strong"}` },
      over ? say("chart.compare.no") : threeDigits(decode.tokens_per_s_per_sequence)),
  ];
}
