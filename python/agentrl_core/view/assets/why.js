// Why an advantage is what it is: the members, the baseline, the formula, the numbers.

import { diverging } from "./colour.js";
import { h, number, show, signed } from "./dom.js";

export function why(group, chosen, choose) {
  const { draw } = chosen;
  if (draw === null) return h("div", { class: "why" }, h("p", { class: "missing" }, "This rollout was not drawn: no batch trained it, so it has no advantage."));
  const members = group.trajectories.filter((each) => each.draw !== null && each.draw.iteration === draw.iteration && each.draw.group_id === draw.group_id);
  const score = (each) => each.draw.score ?? each.reward;
  const voters = members.filter((each) => each.draw.votes && Number.isFinite(score(each) ?? NaN));
  const values = voters.map(score);
  const mean = values.reduce((sum, value) => sum + value, 0) / values.length;
  const most = Math.max(...members.flatMap(advantageOf).map(Math.abs), 0);
  const reach = Math.max(...values.map((value) => Math.abs(value - mean)), 1e-9);
  const same = values.length > 1 && values.every((value) => value === values[0]);
  const rows = members.map((each) => h("tr", { class: each === chosen ? "chosen" : null, onclick: () => choose(each), data: { trajectory: each.trajectory_id } },
    h("td", {}, String(each.trajectory_id)), h("td", {}, number(score(each), 3), each.draw.votes ? "" : h("small", {}, " no vote")),
    h("td", { class: "away" }, bar(score(each) - mean, reach)),
    h("td", { class: "advantage" }, h("span", { style: { background: diverging(advantageOf(each)[0], most) } }, advantageOf(each).map((value) => signed(value, 2)).join(" … ") || "–"))));
  const recipe = group.run.recipe(draw.iteration);
  const links = recipe?.phases?.advantage ?? [];
  const numbers = links.length === 1 ? inNumbers(links[0], score(chosen), values, draw.advantage) : null;
  return h("div", { class: "why" },
    same && h("p", { class: "banner" }, "All scores of this group are the same: whatever the formula, nothing is learnt from it."),
    h("table", {}, h("thead", {}, h("tr", {}, ["member", "score", "from mean", "advantage"].map((name) => h("th", {}, name)))), h("tbody", {}, rows)),
    h("p", { class: "facts" }, h("span", {}, h("b", {}, number(mean)), " mean"), h("span", {}, h("b", {}, number(spread(values, 1))), " std"), h("span", {}, h("b", {}, number(values.length)), " votes")),
    numbers,
    recipe === null ? h("p", { class: "missing" }, "The run does not say by which recipe it was made.") : chain(recipe));
}

// The advantage of a member: one number, or the least and the largest of its steps or tokens.
function advantageOf(member) {
  if (Number.isFinite(member.draw?.advantage ?? NaN)) return [member.draw.advantage];
  const values = member.computed.flatMap((row) => (typeof row.advantage === "number" ? [row.advantage] : Array.from(row.advantage ?? []))).filter(Number.isFinite);
  if (values.length === 0) return [];
  const [low, high] = [Math.min(...values), Math.max(...values)];
  return low === high ? [low] : [low, high];
}

function bar(value, reach) {
  const part = Math.min(50, (50 * Math.abs(value)) / reach);
  return h("i", { style: { left: value < 0 ? `${50 - part}%` : "50%", width: `${part}%`, background: diverging(value, reach) } });
}

function spread(values, ddof) {
  const mean = values.reduce((sum, value) => sum + value, 0) / values.length;
  if (values.length <= ddof) return NaN;
  return Math.sqrt(values.reduce((sum, value) => sum + (value - mean) ** 2, 0) / (values.length - ddof));
}

// The formula with its numbers, for links that compare a draw's score with its group, checked against what is stored.
function inNumbers({ component, options }, score, values, stored) {
  const plain = component === "GroupRelative" && options.column === "score" && options.level === "draw" && options.group_by === "group_id" && !options.scale_by && options.voter === "row";
  if (!plain || !["mean", "leave_one_out"].includes(options.center) || !["std", "none"].includes(options.scale) || !Number.isFinite(score ?? NaN)) return null;
  const count = values.length;
  const mean = values.reduce((sum, value) => sum + value, 0) / count;
  const centre = options.center === "mean" ? mean : (mean * count - score) / (count - 1);
  const scaled = options.scale === "std";
  const divisor = scaled ? Math.max(Math.sqrt(spread(values, options.ddof) ** 2 + options.variance_eps), options.scale_at_least) + options.eps : 1;
  const equal = values.every((value) => value === values[0]);
  const made = equal ? 0 : (options.coefficient * (score - centre)) / divisor;
  const agrees = Math.abs(made - stored) <= 1e-4 * Math.max(1, Math.abs(stored));
  const name = options.center === "mean" ? "mean" : "mean of the others";
  return h("div", { class: "formula" },
    h("p", {}, "advantage = ", fraction(`score − ${name}`, scaled ? `std + ${small(options.eps)}` : null)),
    h("p", {}, "= ", fraction(`${number(score)} − ${number(centre)}`, scaled ? `${number(divisor - options.eps)} + ${small(options.eps)}` : null), " = ", h("b", {}, signed(made))),
    agrees ? h("p", { class: "agrees" }, `✓ as stored: ${signed(stored)}`) : h("p", { class: "differs" }, `stored is ${number(stored)}: more than this formula made it`));
}

function small(value) {
  return value > 0 && value < 0.001 ? value.toExponential() : String(value);
}

function fraction(above, below) {
  return below === null ? h("span", {}, `(${above})`) : h("span", { class: "fraction" }, h("span", {}, above), h("span", {}, below));
}

function chain(recipe) {
  return h("details", { open: true }, h("summary", {}, `Recipe ${recipe.name}`, h("small", {}, ` ${recipe.source}`)),
    Object.entries(recipe.phases).filter(([, links]) => links.length).map(([phase, links]) => [h("h4", {}, phase), links.map((link) => h("div", { class: "link" },
      h("b", {}, link.component), h("p", {}, link.purpose), link.formula && h("pre", {}, link.formula), h("p", { class: "options" }, Object.entries(link.options).filter(([, value]) => typeof value !== "object").map(([name, value]) => h("code", {}, `${name}=${value}`)))))]));
}

export function whyPane(group, chosen, choose) {
  const place = h("div", {});
  show(place, why(group, chosen, choose));
  return place;
}
