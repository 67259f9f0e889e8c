// Form controls: log sliders beside number fields, search boxes with lists, chips, choices.

import { h, newId, show } from "./dom.js";
import { formatWhole } from "./units.js";

/** 1, 2, 3, 4, 6, 8, 12, 16, ... up to `most`: the stops of a log slider over whole numbers. */
export function stops(least, most) {
  const values = [];
  for (let power = 0; 2 ** power <= most; power += 1) {
    for (const value of [2 ** power, 1.5 * 2 ** power]) {
      if (Number.isInteger(value) && value >= least && value <= most) values.push(value);
    }
  }
  return values;
}

const nearest = (values, wanted) => {
  let best = 0;
  values.forEach((value, index) => {
    if (Math.abs(Math.log(value / wanted)) < Math.abs(Math.log(values[best] / wanted))) best = index;
  });
  return best;
};

/** A slider over `values` with a number field for any other value. `onChange(number)`. */
export function logSlider({ label, name, values, least = 1, unit = "", onChange }) {
  const id = newId(name);
  const title = h("label", { htmlFor: id }, label);
  const range = h("input", { type: "range", class: "slider", min: 0, max: values.length - 1, step: 1, name: `${name}-slider`, ariaLabel: label });
  const field = h("input", { type: "text", inputMode: "numeric", id, name, class: "number-field", autocomplete: "off", spellcheck: false });
  const node = h("div", { class: "control slider-control" }, title, field, range);

  function set(value) {
    if (document.activeElement !== field) field.value = value === null ? "" : formatWhole(value);
    if (value !== null) {
      range.value = nearest(values, Math.max(value, least || 1));
      range.ariaValueText = `${formatWhole(value)} ${unit}`.trim();
      range.style.setProperty("--at", `${(range.value / (values.length - 1)) * 100}%`);
    }
  }

  range.addEventListener("input", () => onChange(values[Number(range.value)]));
  field.addEventListener("input", () => {
    const value = Number(field.value.replaceAll(",", "").replaceAll("_", "").trim());
    const good = field.value.trim() !== "" && Number.isInteger(value) && value >= least;
    field.ariaInvalid = good ? null : "true";
    if (good) onChange(value);
  });
  field.addEventListener("blur", () => field.ariaInvalid !== "true" && onChange(Number(field.value.replaceAll(",", "").replaceAll("_", ""))));
  return { node, set, range, field, title };
}

/** A text field that hands over every change. */
export function textField({ label, name, placeholder = "", onChange, hint = "" }) {
  const id = newId(name);
  const field = h("input", { type: "text", id, name, placeholder, autocomplete: "off", spellcheck: false, on: { input: () => onChange(field.value.trim()) } });
  const node = h("div", { class: "control" }, h("label", { htmlFor: id }, label), field, hint ? h("p", { class: "hint" }, hint) : null);
  return { node, field, set: (value) => { if (document.activeElement !== field) field.value = value ?? ""; } };
}

/** A list to choose from: options are [value, text] or {group, options}. */
export function select({ label, name, options, onChange }) {
  const id = newId(name);
  const option = ([value, text]) => h("option", { value }, text);
  const field = h("select", { id, name, on: { change: () => onChange(field.value) } },
    options.map((one) => (one.group ? h("optgroup", { label: one.group }, one.options.map(option)) : option(one))));
  const node = h("div", { class: "control" }, h("label", { htmlFor: id }, label), field);
  return { node, field, set: (value) => { field.value = value; } };
}

/** A few exclusive choices side by side. */
export function segments({ label, name, options, onChange }) {
  const group = newId(name);
  const inputs = options.map(([value, text]) => {
    const input = h("input", { type: "radio", name: group, value, on: { change: () => onChange(value) } });
    return { value, input, node: h("label", {}, input, h("span", {}, text)) };
  });
  const node = h("div", { class: "segments", role: "radiogroup", ariaLabel: label }, inputs.map((one) => one.node));
  node.dataset.name = name;
  return { node, set: (value) => inputs.forEach((one) => { one.input.checked = one.value === value; }) };
}

const MOST_SHOWN = 80;

/**
 * A search box over a list (the ARIA combobox pattern).
 * `items()` gives [{value, text, detail, words}]; `onChoose(value)`; with `free`, any typed text may be chosen.
 */
