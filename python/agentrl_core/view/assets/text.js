// The text of a path, token by token, with what is known of each laid over it.

import { overlays } from "./colour.js";
import { h, number, show, signed, visible } from "./dom.js";
import { gallery } from "./image.js";

const TITLES = { prompt: "Prompt", action: "Action", observation: "Observation", injected: "Injected" };

// What is laid over texts, kept from group to group.
let overlay = "advantage";

export function textPane(run, path, { token, point }) {
  const choices = overlays(run, path);
  const body = h("div", { class: "tokens" });
  const legend = h("div", { class: "legend" });
  const menu = h("div", { class: "menu", role: "group", "aria-label": "Overlay" });
  const spans = new Array(path.length);
  const lay = (name) => {
    const chosen = choices.find((each) => each.name === name) ?? choices[0];
    for (let place = 0; place < path.length; place++) spans[place].style.backgroundColor = chosen.colour(place);
    body.classList.toggle("masked", chosen.name === "mask");
    show(legend, h("span", { class: "unit" }, chosen.unit), chosen.legend());
    for (const button of menu.children) button.setAttribute("aria-pressed", String(button.dataset.overlay === chosen.name));
  };
  menu.append(...choices.map((each) => h("button", { class: "tab", data: { overlay: each.name }, title: each.unit, onclick: () => lay((overlay = each.name)) }, each.label)));
  const pieces = run.pieces(path.columns.token);
  const turnAt = new Map(path.turns.map((turn) => [turn.begin, turn]));
  for (const part of sections(path)) {
    const turn = turnAt.get(part.begin);
    const text = h("p", {});
    for (let place = part.begin; place < part.end; place++) {
      const special = run.special.has(path.columns.token[place]);
      text.append((spans[place] = h("span", { class: special ? "special" : null, data: { place } }, drawn(pieces[place], special))));
    }
    body.append(h("section", { class: `part ${part.kind}`, data: { begin: part.begin }, id: turn ? `turn-${turn.step.step}` : null },
      h("header", {}, heading(run, path, part, turn).map((each) => (typeof each === "string" ? h("span", {}, each) : each))), part.shows && gallery(run, part.node), text));
  }
  body.addEventListener("pointerover", (event) => event.target.dataset.place && point(Number(event.target.dataset.place), false));
  body.addEventListener("click", (event) => event.target.dataset.place && point(Number(event.target.dataset.place), true));
  lay(overlay);
  const next = () => {
    const at = choices.findIndex((each) => each.name === overlay);
    lay((overlay = choices[(at + 1) % choices.length].name));
  };
  if (token !== null && spans[token]) spans[token].classList.add("chosen");
  const pane = h("section", { class: "text" }, h("div", { class: "bar" }, menu, legend), body);
  return { pane, spans, next };
}

// Runs of tokens from one source; an action of several nodes is one.
function sections(path) {
  const found = [];
  const turns = path.turns.filter((turn) => turn.end > turn.begin);
  for (const { node, begin, count } of path.parts) {
    if (count === 0) continue;
    const turn = turns.find((each) => begin >= each.begin && begin < each.end);
    const last = found.at(-1);
    if (turn && last && last.turn === turn) last.end = begin + count;
    else found.push({ begin, end: begin + count, kind: TITLES_OF[node.kind] ?? "injected", turn, node, shows: count === node.tokens.length });
  }
  return found;
}

const TITLES_OF = Object.keys(TITLES);

function heading(run, path, part, turn) {
  const said = [h("b", {}, turn ? `Turn ${turn.step.step} · ${TITLES[part.kind]}` : TITLES[part.kind]), `${number(part.end - part.begin)} tokens`];
  if (!turn) return part.node.origin_node_id === null ? said : [...said, h("em", {}, `rewrite of node ${part.node.origin_node_id}`)];
  const { step } = turn;
  if (step.reward !== null) said.push(`reward ${number(step.reward)}`);
  const advantage = path.columns.advantage?.[turn.begin];
  if (Number.isFinite(advantage)) said.push(`advantage ${signed(advantage)}`);
  for (const [name, bit] of Object.entries(run.about.flags)) if ((step.flags & bit) !== 0) said.push(h("em", { class: name === "tool result" ? null : "bad" }, name));
  if (step.drift) said.push(h("em", { class: "bad" }, run.word("drift", step.drift)));
  if (step.origin_trajectory_id !== step.trajectory_id) said.push(`inherited from ${step.origin_trajectory_id}`);
  return said;
}

// A token as it is seen: line ends are marked, markers of the template stand out, and nothing is hidden.
function drawn(piece, special) {
  if (special) return visible(piece);
  return piece.includes("\n") ? visible(piece).split("\n").flatMap((line, place) => (place ? [h("i", { class: "end" }, "↵"), "\n", line] : [line])) : visible(piece);
}

// All that is known of a token.
export function tokenFacts(run, path, place) {
  const { columns } = path;
  const piece = run.pieces(columns.token)[place];
  const rows = [["token", `${columns.token[place]}`], ["place", number(place)], ["source", run.word("kind", columns.kind[place])], ["trained", columns.trained[place] ? "yes" : "no"]];
  for (const [name, values] of Object.entries(columns)) {
    if (!(values instanceof Float64Array)) continue;
    const value = values[place];
    if (name === "drift" && Number.isFinite(value)) rows.push([name, run.word("drift", value)]);
    else if (name === "logprobs" && Number.isFinite(value)) rows.push(["log-prob", `${number(value)} (${number(100 * Math.exp(value), 1)} %)`]);
    else if (Number.isFinite(value)) rows.push([name.replaceAll("_", " "), name === "advantage" ? signed(value) : number(value)]);
    else if (["logprobs", "entropies", "advantage"].includes(name)) rows.push([name === "logprobs" ? "log-prob" : name, "not known"]);
  }
  return [h("p", { class: "piece" }, drawn(piece, run.special.has(columns.token[place]))), h("dl", {}, rows.map(([name, value]) => [h("dt", {}, name), h("dd", {}, value)]))];
}
