"""What tests in real Chromium share: how it is begun, and which words cannot be read."""

from __future__ import annotations

import shutil

CHROMIUM = shutil.which("chromium") or shutil.which("google-chrome")
FLAGS = ["--no-sandbox", "--disable-gpu", "--no-first-run", "--disable-background-networking"]
FLAGS += ["--disable-component-update", "--disable-sync"]

CONTRAST = """() => {  // words whose contrast with their ground is below 4.5 (WCAG AA)
  const numbers = (text) => (text.match(/[\\d.]+/g) || []).map(Number);
  const linear = (v) => ((v /= 255) <= 0.03928 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4);
  const light = ([r, g, b]) => 0.2126 * linear(r) + 0.7152 * linear(g) + 0.0722 * linear(b);
  const ground = (e) => {
    if (!e) return [255, 255, 255];
    const colour = numbers(getComputedStyle(e).backgroundColor);
    return colour.length === 3 || colour[3] === 1 ? colour : ground(e.parentElement);
  };
  const speaks = (e) => [...e.childNodes].some((n) => n.nodeType === 3 && n.textContent.trim());
  const poor = [];
  const words = "p, li, label, button, h1, h2, h3, a, b, span, legend, figcaption, small, td, th, dt, dd, summary, pre";
  for (const e of document.querySelectorAll(words)) {
    if (!e.offsetParent || !speaks(e) || e.matches(":disabled, .unseen")) continue;
    const [a, b] = [light(numbers(getComputedStyle(e).color)), light(ground(e))];
    const ratio = (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05);
    if (ratio < 4.5) poor.push(`${e.tagName} ${e.textContent.trim().slice(0, 30)} ${ratio.toFixed(2)}`);
  }
  return poor;
}"""
