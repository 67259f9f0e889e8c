// The planner's form: model, device, formats, load, engine, layout.

import { chips, combobox, logSlider, segments, select, stops, textField } from "./controls.js";
import { h } from "./dom.js";
import { state } from "./state.js";
import { formatBandwidth, formatBytes, formatRate, formatWhole } from "./units.js";

const MOST_DEVICES = 4;
const MOST_CONFIG_BYTES = 1_500_000;
const GGUF = /^(gguf-|q\d|iq\d|tq\d|mxfp4_moe)/;

/** What a search box shows for each bundled model, and the words that find it. */
export function modelItems(catalogue) {
  return catalogue.models.flatMap((model) => [
    { value: model.id, text: model.id, detail: "", words: [model.id, ...model.aliases].join(" ").toLowerCase() },
    ...model.siblings.map((id) => ({ value: id, text: id, detail: model.id, words: id.toLowerCase() })),
  ]).sort((a, b) => a.text.toLowerCase().localeCompare(b.text.toLowerCase()));
}

/** What a search box shows for each device. */
export function deviceItems(catalogue, say) {
  const figures = (device) => [
    device.memory_bytes ? formatBytes(device.memory_bytes) : "",
    device.bandwidth_bytes_per_s ? formatBandwidth(device.bandwidth_bytes_per_s) : "",
    device.peak_flops_per_s ? `${formatRate(device.peak_flops_per_s)} ${device.peak_dtype}` : "",
  ].filter(Boolean).join(" · ");
  const items = catalogue.devices.map((device) => ({
    value: device.id, text: device.name, detail: figures(device),
    words: [device.id, device.name, device.vendor, device.kind, ...device.aliases].join(" ").toLowerCase(),
  }));
  const local = { value: "local", text: say("page.local"), detail: "", words: `local ${say("page.local")}`.toLowerCase() };
  return catalogue.local ? [local, ...items] : items;
}

/** Names of weight formats for a search box; the catalogue takes parametric names too. */
export function formatItems(catalogue, say) {
  const own = { value: "", text: say("page.weights.own"), detail: "", words: say("page.weights.own").toLowerCase() };
  return [own, ...catalogue.weights.map((name) => ({ value: name, text: name, detail: GGUF.test(name) ? "GGUF" : "", words: name }))];
}

const group = (title, ...content) => h("fieldset", {}, h("legend", {}, title), ...content);

