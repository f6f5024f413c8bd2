// The groups of an iteration, or of all: filters, histograms whose bins are filters, and a table to choose from.

import { histogram } from "./charts.js";
import { diverging } from "./colour.js";
import { download, h, number, share, visible } from "./dom.js";
import { Group } from "./group.js";

const FILTERS = {
  same: ["same rewards", (group) => group.same_reward === 1],
  mixed: ["mixed rewards", (group) => group.same_reward === 0],
  solved: ["solved by some", (group) => group.success > 0],
  drifted: ["drift", (group) => group.drifted > 0],
  stale: ["stale", (group) => group.lag > 0],
  tool_errors: ["tool errors", (group) => group.tool_errors > 0],
  truncated: ["truncated", (group) => group.truncated > 0],
  failed: ["failed", (group) => group.failed > 0],
};
const HISTOGRAMS = { reward: "mean reward", length: "longest path", entropy: "entropy", largest_advantage: "largest advantage", lag: "staleness", turns: "turns" };
const COLUMNS = [
  ["group_id", "group"], ["iteration", "iteration"], ["task_id", "task"], ["rewards", "rewards"], ["reward", "mean"], ["success", "solved"], ["largest_advantage", "advantage"],
  ["generated", "generated"], ["length", "longest"], ["turns", "turns"], ["lag", "stale"], ["tool_errors", "errors"], ["drifted", "drift"],
];
const ROWS = 200;

// What was chosen, kept while one looks at groups and comes back.
const chosen = { filters: new Set(), ranges: {}, sort: ["group_id", 1], shown: ROWS, place: null };

export function iterationPage(run, state, go, again) {
  const place = state.all ? "all" : state.iteration;
  if (chosen.place !== place) Object.assign(chosen, { place, ranges: {}, shown: ROWS, filters: new Set() });
  if (state.filter && FILTERS[state.filter]) chosen.filters = new Set([state.filter]);
  const all = state.all ? run.groups : run.groups.filter((group) => group.iteration === state.iteration);
  const found = selected(all);
  const set = (change) => {
    change();
    again();
  };
  const chips = Object.entries(FILTERS).map(([name, [label, keeps]]) => {
    const count = all.filter(keeps).length;
    return h("button", {
      class: "chip", "aria-pressed": String(chosen.filters.has(name)), disabled: count === 0 && !chosen.filters.has(name), data: { filter: name },
      onclick: () => {
        if (chosen.filters.has(name)) chosen.filters.delete(name);
        else chosen.filters.add(name);
        if (state.filter) go({ ...state, filter: null });
        else again();
      },
    }, label, h("small", {}, number(count)));
  });
  const bars = Object.entries(HISTOGRAMS).map(([name, label]) =>
    histogram({ name: label, values: all.map((group) => group[name]), range: chosen.ranges[name] ?? null, choose: (range) => set(() => (chosen.ranges[name] = range)) }));
  const about = run.iterations.find((row) => row.iteration === state.iteration);
  return h("main", { class: "iteration" },
    h("h2", {}, state.all ? "All groups" : `Iteration ${state.iteration}`, steps(run, state, go),
      about && h("small", {}, `success ${share(about.success)} · reward ${number(about.reward)} · ${number(about.draws)} draws${recipeName(run, state)}`)),
    h("section", { class: "histograms" }, bars),
    h("div", { class: "chips" }, chips,
      h("span", { class: "spring" }),
      h("span", { class: "count", role: "status" }, `${number(found.length)} of ${number(all.length)} groups`),
      h("button", { class: "quiet", onclick: () => save(run, found), title: "the groups of this list with rewards, texts and tokens, as JSON" }, "Export selection")),
    table(run, found, state, go, set));
}

function recipeName(run, state) {
  const recipe = run.recipe(state.iteration);
  return recipe ? ` · recipe ${recipe.name}` : "";
}

