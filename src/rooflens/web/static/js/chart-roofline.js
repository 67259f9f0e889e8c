// The roofline: roofs of one or more devices, named and hatched regions, phases and batches as points.

import { s } from "./dom.js";
import { ceilDecade, decades, floorDecade, logScale, textWidth } from "./scale.js";
import { formatBandwidth, formatRate, formatSeconds, threeDigits, tick } from "./units.js";

const MARGIN = { top: 18, right: 16, bottom: 46, left: 66 };
const MARKS = { prefill: square, decode: circle, given: diamond };

function circle(x, y, props) {
  return s("circle", { cx: x, cy: y, r: 6.5, ...props });
}

function square(x, y, props) {
  return s("rect", { x: x - 6, y: y - 6, width: 12, height: 12, ...props });
}

function diamond(x, y, props) {
  return s("path", { d: `M${x} ${y - 8}l8 8l-8 8l-8 -8z`, ...props });
}

/**
 * @param {object} data roofs [{name, peak_flops_per_s, bandwidth_bytes_per_s, ridge_flops_per_byte, compute_dtype,
 *   points}] of which the first is the main one, and trail [{intensity, rate, label}] of further batches
 * @param {number} width pixels
 * @param {Function} say phrases
 */
export function rooflineChart({ roofs, trail = [] }, width, say) {
  const height = Math.round(Math.max(300, Math.min(440, width * 0.56)));
  const known = roofs.filter((roof) => roof.peak_flops_per_s);
  const main = known[0];
  const { x, y } = axes(known, trail, width, height);
  const box = { left: MARGIN.left, right: width - MARGIN.right, top: MARGIN.top, bottom: height - MARGIN.bottom };
  const svg = s("svg", { width, height, viewBox: `0 0 ${width} ${height}`, role: "img", class: "chart" });
  svg.setAttribute("aria-label", description(main, say));
  svg.append(hatching());
  svg.append(...grid(x, y, box, say));
  svg.append(...regions(main, x, y, box, say));
  const labels = [];
  known.slice(1).forEach((roof, index) => svg.append(...roofLine(roof, x, y, box, index + 1)));
  svg.append(...roofLine(main, x, y, box, 0), ...ridge(main, x, y, box, say));
  svg.append(...batches(trail, x, y, labels));
  known.forEach((roof, index) => {
    roof.points.forEach((point, at) => {
      const mark = pointMark(point, roof, index, x, y, box, say, labels);
      if (point.label) mark.dataset.formula = `roof.${roofs.indexOf(roof)}.${at}`;
      svg.append(mark);
    });
  });
  known.slice(1).forEach((roof, index) => svg.append(roofName(roof, index + 1, known, y, box)));
  const lines = [...known.flatMap((roof) => alongRoof(roof, x, y, box)), ridgeName(main, x, y, box, say).box];
  svg.append(...placed(labels.sort((a, b) => Number(a.optional ?? 0) - Number(b.optional ?? 0)), box, lines));
  return svg;
}

function description(main, say) {
  return say("roofline.sentence", {
    ridge: threeDigits(main.ridge_flops_per_byte),
    bandwidth: formatBandwidth(main.bandwidth_bytes_per_s),
    peak: formatRate(main.peak_flops_per_s),
  });
}

function axes(roofs, trail, width, height) {
  const points = roofs.flatMap((roof) => roof.points);
  const intensities = [...points.map((point) => point.intensity_flops_per_byte), ...trail.map((t) => t.intensity)];
  const ridges = roofs.map((roof) => roof.ridge_flops_per_byte);
  const low = floorDecade(Math.min(...ridges.map((ridge) => ridge / 30), ...intensities.map((i) => i / 1.8)));
  const high = ceilDecade(Math.max(...ridges.map((ridge) => ridge * 8), ...intensities.map((i) => i * 1.8)));
  const lows = points.map((point) => point.estimate_flops_per_s?.low ?? point.attainable_flops_per_s);
  const floor = Math.min(...roofs.map((roof) => low * 3 * roof.bandwidth_bytes_per_s), ...lows);
  const top = Math.max(...roofs.map((roof) => roof.peak_flops_per_s)) * 2.4;
  return {
    x: logScale(low, high, MARGIN.left, width - MARGIN.right),
    y: logScale(floor / 1.6, top, height - MARGIN.bottom, MARGIN.top),
  };
}

function hatching() {
  const lines = (id, angle) =>
    s("pattern", { id, width: 9, height: 9, patternUnits: "userSpaceOnUse", patternTransform: `rotate(${angle})` },
      s("line", { x1: 0, y1: 0, x2: 0, y2: 9, class: `hatch ${id}` }));
  return s("defs", {}, lines("hatch-memory", 45), lines("hatch-compute", -45));
}

