// The run: its health, and curves over iterations.

import { curve } from "./charts.js";
import { h, number } from "./dom.js";

const SAYS = {
  success: "mean success of the iteration's trajectories, if known",
  reward: "mean reward of the iteration's trajectories, if known",
  left_out: "trajectories of the iteration that no iteration drew",
  drawn_success: "mean success of a draw, if known",
  drawn_reward: "mean reward of a draw",
  same_reward: "share of groups whose draws all have the same score: they teach nothing",
  entropy: "mean entropy of a generated token, in nats",
  turns: "mean number of turns of a draw",
  action_length: "mean number of tokens in the actions of a draw",
  length: "mean number of tokens of a draw, prompt and observations included",
  sharing: "tokens of the draws over tokens stored for them",
  staleness: "how many updates old the weights were that generated a token, on average, if they are known",
  tool_errors: "share of tool calls that failed",
};
const FIRST = 12;

export function health(run, go) {
  const last = run.iterations.at(-1)?.iteration;
  const chips = run.about.signs.map((sign) =>
    h("button", {
      class: `sign ${sign.level}`, title: sign.filter ? `${sign.value} ${sign.says}: show the groups` : `${sign.value} ${sign.says}`, data: { name: sign.name },
      onclick: () => go(sign.filter ? { all: true, filter: sign.filter } : { iteration: last }),
    }, h("b", {}, sign.value), h("span", {}, sign.name), h("small", {}, sign.says)));
  return h("section", { class: "health", "aria-label": "Health of the latest iterations" }, chips);
}

export function overview(run, go) {
  const iterations = run.iterations;
  if (iterations.length === 0) return h("p", { class: "missing" }, "This run has no iterations yet.");
  const choose = (iteration) => go({ iteration });
  const own = Object.keys(SAYS).map((name) => curve({ name, says: SAYS[name], choose, points: iterations.map((row) => [row.iteration, row[name]]) }));
  const measured = new Map();
  for (const { iteration, name, value } of run.metrics) {
    if (SAYS[name]) continue;
    if (!measured.has(name)) measured.set(name, []);
    measured.get(name).push([iteration, value]);
  }
  const others = [...measured].sort().map(([name, points]) => curve({ name, says: "measured when the iteration was closed", choose, points: points.sort((one, other) => one[0] - other[0]) }));
  const total = run.groups.reduce((sum, group) => sum + group.tokens, 0);
  const facts = [
    [number(run.about.closed), "iterations closed"], [number(run.groups.length), "groups"],
    [number(run.groups.reduce((sum, group) => sum + (group.members ?? 0), 0)), "rollouts"], [number(total), "tokens stored"],
  ];
  return h("main", { class: "overview" },
    health(run, go),
    h("p", { class: "facts" }, facts.map(([value, name]) => h("span", {}, h("b", {}, value), ` ${name}`))),
    leftOut(run),
    h("h2", {}, "How training went", h("small", {}, "click a point to see the groups behind it")),
    h("section", { class: "curves" }, own, others.slice(0, FIRST)),
    others.length > FIRST && h("details", {}, h("summary", {}, `${others.length - FIRST} more numbers`), h("section", { class: "curves" }, others.slice(FIRST))),
  );
}

function leftOut(run) {
  const missing = run.groups.filter((group) => group.block < 0);
  if (missing.length === 0) return null;
  const iterations = missing.map((group) => group.iteration);
  return h("p", { class: "note" },
    `The tokens of ${number(missing.length)} groups are not in this page (iterations ${Math.min(...iterations)} to ${Math.max(...iterations)}). ` +
    `agentrl view RUN --iterations ${Math.min(...iterations)}:${Math.max(...iterations) + 1} makes one with them.`);
}
