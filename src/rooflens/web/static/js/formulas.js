// How each figure comes about: the formula, the same with the numbers put in, and what kind of figure it is.
// Every entry: (plan, say) => {title, formula, steps: [text], exact, kind, source}.

import { gain, knee, operator, roofPoint, sweepRow } from "./formulas-rows.js";
import { formatBandwidth, formatBytes, formatFlops, formatRate, formatSeconds, formatShare, formatWhole, threeDigits } from "./units.js";

const near = (a, b) => Math.abs(a - b) <= 0.002 * Math.abs(b);
const seconds = (value) => `${value.toPrecision(6)} s`;
const bytes = (value) => `${formatWhole(value)} B`;

const phaseFigures = {
  flops: (p, plan, say, phase) => ({
    formula: `Σ ${say("f.operators")} FLOP`,
    steps: [
      `${say("f.linear")}: 2 × ${say("f.active")} × ${say("f.tokens")} = 2 × ${threeDigits(plan.model.active_parameters / 1e9)}e9 × ${formatWhole(p.tokens)} = ${formatFlops(2 * plan.model.active_parameters * p.tokens)}`,
      `${say(phase === "prefill" ? "f.rest_prefill" : "f.rest_decode")}: ${formatFlops(p.flops - 2 * plan.model.active_parameters * p.tokens).replace(/^-/, "− ")}`,
      `= ${formatFlops(p.flops)}`,
    ],
    exact: `${formatWhole(p.flops)} FLOP`, kind: "exact", more: "operators",
  }),
  bytes: (p, plan, say, phase) => ({
    formula: say("f.bytes"),
    steps: phase === "decode" && p.split_s ? [
      `${say("split.weights")}: ${formatSeconds(p.split_s.weights)} × ${formatBandwidth(plan.device.bandwidth_bytes_per_s)} = ${formatBytes(p.split_s.weights * plan.device.bandwidth_bytes_per_s)}`,
      `${say("split.kv_cache")}: ${formatSeconds(p.split_s.kv)} × ${formatBandwidth(plan.device.bandwidth_bytes_per_s)} = ${formatBytes(p.split_s.kv * plan.device.bandwidth_bytes_per_s)}`,
      ...devices(plan, say, formatBytes(p.bytes)),
    ] : [`= ${formatBytes(p.bytes)}`, ...devices(plan, say, formatBytes(p.bytes))],
    exact: bytes(p.bytes), kind: "exact", more: "operators",
  }),
  intensity: (p, plan, say) => ({
    formula: `FLOP ÷ ${say("f.bytes.short")}`,
    steps: [
      `${formatFlops(p.flops)} ÷ ${formatBytes(p.bytes)} = ${threeDigits(p.intensity_flops_per_byte)} FLOP/B`,
      `${say("f.against_ridge")}: ${threeDigits(p.intensity_flops_per_byte)} ÷ ${threeDigits(plan.device.ridge_flops_per_byte)} = ${threeDigits(p.intensity_flops_per_byte / plan.device.ridge_flops_per_byte)}×`,
    ],
    exact: `${p.intensity_flops_per_byte.toPrecision(6)} FLOP/B`, kind: "exact",
  }),
  bound: (p, plan, say) => {
    const rate = plan.device.peak_flops_per_s;
    const each = p.flops / plan.device.count;
    const compute = near(each / rate, p.compute_s)
      ? `${formatFlops(each)} ÷ ${formatRate(rate)} = ${formatSeconds(p.compute_s)}`
      : `Σ FLOP ÷ ${say("f.peak_of_type")} = ${formatSeconds(p.compute_s)}`;
    const moved = p.memory_s * plan.device.bandwidth_bytes_per_s;
    const steps = [
      `${say("limit.compute")}: ${compute}`,
      `${say("limit.memory")}: ${formatBytes(moved)} ÷ ${formatBandwidth(plan.device.bandwidth_bytes_per_s)} = ${formatSeconds(p.memory_s)}`,
    ];
    if (p.communication_s) steps.push(`${say("limit.communication")}: ${formatSeconds(p.communication_s)}`);
    const parts = [p.compute_s, p.memory_s, ...(p.communication_s ? [p.communication_s] : [])].map(formatSeconds);
    steps.push(`max(${parts.join(", ")}) = ${formatSeconds(Math.max(p.compute_s, p.memory_s, p.communication_s))}`);
    if (!near(p.bound_s, Math.max(p.compute_s, p.memory_s, p.communication_s))) {
      steps.push(`${say("f.pipeline")}: ${formatSeconds(p.bound_s)}`);
    }
    return { formula: `max(FLOP ÷ ${say("f.peak")}, ${say("f.bytes.short")} ÷ ${say("f.bandwidth")}${p.communication_s ? `, ${say("f.sent")}` : ""})`, steps, exact: seconds(p.bound_s), kind: "bound" };
  },
  op_roofline: (p, plan, say) => ({
    formula: `Σ max(FLOP ÷ ${say("f.peak")}, ${say("f.bytes.short")} ÷ ${say("f.bandwidth")})`,
    steps: [`${say("f.one_by_one")}: ${formatSeconds(p.op_roofline_s)}`, `${threeDigits(p.op_roofline_s / p.bound_s)} × ${say("evidence.bound")} (${formatSeconds(p.bound_s)})`],
    exact: seconds(p.op_roofline_s), kind: "roofline", more: "operators",
  }),
  estimate: (p, plan, say, phase, setting) => ({
    formula: `Σ max(FLOP ÷ (${say("f.share")} × ${say("f.peak")}), ${say("f.bytes.short")} ÷ (${say("f.share")} × ${say("f.bandwidth")})) + ${say("f.launch")}`,
    steps: [
      ...reached(plan, setting, say, phase),
      `${say("f.low_mid_high")}: ${["low", "mid", "high"].map((end) => formatSeconds(p.estimate_s[end])).join(" · ")} (× ${threeDigits(p.estimate_s.low / p.estimate_s.mid)} – ${threeDigits(p.estimate_s.high / p.estimate_s.mid)})`,
      `${formatSeconds(p.estimate_s.mid)} ÷ ${formatSeconds(p.bound_s)} = ${threeDigits(p.estimate_s.mid / p.bound_s)} × ${say("evidence.bound")}`,
    ],
    exact: seconds(p.estimate_s.mid), kind: "estimate", source: setting?.source, more: "operators",
  }),
  rate: (p, plan, say) => ({
    formula: `${say("f.tokens")} ÷ ${say("f.bound")}`,
    steps: [`${formatWhole(p.tokens)} ÷ ${formatSeconds(p.bound_s)} = ${threeDigits(p.tokens_per_s)} tok/s`],
    exact: `${p.tokens_per_s.toPrecision(6)} tok/s`, kind: "bound",
  }),
  likely: (p, plan, say) => ({
    formula: `${say("f.tokens")} ÷ ${say("f.estimate")}`,
    steps: ["high", "mid", "low"].map((end) => `${formatWhole(p.tokens)} ÷ ${formatSeconds(p.estimate_s[end])} = ${threeDigits(p.tokens / p.estimate_s[end])} tok/s`),
    exact: `${(p.tokens / p.estimate_s.mid).toPrecision(6)} tok/s`, kind: "estimate",
  }),
  sequence: (p, plan, say) => ({
    formula: `1 ÷ ${say("f.bound")}`,
    steps: [
      `1 ÷ ${formatSeconds(p.bound_s)} = ${threeDigits(1 / p.bound_s)} tok/s`,
      `${say("speed.likely")}: ${threeDigits(1 / p.estimate_s.high)} – ${threeDigits(1 / p.estimate_s.low)}`,
    ],
    exact: `${(1 / p.bound_s).toPrecision(6)} tok/s`, kind: "bound",
  }),
  mfu: (p, plan, say) => ({
    formula: `FLOP ÷ (${say("f.bound")} × ${say("f.peak")} × ${say("f.devices")})`,
    steps: [`${formatFlops(p.flops)} ÷ (${formatSeconds(p.bound_s)} × ${formatRate(plan.device.peak_flops_per_s)} × ${plan.device.count}) = ${formatShare(p.mfu_ceiling)}`],
    exact: p.mfu_ceiling.toPrecision(6), kind: "bound",
  }),
  mbu: (p, plan, say) => ({
    formula: `${say("f.bytes.short")} ÷ (${say("f.bound")} × ${say("f.bandwidth")} × ${say("f.devices")})`,
    steps: [`${formatBytes(p.bytes)} ÷ (${formatSeconds(p.bound_s)} × ${formatBandwidth(plan.device.bandwidth_bytes_per_s)} × ${plan.device.count}) = ${formatShare(p.mbu_ceiling)}`],
    exact: p.mbu_ceiling.toPrecision(6), kind: "bound",
  }),
  tokens: (p, plan, say, phase) => ({
    formula: phase === "prefill" ? `${say("page.batch")} × ${say("page.prompt")}` : `${say("page.batch")} × 1`,
    steps: [phase === "prefill" ? `${formatWhole(plan.workload.batch)} × ${formatWhole(plan.workload.prompt)} = ${formatWhole(p.tokens)}` : `${formatWhole(plan.workload.batch)} × 1 = ${formatWhole(p.tokens)}`],
    exact: formatWhole(p.tokens), kind: "exact",
  }),
};

