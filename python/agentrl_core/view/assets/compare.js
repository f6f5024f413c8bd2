// Members side by side, from where they part; and how a later prompt repeats what was sampled.

import { diverging } from "./colour.js";
import { h, number, signed, visible } from "./dom.js";
import { shared } from "./group.js";

const BEFORE = 12;
const MOST = 6000;

export function sideBySide(group, chosen, other, choose) {
  const run = group.run;
  const mine = group.contexts(chosen).at(-1);
  const theirs = other === null ? null : group.contexts(other).at(-1);
  const options = group.trajectories.filter((each) => each !== chosen).map((each) => h("option", { value: each.trajectory_id, selected: each === other }, `${each.trajectory_id}, reward ${number(each.reward, 2)}`));
  const select = h("select", { "aria-label": "compared with", onchange: (event) => choose(Number(event.target.value)) }, options);
  if (theirs === null) return h("p", { class: "missing" }, "The group has one member: there is nothing to compare it with.");
  const same = shared(mine, theirs);
  const most = Math.max(...[mine, theirs].flatMap((path) => Array.from(path.columns.advantage ?? []).filter(Number.isFinite).map(Math.abs)), 0);
  return h("section", { class: "sides" },
    h("p", { class: "bar" }, `Rollout ${chosen.trajectory_id} beside `, select, h("span", { class: "count" }, `the first ${number(same)} tokens are the same`)),
    h("div", { class: "columns" }, [[chosen, mine], [other, theirs]].map(([trajectory, path]) => side(run, trajectory, path, same, most))));
}

function side(run, trajectory, path, same, most) {
  const begin = Math.max(0, same - BEFORE);
  const pieces = run.pieces(path.columns.token.subarray(begin, Math.min(path.length, begin + MOST)));
  const spans = pieces.map((piece, place) => h("span", { class: begin + place < same ? "same" : null, style: { background: begin + place < same ? "" : diverging(path.columns.advantage?.[begin + place], most) } }, visible(piece)));
  const advantage = trajectory.draw?.advantage;
  return h("div", { class: "side" },
    h("header", {}, h("b", {}, `Rollout ${trajectory.trajectory_id}`), h("span", {}, `reward ${number(trajectory.reward)}`), Number.isFinite(advantage ?? NaN) && h("span", {}, `advantage ${signed(advantage)}`), h("span", {}, `${number(path.length)} tokens`)),
    rewardParts(trajectory),
    h("p", { class: "tokens" }, begin > 0 ? h("span", { class: "same" }, `… ${number(begin)} tokens … `) : "", spans, path.length > begin + MOST ? ` … ${number(path.length - begin - MOST)} more` : ""));
}

// Parts of a reward as bars.
function rewardParts(trajectory) {
  const parts = trajectory.rewards;
  if (!parts?.length) return null;
  const most = Math.max(...Array.from(parts, Math.abs), 1e-9);
  return h("div", { class: "parts" }, Array.from(parts, (part) => h("i", { title: number(part), style: { width: `${(100 * Math.abs(part)) / most}%`, background: diverging(part, most) } })));
}

// Every turn whose prompt has otherwise what was sampled before it: both texts, and the first token that differs.
export function driftPane(group, chosen) {
  const run = group.run;
  const contexts = group.contexts(chosen);
  const drifted = chosen.steps.filter((step) => step.drift !== null && step.drift > 0);
  const rewritten = group.nodes.filter((node) => node.origin_node_id !== null);
  if (drifted.length === 0 && rewritten.length === 0) {
    const known = chosen.steps.some((step) => step.drift !== null);
    return h("p", { class: "missing" }, known ? "No turn of this rollout drifted: every prompt repeats what was sampled, token for token." : "Not looked at: drift is known of rollouts that were recorded as messages, and this one was sampled as tokens.");
  }
  const of = (step) => contexts.find((path) => path.turns.some((turn) => turn.step === step));
  const cards = drifted.map((step) => {
    const [mine, before] = [of(step), of(chosen.steps[chosen.steps.indexOf(step) - 1])];
    const head = h("header", {}, h("b", {}, `Turn ${step.step}`), h("em", { class: "bad" }, run.word("drift", step.drift)));
    if (mine === undefined || before === undefined) return h("article", { class: "drift" }, head, h("p", { class: "missing" }, "The turn before it is not in the data."));
    const at = step.drift_at ?? shared(before, mine);
    const window = (path) => path.columns.token.subarray(Math.max(0, at - BEFORE), Math.min(path.length, at + 3 * BEFORE));
    head.append(h("span", {}, `the first other token is number ${number(at)}`));
    return h("article", { class: "drift" }, head, pair("as it was sampled", run, window(before), at), pair(`in the prompt of turn ${step.step}`, run, window(mine), at));
  });
  const rewrites = rewritten.filter((node) => group.node.has(node.origin_node_id)).map((node) => {
    const origin = group.node.get(node.origin_node_id);
    let at = 0;
    while (at < Math.min(origin.tokens.length, node.tokens.length) && origin.tokens[at] === node.tokens[at]) at++;
    return h("article", { class: "drift" }, h("header", {}, h("b", {}, `Node ${node.node_id}`), h("em", {}, `rewrite of ${origin.node_id}`), h("span", {}, `first other token: ${number(at)}`)),
      pair("as it was", run, origin.tokens.subarray(Math.max(0, at - BEFORE), at + 3 * BEFORE), at), pair("as it is repeated", run, node.tokens.subarray(Math.max(0, at - BEFORE), at + 3 * BEFORE), at));
  });
  return h("section", { class: "drifts" }, cards, rewrites);
}

function pair(title, run, tokens, at) {
  const before = Math.min(at, BEFORE);
  return h("div", { class: "pair" }, h("small", {}, title), h("p", { class: "tokens" }, run.pieces(tokens).map((piece, place) => h("span", { class: place < before ? "same" : place === before ? "first" : null, title: String(tokens[place]) }, visible(piece)))));
}
