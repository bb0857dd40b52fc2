// A film of frames with a button and a slider. It does not start by itself if people asked for less motion.

const SECONDS = 1.1, STILL = 0.6; // of a frame, and the share of it that stands still
const less = matchMedia("(prefers-reduced-motion: reduce)");

/** names: of the frames.  show: draws a frame, given its number and how far it has turned into the next (0 to 1).
 *  Returns the controls and a function that stops it. */
export function film(names, show) {
  const row = document.createElement("p"), button = document.createElement("button");
  const label = document.createElement("label"), name = document.createElement("span"), slider = document.createElement("input");
  row.className = "buttons";
  label.className = "slider";
  button.type = "button";
  Object.assign(slider, { type: "range", min: 1, max: names.length, value: 1 });
  label.append(name, slider);
  row.append(button);
  let asked = 0, begun = 0, at = 0;

  const frame = (number, turned = 0) => {
    at = number;
    slider.value = number + 1;
    name.textContent = names[number];
    show(number, turned);
  };
  const say = () => {
    button.textContent = asked ? "pause" : "play";
    button.setAttribute("aria-pressed", String(Boolean(asked)));
  };
  const stop = () => {
    cancelAnimationFrame(asked);
    asked = 0;
    say();
  };
  const run = (now) => {
    begun ||= now - 1000 * SECONDS * at;
    const time = (now - begun) / 1000 / SECONDS, number = Math.floor(time) % names.length, part = time % 1;
    const isLast = number === names.length - 1;
    frame(number, less.matches || isLast ? 0 : Math.max(part - STILL, 0) / (1 - STILL));
    asked = requestAnimationFrame(run);
  };
  const play = () => {
    begun = 0;
    asked = requestAnimationFrame(run);
    say();
  };
  button.addEventListener("click", () => {
    if (!asked) play();
    else {
      stop();
      frame(at);
    }
  });
  slider.addEventListener("input", () => {
    stop();
    frame(Number(slider.value) - 1);
  });
  less.addEventListener("change", () => less.matches && stop());
  say();
  frame(0);
  if (!less.matches && names.length > 1) play();
  return { controls: [label, row], stop };
}
