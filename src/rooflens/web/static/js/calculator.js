// The calculator tab: bytes, FLOPs, bandwidth and peak; which of them sets the time, and by how much.

import { ask, latest, Refusal } from "./api.js";
import { asTable, card, errorBox, table } from "./cards.js";
import { rooflineChart } from "./chart-roofline.js";
import { select } from "./controls.js";
import { h, newId, show } from "./dom.js";
import { chartTools } from "./export.js";
import { state } from "./state.js";
import { formatBandwidth, formatBytes, formatFlops, formatRate, formatSeconds, formatShare, parseQuantity, threeDigits } from "./units.js";

const STEPS = 600;
const SLIDERS = {
  calc_flops: { range: [1e3, 1e18], unit: "FLOP", format: formatFlops, body: null },
  calc_bytes: { range: [1e3, 1e14], unit: "B", format: formatBytes, body: null },
  calc_peak: { range: [1e9, 1e17], unit: "FLOP/s", format: formatRate },
  calc_bandwidth: { range: [1e8, 1e14], unit: "B/s", format: formatBandwidth },
};

// Work that people know, as FLOPs and bytes (2-byte elements).
const GEMM = 4096;
const WORK = {
  decode: { calc_flops: 2 * 7.1e9, calc_bytes: 2 * 7.1e9 },
  decode32: { calc_flops: 2 * 7.1e9 * 32, calc_bytes: 2 * 7.1e9 },
  prefill: { calc_flops: 2 * 7.1e9 * 1024, calc_bytes: 2 * 7.1e9 },
  gemm: { calc_flops: 2 * GEMM ** 3, calc_bytes: 3 * 2 * GEMM ** 2 },
  gemv: { calc_flops: 2 * GEMM ** 2, calc_bytes: 2 * (GEMM ** 2 + 2 * GEMM) },
  add: { calc_flops: 1e9, calc_bytes: 3 * 2 * 1e9 },
};

