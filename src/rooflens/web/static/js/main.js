// The page: tabs, language, colours, and the address that holds the case.

import { afterPause, get, Refusal } from "./api.js";
import { calculator } from "./calculator.js";
import { compare } from "./compare.js";
import { errorBox } from "./cards.js";
import { h, show } from "./dom.js";
import { planner } from "./planner.js";
import { formulaPopover } from "./popover.js";
import { fromAddress, state, TABS, toAddress } from "./state.js";
import { LANGUAGES, words } from "./words.js";

const ADDRESS_PAUSE_MS = 200;
const THEMES = ["auto", "light", "dark"];

const stored = (name, allowed, otherwise) => {
  try {
    const value = localStorage.getItem(`rooflens-${name}`);
    return allowed.includes(value) ? value : otherwise;
  } catch {
    return otherwise; // storage is switched off
  }
};

const store = (name, value) => {
  try {
    localStorage.setItem(`rooflens-${name}`, value);
  } catch {
    // nothing is lost but the memory of a choice
  }
};

const browserLanguage = () => (navigator.language.toLowerCase().startsWith("zh") ? "zh" : "en");

let language = stored("language", LANGUAGES.map(([code]) => code), browserLanguage());
let theme = stored("theme", THEMES, "auto");
let tabs = {};
let catalogue = null;
let say = null;
let popover = null;
let own = ""; // the address that the page wrote itself

const writeAddress = afterPause(async () => {
  own = await toAddress();
  history.replaceState(null, "", own);
}, ADDRESS_PAUSE_MS);

function setTheme(next) {
  theme = next;
  if (theme === "auto") delete document.documentElement.dataset.theme;
  else document.documentElement.dataset.theme = theme;
  store("theme", theme);
}

function header() {
  const tab = (name) => {
    const button = h("button", {
      type: "button", role: "tab", id: `tab-${name}`, "aria-controls": `panel-${name}`,
      on: { click: () => choose(name), keydown: (event) => onTabKey(event, name) },
    }, say(`tab.${name}`));
    return button;
  };
  const languages = LANGUAGES.map(([code, name, short]) => h("button", {
    type: "button", lang: code === "zh" ? "zh-Hans" : "en", title: name, ariaPressed: String(code === language), id: `language-${code}`,
    on: { click: () => setLanguage(code) },
  }, short));
  const themes = h("select", { id: "theme", ariaLabel: say("page.theme"), on: { change: (event) => setTheme(event.target.value) } }, THEMES.map((name) => h("option", { value: name, selected: name === theme }, say(`page.theme.${name}`))));
  show(document.getElementById("tools"), h("div", { class: "switch", role: "group", ariaLabel: say("page.language") }, languages), themes);
  show(document.getElementById("tabs"), TABS.map(tab));
  document.getElementById("tagline").textContent = say("page.tagline");
  const skip = document.getElementById("skip");
  skip.textContent = say("page.skip");
  skip.onclick = (event) => { // the part of the address after # holds the case
    event.preventDefault();
    const answer = document.querySelector(`#panel-${state.tab} .results`);
    answer.tabIndex = -1;
    answer.focus();
  };
  document.title = say("page.title");
  document.documentElement.lang = language === "zh" ? "zh-Hans" : "en";
}

function onTabKey(event, name) {
  const by = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
  if (!by) return;
  event.preventDefault();
  const next = TABS[(TABS.indexOf(name) + by + TABS.length) % TABS.length];
  choose(next);
  document.getElementById(`tab-${next}`).focus();
}

function choose(name) {
  state.tab = name;
  for (const one of TABS) {
    const chosen = one === name;
    const button = document.getElementById(`tab-${one}`);
    button.ariaSelected = String(chosen);
    button.tabIndex = chosen ? 0 : -1;
    document.getElementById(`panel-${one}`).hidden = !chosen;
  }
  tabs[name].set?.();
  tabs[name].refresh();
  writeAddress();
}

function build() {
  popover?.close();
  header();
  const given = { catalogue, say, changed: writeAddress, redrawn: () => popover?.refresh() };
  tabs = { plan: planner(given), calc: calculator(given), compare: compare(given) };
  const [{ figures, more }, { rows }] = [tabs.plan, tabs.compare];
  popover = formulaPopover(() => ({ ...figures(), rows: rows(), say }), more);
  for (const name of TABS) show(document.getElementById(`panel-${name}`), tabs[name].node);
  choose(state.tab);
}

async function setLanguage(code) {
  language = code;
  store("language", code);
  say = await words(code);
  build();
  document.getElementById(`language-${code}`).focus();
}

async function start() {
  setTheme(theme);
  await fromAddress(location.hash);
  [catalogue, say] = await Promise.all([get("/api/catalogue"), words(language)]);
  build();
  addEventListener("hashchange", async () => {
    if (location.hash === own || !TABS.some((name) => location.hash.startsWith(`#${name}`))) return;
    await fromAddress(location.hash);
    build();
  });
}

try {
  await start();
} catch (problem) {
  if (!(problem instanceof Refusal)) throw problem;
  const plain = (key) => ({ "page.offline": "The server does not answer", "page.offline.next": "Is `rooflens web` still running? Load the page again when it is." })[key] ?? key;
  const box = errorBox(plain);
  box.set(problem.error);
  show(document.getElementById("panel-plan"), box.node);
}
