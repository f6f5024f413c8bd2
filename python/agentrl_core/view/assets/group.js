// A group: its token tree, the paths of its members, and what is known of each token on them.

import { records, value } from "./arrow.js";
import { rowsBy } from "./data.js";

const ACTION = 1;
const KEYS = new Set(["draw_id", "step", "node_id", "tokens", "trajectory_id"]);

function some(table, name, wanted) {
  const rows = rowsBy(table.columns[name]).get(wanted) ?? [];
  return rows.map((row) => Object.fromEntries(Object.entries(table.columns).map(([key, column]) => [key, value(column, row)])));
}

export class Group {
  static async open(run, id) {
    const about = run.group.get(id);
    if (about === undefined || about.block < 0) return null;
    return new Group(run, about, await run.block(about.block));
  }

  constructor(run, about, tables) {
    this.run = run;
    this.about = about;
    this.id = about.group_id;
    this.nodes = some(tables.nodes, "group_id", this.id);
    this.node = new Map(this.nodes.map((node) => [node.node_id, node]));
    for (const node of this.nodes) node.children = [];
    for (const node of this.nodes) this.node.get(node.parent_id)?.children.push(node);
    this.roots = this.nodes.filter((node) => !this.node.has(node.parent_id));
    this.trajectories = some(tables.trajectories, "group_id", this.id);
    this.trajectory = new Map(this.trajectories.map((each) => [each.trajectory_id, each]));
    for (const each of this.trajectories) {
      Object.assign(each, { own: [], draws: [] });
      let steps = null;
      Object.defineProperty(each, "steps", { get: () => (steps ??= this.stepsOf(each)) });
    }
    for (const step of records(tables.steps)) this.trajectory.get(step.trajectory_id)?.own.push(step);
    for (const draw of records(tables.draws)) this.trajectory.get(draw.trajectory_id)?.draws.push(draw);
    const computed = rowsBy(tables.step_columns.columns.draw_id);
    for (const each of this.trajectories) {
      each.own.sort((one, other) => one.step - other.step);
      each.draw = each.draws.at(-1) ?? null;
      each.computed = (each.draw ? (computed.get(each.draw.draw_id) ?? []) : []).map((row) =>
        Object.fromEntries(Object.entries(tables.step_columns.columns).map(([name, column]) => [name, value(column, row)])),
      );
    }
    this.decisions = some(tables.decisions, "group_id", this.id);
    this.columns = {
      node: Object.keys(tables.nodes.columns).filter((name) => tables.nodes.columns[name].kind === "list" && name !== "tokens"),
      step: Object.keys(tables.step_columns.columns).filter((name) => !KEYS.has(name)),
      draw: this.run.about.draw_columns,
    };
    this.kept = new Map();
  }

  // The steps of a trajectory: the first ones are those of the trajectory that it left, and so on up.
  stepsOf(trajectory) {
    const pieces = [];
    let below = Infinity;
    for (let from = trajectory; from !== undefined; from = this.trajectory.get(from.parent_trajectory)) {
      const end = below;
      pieces.push(from.own.filter((step) => step.step < end));
      if (!(from.inherited > 0)) break;
      below = Math.min(below, from.inherited);
    }
    const untrained = this.run.about.untrained;
    return pieces.reverse().flat().map((step) => {
      if (step.trajectory_id === trajectory.trajectory_id) return step;
      const flags = (step.flags & ~untrained) >>> 0;
      const left = step.step < (trajectory.inherited_untrained ?? 0);
      return { ...step, trajectory_id: trajectory.trajectory_id, flags: left ? (flags | untrained) >>> 0 : flags };
    });
  }

  // Nodes from the root to a last one, each with its first token's place on the path and how many of its tokens lie on it.
  chain(last, end) {
    const found = [];
    let count = end;
    for (let node = this.node.get(last); node !== undefined; node = this.node.get(node.parent_id)) {
      found.push({ node, count: Math.min(count ?? Infinity, node.tokens.length) });
      count = node.parent_end;
    }
    found.reverse();
    let begin = 0;
    for (const part of found) {
      part.begin = begin;
      begin += part.count;
    }
    return found;
  }

  // The contexts of a trajectory: the path to its leaf, and before it each that was rewritten later.
  contexts(trajectory) {
    if (this.kept.has(trajectory.trajectory_id)) return this.kept.get(trajectory.trajectory_id);
    const made = [this.path(trajectory, trajectory.leaf_node_id, trajectory.leaf_end)];
    for (const step of [...trajectory.steps].reverse()) {
      if (!made.some((path) => path.turns.some((turn) => turn.step === step))) made.push(this.path(trajectory, step.node_id, step.end));
    }
    made.reverse();
    this.kept.set(trajectory.trajectory_id, made);
    return made;
  }