export function calculator({ catalogue, say, changed }) {
  const sliders = Object.entries(SLIDERS).map(([key, one]) => [key, bigSlider(key, one)]);
  const error = errorBox(say);
  const box = h("div", { class: "chart-box" });
  const answer = h("div", { class: "calc-answer" });
  const told = asTable(say, say("page.roofline"));
  const tools = chartTools({ chart: () => box.firstChild, name: "rooflens-calculator", title: () => say("calc.title"), say });
  const usable = catalogue.devices.filter((device) => device.peak_flops_per_s && device.bandwidth_bytes_per_s);
  const preset = select({
    label: say("calc.device"), name: "calc-device", options: [["", say("page.device.hand")], ...usable.map((device) => [device.id, device.name])],
    onChange: (id) => {
      const device = usable.find((one) => one.id === id);
      if (device) change({ calc_peak: device.peak_flops_per_s, calc_bandwidth: device.bandwidth_bytes_per_s });
    },
  });
  const work = select({
    label: say("calc.work"), name: "calc-work", options: [["", say("calc.work.own")], ...Object.keys(WORK).map((name) => [name, say(`calc.work.${name}`)])],
    onChange: (name) => name && change(WORK[name]),
  });
  const form = h("form", { class: "form", ariaLabel: say("calc.title"), on: { submit: (event) => event.preventDefault() } },
    h("fieldset", {}, h("legend", {}, say("calc.work")), work.node, sliders[0][1].node, sliders[1][1].node),
    h("fieldset", {}, h("legend", {}, say("page.device")), preset.node, sliders[2][1].node, sliders[3][1].node));
  const results = h("div", { class: "results" }, error.node, card("calc", say("calc.title"), null, h("p", { class: "quiet" }, say("calc.aside")), answer),
    card("calc-roofline", say("page.roofline"), tools, box, told.node));
  const node = h("div", { class: "planner" }, form, results);
  let view = null;

  function bigSlider(key, { range: [low, high], unit, format }) {
    const id = newId(key);
    const span = Math.log10(high / low);
    const range = h("input", { type: "range", class: "slider", min: 0, max: STEPS, step: 1, name: `${key}-slider`, ariaLabel: say(`calc.${key}`), on: { input: () => change({ [key]: Number((low * 10 ** ((span * range.value) / STEPS)).toPrecision(3)) }) } });
    const field = h("input", { type: "text", id, name: key, class: "number-field wide", autocomplete: "off", spellcheck: false, on: {
      input: () => {
        const value = parseQuantity(field.value, unit);
        field.ariaInvalid = Number.isNaN(value) ? "true" : null;
        if (!Number.isNaN(value)) change({ [key]: value });
      },
      blur: () => { field.ariaInvalid = null; field.value = format(state[key]); },
    } });
    return {
      node: h("div", { class: "control slider-control" }, h("label", { htmlFor: id }, say(`calc.${key}`)), field, range),
      set(value) {
        if (document.activeElement !== field) field.value = format(value);
        range.value = (Math.log10(Math.min(Math.max(value, low), high) / low) / span) * STEPS;
        range.ariaValueText = format(value);
        range.style.setProperty("--at", `${(range.value / STEPS) * 100}%`);
      },
    };
  }

  function change(part) {
    performance.mark("rooflens:change");
    Object.assign(state, part);
    set();
    changed();
    refresh();
  }

  function set() {
    for (const [key, one] of sliders) one.set(state[key]);
    const device = usable.find((one) => one.peak_flops_per_s === state.calc_peak && one.bandwidth_bytes_per_s === state.calc_bandwidth);
    preset.set(device?.id ?? "");
    const name = Object.keys(WORK).find((one) => WORK[one].calc_flops === state.calc_flops && WORK[one].calc_bytes === state.calc_bytes);
    work.set(name ?? "");
  }

  const refresh = latest(async () => {
    const asked = performance.now();
    try {
      const body = { peak: state.calc_peak, bandwidth: state.calc_bandwidth, intensities: [state.calc_flops / state.calc_bytes] };
      view = { ...(await ask("roofline", body)), flops: state.calc_flops, bytes: state.calc_bytes };
      error.set(null);
      draw();
    } catch (problem) {
      if (!(problem instanceof Refusal)) throw problem;
      error.set(problem.error);
    }
    performance.measure("rooflens:answer", { start: asked });
  });

  function draw() {
    const [point] = view.points;
    const [memory, compute] = [view.bytes / view.bandwidth_bytes_per_s, view.flops / view.peak_flops_per_s];
    const bound = view.flops / point.attainable_flops_per_s;
    const roof = { ...view, name: say("device.by_hand") };
    show(box, rooflineChart({ roofs: [roof] }, Math.max(280, box.clientWidth), say));
    const longer = threeDigits(Math.max(memory, compute) / Math.min(memory, compute));
    const line = (name, formula, result, lead = false) => h("div", { class: `formula-row ${lead ? "lead" : ""}` }, h("dt", {}, name), h("dd", {}, h("span", { class: "formula-text" }, formula), h("strong", {}, result)));
    show(answer,
      h("p", { class: "headline" }, say(`calc.sentence.${point.regime}`, { time: formatSeconds(bound), times: longer })),
      h("dl", { class: "formula-rows" },
        line(say("calc.memory_time"), `${formatBytes(view.bytes)} ÷ ${formatBandwidth(view.bandwidth_bytes_per_s)}`, formatSeconds(memory), point.regime === "memory"),
        line(say("calc.compute_time"), `${formatFlops(view.flops)} ÷ ${formatRate(view.peak_flops_per_s)}`, formatSeconds(compute), point.regime === "compute"),
        line(say("calc.bound"), `max(${formatSeconds(memory)}, ${formatSeconds(compute)})`, formatSeconds(bound)),
        line(say("calc.intensity"), `${formatFlops(view.flops)} ÷ ${formatBytes(view.bytes)}`, `${threeDigits(point.intensity_flops_per_byte)} FLOP/B`),
        line(say("f.title.ridge"), `${formatRate(view.peak_flops_per_s)} ÷ ${formatBandwidth(view.bandwidth_bytes_per_s)}`, `${threeDigits(view.ridge_flops_per_byte)} FLOP/B`),
        line(say("calc.attainable"), `min(${formatRate(view.peak_flops_per_s)}, ${threeDigits(point.intensity_flops_per_byte)} FLOP/B × ${formatBandwidth(view.bandwidth_bytes_per_s)})`, `${formatRate(point.attainable_flops_per_s)} (${formatShare(point.share_of_peak)})`)));
    told.set(() => table(say("page.roofline"), [say("chart.point"), say("roofline.intensity"), say("roofline.attainable"), say("roofline.share"), say("roofline.regime")],
      [[say("calc.this"), threeDigits(point.intensity_flops_per_byte), formatRate(point.attainable_flops_per_s), formatShare(point.share_of_peak), say(`limit.${point.regime}`)]]));
  }

  new ResizeObserver(() => { if (view && node.offsetParent) draw(); }).observe(results);
  set();
  return { node, refresh, set };
}