export function plannerForm({ catalogue, say, change }) {
  const items = deviceItems(catalogue, say);
  const deviceText = (id) => items.find((item) => item.value === id)?.text ?? id;
  const fields = {}; // of a free-form model, by name
  const parts = [modelPart(), devicePart(), formatPart(), loadPart(), enginePart(), layoutPart()];
  const node = h("form", { class: "form", ariaLabel: say("page.case"), on: { submit: (event) => event.preventDefault() } }, parts.map((part) => part.node));

  function modelPart() {
    const source = segments({
      label: say("page.model"), name: "source", onChange: (value) => change({ source: value }),
      options: [["bundled", say("page.source.bundled")], ["config", "config.json"], ["sizes", say("page.source.sizes")]],
    });
    const models = modelItems(catalogue);
    const name = combobox({
      label: say(catalogue.allow_hub ? "page.model.hub" : "page.model.search"), name: "model", items: () => models, free: true, say,
      onChoose: (value) => change({ model: value }),
    });
    const text = h("textarea", {
      name: "config", rows: 7, spellcheck: false, placeholder: '{\n  "architectures": ["LlamaForCausalLM"],\n  "hidden_size": 4096, …\n}', ariaLabel: say("page.config.paste"),
      on: { input: () => change({ config: text.value }) },
    });
    const file = h("input", { type: "file", accept: ".json,application/json", class: "hidden", id: "config-file", ariaLabel: say("page.config.file"), on: { change: () => take(file.files[0]) } });
    const paste = h("div", { class: "control config-drop" }, h("p", { class: "hint" }, say("page.config.hint")), text, file, h("label", { htmlFor: "config-file", class: "button" }, say("page.config.file")));
    const sizes = h("div", { class: "two" },
      ...["params", "active_params", "kv_bytes_per_token", "weights_bytes"].map((key) => {
        const field = textField({ label: say(`page.${key}`), name: key, placeholder: { params: "8B", active_params: say("page.all"), kv_bytes_per_token: "128 KiB", weights_bytes: say("page.from_format") }[key], onChange: (value) => change({ [key]: value }) });
        fields[key] = field;
        return field.node;
      }));
    const told = h("p", { class: "hint model-told" });
    const node = group(say("page.model"), source.node, name.node, paste, sizes, told);

    async function take(chosen) {
      if (!chosen) return;
      const content = chosen.size > MOST_CONFIG_BYTES ? "" : await chosen.text();
      change({ source: "config", config: content || `(${say("page.config.large")})` });
    }
    node.addEventListener("dragover", (event) => { event.preventDefault(); node.classList.add("dragging"); });
    node.addEventListener("dragleave", () => node.classList.remove("dragging"));
    node.addEventListener("drop", (event) => {
      event.preventDefault();
      node.classList.remove("dragging");
      if (event.dataTransfer.files.length) take(event.dataTransfer.files[0]);
    });
    return {
      node,
      set() {
        source.set(state.source);
        name.node.hidden = state.source !== "bundled";
        paste.hidden = state.source !== "config";
        sizes.hidden = state.source !== "sizes";
        name.set(state.model);
        if (text.value !== state.config) text.value = state.config;
        for (const [key, field] of Object.entries(fields)) field.set(state[key]);
        told.hidden = true;
      },
      told({ plan: { model } }) {
        const layers = Object.entries(model.layers).filter(([kind, value]) => kind !== "total" && kind !== "sliding_window" && value).map(([kind, value]) => `${value} ${say.term("kind", kind)}`);
        told.hidden = false;
        told.textContent = [model.model_type, ...layers, model.max_context ? say("inspect.max_context", { tokens: formatWhole(model.max_context) }) : ""].filter(Boolean).join(" · ");
      },
    };
  }

  function devicePart() {
    const how = segments({
      label: say("page.device"), name: "hand", onChange: (value) => change({ hand: value === "hand" }),
      options: [["named", say("page.device.catalogue")], ["hand", say("page.device.hand")]],
    });
    const chosen = chips({
      label: say("page.device.chosen"), say,
      onRemove: (id) => change({ devices: state.devices.filter((one) => one !== id) }),
      onLead: (id) => change({ devices: [id, ...state.devices.filter((one) => one !== id)] }),
    });
    const main = combobox({
      label: say("page.device.search"), name: "device", items: () => items, say, free: true,
      onChoose: (id) => change({ devices: [id, ...state.devices.slice(1).filter((one) => one !== id)] }),
    });
    const more = combobox({
      label: say("page.device.more", { count: MOST_DEVICES }), name: "more-devices", items: () => items, say, keep: false, placeholder: say("page.device.add"),
      onChoose: (id) => change({ devices: [...state.devices.filter((one) => one !== id), id].slice(0, MOST_DEVICES) }),
    });
    const hand = ["peak", "bandwidth", "memory"].map((key) => textField({ label: say(`page.${key}`), name: key, placeholder: { peak: "165 TFLOP/s", bandwidth: "1008 GB/s", memory: "24 GB" }[key], onChange: (value) => change({ [key]: value }) }));
    const byHand = h("div", { class: "three" }, hand.map((field) => field.node));
    const node = group(say("page.device"), how.node, main.node, byHand, more.node, chosen.node);
    return {
      node,
      set() {
        how.set(state.hand ? "hand" : "named");
        main.node.hidden = state.hand;
        byHand.hidden = !state.hand;
        more.node.hidden = state.devices.length >= MOST_DEVICES;
        main.set(state.devices[0]);
        ["peak", "bandwidth", "memory"].forEach((key, index) => hand[index].set(state[key]));
        chosen.node.hidden = state.devices.length < 2;
        chosen.set(state.devices, deviceText);
      },
    };
  }

  function formatPart() {
    const formats = formatItems(catalogue, say);
    const weights = combobox({ label: say("page.weights"), name: "weights", items: () => formats, free: true, say, onChoose: (value) => change({ weights: value }) });
    const kv = select({ label: say("page.kv"), name: "kv_dtype", options: [["", say("page.kv.own")], ...catalogue.kv_dtypes.map((name) => [name, name])], onChange: (value) => change({ kv_dtype: value }) });
    const node = group(say("page.formats"), h("div", { class: "two" }, weights.node, kv.node));
    return { node, set() { weights.set(state.weights); kv.set(state.kv_dtype); } };
  }

  function loadPart() {
    const slider = (key, most, least = 1, unit = "tokens") => logSlider({ label: say(`page.${key}`), name: key, values: stops(1, most), least, unit: unit && say(`page.unit.${unit}`), onChange: (value) => change({ [key]: value }) });
    const sliders = { batch: slider("batch", 1024, 1, "sequences"), prompt: slider("prompt", 131072), output: slider("output", 32768) };
    const context = slider("context", 1048576, 0);
    const auto = h("input", { type: "checkbox", name: "context-auto", on: { change: () => change({ context: auto.checked ? null : state.prompt + state.output }) } });
    const own = h("label", { class: "check" }, auto, say("page.context.auto"));
    const node = group(say("page.load"), ...Object.values(sliders).map((one) => one.node), context.node, own);
    return {
      node,
      set() {
        for (const [key, one] of Object.entries(sliders)) one.set(state[key]);
        auto.checked = state.context === null;
        context.set(state.context ?? state.prompt + state.output);
      },
    };
  }

  function enginePart() {
    const engine = select({ label: say("page.engine"), name: "engine", options: catalogue.engines.map((name) => [name, name === "none" ? say("page.engine.none") : name]), onChange: (value) => change({ engine: value }) });
    const texts = [["engine_version", ""]];
    const numbers = ["max_model_len", "max_batched_tokens", "max_sequences", "memory_utilization"];
    const made = Object.fromEntries(texts.map(([key]) => [key, textField({ label: say(`page.${key}`), name: key, placeholder: say("page.usual"), onChange: (value) => change({ [key]: value }) })]));
    for (const key of numbers) {
      made[key] = textField({
        label: say(`page.${key}`), name: key, placeholder: say("page.usual"),
        onChange: (text) => {
          const value = text === "" ? null : Number(text.replaceAll(",", ""));
          made[key].field.ariaInvalid = Number.isNaN(value) ? "true" : null;
          if (!Number.isNaN(value)) change({ [key]: value });
        },
      });
    }
    const swa = h("input", { type: "checkbox", name: "swa_full", on: { change: () => change({ swa_full: swa.checked }) } });
    const more = h("details", {}, h("summary", {}, say("page.engine.more")), h("div", { class: "two" }, Object.values(made).map((one) => one.node)), h("label", { class: "check" }, swa, say("page.swa_full")));
    const node = group(say("page.engine"), engine.node, more);
    return {
      node,
      set() {
        engine.set(state.engine);
        for (const [key, one] of Object.entries(made)) one.set(state[key] ?? "");
        swa.checked = state.swa_full;
        if (Object.keys(made).some((key) => state[key]) || state.swa_full) more.open = true;
      },
    };
  }

  function layoutPart() {
    const made = ["tp", "pp", "ep", "dp"].map((key) => {
      const one = textField({
        label: say(`page.${key}`), name: key,
        onChange: (text) => {
          const value = Number(text);
          const good = Number.isInteger(value) && value >= 1;
          one.field.ariaInvalid = good ? null : "true";
          if (good) change({ [key]: value });
        },
      });
      one.field.inputMode = "numeric";
      const step = (by) => h("button", { type: "button", class: "step", ariaLabel: say(by > 1 ? "page.double" : "page.halve", { name: say(`page.${key}`) }), on: { click: () => change({ [key]: Math.max(1, Math.round(state[key] * by)) }) } }, by > 1 ? "×2" : "÷2");
      one.node.append(h("div", { class: "steps-row" }, step(0.5), step(2)));
      return [key, one];
    });
    const count = h("p", { class: "hint" });
    const node = group(say("page.layout"), h("div", { class: "four" }, made.map(([, one]) => one.node)), count);
    return {
      node,
      set() {
        for (const [key, one] of made) one.set(state[key]);
        count.textContent = say("page.layout.count", { count: state.tp * state.pp * state.dp });
      },
    };
  }

  return {
    node,
    set: () => parts.forEach((part) => part.set()),
    told: (view) => parts[0].told(view),
  };
}
