// How the figures of charts and tables with many rows come about: points of the roofline, the sweep and its
// knee, gains of the advice, operators. Each: (context, ...names of the row) => an explanation, or null.

import { formatBandwidth, formatBytes, formatFlops, formatRate, formatSeconds, formatWhole, threeDigits } from "./units.js";

/** A point under a roof: roof.INDEX.POINT. */
export function roofPoint({ view }, say, roofIndex, pointIndex) {
  const roof = view.roofs[roofIndex];
  const point = roof?.points?.[pointIndex];
  if (!point) return null;
  const intensity = `${threeDigits(point.intensity_flops_per_byte)} FLOP/B`;
  const steps = [`min(${formatRate(roof.peak_flops_per_s)}, ${intensity} × ${formatBandwidth(roof.bandwidth_bytes_per_s)}) = ${formatRate(point.attainable_flops_per_s)}`];
  const bound = point.bound_flops_per_s ?? point.attainable_flops_per_s;
  if (Math.abs(bound - point.attainable_flops_per_s) > 0.002 * bound) steps.push(`FLOP ÷ ${say("f.bound")} = ${formatRate(bound)}`);
  const likely = point.estimate_flops_per_s;
  if (likely) steps.push(`FLOP ÷ ${say("f.estimate")}: ${formatRate(likely.low)} – ${formatRate(likely.high)}`);
  return {
    title: `${roof.name}: ${say(`point.${point.label}`)}`, formula: `min(${say("f.peak")}, ${say("f.title.intensity")} × ${say("f.bandwidth")})`,
    steps, exact: `${bound.toPrecision(6)} FLOP/s`, kind: "bound",
  };
}

const PARTS = ["compute", "weights", "kv", "communication"];

function sweepParts(columns, i, say) {
  const shown = (name) => `${say(name === "communication" ? "split.communication" : `sweep.${name}`)} ${formatSeconds(columns[`${name}_s`][i])}`;
  return PARTS.filter((name) => columns[`${name}_s`]?.[i]).map(shown).join(", ");
}

/** A row of the sweep: sweep.INDEX. */
export function sweepRow({ view: { sweep } }, say, index) {
  const [i, c] = [Number(index), sweep.columns];
  if (!(i < c.batch.length)) return null;
  const read = c.weights_s[i] + c.kv_s[i];
  const sent = c.communication_s?.[i] ? [formatSeconds(c.communication_s[i])] : [];
  return {
    title: `${say("axis.batch")} ${formatWhole(c.batch[i])}, ${say("axis.context")} ${formatWhole(c.context[i])}`,
    formula: `max(${say("sweep.weights")} + ${say("sweep.kv")}, ${say("sweep.compute")}${sent.length ? `, ${say("split.communication")}` : ""})`,
    steps: [
      `max(${formatSeconds(c.weights_s[i])} + ${formatSeconds(c.kv_s[i])} = ${formatSeconds(read)}, ${[formatSeconds(c.compute_s[i]), ...sent].join(", ")}) → ${formatSeconds(c.bound_s[i])}`,
      `${formatWhole(c.batch[i])} ÷ ${formatSeconds(c.bound_s[i])} = ${threeDigits(c.tokens_per_s[i])} tok/s`,
      `${say("sweep.memory")}: ${formatBytes(c.total_bytes[i])}${c.fits && !c.fits[i] ? ` (${say("sweep.full")})` : ""}`,
    ],
    exact: `${c.bound_s[i].toPrecision(6)} s`, kind: "bound",
  };
}

/** The knee, by what the rows on both sides of it take. */
export function knee({ view: { sweep, plan: { device } } }, say) {
  const { value, cause } = sweep.knee;
  if (value === null) return null;
  const axis = sweep.columns[sweep.axis];
  const after = axis.findIndex((one) => one >= value);
  const around = [...new Set([Math.max(after - 1, 0), after < 0 ? axis.length - 1 : after])];
  const full = cause === "memory_full";
  const row = (i) => `${say(`axis.${sweep.axis}`)} ${formatWhole(axis[i])}: ${full ? `${formatBytes(sweep.columns.total_bytes[i])}` : sweepParts(sweep.columns, i, say)}`;
  return {
    title: say("page.knee", { value: formatWhole(value), cause: say(`chart.cause.${cause}`) }), formula: say(full ? "f.knee.full" : "f.knee"),
    steps: [...around.map(row), ...(full && device.memory_bytes ? [`${say("f.sold")}: ${formatBytes(device.memory_bytes)}`] : [])],
    exact: formatWhole(value), kind: "bound",
  };
}

/** A gain of a technique: advice.INDEX.decode, .prefill or .memory. */
export function gain({ advice }, say, index, what) {
  const one = advice?.advice[index];
  if (!one) return null;
  const { now } = advice;
  const title = `${one.name}${one.change ? ` (${one.change})` : ""}`;
  if (what === "memory") {
    const after = now.memory_bytes - one.memory_saved_bytes;
    return { title, formula: say("f.saves"), steps: [`${formatBytes(now.memory_bytes)} − ${formatBytes(after)} = ${formatBytes(one.memory_saved_bytes).replace(/^-/, "−")}`], exact: `${formatWhole(one.memory_saved_bytes)} B`, kind: "estimate" };
  }
  const ratio = one[`${what}_gain`];
  const [before, after] = what === "decode" ? [now.tokens_per_s, now.tokens_per_s * ratio] : [now.ttft_s, now.ttft_s / ratio];
  const shown = what === "decode" ? (value) => `${threeDigits(value)} tok/s` : formatSeconds;
  const steps = what === "decode" ? `${shown(after)} ÷ ${shown(before)} = ${threeDigits(ratio)}×` : `${shown(before)} ÷ ${shown(after)} = ${threeDigits(ratio)}×`;
  return { title, formula: say(what === "decode" ? "f.gain.decode" : "f.gain.prefill"), steps: [steps, say("f.gain.alone")], exact: ratio.toPrecision(6), kind: "estimate" };
}

/** An operator's time: operator.PHASE.INDEX. */
export function operator({ operators, plan }, say, phase, index) {
  const row = operators?.[phase]?.[index];
  if (!row) return null;
  const moved = row.weight_bytes + row.kv_bytes;
  return {
    title: `${say(phase)}: ${row.name} × ${formatWhole(row.count)}`, formula: `max(FLOP ÷ ${say("f.peak")}, ${say("f.bytes.short")} ÷ ${say("f.bandwidth")})`,
    steps: [
      `${say("limit.compute")}: ${formatFlops(row.flops)} ÷ ${row.compute_s ? formatRate(row.flops / row.compute_s) : formatRate(plan.device.peak_flops_per_s)} (${row.compute_dtype}) = ${formatSeconds(row.compute_s)}`,
      `${say("limit.memory")}: ${formatBytes(moved)} ÷ ${formatBandwidth(plan.device.bandwidth_bytes_per_s)} = ${formatSeconds(moved / plan.device.bandwidth_bytes_per_s)}`,
      `${say("page.time")}: ${formatSeconds(row.bound_s)}`,
    ],
    exact: `${row.bound_s.toPrecision(6)} s`, kind: "bound",
  };
}
