// Taking results away: charts as PNG and SVG with their colours written in, data as CSV and JSON.

import { h } from "./dom.js";

const STYLES = ["fill", "stroke", "stroke-width", "stroke-dasharray", "stroke-linejoin", "opacity", "fill-opacity", "font-size", "font-weight", "font-family", "paint-order"];
const PNG_SCALE = 2;

/** Hand a file to the browser. */
export function save(name, content, type) {
  const url = URL.createObjectURL(content instanceof Blob ? content : new Blob([content], { type }));
  h("a", { href: url, download: name }).click();
  setTimeout(() => URL.revokeObjectURL(url), 10_000);
}

/** A chart as a document of its own: what style sheets say is written into the elements. */
export function standalone(svg, title) {
  const copy = svg.cloneNode(true);
  const originals = [svg, ...svg.querySelectorAll("*")];
  [copy, ...copy.querySelectorAll("*")].forEach((node, index) => {
    const style = getComputedStyle(originals[index]);
    for (const name of STYLES) {
      const value = style.getPropertyValue(name);
      if (value && value !== "none" || name === "fill" || name === "stroke") node.setAttribute(name, value);
    }
    node.removeAttribute("class");
    node.removeAttribute("data-formula");
  });
  const [width, height] = [Number(svg.getAttribute("width")), Number(svg.getAttribute("height"))];
  const style = getComputedStyle(svg);
  const background = getComputedStyle(svg.closest(".card") ?? document.body).backgroundColor;
  const head = 40;
  const root = svgElement("svg", { xmlns: "http://www.w3.org/2000/svg", width: width + 32, height: height + head + 16, viewBox: `0 0 ${width + 32} ${height + head + 16}` });
  const text = svgElement("text", { x: 16, y: 26, fill: style.color, "font-size": 15, "font-weight": 600, "font-family": style.fontFamily });
  text.textContent = title;
  const group = svgElement("g", { transform: `translate(16 ${head})` });
  group.append(...copy.childNodes);
  root.append(svgElement("rect", { width: "100%", height: "100%", fill: background }), text, group);
  return new XMLSerializer().serializeToString(root);
}

function svgElement(tag, attributes) {
  const node = document.createElementNS("http://www.w3.org/2000/svg", tag);
  for (const [name, value] of Object.entries(attributes)) node.setAttribute(name, value);
  return node;
}

export function saveSvg(svg, name, title) {
  save(`${name}.svg`, standalone(svg, title), "image/svg+xml");
}

export async function savePng(svg, name, title) {
  const text = standalone(svg, title);
  const url = URL.createObjectURL(new Blob([text], { type: "image/svg+xml" }));
  const image = new Image();
  image.src = url;
  await image.decode();
  const canvas = h("canvas", { width: image.width * PNG_SCALE, height: image.height * PNG_SCALE });
  canvas.getContext("2d").drawImage(image, 0, 0, canvas.width, canvas.height);
  URL.revokeObjectURL(url);
  const blob = await new Promise((done) => canvas.toBlob(done, "image/png"));
  save(`${name}.png`, blob, "image/png");
}

/** Columns of equal length as CSV. */
export function columnsCsv(columns) {
  const names = Object.keys(columns);
  const rows = columns[names[0]].map((_, i) => names.map((name) => columns[name][i]).join(","));
  return [names.join(","), ...rows, ""].join("\n");
}

/** Buttons that save a chart, and its data as CSV where `csv` gives it. */
export function chartTools({ chart, name, title, csv, say }) {
  const button = (text, label, work) => h("button", { type: "button", class: "tool", ariaLabel: label, title: label, on: { click: work } }, text);
  return h("div", { class: "tools" },
    button("PNG", say("chart.save.png"), () => savePng(chart(), name, title())),
    button("SVG", say("chart.save.svg"), () => saveSvg(chart(), name, title())),
    csv ? button("CSV", say("page.save.csv"), async () => save(`${name}.csv`, await csv(), "text/csv")) : null,
  );
}
