// Numbers in the units that people use, written as the command line writes them.

const SI = [[1e15, "P"], [1e12, "T"], [1e9, "G"], [1e6, "M"], [1e3, "k"]];
const COUNTS = [[1e12, "T"], [1e9, "B"], [1e6, "M"], [1e3, "k"]];
const IEC = { Ki: 2 ** 10, Mi: 2 ** 20, Gi: 2 ** 30, Ti: 2 ** 40 };
const DECIMAL = { "": 1, k: 1e3, K: 1e3, M: 1e6, G: 1e9, T: 1e12, P: 1e15, E: 1e18 };

/** Three digits, with thousands parted: 0.123, 13.5, 1,540. */
export function threeDigits(value) {
  if (!value) return "0";
  const rounded = Number(value.toPrecision(3));
  const digits = 2 - Math.floor(Math.log10(Math.abs(rounded)));
  const places = Math.max(0, Math.min(digits, 3));
  return rounded.toLocaleString("en-US", { minimumFractionDigits: places, maximumFractionDigits: places });
}

function scaled(value, unit, steps) {
  for (const [scale, prefix] of steps) {
    if (Math.abs(Number((value / scale).toPrecision(3))) >= 1) return `${threeDigits(value / scale)} ${prefix}${unit}`;
  }
  return `${threeDigits(value)} ${unit}`.trim();
}

export const formatBytes = (value) => scaled(value, "B", SI);
export const formatBandwidth = (value) => scaled(value, "B/s", SI);
export const formatFlops = (value) => scaled(value, "FLOP", SI);
export const formatRate = (value) => scaled(value, "FLOP/s", SI);
export const formatCount = (value) => scaled(value, "", COUNTS);
export const formatWhole = (value) => Math.round(value).toLocaleString("en-US");

/** A time: 6.61 ms, 43.2 µs. */
export function formatSeconds(value) {
  if (!value) return "0 s";
  const shown = Number(Math.abs(value).toPrecision(3));
  for (const [scale, unit] of [[1, "s"], [1e-3, "ms"], [1e-6, "µs"]]) {
    if (shown >= scale) return `${threeDigits(value / scale)} ${unit}`;
  }
  return `${threeDigits(value / 1e-9)} ns`;
}

/** A share of one as per cent: 6.1 %. */
export function formatShare(value) {
  const percent = value * 100;
  return `${percent.toFixed(percent >= 9.95 ? 0 : percent >= 0.95 ? 1 : 2)} %`;
}

/** The short form for an axis: 10T, 1k, 0.1. */
export function tick(value, unit = "") {
  const text = scaled(value, unit, SI).replace(/(\.\d*?)0+(?= |$)/, "$1").replace(/\.(?= |$)/, "");
  return text.trim();
}

/** "24 GB", "16GiB", "165 TFLOP/s" or "1e12" as a number; NaN for anything else. */
export function parseQuantity(text, unit) {
  const match = /^\s*([\d.,_]+(?:e[+-]?\d+)?)\s*(.*?)\s*$/i.exec(String(text));
  if (!match) return NaN;
  const number = Number(match[1].replaceAll(",", "").replaceAll("_", ""));
  const rest = match[2].endsWith(unit) ? match[2].slice(0, match[2].length - unit.length) : match[2];
  const scale = DECIMAL[rest] ?? IEC[rest] ?? NaN;
  const value = number * scale;
  return value > 0 && Number.isFinite(value) ? value : NaN;
}
