// One pop-up for the formulas: opened by any button with data-formula, kept true while the case changes.

import { h, show } from "./dom.js";
import { explain } from "./formulas.js";

/** A pop-up over `context()` (see explain) with its `say`; `onMore(what)` opens further detail. */
export function formulaPopover(context, onMore) {
  const body = h("div", { class: "formula-body" });
  const box = h("div", { id: "formula", popover: "auto", role: "dialog", tabIndex: -1 }, body);
  document.body.append(box);
  let key = null;
  let opener = null;

  function draw() {
    const now = context();
    const { say } = now;
    const told = key ? explain(key, now, say) : null;
    if (!told) return false;
    box.setAttribute("aria-label", told.title);
    show(body,
      h("header", {}, h("h3", {}, told.title), h("span", { class: `kind kind-${told.kind}`, title: say.term("evidence", `${told.kind}.meaning`) }, say.term("evidence", told.kind)),
        h("button", { type: "button", class: "close", ariaLabel: say("page.close"), on: { click: () => box.hidePopover() } }, "×")),
      h("p", { class: "formula-line" }, told.formula),
      h("ol", { class: "steps" }, told.steps.map((step) => h("li", {}, step))),
      h("p", { class: "quiet" }, `${say("page.exact")}: `, h("span", { class: "number" }, told.exact)),
      h("p", { class: "quiet" }, say.term("evidence", `${told.kind}.meaning`)),
      told.source ? h("p", { class: "quiet" }, `${say("page.source")}: ${told.source}`) : null,
      told.more ? h("button", { type: "button", class: "link", on: { click: () => { box.hidePopover(); onMore(told.more); } } }, say(`page.more.${told.more}`)) : null,
    );
    return true;
  }

  function place() {
    const anchor = opener.isConnected ? opener : document.querySelector(`[data-formula="${CSS.escape(key)}"]`) ?? opener;
    const near = anchor.getBoundingClientRect();
    const { offsetWidth: width, offsetHeight: height } = box;
    const left = Math.min(Math.max(8, near.left), Math.max(8, document.documentElement.clientWidth - width - 8));
    const below = near.bottom + 6 + height < innerHeight || near.top < height + 12;
    box.style.left = `${left}px`;
    box.style.top = `${Math.max(8, below ? Math.min(near.bottom + 6, innerHeight - height - 8) : near.top - height - 6)}px`;
  }

  document.addEventListener("click", (event) => {
    const button = event.target.closest?.("[data-formula]");
    if (!button) return;
    key = button.dataset.formula;
    opener = button;
    if (!draw()) return;
    box.showPopover();
    place();
    box.focus({ preventScroll: true });
  });
  box.addEventListener("toggle", (event) => {
    if (event.newState === "closed" && key) {
      // The button may have been drawn anew while the case changed.
      const anchor = opener.isConnected ? opener : document.querySelector(`[data-formula="${CSS.escape(key)}"]`);
      if (document.activeElement === document.body || box.contains(document.activeElement)) anchor?.focus({ preventScroll: true });
      key = null;
    }
  });
  return {
    refresh: () => { if (key && box.matches(":popover-open")) draw(); },
    close: () => box.remove(),
  };
}

/** A figure that tells how it comes about. */
export function figure(key, text, say, extra = "") {
  const button = h("button", { type: "button", class: `figure ${extra}`, title: say("page.how") }, text);
  button.dataset.formula = key;
  return button;
}
