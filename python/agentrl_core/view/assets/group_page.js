// A group: its tree above, the text of a path below, and why its advantage is what it is beside it.

import { driftPane, sideBySide } from "./compare.js";
import { download, h, number, share, show, visible } from "./dom.js";
import { Group } from "./group.js";
import { rewards } from "./iteration.js";
import { textPane, tokenFacts } from "./text.js";
import { tree } from "./tree.js";
import { whyPane } from "./why.js";

const TABS = { text: "Text", side: "Side by side", drift: "Drift" };

export async function groupPage(run, state, go) {
  const about = run.group.get(state.group);
  if (about === undefined) return { page: h("main", {}, h("p", { class: "missing" }, `This run has no group ${state.group}.`)) };
  const group = await Group.open(run, state.group);
  const title = h("h2", {}, `Group ${about.group_id}`, h("span", { class: "task" }, visible(about.task_id ?? "")), neighbours(run, about, go),
    h("small", {}, h("a", { href: `#i${about.iteration}` }, `iteration ${about.iteration}`), ` · ${number(about.members)} rollouts · solved ${share(about.success)} · `, rewards(about.rewards, about.reward)));
  if (group === null || group.nodes.length === 0) {
    return { page: h("main", { class: "group" }, title, h("p", { class: "note" }, `The tokens of this group are not in this page. agentrl view RUN --iterations ${about.iteration}:${about.iteration + 1} makes one with them.`)) };
  }
  const chosen = group.trajectory.get(state.trajectory) ?? group.trajectories[0];
  const choose = (trajectory, token = null) => trajectory && go({ group: group.id, trajectory: trajectory.trajectory_id, token, tab: state.tab });
  const contexts = group.contexts(chosen);
  const context = Math.min(state.context ?? contexts.length - 1, contexts.length - 1);
  const path = contexts[context];
  const facts = h("div", { class: "facts-of-token" });
  const tell = (place) => show(facts, tokenFacts(run, path, place));
  const point = (place, keep) => {
    tell(place);
    if (keep) go({ ...state, trajectory: chosen.trajectory_id, token: place, context: contexts.length > 1 ? context : null }, true);
  };
  const pane = textPane(run, path, { token: state.token, point });
  if (state.token !== null && state.token < path.length) tell(state.token);
  else show(facts, h("p", { class: "missing" }, "Point at a token: what is known of it stands here."));
  const tab = TABS[state.tab] ? state.tab : "text";
  const other = group.trajectory.get(state.other) ?? farthest(group, chosen);
  const bodies = {
    text: () => [
      contexts.length > 1 && h("div", { class: "contexts", role: "group", "aria-label": "Contexts" }, contexts.map((each, place) => h("button", { class: "tab", "aria-pressed": String(place === context), onclick: () => go({ ...state, trajectory: chosen.trajectory_id, context: place, token: null }) }, place === contexts.length - 1 ? "last context" : `context ${place + 1}`))),
      pane.pane,
    ],
    side: () => sideBySide(group, chosen, other, (id) => go({ ...state, trajectory: chosen.trajectory_id, other: id })),
    drift: () => driftPane(group, chosen),
  };
  const tabs = Object.entries(TABS).map(([name, label]) => h("button", { class: "tab", role: "tab", "aria-selected": String(name === tab), data: { tab: name }, onclick: () => go({ ...state, trajectory: chosen.trajectory_id, token: null, tab: name }) }, label));
  const copy = h("button", { class: "quiet", title: "the tokens of this path, for a program", onclick: () => navigator.clipboard?.writeText(JSON.stringify(Array.from(path.columns.token))) }, "Copy tokens");
  const save = h("button", { class: "quiet", title: "text, tokens and numbers of this path as JSON", onclick: () => exported(run, group, chosen, path) }, "Export path");
  const page = h("main", { class: "group" }, title,
    tree(group, { chosen, choose }),
    h("div", { class: "split" },
      h("article", { class: "reading" },
        h("nav", { class: "tabs", role: "tablist" }, tabs, h("span", { class: "spring" }), h("span", { class: "count" }, `rollout ${chosen.trajectory_id}, ${run.word("status", chosen.status)}`), copy, save),
        bodies[tab]()),
      h("aside", {}, h("h3", {}, "Why this advantage"), whyPane(group, chosen, choose), h("h3", {}, "This token"), facts, more(run, chosen))));
  return { page, group, chosen, path, spans: pane.spans, overlay: pane.next, choose };
}

// The member whose reward differs most: what one wants to see beside it.
function farthest(group, chosen) {
  const away = (each) => Math.abs((each.reward ?? 0) - (chosen.reward ?? 0));
  return group.trajectories.filter((each) => each !== chosen).reduce((best, each) => (best === null || away(each) > away(best) ? each : best), null);
}

function neighbours(run, about, go) {
  const near = run.groups.filter((group) => group.iteration === about.iteration).map((group) => group.group_id);
  const at = near.indexOf(about.group_id);
  const arrow = (to, sign, label) => h("button", { class: "arrow", title: label, disabled: near[to] === undefined, onclick: () => go({ group: near[to] }) }, sign);
  return h("span", { class: "arrows" }, arrow(at - 1, "‹", "the group before"), arrow(at + 1, "›", "the next group"));
}

function more(run, chosen) {
  const rows = [["episode", chosen.episode_id], ["agent", chosen.agent], ["status", run.word("status", chosen.status)], ["origin", run.word("origin", chosen.origin)], ["branch of", chosen.parent_trajectory],
    ["source of the draw", chosen.draw && run.word("source", chosen.draw.source)], ["old log-probs", chosen.draw && run.word("old_logprob", chosen.draw.old_logprob)], ["info", chosen.info], ["facts", chosen.facts]];
  return h("details", {}, h("summary", {}, "This rollout"), h("dl", {}, rows.filter(([, value]) => value !== null && value !== undefined).map(([name, value]) => [h("dt", {}, name), h("dd", {}, typeof value === "number" ? String(value) : visible(value))])));
}

function exported(run, group, chosen, path) {
  const columns = Object.fromEntries(Object.entries(path.columns).map(([name, values]) => [name, Array.from(values, (value) => (Number.isFinite(value) ? value : null))]));
  const made = { group_id: group.id, trajectory_id: chosen.trajectory_id, task_id: group.about.task_id, reward: chosen.reward, text: run.text(path.columns.token), columns };
  download(`${run.about.title}-rollout-${chosen.trajectory_id}.json`, JSON.stringify(made));
}