  path(trajectory, last, end) {
    const parts = this.chain(last, end);
    const length = parts.reduce((sum, part) => sum + part.count, 0);
    const place = new Map(parts.map((part) => [part.node.node_id, part]));
    const turns = [];
    for (const step of trajectory.steps) {
      const [first, node] = [place.get(step.first_node_id), place.get(step.node_id)];
      if (first === undefined || node === undefined) continue;
      const leaf = step.node_id === trajectory.leaf_node_id ? trajectory.leaf_end : null;
      // Where the context was rewritten, a part of the action may be left: that is not the turn.
      if (node.count < (step.end ?? leaf ?? node.node.tokens.length)) continue;
      turns.push({ step, begin: first.begin, end: node.begin + Math.min(step.end ?? Infinity, node.count) });
    }
    return { trajectory, parts, length, turns, columns: this.tokenColumns(trajectory, parts, turns, length) };
  }

  // A value for each token of a path: NaN where there is none.
  tokenColumns(trajectory, parts, turns, length) {
    const columns = { token: new Int32Array(length), kind: new Uint8Array(length), trained: new Uint8Array(length), version: new Float64Array(length).fill(NaN) };
    for (const { node, begin, count } of parts) {
      columns.token.set(node.tokens.subarray(0, count), begin);
      columns.kind.fill(node.kind, begin, begin + count);
      if (node.policy_version !== null) columns.version.fill(node.policy_version, begin, begin + count);
      for (const name of this.columns.node) {
        if (node[name] === null || name === "trainable") continue;
        columns[name] ??= new Float64Array(length).fill(NaN);
        columns[name].set(node[name].subarray(0, count), begin);
      }
    }
    for (const name of this.columns.node) {
      if (name === "logprobs" || !name.includes("logprob") || !columns[name] || !columns.logprobs) continue;
      columns[columns.mismatch ? `mismatch_${name}` : "mismatch"] = columns[name].map((value, place) => value - columns.logprobs[place]);
    }
    const { draw } = trajectory;
    const untrained = this.run.about.untrained;
    columns.drift = new Float64Array(length).fill(NaN);
    const computed = new Map(trajectory.computed.map((row) => [row.step, row]));
    for (const { step, begin, end } of turns) {
      if (step.drift !== null) columns.drift.fill(step.drift, begin, end);
      for (const name of [...this.columns.draw, ...this.columns.step]) {
        const made = computed.get(step.step)?.[name] ?? draw?.[name] ?? null;
        if (made === null || typeof made === "string") continue;
        columns[name] ??= new Float64Array(length).fill(NaN);
        if (typeof made === "number") columns[name].fill(made, begin, end);
        else columns[name].set(made.subarray(0, end - begin), begin);
      }
      if (draw?.trained && (step.flags & untrained) === 0) columns.trained.fill(1, begin, end);
    }
    for (const { node, begin, count } of parts) {
      for (let place = 0; place < count; place++) {
        const allowed = node.trainable === null ? node.kind === ACTION : node.trainable[place] === 1;
        if (!allowed) columns.trained[begin + place] = 0;
      }
    }
    return columns;
  }

  // The mean advantage of the tokens of a node over the members that pass through it; NaN where none has one.
  advantages() {
    const sums = new Map();
    for (const trajectory of this.trajectories) {
      for (const path of this.contexts(trajectory)) {
        const given = path.columns.advantage;
        if (given === undefined) continue;
        for (const { node, begin, count } of path.parts) {
          for (let place = begin; place < begin + count; place++) {
            if (!Number.isFinite(given[place]) || node.kind !== ACTION) continue;
            const sum = sums.get(node.node_id) ?? [0, 0];
            sum[0] += given[place];
            sum[1] += 1;
            sums.set(node.node_id, sum);
          }
        }
      }
    }
    return new Map([...sums].map(([id, [sum, count]]) => [id, sum / count]));
  }
}

// The number of tokens that two paths begin with alike.
export function shared(one, other) {
  const [first, second] = [one.columns.token, other.columns.token];
  const most = Math.min(first.length, second.length);
  let length = 0;
  while (length < most && first[length] === second[length]) length++;
  return length;
}
