// The planner tab: the form on the left, the answer on the right.

import { ask, askCsv, afterPause, latest, Refusal } from "./api.js";
import { adviceCard, boundsCard, commandCard, errorBox, forgetWidths, memoryCard, notesCard, operatorsCard, rooflineCard, splitCard, sweepCard, verdictCard } from "./cards.js";
import { segments } from "./controls.js";
import { h, show } from "./dom.js";
import { save } from "./export.js";
import { plannerForm } from "./form.js";
import { command, planBody, state, sweepValues } from "./state.js";
import { formatBytes, threeDigits } from "./units.js";

const ADVICE_PAUSE_MS = 250;

/** The tab's content; `changed()` is told of every change of the case. */
export function planner({ catalogue, say, changed, redrawn }) {
  let view = null;
  let seen = "";
  const form = plannerForm({ catalogue, say, change });
  const error = errorBox(say);
  const axis = segments({
    label: say("page.sweep"), name: "axis", options: [["batch", say("axis.batch")], ["context", say("axis.context")]],
    onChange: (value) => change({ axis: value }),
  });
  const verdict = verdictCard(say);
  const operators = operatorsCard(say, () => quietly(() => ask("operators", planBody())));
  const advice = adviceCard(say);
  const take = commandCard(say, {
    saveJson: async () => save("rooflens-plan.json", JSON.stringify(await ask("plan", planBody()), null, 2), "application/json"),
    saveCsv: async () => save("rooflens-plan.csv", await askCsv("plan", planBody()), "text/csv"),
  });
  const cards = [verdict, rooflineCard(say, "rooflens-roofline"), memoryCard(say), splitCard(say), sweepCard(say, axis.node), boundsCard(say), notesCard(say)];
  const [, roofline, memory, split, sweep, bounds, notes] = cards;
  const results = h("div", { class: "results", ariaLive: "off" }, error.node, verdict.node, roofline.node, h("div", { class: "pair" }, memory.node, h("div", { class: "stack" }, split.node, notes.node)), sweep.node, bounds.node, advice.node, operators.node, take.node);
  // On a narrow screen the answer is below the form: its gist stays in sight while a slider moves.
  const glance = h("button", { type: "button", class: "glance", hidden: true, on: { click: () => verdict.node.scrollIntoView({ behavior: "smooth" }) } });
  const node = h("div", { class: "planner" }, form.node, results, glance);

  function change(part) {
    performance.mark("rooflens:change");
    Object.assign(state, part);
    form.set();
    axis.set(state.axis);
    changed();
    refresh();
  }

  function body() {
    const context = state.context ?? state.prompt + state.output;
    const others = state.hand ? state.devices : state.devices.slice(1);
    return { ...planBody(), compare_devices: others.slice(0, 3), sweep_axis: state.axis, sweep_values: sweepValues(state.axis, context), lang: say.language };
  }

  const refresh = latest(async () => {
    const asked = performance.now();
    try {
      if (state.source === "config" && !state.config.trim()) throw new Refusal({ what: say("page.no_config"), value: null, allowed: null, next: say("page.no_config.next") });
      const next = body();
      const question = JSON.stringify(next);
      view = question === seen && view ? view : await ask("view", next);
      seen = question;
      error.set(null);
      draw();
    } catch (problem) {
      if (!(problem instanceof Refusal)) throw problem;
      seen = "";
      error.set(problem.error);
      results.classList.add(view ? "out-of-date" : "empty");
    }
    performance.measure("rooflens:answer", { start: asked });
  });

  function draw() {
    results.classList.remove("out-of-date", "empty");
    const name = `${view.plan.model.name}${say("plan.title.on", { device: deviceName() })}`;
    const [now, later] = [cards.filter(inSight), cards.filter((one) => !inSight(one))];
    for (const one of now) one.update(view, name);
    rest(() => { for (const one of later) one.update(view, name); });
    take.update(command(), state.source === "config" ? say("page.command.config") : "");
    form.told(view);
    redrawn();
    gist();
    advice.stale();
    askForAdvice();
  }

  const inSight = sight(cards.map((one) => one.node));
  const rest = afterPaint();

  function gist() {
    const { memory, decode } = view.plan;
    const { fits } = memory;
    const sizes = [memory.total_bytes, ...(memory.capacity_bytes === null ? [] : [memory.capacity_bytes])].map(formatBytes).join(" / ");
    glance.hidden = false;
    glance.className = `glance ${fits === false ? "no" : fits ? "yes" : "unknown"}`;
    const mark = fits === false ? "✕" : fits ? "✓" : "?";
    show(glance, h("span", { class: "verdict-mark", "aria-hidden": "true" }, mark), h("span", {}, sizes), h("strong", {}, `${threeDigits(decode.tokens_per_s_per_sequence)} tok/s`), h("span", {}, say(`limit.${decode.limited_by}`)));
  }

  function deviceName() {
    const { device } = view.plan;
    const own = device.name === "by hand" ? say("device.by_hand") : device.name;
    return device.count > 1 ? `${device.count} × ${own}` : own;
  }

  const askForAdvice = afterPause(latest(async () => {
    const document = await quietly(() => ask("advice", { ...planBody(), lang: say.language }));
    if (document) {
      advice.update(document);
      verdict.advise(document);
    }
    operators.refresh();
  }), ADVICE_PAUSE_MS);

  new ResizeObserver(() => {
    forgetWidths();
    if (view && node.offsetParent) for (const one of [roofline, memory, split, sweep]) one.update(view);
  }).observe(results);
  form.set();
  axis.set(state.axis);
  const figures = () => ({ view, plan: view?.plan, advice: advice.shown(), operators: operators.shown() });
  return { node, refresh, form, figures, more: () => operators.open() };
}

/** Whether a card is on the screen, as far as is known: a slider waits for what can be seen only. */
function sight(nodes) {
  const hidden = new Set();
  const watcher = new IntersectionObserver((entries) => {
    for (const { target, isIntersecting } of entries) isIntersecting ? hidden.delete(target) : hidden.add(target);
  });
  for (const node of nodes) watcher.observe(node);
  return ({ node }) => !hidden.has(node);
}

/** Does work once the screen shows what was drawn before; the latest only. */
function afterPaint() {
  let latestWork = null;
  const run = () => { latestWork?.(); latestWork = null; };
  return (work) => {
    if (latestWork === null) requestAnimationFrame(() => setTimeout(run));
    latestWork = work;
  };
}

/** The answer, or null where there is none: the view has said why already. */
async function quietly(work) {
  try {
    return await work();
  } catch (problem) {
    if (problem instanceof Refusal) return null;
    throw problem;
  }
}
