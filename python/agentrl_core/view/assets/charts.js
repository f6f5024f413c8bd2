// Curves over iterations, and histograms whose bins can be chosen.

import { h, number, s } from "./dom.js";

const [WIDTH, HEIGHT, LEFT, RIGHT, TOP, BOTTOM] = [280, 96, 6, 6, 10, 14];

function extent(values) {
  const known = values.filter(Number.isFinite);
  let [low, high] = [Math.min(...known), Math.max(...known)];
  if (low === high) [low, high] = [low - (Math.abs(low) || 1) * 0.1, high + (Math.abs(high) || 1) * 0.1];
  return [low, high];
}

// A card with a curve. `points` are [iteration, value]; `choose` is called with the iteration of a point.
export function curve({ name, meaning, points, choose }) {
  const known = points.filter(([, value]) => Number.isFinite(value ?? NaN));
  const last = known.at(-1)?.[1];
  const value = h("output", {}, number(last));
  const head = h("header", {}, h("h3", {}, name.replaceAll("_", " ")), value);
  if (known.length === 0) return h("figure", { class: "card curve", title: meaning }, head, h("p", { class: "missing" }, "never measured"));
  const [first, final] = [points[0][0], points.at(-1)[0]];
  const [low, high] = extent(known.map((point) => point[1]));
  const x = (iteration) => LEFT + ((WIDTH - LEFT - RIGHT) * (iteration - first)) / (final - first || 1);
  const y = (given) => TOP + ((HEIGHT - TOP - BOTTOM) * (high - given)) / (high - low);
  const line = known.map(([iteration, given], place) => `${place ? "L" : "M"}${x(iteration).toFixed(1)} ${y(given).toFixed(1)}`).join("");
  const floor = HEIGHT - BOTTOM;
  const area = `${line}L${x(known.at(-1)[0]).toFixed(1)} ${floor}L${x(known[0][0]).toFixed(1)} ${floor}Z`;
  const mark = s("circle", { r: 3.5, class: "mark", cx: x(known.at(-1)[0]), cy: y(last) });
  const rule = s("line", { class: "rule", y1: TOP - 6, y2: floor, x1: -9, x2: -9 });
  const dots = known.length <= 40 ? known.map(([iteration, given]) => s("circle", { r: 1.6, class: "dot", cx: x(iteration), cy: y(given) })) : [];
  const picture = s("svg", { viewBox: `0 0 ${WIDTH} ${HEIGHT}`, preserveAspectRatio: "none", role: "img", "aria-label": `${name}, iteration ${first} to ${final}` },
    s("path", { class: "area", d: area }), s("path", { class: "line", d: line }), dots, rule, mark);
  const nearest = (event) => {
    const box = picture.getBoundingClientRect();
    const at = ((event.clientX - box.left) / box.width) * WIDTH;
    return known.reduce((best, point) => (Math.abs(x(point[0]) - at) < Math.abs(x(best[0]) - at) ? point : best));
  };
  const point = ([iteration, given]) => {
    mark.setAttribute("cx", x(iteration));
    mark.setAttribute("cy", y(given));
    value.textContent = number(given);
  };
  picture.addEventListener("pointermove", (event) => {
    const found = nearest(event);
    point(found);
    rule.setAttribute("x1", x(found[0]));
    rule.setAttribute("x2", x(found[0]));
    value.textContent = `${number(found[1])} · iteration ${found[0]}`;
  });
  picture.addEventListener("pointerleave", () => {
    point(known.at(-1));
    rule.setAttribute("x1", -9);
    rule.setAttribute("x2", -9);
  });
  picture.addEventListener("click", (event) => choose(nearest(event)[0]));
  const ends = h("footer", {}, h("span", {}, number(first)), h("span", { class: "range" }, range(known)), h("span", {}, number(final)));
  return h("figure", { class: "card curve", title: meaning, data: { name } }, head, picture, ends);
}

function range(points) {
  const values = points.map((point) => point[1]);
  const [low, high] = [Math.min(...values), Math.max(...values)];
  return low === high ? "always the same" : `${number(low)} … ${number(high)}`;
}

// A card with a histogram. `range` is the chosen [from, to) or null; `choose` is called with the new one.
export function histogram({ name, values, range, choose }) {
  const known = values.filter((value) => Number.isFinite(value ?? NaN));
  const head = h("header", {}, h("h3", {}, name), range && h("button", { class: "link", onclick: () => choose(null) }, "clear"));
  if (known.length === 0) return h("figure", { class: "card histogram" }, head, h("p", { class: "missing" }, "not known"));
  const distinct = new Set(known).size;
  const [low, high] = extent(known);
  const bins = Math.min(16, Math.max(distinct === 1 ? 1 : distinct, 1));
  const width = (high - low) / bins;
  const counts = new Array(bins).fill(0);
  for (const value of known) counts[Math.min(bins - 1, Math.floor((value - low) / width))]++;
  const most = Math.max(...counts);
  const bars = counts.map((count, place) => {
    const from = low + place * width;
    const to = place === bins - 1 ? Infinity : from + width;
    const chosen = range !== null && range[0] === from;
    const label = `${number(from)} to ${number(from + width)}: ${count}`;
    return h("button", { class: `bin${chosen ? " chosen" : ""}`, title: label, "aria-label": `${name} ${label}`, "aria-pressed": String(chosen), onclick: () => choose(chosen ? null : [from, to]) },
      h("i", { style: { height: `${count ? Math.max(4, (100 * count) / most) : 0}%` } }));
  });
  return h("figure", { class: "card histogram", data: { name } }, head, h("div", { class: "bins" }, bars),
    h("footer", {}, distinct === 1 ? h("span", {}, `all ${number(known[0])}`) : [h("span", {}, number(low)), h("span", {}, number(high))]));
}