function grid(x, y, box, say) {
  const parts = [];
  for (const value of decades(x.low, x.high, Math.floor((box.right - box.left) / 60))) {
    parts.push(s("line", { x1: x(value), x2: x(value), y1: box.top, y2: box.bottom, class: "grid" }));
    parts.push(s("text", { x: x(value), y: box.bottom + 18, class: "tick", "text-anchor": "middle" }, tick(value)));
  }
  for (const value of decades(y.low, y.high, 7)) {
    parts.push(s("line", { x1: box.left, x2: box.right, y1: y(value), y2: y(value), class: "grid" }));
    parts.push(s("text", { x: box.left - 8, y: y(value) + 4, class: "tick", "text-anchor": "end" }, tick(value)));
  }
  parts.push(s("text", { x: box.right, y: box.bottom + 38, class: "axis-title", "text-anchor": "end" }, say("chart.intensity")));
  parts.push(s("text", { x: box.left - 58, y: box.top - 6, class: "axis-title" }, `${say("chart.rate")}, FLOP/s`));
  return parts;
}

const roofAt = (roof, intensity) => Math.min(roof.peak_flops_per_s, intensity * roof.bandwidth_bytes_per_s);

function regions(roof, x, y, box, say) {
  const edge = clamp(x(roof.ridge_flops_per_byte), box.left, box.right);
  const peak = y(roof.peak_flops_per_s);
  const start = Math.max(x.low, y.low / roof.bandwidth_bytes_per_s);
  const left = `M${x(start)} ${y(roofAt(roof, start))}L${edge} ${peak}V${box.bottom}H${x(start)}Z`;
  const right = `M${edge} ${peak}H${box.right}V${box.bottom}H${edge}Z`;
  const parts = [];
  const name = (text, middle, room, kind) => {
    if (textWidth(text, 13) < room - 8) {
      parts.push(s("text", { x: middle, y: box.bottom - 12, class: `region ${kind}`, "text-anchor": "middle" }, text));
    }
  };
  parts.push(s("path", { d: left, class: "area memory" }), s("path", { d: left, fill: "url(#hatch-memory)" }));
  parts.push(s("path", { d: right, class: "area compute" }), s("path", { d: right, fill: "url(#hatch-compute)" }));
  name(say("limited.memory"), (x(start) + edge) / 2, edge - x(start), "memory");
  name(say("limited.compute"), (edge + box.right) / 2, box.right - edge, "compute");
  return parts;
}

const clamp = (value, low, high) => Math.min(Math.max(value, low), high);

function roofLine(roof, x, y, box, rank) {
  const start = Math.max(x.low, y.low / roof.bandwidth_bytes_per_s);
  const edge = clamp(x(roof.ridge_flops_per_byte), box.left, box.right);
  const d = `M${x(start)} ${y(roofAt(roof, start))}L${edge} ${y(roof.peak_flops_per_s)}H${box.right}`;
  return [s("path", { d, class: `roof rank-${rank}` })];
}

/** Above the right end of a roof, or below it where another roof is close above. */
function roofName(roof, rank, all, y, box) {
  const at = y(roof.peak_flops_per_s);
  const crowded = all.some((other) => other !== roof && at - y(other.peak_flops_per_s) >= 0 && at - y(other.peak_flops_per_s) < 20);
  return s("text", { x: box.right - 4, y: crowded ? at + 15 : at - 6, class: `note roof-name rank-${rank}`, "text-anchor": "end" }, roof.name);
}

/** A roof as a chain of small boxes, to keep words off it. */
function alongRoof(roof, x, y, box) {
  const boxes = [];
  for (let px = box.left; px < box.right; px += 8) {
    const py = y(roofAt(roof, x.value(px + 4)));
    const rise = px < x(roof.ridge_flops_per_byte) ? Math.abs(y(roofAt(roof, x.value(px + 8))) - y(roofAt(roof, x.value(px)))) / 2 : 0;
    boxes.push({ left: px, right: px + 8, top: py - rise - 2, bottom: py + rise + 2 });
  }
  return boxes;
}

/** What is written at the ridge, on the side that has room for it. */
function ridgeName(roof, x, y, box, say) {
  const at = x(roof.ridge_flops_per_byte);
  const base = y(roof.peak_flops_per_s) - 9;
  const text = say("chart.ridge", { ridge: threeDigits(roof.ridge_flops_per_byte) });
  const width = textWidth(text);
  const left = at + width + 10 > box.right ? at - 6 - width : at + 6;
  return { text, left, width, base, box: { left, right: left + width, top: base - 12, bottom: base + 3 } };
}

