// The sweep: rate and time of a decode step over batch or context, with the knee and what causes it.

import { s } from "./dom.js";
import { decades, logScale, octaves, textWidth } from "./scale.js";
import { formatSeconds, formatWhole, threeDigits, tick } from "./units.js";

const MARGIN = { top: 52, right: 16, bottom: 44, left: 58 };
const PARTS = ["weights", "kv", "compute", "communication"];

/** Two panels over one axis: tokens per second of all sequences, and the parts of a step's time. */
export function sweepChart(sweep, own, width, say) {
  const wide = width > 620;
  const panel = wide ? (width - 24) / 2 : width;
  const each = 272;
  const height = wide ? each : each * 2 + 12;
  const svg = s("svg", { width, height, viewBox: `0 0 ${width} ${height}`, role: "img", class: "chart" });
  svg.setAttribute("aria-label", sentence(sweep, say));
  const places = wide ? [[0, 0], [panel + 24, 0]] : [[0, 0], [0, each + 12]];
  const c = sweep.columns;
  const rate = { name: say("chart.sweep.rate"), lines: [{ kind: "rate", values: c.tokens_per_s }], text: threeDigits };
  const time = {
    name: say("chart.sweep.time"),
    lines: PARTS.map((kind) => ({ kind, values: c[`${kind}_s`], label: say(kind === "communication" ? "split.communication" : `sweep.${kind}`) }))
      .filter((line) => line.values.some((value) => value > 0))
      .concat({ kind: "bound", values: c.bound_s, label: say("chart.sweep.bound") }),
    text: formatSeconds,
  };
  [rate, time].forEach((what, index) => {
    svg.append(s("g", { transform: `translate(${places[index]})` }, ...drawPanel(what, sweep, own, panel, each, say)));
  });
  return svg;
}

function sentence(sweep, say) {
  const knee = sweep.knee.value;
  const cause = say(`chart.cause.${sweep.knee.cause}`);
  const title = say("chart.sweep.title", { axis: say(`axis.${sweep.axis}`) });
  return knee === null ? title : `${title}. ${say("chart.sweep.knee", { value: formatWhole(knee), cause })}`;
}

function drawPanel({ name, lines, text }, sweep, own, width, height, say) {
  const axis = sweep.columns[sweep.axis];
  const box = { left: MARGIN.left, right: width - MARGIN.right, top: MARGIN.top, bottom: height - MARGIN.bottom };
  const shown = lines.flatMap((line) => line.values).filter((value) => value > 0);
  const top = Math.max(...shown);
  const floor = Math.max(Math.min(...shown), top / 1e4);
  const x = logScale(axis[0], axis.at(-1), box.left, box.right);
  const y = logScale(floor / 1.4, top * 1.5, box.bottom, box.top);
  const parts = [s("text", { x: 2, y: 14, class: "panel-title" }, name)];
  parts.push(...full(sweep, axis, x, box, say));
  for (const value of octaves(axis[0], axis.at(-1), Math.floor((box.right - box.left) / 44))) {
    parts.push(s("line", { x1: x(value), x2: x(value), y1: box.top, y2: box.bottom, class: "grid" }));
    parts.push(s("text", { x: x(value), y: box.bottom + 17, class: "tick", "text-anchor": "middle" }, short(value)));
  }
  for (const value of yTicks(y)) {
    parts.push(s("line", { x1: box.left, x2: box.right, y1: y(value), y2: y(value), class: "grid" }));
    parts.push(s("text", { x: box.left - 8, y: y(value) + 4, class: "tick", "text-anchor": "end" }, text === formatSeconds ? timeTick(value) : tick(value)));
  }
  parts.push(s("text", { x: box.right, y: box.bottom + 36, class: "axis-title", "text-anchor": "end" }, say(`chart.axis.${sweep.axis}`)));
  for (const line of lines) {
    const points = axis.map((value, i) => [x(value), line.values[i] > 0 ? Math.min(y(line.values[i]), box.bottom) : box.bottom]);
    parts.push(s("polyline", { points: points.map((point) => point.join(",")).join(" "), class: `line ${line.kind}` }));
  }
  parts.push(...key(lines.filter((line) => line.label), 2));
  parts.push(...markers(sweep, own, axis, lines, text, x, y, box, say));
  return parts;
}

const short = (value) => (value >= 1024 ? `${value / 1024}k` : String(value));

function yTicks(y) {
  const plain = decades(y.low, y.high, 6);
  if (plain.length > 2) return plain;
  const around = decades(y.low / 10, y.high * 10, 20);
  return around.flatMap((value) => [value, 2 * value, 5 * value]).filter((value) => value >= y.low && value <= y.high);
}

const timeTick = (value) => formatSeconds(value).replace(/(\d)\.0+(?= )/, "$1");

/** Which line is which, in a row under the panel's name. */
function key(lines, left) {
  let at = left;
  return lines.flatMap((line) => {
    const parts = [
      s("line", { x1: at, x2: at + 22, y1: 27, y2: 27, class: `line ${line.kind}` }),
      s("text", { x: at + 27, y: 31, class: "tick" }, line.label),
    ];
    at += 27 + textWidth(line.label, 11.5) + 14;
    return parts;
  });
}

function full(sweep, axis, x, box, say) {
  const fits = sweep.columns.fits;
  const first = fits ? fits.indexOf(false) : -1;
  if (first < 0) return [];
  const from = x(axis[first]);
  const text = say("chart.cause.memory_full");
  const parts = [s("rect", { x: from, y: box.top, width: Math.max(box.right - from, 2), height: box.bottom - box.top, class: "full" })];
  if (box.right - from > textWidth(text) + 8) {
    parts.push(s("text", { x: from + 6, y: box.bottom - 8, class: "note bad" }, text));
  }
  return parts;
}

function markers(sweep, own, axis, lines, text, x, y, box, say) {
  const parts = [];
  const knee = sweep.knee.value;
  if (knee !== null && knee >= axis[0]) {
    const at = x(knee);
    const said = say("page.knee", { value: formatWhole(knee), cause: say(`chart.cause.${sweep.knee.cause}`) });
    const before = at + textWidth(said) + 8 > box.right;
    parts.push(s("line", { x1: at, x2: at, y1: box.top - 6, y2: box.bottom, class: "knee" }));
    parts.push(s("text", { x: before ? at - 5 : at + 5, y: box.top - 6, class: "note strong", "text-anchor": before ? "end" : "start" }, said));
  }
  const index = axis.indexOf(own);
  if (index >= 0) {
    const line = lines.find((one) => one.kind === "rate" || one.kind === "bound");
    const value = line.values[index];
    parts.push(s("circle", { cx: x(own), cy: y(value), r: 5.5, class: "here", "data-formula": `sweep.${index}` },
      s("title", {}, `${say(`axis.${sweep.axis}`)} ${formatWhole(own)}: ${text(value)}`)));
  }
  return parts;
}
