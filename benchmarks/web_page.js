// Moves the sliders of the open page and returns how long each took until its result was on the screen.
async () => {
  const answer = document.querySelector("#verdict");
  /** Resolves once a changed answer has been painted: the task after the frame that the change falls in. */
  const painted = (before) => new Promise((done) => {
    const late = setTimeout(done, 5000);
    const watcher = new MutationObserver(() => {
      if (answer.textContent === before) return;
      watcher.disconnect();
      clearTimeout(late);
      requestAnimationFrame(() => {
        const { port1, port2 } = new MessageChannel();
        port1.onmessage = done;
        port2.postMessage(null);
      });
    });
    watcher.observe(answer, { childList: true, subtree: true, characterData: true });
  });
  const times = [];
  for (const name of ["batch", "prompt", "output", "context"]) {
    const slider = document.querySelector(`input[name=${name}-slider]`);
    const start = Number(slider.value);
    for (let move = 1; move <= 14; move += 1) {
      const value = move % 2 ? start - Math.ceil(move / 2) : start + move / 2 - 8;
      const next = Math.min(Math.max(value, Number(slider.min)), Number(slider.max));
      if (next === Number(slider.value)) continue;
      const seen = painted(answer.textContent);
      const began = performance.now();
      slider.value = next;
      slider.dispatchEvent(new Event("input", { bubbles: true }));
      await seen;
      times.push(performance.now() - began);
      await new Promise((rest) => setTimeout(rest, 30)); // a hand is not faster
    }
  }
  return times;
}