function ridge(roof, x, y, box, say) {
  const at = x(roof.ridge_flops_per_byte);
  const { text, left, width, base } = ridgeName(roof, x, y, box, say);
  const before = left < at;
  return [
    s("line", { x1: at, x2: at, y1: y(roof.peak_flops_per_s), y2: box.bottom, class: "ridge" }),
    s("text", { x: before ? left + width : left, y: base, class: "note strong", "text-anchor": before ? "end" : "start" }, text),
  ];
}

/** Decode at other batches; the first and the last are named, where there is room. */
function batches(trail, x, y, labels) {
  return trail.map((point, index) => {
    const [px, py] = [x(point.intensity), y(point.rate)];
    if (index === 0 || index === trail.length - 1) {
      labels.push({ x: px, y: py, low: py, kind: "trail-name", text: point.short, optional: true });
    }
    return s("circle", { cx: px, cy: py, r: 3, class: "trail" }, s("title", {}, point.label));
  });
}

function pointMark(point, roof, rank, x, y, box, say, labels) {
  const px = x(point.intensity_flops_per_byte);
  const rate = point.bound_flops_per_s ?? point.attainable_flops_per_s;
  const py = y(rate);
  const kind = point.label ?? "given";
  const likely = point.estimate_flops_per_s;
  const group = s("g", { class: `point ${kind} rank-${rank}` });
  if (likely) {
    group.append(
      s("line", { x1: px, x2: px, y1: py, y2: y(likely.high), class: "to-likely" }),
      s("line", { x1: px, x2: px, y1: y(likely.high), y2: y(likely.low), class: "whisker" }),
      s("line", { x1: px - 7, x2: px + 7, y1: y(likely.mid), y2: y(likely.mid), class: "likely" }),
    );
  }
  group.append(MARKS[kind](px, py, { class: "mark" }));
  const name = point.label ? say(`point.${point.label}`) : say("calc.this");
  group.append(s("title", {}, `${roof.name}: ${name}, ${threeDigits(point.intensity_flops_per_byte)} FLOP/B, ${formatRate(rate)}`));
  // Of several devices, only the main one's points are named: the others are told apart by their roofs.
  labels.push({ x: px, y: py, kind, text: rank === 0 ? `${name}, ${formatRate(rate)}` : "", low: likely ? y(likely.low) : py });
  return group;
}

/** Labels beside their points, each at the first place where it covers nothing. */
function placed(labels, box, lines) {
  const points = labels.map((label) => ({ left: label.x - 9, right: label.x + 9, top: label.y - 9, bottom: label.low + 4 }));
  const taken = [...lines, ...points];
  const parts = [];
  for (const label of labels) {
    if (!label.text) continue;
    const width = textWidth(label.text) + 4;
    const places = [];
    for (const down of [5, 26, -16, 44, 62, -34, 80]) {
      places.push({ left: label.x + 14, top: label.y + down - 11 }, { left: label.x - 14 - width, top: label.y + down - 11 });
    }
    // Where neither side has room: above or below, within the chart.
    for (const down of [26, 44, 62, 80, -16, -34]) {
      places.push({ left: clamp(label.x - width / 2, box.left, box.right - width), top: label.y + down - 11 });
    }
    const boxes = places.map((place) => ({ ...place, right: place.left + width, bottom: place.top + 15 }));
    const free = (one) => one.left >= box.left && one.right <= box.right && one.top >= 2 && one.bottom <= box.bottom - 26 && !taken.some((other) => overlap(one, other));
    if (label.optional && !boxes.some(free)) continue;
    const best = boxes.find(free) ?? boxes.find((one) => one.left >= box.left && one.right <= box.right) ?? boxes[0];
    taken.push(best);
    parts.push(s("text", { x: best.left + 2, y: best.top + 11, class: `note label ${label.kind}` }, label.text));
  }
  return parts;
}

function overlap(a, b) {
  return a.left < b.right && b.left < a.right && a.top < b.bottom && b.top < a.bottom;
}

/** Decode at each batch of a sweep, as points on the main roof. */
export function sweepTrail(sweep, roof, say) {
  if (sweep.axis !== "batch") return [];
  const c = sweep.columns;
  return c.batch
    .map((batch, i) => ({
      batch,
      intensity: (c.compute_s[i] * roof.peak_flops_per_s) / ((c.weights_s[i] + c.kv_s[i]) * roof.bandwidth_bytes_per_s),
      rate: (c.compute_s[i] * roof.peak_flops_per_s) / c.bound_s[i],
      short: say("point.batch", { batch: batch.toLocaleString("en-US") }),
      label: `${say("point.decode")}, ${say("point.batch", { batch: batch.toLocaleString("en-US") })}: ${formatSeconds(c.bound_s[i])}`,
    }))
    .filter((point) => point.intensity > 0 && Number.isFinite(point.intensity));
}