/** The shares and times that the estimate is made with. */
function reached(plan, setting, say, phase) {
  if (!setting) return [];
  const { kernels: k, engine: e } = setting;
  const shares = (bandwidth, compute) => `${formatShare(bandwidth)} × ${say("f.bandwidth")}, ${formatShare(compute)} × ${say("f.peak")}`;
  const lines = [`${say("f.linear")}: ${shares(k.bandwidth, k.compute)}`];
  if (plan.model.active_parameters < plan.model.parameters) lines.push(`${say("f.experts")}: ${shares(k.expert_bandwidth, k.expert_compute)}`);
  lines.push(`${say("f.attention")}: ${shares(k.kv_bandwidth, k.attention_compute)}`);
  lines.push(`${say("f.starting")}: ${formatSeconds(k.launch_s)}${phase === "prefill" ? ` + ${formatSeconds(e.enqueue_s)}` : ""}`);
  lines.push(`${say("f.host")}: ${formatSeconds(e.host_s)} + ${formatWhole(plan.workload.batch)} × ${formatSeconds(e.host_per_sequence_s)}`);
  return lines;
}

function devices(plan, say, total) {
  return plan.device.count > 1 ? [`${say("f.all_devices", { count: plan.device.count })}: ${total}`] : [];
}

const planFigures = {
  ridge: (plan, say) => ({
    title: say("f.title.ridge"), formula: `${say("f.peak")} ÷ ${say("f.bandwidth")}`,
    steps: [`${formatRate(plan.device.peak_flops_per_s)} (${plan.device.compute_dtype}) ÷ ${formatBandwidth(plan.device.bandwidth_bytes_per_s)} = ${threeDigits(plan.device.ridge_flops_per_byte)} FLOP/B`],
    exact: `${plan.device.ridge_flops_per_byte.toPrecision(6)} FLOP/B`, kind: plan.device.evidence?.peak_flops_per_s ?? "spec",
  }),
  ridge_batch: (plan, say) => ({
    title: say("ridge_batch"), formula: say("f.ridge_batch"),
    steps: [`${threeDigits(plan.ridge_batch)} ≈ ${say("f.ridge_batch.why", { ridge: threeDigits(plan.device.ridge_flops_per_byte) })}`],
    exact: plan.ridge_batch.toPrecision(6), kind: "bound",
  }),
  total: (plan, say) => ({
    title: say("total"), formula: plan.memory.rows.map((row) => say.term("ledger", row.name)).join(" + "),
    steps: [`${plan.memory.rows.map((row) => formatBytes(row.bytes)).join(" + ")} = ${formatBytes(plan.memory.total_bytes)}`],
    exact: bytes(plan.memory.total_bytes), kind: "exact",
  }),
  free: (plan, say) => ({
    title: say(plan.memory.deficit_bytes ? "memory.missing" : "memory.free"), formula: `${say("memory.capacity")} − ${say("total")}`,
    steps: [`${formatBytes(plan.memory.capacity_bytes)} − ${formatBytes(plan.memory.total_bytes)} = ${formatBytes(plan.memory.capacity_bytes - plan.memory.total_bytes).replace(/^-/, "−")}`],
    exact: bytes(plan.memory.capacity_bytes - plan.memory.total_bytes), kind: "exact",
  }),
  capacity: (plan, say) => ({
    title: say("memory.capacity"), formula: say("f.capacity"),
    steps: [
      `${say("f.sold")}: ${formatBytes(plan.device.memory_bytes)}`,
      `${say("f.usable")}: ${formatBytes(plan.memory.capacity_bytes)} (${formatShare(plan.memory.capacity_bytes / plan.device.memory_bytes)})`,
    ],
    exact: bytes(plan.memory.capacity_bytes), kind: plan.device.evidence?.memory_bytes ?? "spec",
  }),
  sequences: (plan, say) => ({
    title: say("page.tile.sequences"), formula: say("f.sequences"),
    steps: [
      `${say("f.left_for_cache")}: ${formatBytes(plan.memory.kv_capacity_bytes)}`,
      `${say("f.one_sequence", { context: formatWhole(plan.workload.context) })}: ${formatBytes(sequenceBytes(plan))}`,
      `⌊${formatBytes(plan.memory.kv_capacity_bytes)} ÷ ${formatBytes(sequenceBytes(plan))}⌋ = ${formatWhole(plan.memory.max_sequences)}`,
    ],
    exact: formatWhole(plan.memory.max_sequences), kind: "exact",
  }),
};

