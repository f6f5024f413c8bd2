// Colours of values, safe for those who see red and green alike: what can be shown over a text, and its legend.

import { h, number } from "./dom.js";

const POSITIVE = [31, 111, 178];
const NEGATIVE = [214, 96, 30];
const STRONG = [126, 87, 194];
const KINDS = [
  [127, 127, 127],
  [31, 111, 178],
  [196, 148, 20],
  [126, 87, 194],
];
export const DRIFTS = [
  [90, 160, 120],
  [196, 148, 20],
  [214, 96, 30],
  [126, 87, 194],
  [178, 60, 90],
];

// A colour behind text: the page shines through, so that it serves light and dark.
export function wash([red, green, blue], strength) {
  return strength <= 0 ? "transparent" : `rgba(${red}, ${green}, ${blue}, ${strength.toFixed(3)})`;
}

export function diverging(value, most) {
  if (!Number.isFinite(value) || value === 0 || most === 0) return "transparent";
  const strength = 0.1 + 0.5 * Math.min(1, Math.abs(value) / most);
  return wash(value > 0 ? POSITIVE : NEGATIVE, strength);
}

// The same as a full colour, for shapes that lie on paper of their own.
export function solid(value, most) {
  return Number.isFinite(value) && value !== 0 && most > 0 ? diverging(value, most) : null;
}

const LABELS = {
  advantage: ["Advantage", "above or below the baseline"],
  logprobs: ["Log-prob", "of the token as it was sampled, nats"],
  entropies: ["Entropy", "of the distribution it was sampled from, nats"],
  mismatch: ["Mismatch", "log-prob of the model that was asked minus that of the sampler, nats"],
};

function quantile(values, share) {
  const sorted = Array.from(values).filter(Number.isFinite).sort((one, other) => one - other);
  return sorted.length ? sorted[Math.min(sorted.length - 1, Math.floor(share * sorted.length))] : 0;
}

// What can be shown over the text of a path, in the order of the menu.
export function overlays(run, path) {
  const { columns } = path;
  const found = [{ name: "text", label: "Text", unit: "tokens as they are", colour: () => "transparent", legend: () => [] }];
  const numbers = Object.keys(columns).filter((name) => columns[name] instanceof Float64Array && !["version", "drift"].includes(name));
  numbers.sort((one, other) => rank(one) - rank(other));
  for (const name of numbers) found.push(ofNumbers(name, columns[name]));
  const mine = (name, label, unit, values, names, colours) => found.push(ofNames(name, label, unit, values, names, colours));
  mine("mask", "Mask", "what is trained", columns.trained, ["not trained", "trained"], [[127, 127, 127], POSITIVE]);
  mine("kind", "Source", "who wrote it", columns.kind, run.about.codes.kind, KINDS);
  const versions = [...new Set(columns.version)].filter(Number.isFinite).sort((one, other) => one - other);
  const places = Float64Array.from(columns.version, (version) => (Number.isFinite(version) ? versions.indexOf(version) : NaN));
  const bands = versions.map((_, place) => (place % 2 ? STRONG : POSITIVE));
  mine("version", "Version", "of the weights that sampled it", places, versions.map((version) => `version ${version}`), bands);
  if (columns.drift.some(Number.isFinite)) mine("drift", "Drift", "how a later prompt repeats it", columns.drift, run.about.codes.drift, DRIFTS);
  return found;
}

function rank(name) {
  const place = ["advantage", "logprobs", "entropies", "mismatch"].indexOf(name);
  return place < 0 ? 9 : place;
}

function ofNumbers(name, values) {
  const [label, unit] = LABELS[name] ?? [name[0].toUpperCase() + name.slice(1).replaceAll("_", " "), "computed for each token"];
  const isSigned = name === "advantage" || name.startsWith("mismatch") || (quantile(values, 0.02) < 0 && quantile(values, 0.98) > 0);
  const isLogProb = name.includes("logprob");
  const most = Math.max(...[0.01, 0.99].map((part) => Math.abs(quantile(values, part)))) || 1;
  if (isSigned) {
    return {
      name, label, unit, values,
      colour: (place) => diverging(values[place], most),
      legend: () => [gradient((part) => diverging((2 * part - 1) * most, most), `−${number(most)}`, `+${number(most)}`)],
    };
  }
  const least = isLogProb ? 0 : Math.min(0, quantile(values, 0.01));
  const size = (value) => Math.min(1, Math.abs(value - least) / (most - (isLogProb ? 0 : least) || 1));
  return {
    name, label, unit, values,
    colour: (place) => (Number.isFinite(values[place]) ? wash(STRONG, 0.04 + 0.7 * size(values[place])) : "transparent"),
    legend: () => [gradient((part) => wash(STRONG, 0.04 + 0.7 * part), number(least), isLogProb ? `−${number(most)}` : number(most))],
  };
}

function ofNames(name, label, unit, values, names, colours) {
  return {
    name, label, unit, values,
    said: (place) => names[values[place]] ?? "–",
    colour: (place) => (Number.isFinite(values[place]) ? wash(colours[values[place] % colours.length], 0.3) : "transparent"),
    legend: () => names.map((each, code) => h("span", { class: "key" }, h("i", { style: { background: wash(colours[code % colours.length], 0.3) } }), each)),
  };
}

function gradient(colour, low, high) {
  const stops = Array.from({ length: 11 }, (_, place) => colour(place / 10)).join(", ");
  return h("span", { class: "key wide" }, low, h("i", { style: { background: `linear-gradient(to right, ${stops})` } }), high);
}
