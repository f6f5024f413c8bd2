// Elements, numbers as text, and text that cannot do harm.

const SVG = "http://www.w3.org/2000/svg";

// An element. `given` holds attributes, listeners (onclick, ...), `class`, `style` (a table) and `data` (a table);
// children are elements or text, which stays text and is visible: names of a run come from anyone.
export function h(name, given = {}, ...children) {
  return fill(document.createElement(name), given, children);
}

export function s(name, given = {}, ...children) {
  return fill(document.createElementNS(SVG, name), given, children);
}

function fill(element, given, children) {
  for (const [name, value] of Object.entries(given)) {
    if (value === null || value === undefined || value === false) continue;
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else if (name === "style") Object.assign(element.style, value);
    else if (name === "data") Object.assign(element.dataset, value);
    else element.setAttribute(name, value === true ? "" : READ.has(name) && typeof value === "string" ? visible(value) : value);
  }
  element.append(...shown(children).filter((child) => child !== null && child !== undefined && child !== false));
  return element;
}

export function show(place, ...children) {
  place.replaceChildren(...shown(children).filter(Boolean));
}

const READ = new Set(["title", "aria-label", "placeholder", "alt", "value", "label"]);

function shown(children) {
  return children.flat(Infinity).map((child) => (typeof child === "string" ? visible(child) : child));
}

const UNKNOWN = "–";

export function number(value, digits = 3) {
  if (value === null || value === undefined || !Number.isFinite(value)) return UNKNOWN;
  if (Number.isInteger(value)) return value.toLocaleString("en");
  const size = Math.abs(value);
  if (size >= 1000) return Math.round(value).toLocaleString("en");
  if (size < 0.001) return value.toExponential(1).replace("-", "−");
  return value.toFixed(size >= 100 ? 1 : size >= 10 ? 2 : digits).replace("-", "−");
}

export function signed(value, digits = 3) {
  const text = number(value, digits);
  return value > 0 ? `+${text}` : text.replace("-", "−");
}

export function share(value) {
  return Number.isFinite(value ?? NaN) ? `${Math.round(100 * value)} %` : UNKNOWN;
}

// Letters that turn the direction of what follows, or that nobody sees: they are shown by their names instead.
// view/page.py has the same list for the title.
const HIDDEN = /[\u0000-\u0008\u000b-\u001f\u007f-\u009f\u00ad\u061c\u180e\u200b-\u200f\u2028-\u202e\u2060-\u206f\ud800-\udfff\ufeff\ufff9-\ufffb\u{e0000}-\u{e007f}]/gu;

export function visible(text) {
  return text.replace(HIDDEN, (letter) => {
    const code = letter.codePointAt(0);
    return code < 0x20 ? String.fromCodePoint(0x2400 + code) : `⟨U+${code.toString(16).toUpperCase().padStart(4, "0")}⟩`;
  });
}

export function download(name, text, type = "application/json") {
  const url = URL.createObjectURL(new Blob([text], { type }));
  h("a", { href: url, download: name }).click();
  setTimeout(() => URL.revokeObjectURL(url), 10_000);
}
