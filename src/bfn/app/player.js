// Steps through the films of both panels: each shows the frame that lies as far along its own calls.
window.bfnFilm = {
  films: () => [...document.querySelectorAll(".bfn-film")].map((film) => [...film.children]),
  slider: () => document.querySelector("#bfn-slider"),

  show(share) {
    for (const frames of this.films()) {
      const shown = Math.round(share * (frames.length - 1));
      frames.forEach((frame, i) => frame.classList.toggle("on", i === shown));
    }
  },

  // A step of the slider is a frame of the longer film.
  seek(value) {
    cancelAnimationFrame(this.running);
    const slider = this.slider();
    this.fit();
    this.show(Number(value) / Math.max(1, Number(slider.max)));
  },

  fit() {
    const slider = this.slider();
    slider.max = Math.max(1, ...this.films().map((frames) => frames.length - 1));
    return Number(slider.max);
  },

  play() {
    cancelAnimationFrame(this.running);
    const last = this.fit();
    const slider = this.slider();
    if (matchMedia("(prefers-reduced-motion: reduce)").matches) {
      slider.value = last;
      return this.show(1);
    }
    const length = Math.min(4000, 500 + 220 * last);
    const begun = performance.now();
    const next = (now) => {
      const share = Math.min(1, Math.max(0, (now - begun) / length));
      slider.value = Math.round(share * last);
      this.show(share);
      if (share < 1) this.running = requestAnimationFrame(next);
    };
    this.running = requestAnimationFrame(next);
  },
};
