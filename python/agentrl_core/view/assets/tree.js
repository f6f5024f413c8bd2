// The token tree of a group: width is tokens, colour is advantage, what is shared is drawn once. A lane for each agent.
// It can grow again in the order in which it grew.

import { solid } from "./colour.js";
import { h, number, s, signed } from "./dom.js";
import { icon, imagesOf } from "./image.js";

const ROW = 22;
const BAR = 14;
const LABELS = 176;
const MARKS = { start: "", fork: "⑂", continue: "", inject: "+", splice: "⧉", rollback: "↶", replace: "⇄", prune: "✕", stop: "■", resume: "▸" };

// Of siblings that went on alike, to the last token and to the same rewards, only one is drawn: it stands for the others.
function withoutTwins(group, leaves) {
  const kinds = new Map();
  const kind = new Map();
  const twin = new Map();
  const unite = (kept, node) => {
    twin.set(node, kept);
    if (leaves.has(node.node_id)) leaves.get(kept.node_id).push(...leaves.get(node.node_id));
    const mine = new Map(kept.drawn.map((child) => [kind.get(child), child]));
    for (const child of node.drawn) unite(mine.get(kind.get(child)), child);
  };
  const different = (nodes) => {
    const first = new Map();
    for (const node of nodes) {
      if (first.has(kind.get(node))) unite(first.get(kind.get(node)), node);
      else first.set(kind.get(node), node);
    }
    return [...first.values()];
  };
  const order = [...group.roots];
  for (const node of order) order.push(...node.children);
  for (const node of order.reverse()) {
    const ended = (leaves.get(node.node_id) ?? []).map(({ trajectory, final }) => [final, trajectory.agent, trajectory.reward, trajectory.success, trajectory.status].join());
    node.drawn = different(node.children);
    const sign = [node.kind, node.parent_end, node.tokens.join(), [...new Set(ended)].sort().join(";"), node.drawn.map((child) => kind.get(child)).sort((one, other) => one - other).join()].join("|");
    if (!kinds.has(sign)) kinds.set(sign, kinds.size);
    kind.set(node, kinds.get(sign));
  }
  const roots = different(group.roots);
  const standsFor = (node) => (twin.has(node) ? standsFor(twin.get(node)) : node);
  return { roots, standsFor: (id) => standsFor(group.node.get(id)) };
}

// Rows for the members: each under the branch that it left, agents one after the other.
function layout(group) {
  const leaves = new Map();
  for (const trajectory of group.trajectories) {
    const ends = new Set(group.contexts(trajectory).map((path) => path.parts.at(-1)?.node.node_id));
    for (const id of ends) {
      if (!leaves.has(id)) leaves.set(id, []);
      leaves.get(id).push({ trajectory, final: id === trajectory.leaf_node_id });
    }
  }
  const agents = new Map();
  for (const trajectory of group.trajectories) for (const path of group.contexts(trajectory)) {
    const top = path.parts[0]?.node;
    if (top && !agents.has(top.node_id)) agents.set(top.node_id, trajectory.agent);
  }
  const { roots: different, standsFor } = withoutTwins(group, leaves);
  const roots = different.sort((one, other) => (agents.get(one.node_id) ?? 0) - (agents.get(other.node_id) ?? 0) || one.node_id - other.node_id);
  const rows = [];
  const boxes = [];
  for (const root of roots) {
    const pending = [{ node: root, from: null, place: 0 }];
    while (pending.length) {
      const { node, from, place } = pending.pop();
      const begin = place;
      const follows = from !== null && from.next === node;
      if (!follows) rows.push({ agent: agents.get(root.node_id) ?? 0, members: [], end: 0 });
      const row = follows ? from.row : rows.length - 1;
      const box = { node, row, begin, end: begin + node.tokens.length, from, next: null };
      boxes.push(box);
      const ends = leaves.get(node.node_id) ?? [];
      const going = node.drawn.filter((child) => child.parent_end === null || child.parent_end >= node.tokens.length);
      // The first child goes on in the same row, unless a member ends here.
      if (going.length && ends.length === 0) box.next = going[0];
      rows[row].end = Math.max(rows[row].end, box.end);
      rows[row].members.push(...ends);
      const children = [...node.drawn].sort((one, other) => (one === box.next) - (other === box.next) || other.node_id - one.node_id);
      for (const child of children) pending.push({ node: child, from: box, place: begin + Math.min(child.parent_end ?? Infinity, node.tokens.length) });
    }
  }
  return { rows, boxes, standsFor, agents: new Set(agents.values()) };
}