export function combobox({ label, name, items, onChoose, free = false, placeholder = "", say, keep = true }) {
  const [id, listId] = [newId(name), newId(`${name}-list`)];
  const field = h("input", {
    type: "text", id, name, placeholder, role: "combobox", autocomplete: "off", spellcheck: false,
    ariaAutoComplete: "list", ariaExpanded: "false", "aria-controls": listId,
  });
  const list = h("ul", { id: listId, role: "listbox", ariaLabel: label, hidden: true });
  const node = h("div", { class: "control combobox" }, h("label", { htmlFor: id }, label), field, list);
  let shown = [];
  let active = -1;
  let value = "";

  const matches = (text) => {
    const wanted = text.toLowerCase().split(/[\s/]+/).filter(Boolean);
    return items().filter((item) => wanted.every((word) => item.words.includes(word)));
  };

  function open(text) {
    shown = matches(text).slice(0, MOST_SHOWN);
    active = -1;
    show(list, shown.length ? shown.map((item, index) => h("li", {
      role: "option", id: `${listId}-${index}`, ariaSelected: String(item.value === value),
      on: { pointerdown: (event) => { event.preventDefault(); choose(item.value); } },
    }, h("span", { class: "option-text" }, item.text), item.detail ? h("span", { class: "option-detail" }, item.detail) : null))
      : h("li", { class: "nothing", role: "option", ariaDisabled: "true", ariaSelected: "false" }, say("page.no_match")));
    list.hidden = false;
    field.ariaExpanded = "true";
  }

  function close() {
    list.hidden = true;
    field.ariaExpanded = "false";
    field.removeAttribute("aria-activedescendant");
  }

  function move(to) {
    if (list.hidden) open("");
    if (!shown.length) return;
    active = (to + shown.length) % shown.length;
    [...list.children].forEach((item, index) => item.classList.toggle("active", index === active));
    list.children[active].scrollIntoView({ block: "nearest" });
    field.setAttribute("aria-activedescendant", `${listId}-${active}`);
  }

  function choose(chosen) {
    close();
    set(keep ? chosen : "");
    onChoose(chosen);
  }

  function set(next) {
    value = next;
    if (!keep) field.value = "";
    else if (document.activeElement !== field || list.hidden) field.value = items().find((item) => item.value === next)?.text ?? next;
  }

  field.addEventListener("focus", () => { field.select(); });
  field.addEventListener("click", () => list.hidden && open(""));
  field.addEventListener("input", () => open(field.value));
  field.addEventListener("blur", () => {
    close();
    if (keep && field.value.trim() && free && field.value.trim() !== (items().find((item) => item.value === value)?.text ?? value)) choose(field.value.trim());
    else set(value);
  });
  field.addEventListener("keydown", (event) => {
    if (event.key === "ArrowDown") move(active + 1);
    else if (event.key === "ArrowUp") move(active - 1);
    else if (event.key === "Escape" && !list.hidden) { close(); set(value); }
    else if (event.key === "Enter") {
      event.preventDefault();
      const typed = field.value.trim();
      const exact = items().find((item) => item.value.toLowerCase() === typed.toLowerCase());
      if (active >= 0) choose(shown[active].value);
      else if (exact) choose(exact.value);
      else if (free && typed && !(shown.length && !list.hidden && !typed.includes("/"))) choose(typed);
      else if (!list.hidden && shown.length && typed) choose(shown[0].value);
      else if (free && typed) choose(typed);
      return;
    } else return;
    event.preventDefault();
  });
  return { node, field, set };
}

/** Chosen things in a row, each with a button that takes it away; `lead` marks the first. */
export function chips({ label, onRemove, onLead = null, say }) {
  const node = h("ul", { class: "chips", ariaLabel: label });
  function set(values, text) {
    show(node, values.map((value, index) => {
      const name = text(value);
      const main = onLead && index > 0
        ? h("button", { type: "button", class: "chip-name", title: say("page.make_main"), on: { click: () => onLead(value) } }, name)
        : h("span", { class: "chip-name" }, name);
      const remove = values.length > 1
        ? h("button", { type: "button", class: "chip-remove", ariaLabel: say("page.remove", { name }), on: { click: () => onRemove(value) } }, "×") : null;
      return h("li", { class: `chip rank-${index} ${onLead && index === 0 ? "lead" : ""}` }, onLead ? h("span", { class: "chip-key", ariaHidden: "true" }) : null, main, remove);
    }));
  }
  return { node, set };
}
