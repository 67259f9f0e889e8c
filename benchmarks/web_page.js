// Moves the sliders of the open page and returns how long each took until its result was on the screen.
async () => {
  const frame = () => new Promise((done) => requestAnimationFrame(() => setTimeout(done)));
  const shown = () => document.querySelector("#verdict").textContent;
  const times = [];
  for (const name of ["batch", "prompt", "output", "context"]) {
    const slider = document.querySelector(`input[name=${name}-slider]`);
    const start = Number(slider.value);
    for (let move = 1; move <= 14; move += 1) {
      const before = shown();
      const value = move % 2 ? start - Math.ceil(move / 2) : start + move / 2 - 8;
      const next = Math.min(Math.max(value, Number(slider.min)), Number(slider.max));
      if (next === Number(slider.value)) continue;
      const began = performance.now();
      slider.value = next;
      slider.dispatchEvent(new Event("input", { bubbles: true }));
      while (shown() === before && performance.now() - began < 5000) await frame();
      await frame(); // painted
      times.push(performance.now() - began);
    }
  }
  return times;
}
