// The compare tab: the planner's model and load on several devices and weight formats.

import { ask, askCsv, latest, Refusal } from "./api.js";
import { card, commandCard, errorBox, table, tableName } from "./cards.js";
import { compareChart } from "./chart-compare.js";
import { chips, combobox } from "./controls.js";
import { h, show } from "./dom.js";
import { chartTools, save } from "./export.js";
import { deviceItems, formatItems } from "./form.js";
import { compareBody, compareCommand, state } from "./state.js";
import { figure } from "./popover.js";
import { formatBytes, formatSeconds, formatWhole, threeDigits } from "./units.js";

export function compare({ catalogue, say, changed, redrawn }) {
  const error = errorBox(say);
  const box = h("div", { class: "chart-box" });
  const body = h("div", { class: "scroll", tabIndex: 0, role: "region", ariaLabel: tableName(say, say("page.compare")) });
  const best = h("p", { class: "headline", role: "status" });
  const refused = h("ul", { class: "plain refused-list" });
  const load = h("p", { class: "facts" });
  const items = deviceItems(catalogue, say);
  const formats = formatItems(catalogue, say);
  const named = (list, value) => list.find((item) => item.value === value)?.text ?? value;
  const lists = [
    list("compare_devices", items, say("page.compare.devices"), say("page.device.add"), 8),
    list("compare_weights", formats, say("page.compare.formats"), say("page.compare.add_format"), 6),
  ];
  const form = h("form", { class: "form", ariaLabel: say("page.compare"), on: { submit: (event) => event.preventDefault() } },
    lists.map((one) => one.node),
    h("fieldset", {}, h("legend", {}, say("page.load")), load, h("p", { class: "hint" }, say("page.compare.from"))));
  const csv = () => askCsv("compare", compareBody());
  const tools = chartTools({ chart: () => box.firstChild, name: "rooflens-compare", title: () => say("page.compare"), csv, say });
  const take = commandCard(say, {
    name: "compare-command",
    saveJson: async () => save("rooflens-compare.json", JSON.stringify(await ask("compare", compareBody()), null, 2), "application/json"),
    saveCsv: async () => save("rooflens-compare.csv", await csv(), "text/csv"),
  });
  const results = h("div", { class: "results" }, error.node, card("compare", say("page.compare"), tools, best, box, h("p", { class: "quiet" }, say("page.compare.legend")), refused), card("compare-table", say("page.compare.table"), null, body), take.node);
  const node = h("div", { class: "planner" }, form, results);
  let rows = null;

  function list(key, choices, title, placeholder, most) {
    const chosen = chips({ label: title, say, onRemove: (value) => change({ [key]: state[key].filter((one) => one !== value) }) });
    const add = combobox({
      label: title, name: key, items: () => choices, say, keep: false, free: key === "compare_weights", placeholder,
      onChoose: (value) => change({ [key]: [...state[key].filter((one) => one !== value), value].slice(-most) }),
    });
    return { node: h("fieldset", {}, h("legend", {}, title), chosen.node, add.node), set: () => chosen.set(state[key], (value) => named(choices, value)) };
  }

  function change(part) {
    Object.assign(state, part);
    set();
    changed();
    refresh();
  }

  function set() {
    lists.forEach((one) => one.set());
    const model = state.source === "bundled" ? state.model : state.source === "config" ? "config.json" : state.params;
    load.textContent = [model, say("plan.title.load", { batch: formatWhole(state.batch), prompt: formatWhole(state.prompt), output: formatWhole(state.output) }), state.engine === "none" ? "" : state.engine].filter(Boolean).join(" · ");
  }

  const refresh = latest(async () => {
    try {
      const document = await ask("compare", compareBody());
      rows = document.cells.map((cell) => ({ name: `${named(items, cell.device)} · ${cell.weights}`, plan: cell.plan, reason: cell.error?.what ?? "", error: cell.error }));
      error.set(null);
      draw();
      results.classList.remove("out-of-date");
    } catch (problem) {
      if (!(problem instanceof Refusal)) throw problem;
      error.set(problem.error);
      results.classList.add("out-of-date");
    }
  });

  function draw() {
    show(box, compareChart(rows, Math.max(280, box.clientWidth), say));
    const fitting = rows.filter((row) => row.plan && row.plan.memory.fits !== false).sort((a, b) => b.plan.decode.tokens_per_s_per_sequence - a.plan.decode.tokens_per_s_per_sequence);
    best.textContent = fitting.length === 0 ? say("compare.none_fits") : say("page.compare.best", { name: fitting[0].name, rate: threeDigits(fitting[0].plan.decode.tokens_per_s_per_sequence) });
    show(refused, rows.filter((row) => row.error).map((row) => h("li", {}, h("strong", {}, row.name), `: ${row.error.what}`, row.error.next ? ` → ${row.error.next}` : "")));
    const range = (estimate) => `${threeDigits(1 / estimate.high)} – ${threeDigits(1 / estimate.low)}`;
    show(body, table(say("page.compare.table"),
      [say("compare.device"), say("memory.title"), say("compare.left"), say("page.compare.decode"), say("page.compare.likely"), say("page.compare.all"), say("page.compare.first"), say("speed.limited_by"), say("compare.ridge_batch")],
      rows.map((row, index) => ({ ...row, index })).filter((row) => row.plan).map(({ name, plan, index }) => {
        const { memory, decode, prefill } = plan;
        const told = (key, text) => figure(`compare.${index}/${key}`, text, say);
        const left = memory.capacity_bytes === null ? say("compare.unknown") : memory.fits === false ? say("compare.over", { deficit: formatBytes(memory.deficit_bytes) }) : formatBytes(memory.capacity_bytes - memory.total_bytes);
        const row = [
          name, told("total", formatBytes(memory.total_bytes)), memory.capacity_bytes === null ? left : told("free", left), told("decode.sequence", threeDigits(decode.tokens_per_s_per_sequence)), told("decode.estimate", range(decode.estimate_s)),
          told("decode.rate", threeDigits(decode.tokens_per_s)), told("prefill.bound", formatSeconds(prefill.bound_s)), told("decode.bound", say(`limit.${decode.limited_by}`)), plan.ridge_batch ? told("ridge_batch", threeDigits(plan.ridge_batch)) : "",
        ];
        row.class = memory.fits === false ? "no-fit" : "";
        return row;
      })));
    take.update(compareCommand());
    redrawn();
  }

  new ResizeObserver(() => { if (rows && node.offsetParent) draw(); }).observe(results);
  set();
  return { node, refresh, set, rows: () => rows };
}