function sequenceBytes(plan) {
  return plan.memory.cache?.allocated_bytes || plan.model.kv_bytes_per_sequence + plan.model.state_bytes_per_sequence;
}

function ledgerRow(plan, name, say) {
  const row = [...plan.memory.rows, ...plan.memory.outside].find((one) => one.name === name);
  if (!row) return null;
  const made = { title: say.term("ledger", name), formula: say("f.row"), steps: [`= ${formatBytes(row.bytes)}`], exact: bytes(row.bytes), kind: row.evidence, source: row.source };
  if (name === "weights") {
    made.formula = say("f.weights");
    made.steps = [`${threeDigits(plan.model.parameters / 1e9)}e9 × ${threeDigits(plan.model.weights_bytes / plan.model.parameters)} B = ${formatBytes(plan.model.weights_bytes)} (${plan.model.weights_format})`];
    if (!near(row.bytes, plan.model.weights_bytes)) made.steps.push(`${say("memory.per_device")}: ${formatBytes(row.bytes)}`);
  } else if (name === "kv_cache") {
    const each = plan.model.kv_bytes_per_sequence + plan.model.state_bytes_per_sequence;
    const own = Math.ceil(plan.workload.batch / plan.workload.dp);
    made.formula = say("f.kv");
    made.steps = [`${say("f.one_sequence", { context: formatWhole(plan.workload.context) })}: ${formatBytes(each)} (${plan.model.kv_dtype})`];
    made.steps.push(near(own * each, row.bytes) ? `${formatWhole(own)} × ${formatBytes(each)} = ${formatBytes(row.bytes)}` : `${formatWhole(own)} × ${formatBytes(each)} → ${say("f.engine_layout")}: ${formatBytes(row.bytes)}`);
  }
  if (row.low_bytes !== null && row.low_bytes !== row.high_bytes) {
    made.steps.push(`${say("f.range")}: ${formatBytes(row.low_bytes)} – ${formatBytes(row.high_bytes)}`);
  }
  return made;
}

const ROWS = { roof: roofPoint, sweep: sweepRow, knee, advice: gain, operator };

/**
 * The explanation of a figure by its key, null where there is none: "decode.bound", "memory.weights", "ridge",
 * "sweep.3"; "compare.2/decode.bound" is of the third combination of the comparison.
 * @param {object} context plan, view, advice, operators of the planner, rows of the comparison
 */
export function explain(key, context, say) {
  const [place, rest] = key.split(/\/(.*)/s);
  if (rest) {
    const row = context.rows?.[place.split(".")[1]];
    const told = row?.plan ? explain(rest, { plan: row.plan }, say) : null;
    return told && { ...told, title: `${row.name}: ${told.title}`, more: null };
  }
  const [group, name, ...further] = key.split(".");
  const { plan } = context;
  if (!plan) return null;
  if (ROWS[group]) return context.view ? ROWS[group](context, say, name, ...further) : null;
  if (group === "memory") return ledgerRow(plan, name, say);
  if (group === "prefill" || group === "decode") {
    return { title: `${say(group)}: ${say(`f.title.${name}`)}`, ...phaseFigures[name](plan[group], plan, say, group, context.view?.setting) };
  }
  return planFigures[group]?.(plan, say) ?? null;
}
