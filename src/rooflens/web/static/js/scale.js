// Axes: values to pixels, and where ticks go.

/** A logarithmic axis from [low, high] to pixels [start, end]. */
export function logScale(low, high, start, end) {
  const span = Math.log10(high / low);
  const at = (value) => start + (Math.log10(value / low) / span) * (end - start);
  at.low = low;
  at.high = high;
  at.value = (pixel) => low * 10 ** (((pixel - start) / (end - start)) * span);
  return at;
}

/** Powers of ten within an axis, thinned to at most `most`. */
export function decades(low, high, most = 8) {
  const first = Math.ceil(Math.log10(low) - 1e-9);
  const last = Math.floor(Math.log10(high) + 1e-9);
  const step = Math.max(1, Math.ceil((last - first + 1) / most));
  const ticks = [];
  for (let power = first; power <= last; power += step) ticks.push(Number(`1e${power}`));
  return ticks;
}

/** Powers of two within an axis, thinned to at most `most`. */
export function octaves(low, high, most = 8) {
  const first = Math.ceil(Math.log2(low) - 1e-9);
  const last = Math.floor(Math.log2(high) + 1e-9);
  const step = Math.max(1, Math.ceil((last - first + 1) / most));
  const ticks = [];
  for (let power = first; power <= last; power += step) ticks.push(2 ** power);
  return ticks;
}

export const floorDecade = (value) => 10 ** Math.floor(Math.log10(value));
export const ceilDecade = (value) => 10 ** Math.ceil(Math.log10(value));

/** Pixels that text takes, on the generous side; full-width characters count double. */
export function textWidth(text, size = 12) {
  let width = 0;
  for (const character of text) width += character > "\u2e80" ? 1 : 0.56;
  return width * size;
}
