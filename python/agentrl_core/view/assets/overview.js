// The run: its health, and curves over iterations.

import { curve } from "./charts.js";
import { h, number } from "./dom.js";

// The meaning of each curve that the page computes.
const MEANINGS = {
  success: "mean success of the iteration's trajectories, if known",
  reward: "mean reward of the iteration's trajectories, if known",
  left_out: "trajectories of the iteration that no iteration drew",
  drawn_success: "mean success of a draw, if known",
  drawn_reward: "mean reward of a draw",
  same_reward: "share of groups whose draws all have the same score, so that they train nothing",
  entropy: "mean entropy of a generated token, in nats",
  turns: "mean number of turns of a draw",
  action_length: "mean number of tokens in the actions of a draw",
  length: "mean number of tokens of a draw, prompt and observations included",
  sharing: "tokens of the draws over tokens stored for them",
  staleness: "how many updates old the weights were that generated a token, on average, if they are known",
  tool_errors: "share of tool calls that failed",
};

// The groups of curves, in the order in which a trainer looks at them. A name or a pattern names the curves of a group.
const GROUPS = [
  ["Outcome", ["success", "reward", "drawn_success", "drawn_reward", "same_reward", /^success@/, "score"]],
  ["Learning", [/(^|\.)loss$/, /(^|\.)grad(ient)?_norm$/, /(^|[._])kl($|[@_])/, /clip_fraction/, /(^|\.)ratio($|@)/, "entropy", /entropy/]],
  ["Tokens", ["length", "action_length", "turns", "sharing", "staleness", /^tokens\./]],
  ["Failures", ["tool_errors", "left_out", /^collect\.(failed|unscored|abandoned)$/, /(^|[._])(failed|skipped|excluded)$/]],
];
const OTHERS = "Other numbers";

// The meaning of metrics that the training loop reports.
const OF_METRICS = {
  loss: "loss of an optimizer step, on average",
  gradient_norm: "norm of the policy's gradient before clipping, on average over optimizer steps",
  approximate_kl: "estimate of the KL divergence from the old policy, that of the ratio, to the current one, in nats per token",
  clip_fraction: "share of tokens whose probability ratio is outside the clipping bound",
};

export function health(run, go) {
  const last = run.iterations.at(-1)?.iteration;
  const chips = run.about.signs.map((sign) =>
    h("button", {
      class: `sign ${sign.level}`, title: sign.filter ? `${sign.value} ${sign.meaning}: show the groups` : `${sign.value} ${sign.meaning}`, data: { name: sign.name },
      onclick: () => go(sign.filter ? { all: true, filter: sign.filter } : { iteration: last }),
    }, h("b", {}, sign.value), h("span", {}, sign.name), h("small", {}, sign.meaning)));
  return h("section", { class: "health", "aria-label": "Health of the latest iterations" }, chips);
}

export function overview(run, go) {
  const iterations = run.iterations;
  if (iterations.length === 0) return h("p", { class: "missing" }, "This run has no iterations yet.");
  const choose = (iteration) => go({ iteration });
  const series = new Map(Object.keys(MEANINGS).map((name) => [name, iterations.map((row) => [row.iteration, row[name]])]));
  // Draws of the own iteration only: their means are those of its trajectories.
  for (const name of ["success", "reward"]) {
    if (iterations.every((row) => row[`drawn_${name}`] === row[name])) series.delete(`drawn_${name}`);
  }
  for (const { iteration, name, value } of run.metrics) {
    if (MEANINGS[name]) continue;
    if (!series.has(name)) series.set(name, []);
    series.get(name).push([iteration, value]);
  }
  for (const points of series.values()) points.sort((one, other) => one[0] - other[0]);
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
    grouped([...series.keys()].sort()).map(([title, names]) => section(title, names, series, choose)),
  );
}

// The names of each group, in the order of its patterns; all others come last.
function grouped(names) {
  const left = new Set(names);
  const matches = (pattern, name) => (typeof pattern === "string" ? pattern === name : pattern.test(name));
  const groups = GROUPS.map(([title, patterns]) => {
    const mine = patterns.flatMap((pattern) => names.filter((name) => left.has(name) && matches(pattern, name) && left.delete(name)));
    return [title, mine];
  });
  return [...groups, [OTHERS, names.filter((name) => left.has(name))]].filter(([, mine]) => mine.length > 0);
}

// The curves of a group. Numbers that never change, or were never measured, share one row.
function section(title, names, series, choose) {
  const flat = names.filter((name) => isFlat(series.get(name)));
  const cards = names.filter((name) => !flat.includes(name))
    .map((name) => curve({ name, meaning: MEANINGS[name] ?? OF_METRICS[name] ?? "metric of the training loop, at the end of the iteration", choose, points: series.get(name) }));
  const same = flat.map((name) => h("span", { title: MEANINGS[name] ?? OF_METRICS[name] ?? "", data: { name } }, h("b", {}, number(series.get(name).at(-1)?.[1])), ` ${name.replaceAll("_", " ")}`));
  const content = [cards.length > 0 && h("section", { class: "curves" }, cards), same.length > 0 && h("p", { class: "facts constant" }, "Constant:", same)];
  if (title === OTHERS) return h("details", { class: "curve-group" }, h("summary", {}, `${names.length} other numbers`), content);
  return h("section", { class: "curve-group", data: { name: title } }, h("h3", {}, title), content);
}

function isFlat(points) {
  const known = points.map(([, value]) => value).filter((value) => Number.isFinite(value ?? NaN));
  return points.length > 1 && (known.length === 0 || (known.length === points.length && known.every((value) => value === known[0])));
}

function leftOut(run) {
  const missing = run.groups.filter((group) => group.block < 0);
  if (missing.length === 0) return null;
  const iterations = missing.map((group) => group.iteration);
  return h("p", { class: "note" },
    `The tokens of ${number(missing.length)} groups are not in this page (iterations ${Math.min(...iterations)} to ${Math.max(...iterations)}). ` +
    `agentrl view RUN --iterations ${Math.min(...iterations)}:${Math.max(...iterations) + 1} makes one with them.`);
}
