// Building elements: HTML with h, SVG with s. Text is always set as text, never parsed.

const SVG = "http://www.w3.org/2000/svg";

function fill(node, props, children) {
  for (const [name, value] of Object.entries(props ?? {})) {
    if (value === null || value === undefined || value === false) continue;
    if (name === "on") {
      for (const [event, listener] of Object.entries(value)) node.addEventListener(event, listener);
    } else if (name in node && !(node instanceof SVGElement) && name !== "list" && name !== "form") {
      node[name] = value;
    } else {
      node.setAttribute(name, value === true ? "" : value);
    }
  }
  node.append(...children.flat(Infinity).filter((child) => child !== null && child !== undefined && child !== false));
  return node;
}

/** An HTML element: properties, attributes, `on` listeners; children may be nested lists, text or nothing. */
export function h(tag, props, ...children) {
  return fill(document.createElement(tag), props, children);
}

/** An SVG element. */
export function s(tag, props, ...children) {
  return fill(document.createElementNS(SVG, tag), props, children);
}

let count = 0;

/** An id that no other element has. */
export function newId(prefix) {
  count += 1;
  return `${prefix}-${count}`;
}

/** Replace what a container holds. */
export function show(container, ...children) {
  container.replaceChildren(...children.flat(Infinity).filter((child) => child !== null && child !== undefined));
}