function steps(run, state, go) {
  if (state.all) return null;
  const numbers = run.iterations.map((row) => row.iteration);
  const at = numbers.indexOf(state.iteration);
  const arrow = (to, sign, label) => h("button", { class: "arrow", title: label, disabled: numbers[to] === undefined, onclick: () => go({ iteration: numbers[to] }) }, sign);
  return h("span", { class: "arrows" }, arrow(at - 1, "‹", "the iteration before"), arrow(at + 1, "›", "the next iteration"));
}

function selected(groups) {
  let found = groups;
  for (const name of chosen.filters) found = found.filter(FILTERS[name][1]);
  for (const [name, range] of Object.entries(chosen.ranges)) {
    if (range) found = found.filter((group) => group[name] >= range[0] && group[name] < range[1]);
  }
  const [name, direction] = chosen.sort;
  const size = (value) => (value?.length !== undefined && typeof value !== "string" ? value.length : (value ?? -Infinity));
  return [...found].sort((one, other) => {
    const [first, second] = [size(one[name]), size(other[name])];
    return direction * (first < second ? -1 : first > second ? 1 : one.group_id - other.group_id);
  });
}

function table(run, groups, state, go, set) {
  const columns = COLUMNS.filter(([name]) => name !== "iteration" || state.all);
  const head = columns.map(([name, label]) => {
    const [sorted, direction] = chosen.sort;
    const turn = () => set(() => (chosen.sort = [name, sorted === name ? -direction : name === "group_id" ? 1 : -1]));
    return h("th", { "aria-sort": sorted === name ? (direction > 0 ? "ascending" : "descending") : null }, h("button", { onclick: turn }, label));
  });
  const rows = groups.slice(0, chosen.shown).map((group) => {
    const open = () => go({ group: group.group_id });
    return h("tr", { tabindex: 0, class: group.block < 0 ? "away" : null, data: { group: group.group_id }, onclick: open, onkeydown: (event) => event.key === "Enter" && open() },
      columns.map(([name]) => h("td", { class: name }, cell(group, name))));
  });
  return [
    h("table", { class: "groups" }, h("thead", {}, h("tr", {}, head)), h("tbody", {}, rows)),
    groups.length === 0 && h("p", { class: "missing" }, "No group is like this. Take a filter away."),
    groups.length > chosen.shown && h("button", { class: "quiet more", onclick: () => set(() => (chosen.shown += ROWS)) }, `Show ${number(Math.min(ROWS, groups.length - chosen.shown))} more`),
  ];
}

function cell(group, name) {
  const value = group[name];
  if (name === "task_id") return visible(value ?? "");
  if (name === "group_id" || name === "iteration") return String(value);
  if (name === "success") return share(value);
  if (name === "rewards") return rewards(value, group.reward);
  if (["lag", "tool_errors", "drifted"].includes(name)) return value ? number(value) : "";
  return number(value, 2);
}

// A small square for each member, blue above the mean of the group and orange below it.
export function rewards(values, mean) {
  const most = Math.max(...Array.from(values ?? [], (value) => Math.abs(value - mean)), 0);
  return h("span", { class: "strip" }, Array.from(values ?? []).slice(0, 48).map((value) =>
    h("i", { title: `reward ${number(value)}`, style: { background: diverging(value - mean, most) } })));
}

async function save(run, groups) {
  const made = [];
  for (const { group_id } of groups) {
    const group = await Group.open(run, group_id);
    if (group === null) continue;
    const members = group.trajectories.map((trajectory) => ({
      trajectory_id: trajectory.trajectory_id, reward: trajectory.reward, success: trajectory.success, status: run.word("status", trajectory.status),
      advantage: trajectory.draw?.advantage ?? null,
      contexts: group.contexts(trajectory).map((path) => ({ text: run.text(path.columns.token), tokens: Array.from(path.columns.token), trained: Array.from(path.columns.trained) })),
    }));
    made.push({ group_id, iteration: group.about.iteration, task_id: group.about.task_id, members });
  }
  download(`${run.about.title}-groups.json`, JSON.stringify(made, null, 1));
}
