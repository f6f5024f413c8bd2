// The page: where one is stands in its address, what one sees follows from that.

import { Run } from "./data.js";
import { h, number, show, visible } from "./dom.js";
import { Group } from "./group.js";
import { groupPage } from "./group_page.js";
import { iterationPage } from "./iteration.js";
import { overview } from "./overview.js";
import { Search, searchBox } from "./search.js";

const KEYS = [
  ["j k", "next and previous turn"], ["[ ]", "previous and next member"], ["{ }", "previous and next group"], ["/", "search"], ["o", "next overlay"],
  ["t s d", "text, side by side, drift"], ["g", "up: to the iteration, to the run"], ["n", "night or day"], ["?", "this list"],
];

// #i12 · #all · #g384/t3/c0/k57 · #g384/t3/side/o4 · #i12/f:same
function parsed(hash) {
  const state = { iteration: null, all: false, group: null, trajectory: null, context: null, token: null, other: null, tab: "text", filter: null };
  const names = { i: "iteration", g: "group", t: "trajectory", c: "context", k: "token", o: "other" };
  for (const part of hash.replace(/^#/, "").split("/").filter(Boolean)) {
    const found = /^([igtcko])(\d+)$/.exec(part);
    if (found) state[names[found[1]]] = Number(found[2]);
    else if (part === "all") state.all = true;
    else if (["text", "side", "drift"].includes(part)) state.tab = part;
    else if (part.startsWith("f:")) state.filter = part.slice(2);
  }
  return state;
}

function written(state) {
  if (state.group !== null && state.group !== undefined) {
    const parts = [`g${state.group}`];
    for (const [name, sign] of [["trajectory", "t"], ["context", "c"], ["token", "k"]]) if (state[name] !== null && state[name] !== undefined) parts.push(sign + state[name]);
    if (state.tab && state.tab !== "text") parts.push(state.tab);
    if (state.tab === "side" && state.other) parts.push(`o${state.other}`);
    return `#${parts.join("/")}`;
  }
  const filter = state.filter ? `/f:${state.filter}` : "";
  return state.all ? `#all${filter}` : state.iteration === null || state.iteration === undefined ? "#" : `#i${state.iteration}${filter}`;
}

// The member and the token of a place that search found.
async function resolved(run, to) {
  const group = await Group.open(run, to.group);
  for (const trajectory of group.trajectories) {
    for (const [context, path] of group.contexts(trajectory).entries()) {
      const part = path.parts.find((each) => each.node.node_id === to.node);
      if (part === undefined) continue;
      let [length, token] = [0, 0];
      const pieces = run.pieces(part.node.tokens);
      while (token < part.count - 1 && length + pieces[token].length <= to.inside) length += pieces[token++].length;
      return { group: to.group, trajectory: trajectory.trajectory_id, context: group.contexts(trajectory).length > 1 ? context : null, token: part.begin + token };
    }
  }
  return { group: to.group };
}

async function start() {
  const run = await Run.open();
  const place = document.getElementById("page");
  let state = parsed(location.hash);
  let current = {};
  // `quiet`: the address changes and the page stays, as where a token is pointed at.
  const go = async (to, quiet = false) => {
    const target = to.node === undefined ? to : await resolved(run, to);
    const address = written(target);
    if (quiet) {
      history.replaceState(null, "", address);
      state = parsed(address);
      for (const span of document.querySelectorAll(".tokens .chosen")) span.classList.remove("chosen");
      current.spans?.[state.token]?.classList.add("chosen");
    } else if (address === (location.hash || "#")) await paint();
    else location.hash = address;
  };
  const search = new Search(run);
  const { box, input } = searchBox(search, go);
  const body = h("div", { id: "body" });
  const crumbs = h("nav", { class: "crumbs", "aria-label": "Where" });
  const help = h("dialog", { class: "help" }, h("h3", {}, "Keys"), h("dl", {}, KEYS.map(([keys, effect]) => [h("dt", {}, h("kbd", {}, keys)), h("dd", {}, effect)])), h("button", { class: "quiet", onclick: () => help.close() }, "Close"));
  const night = () => {
    const dark = document.documentElement.dataset.theme ? document.documentElement.dataset.theme === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
    document.documentElement.dataset.theme = dark ? "light" : "dark";
  };
  show(place,
    h("header", { class: "top" }, h("a", { class: "name", href: "#" }, h("span", { class: "logo", "aria-hidden": "true" }, h("i"), h("i"), h("i")), run.about.title), crumbs, box,
      h("button", { class: "quiet", title: "night or day (n)", onclick: night }, "◐"), h("button", { class: "quiet", title: "keys (?)", onclick: () => help.showModal() }, "?"), h("button", { class: "quiet", title: "print", onclick: () => print() }, "Print")),
    body,
    h("footer", { class: "bottom" }, `commit ${run.about.commit}`, h("span", {}, `made ${run.about.made}`), h("span", {}, `agentrl ${run.about.version}`),
      h("span", {}, run.about.recipes.length ? `recipe ${[...new Set(run.about.recipes.map((recipe) => recipe.name))].join(", ")}` : "recipe not known"),
      h("span", {}, run.about.tokenizer ? "numbers of tokens to three digits" : "no tokenizer was found: tokens are shown as ids")),
    help);

  async function paint() {
    state = parsed(location.hash);
    const before = current.group?.id;
    if (state.group !== null) {
      current = await groupPage(run, state, go);
      show(body, current.page);
    } else {
      current = {};
      show(body, state.all || state.iteration !== null ? iterationPage(run, state, go, paint) : overview(run, go));
    }
    const trail = [];
    const iteration = state.group === null ? state.iteration : run.group.get(state.group)?.iteration;
    if (state.all) trail.push(h("a", { href: "#all" }, "all groups"));
    else if (iteration !== null && iteration !== undefined) trail.push(h("a", { href: `#i${iteration}` }, `iteration ${iteration}`));
    else trail.push(h("a", { href: "#all" }, `${number(run.groups.length)} groups`));
    if (state.group !== null) trail.push(h("a", { href: `#g${state.group}` }, `group ${state.group}`));
    if (current.chosen) trail.push(h("a", { href: `#g${state.group}/t${current.chosen.trajectory_id}` }, `rollout ${current.chosen.trajectory_id}`));
    show(crumbs, trail);
    document.title = [...trail].reverse().map((each) => each.textContent).concat(visible(run.about.title)).join(" · ");
    const chosen = current.spans?.[state.token];
    if (chosen && state.tab === "text") chosen.scrollIntoView({ block: "center" });
    else if (before === undefined || before !== current.group?.id) scrollTo(0, 0);
    place.dataset.painted = String(Math.round(performance.now()));
  }

  function turn(by) {
    const parts = [...document.querySelectorAll(".part")];
    const top = document.querySelector(".top").getBoundingClientRect().bottom + 60;
    const at = parts.findLastIndex((part) => part.getBoundingClientRect().top <= top);
    parts[Math.max(0, Math.min(parts.length - 1, at + by))]?.scrollIntoView({ block: "start" });
  }

  function member(by) {
    const all = current.group?.trajectories ?? [];
    const next = all[(all.indexOf(current.chosen) + by + all.length) % all.length];
    if (next) current.choose(next);
  }

  function group(by) {
    const near = run.groups.filter((each) => each.iteration === run.group.get(state.group)?.iteration);
    const next = near[near.findIndex((each) => each.group_id === state.group) + by];
    if (next) go({ group: next.group_id });
  }

  const tab = (name) => current.chosen && go({ ...state, trajectory: current.chosen.trajectory_id, token: null, tab: name });
  const actions = {
    j: () => turn(1), k: () => turn(-1), "]": () => member(1), "[": () => member(-1), "}": () => group(1), "{": () => group(-1), "/": () => input.focus(), o: () => current.overlay?.(),
    t: () => tab("text"), s: () => tab("side"), d: () => tab("drift"), n: night, "?": () => help.showModal(),
    g: () => (state.group !== null ? go({ iteration: run.group.get(state.group)?.iteration ?? null }) : go({})),
  };
  document.addEventListener("keydown", (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey || /^(INPUT|SELECT|TEXTAREA)$/.test(event.target.tagName) || help.open) return;
    if (actions[event.key]) {
      event.preventDefault();
      actions[event.key]();
    }
  });
  addEventListener("hashchange", paint);
  await paint();
  await search.ready;
  place.dataset.indexed = String(Math.round(performance.now()));
}

start().catch((error) => {
  document.getElementById("page").textContent = `This page cannot be shown: ${error.message}. A browser of 2023 or later is needed.`;
});