export function tree(group, { chosen, choose }) {
  const { rows, boxes, standsFor, agents } = layout(group);
  const advantages = group.advantages();
  const most = Math.max(...[...advantages.values()].map(Math.abs), 0);
  const longest = Math.max(...boxes.map((box) => box.end), 1);
  const x = (place) => `${((100 * place) / longest).toFixed(3)}%`;
  const onPath = new Set(chosen ? group.contexts(chosen).flatMap((path) => path.parts.map((part) => standsFor(part.node.node_id).node_id)) : []);
  const height = rows.length * ROW + 6;
  const order = boxes.map((box) => box.node).sort((one, other) => (one.created_us ?? 0) - (other.created_us ?? 0) || one.node_id - other.node_id);
  const born = new Map(order.map((node, place) => [node.node_id, place]));
  const lines = boxes.filter((box) => box.from && box.from.row !== box.row).map((box) => {
    const [from, to] = [box.from.row * ROW + 3 + BAR, box.row * ROW + 3 + BAR / 2];
    return s("line", { class: `branch${onPath.has(box.node.node_id) ? " on" : ""}`, data: { born: born.get(box.node.node_id) }, x1: x(box.begin), x2: x(box.begin), y1: from, y2: to });
  });
  const bars = boxes.map((box) => {
    const { node } = box;
    const kind = group.run.word("kind", node.kind);
    const advantage = advantages.get(node.node_id);
    const colour = kind === "action" ? solid(advantage, most) : null;
    const images = imagesOf(group.run, node).length;
    const label = [`${kind}, ${number(node.tokens.length)} tokens`, images ? `${number(images)} ${images > 1 ? "images" : "image"}` : null, advantage === undefined ? null : `advantage ${signed(advantage)}`, node.policy_version === null ? null : `version ${node.policy_version}`].filter(Boolean).join(" · ");
    return s("rect", {
      class: `node ${kind}${onPath.has(node.node_id) ? " on" : ""}${node.origin_node_id === null ? "" : " rewritten"}`,
      x: x(box.begin), y: box.row * ROW + 3, width: x(Math.max(box.end - box.begin, longest / 600)), height: BAR, rx: 2,
      style: colour ? { fill: colour } : {}, data: { node: node.node_id, born: born.get(node.node_id), advantage: advantage ?? "" },
      onclick: () => choose(member(group, node), box.begin),
    }, s("title", {}, label));
  });
  const icons = boxes.map((box) => icon(group.run, box.node, { x: x(box.begin), y: box.row * ROW + 4, width: 2 * BAR, height: BAR - 2, data: { born: born.get(box.node.node_id) } }));
  const marks = group.decisions.map((decision) => {
    const sign = MARKS[group.run.word("operation", decision.operation)];
    const box = boxes.find((each) => each.node === standsFor(decision.node_id));
    if (!sign || box === undefined) return null;
    const place = box.begin + Math.min(decision.end ?? Infinity, box.node.tokens.length);
    return s("text", { class: "decision", x: x(place), y: box.row * ROW + 3 + BAR - 3, data: { born: born.get(box.node.node_id) } }, sign, s("title", {}, `${group.run.word("operation", decision.operation)}${decision.score === null ? "" : `, score ${number(decision.score)}`}${decision.reason ? `: ${decision.reason}` : ""}`));
  });
  const picture = s("svg", { class: "tree", style: { height: `${height}px` } }, lines, bars, icons, marks);
  const labels = rows.map((row) => h("div", { class: "labels" }, leafOf(group, row.members, chosen, choose)));
  const names = agents.size > 1 && rows.map((row, place) => h("div", {}, place === 0 || rows[place - 1].agent !== row.agent ? `agent ${row.agent}` : ""));
  return h("section", { class: "forest" },
    h("div", { class: "canvas" }, names && h("div", { class: "agents" }, names), picture, h("div", { class: "leaves", style: { width: `${LABELS}px` } }, labels)),
    replay(picture, order));
}

function member(group, node) {
  return group.trajectories.find((trajectory) => group.contexts(trajectory).some((path) => path.parts.some((part) => part.node === node)));
}

// Members that end in one row are one button; pressed again, it goes to the next of them.
function leafOf(group, members, chosen, choose) {
  const ended = members.filter((each) => each.final).map((each) => each.trajectory);
  if (ended.length === 0) return [];
  const at = ended.indexOf(chosen);
  const trajectory = ended[Math.max(at, 0)];
  const good = trajectory.success === 1 ? "✓" : trajectory.success === 0 ? "✗" : "·";
  const status = group.run.word("status", trajectory.status);
  return [h("button", {
    class: `leaf${at >= 0 ? " chosen" : ""}`, data: { trajectory: trajectory.trajectory_id, members: ended.length },
    title: ended.length > 1 ? `${status}; ${ended.length} rollouts are alike: press again for the next` : status,
    onclick: () => choose(ended[(at + 1) % ended.length]),
  }, h("span", { class: good === "✓" ? "yes" : good === "✗" ? "no" : "" }, good), ` ${trajectory.trajectory_id}`, ended.length > 1 ? ` ×${ended.length}` : "",
    h("small", {}, `reward ${number(trajectory.reward, 2)}`))];
}

// A slider over the nodes in the order in which they were made.
function replay(picture, order) {
  const first = order[0]?.created_us ?? 0;
  const said = h("output", {});
  const slider = h("input", { type: "range", min: 1, max: order.length, value: order.length, "aria-label": "growth of the tree" });
  const to = (count) => {
    for (const part of picture.querySelectorAll("[data-born]")) part.classList.toggle("unborn", Number(part.dataset.born) >= count);
    const seconds = ((order[count - 1]?.created_us ?? first) - first) / 1e6;
    said.textContent = count === order.length ? `${number(order.length)} nodes` : `${number(count)} of ${number(order.length)} nodes${seconds > 0 ? `, after ${number(seconds, 2)} s` : ""}`;
  };
  let timer = null;
  const stop = () => {
    clearInterval(timer);
    timer = null;
    play.textContent = "▶ Replay";
  };
  const play = h("button", {
    class: "quiet",
    title: "watch the tree grow, in the order in which it did",
    onclick: () => {
      if (timer !== null) return stop();
      if (Number(slider.value) >= order.length) slider.value = 1;
      play.textContent = "❚❚ Pause";
      timer = setInterval(() => {
        if (!picture.isConnected || Number(slider.value) >= order.length) return stop();
        slider.value = Number(slider.value) + 1;
        to(Number(slider.value));
      }, Math.max(16, Math.min(250, 6000 / order.length)));
    },
  }, "▶ Replay");
  slider.addEventListener("input", () => {
    stop();
    to(Number(slider.value));
  });
  to(order.length);
  return h("div", { class: "replay" }, play, slider, said);
}
