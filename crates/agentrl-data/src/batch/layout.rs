//! Where the tokens of each draw lie: the index that joins draws, steps and tokens, built once for a batch.

use arrow_array::{Array, Int64Array, RecordBatch};

use super::{i32s, i64s, lists};
use crate::schema::Table;
use crate::{Error, ErrorKind, Result};

/// Part of a path: a row of `nodes` and how many of its tokens the path uses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct PathNode {
    pub(super) row: usize,
    pub(super) used: usize,
}

/// Joins made once. Levels nest: draws, steps of draws, action tokens of those steps.
#[derive(Clone, Debug, Default)]
pub(super) struct Layout {
    /// First token of each node in the `node_token` level, and their number last.
    pub(super) node_offsets: Vec<i64>,
    /// Row in `trajectories` of each draw.
    pub(super) trajectory_rows: Vec<usize>,
    /// Steps of draw `i` are `step_offsets[i]..step_offsets[i + 1]`.
    pub(super) step_offsets: Vec<i64>,
    /// Row in `steps` of each step of a draw.
    pub(super) step_rows: Vec<usize>,
    /// Tokens of step `j` are `token_offsets[j]..token_offsets[j + 1]`.
    pub(super) token_offsets: Vec<i64>,
    /// Index in the `node_token` level of each action token.
    pub(super) node_tokens: Vec<i64>,
    /// Row in `nodes` of each action token.
    pub(super) node_rows: Vec<usize>,
    /// Position in its path of each action token.
    pub(super) positions: Vec<i32>,
    path_offsets: Vec<usize>,
    path_nodes: Vec<PathNode>,
}

impl Layout {
    pub(super) fn build(tables: &[RecordBatch; Table::COUNT]) -> Result<Self> {
        let nodes = Nodes::new(&tables[Table::Nodes as usize])?;
        let steps = Steps::new(&tables[Table::Steps as usize])?;
        let trajectories = &tables[Table::Trajectories as usize];
        let trajectory_ids = ascending(trajectories, "trajectory_id", Table::Trajectories)?;
        let leaves = i64s(trajectories, "leaf_node_id")?;
        let (branch_nodes, branch_ends) = (i64s(trajectories, "branch_node")?, i32s(trajectories, "branch_end")?);
        let drawn = i64s(&tables[Table::Draws as usize], "trajectory_id")?;

        let mut layout = Self { node_offsets: nodes.token_offsets(), ..Self::default() };
        layout.step_offsets.push(0);
        layout.token_offsets.push(0);
        layout.path_offsets.push(0);
        for &trajectory in drawn.values() {
            let row = row_of(trajectory_ids, trajectory)
                .ok_or_else(|| broken(format!("a draw names trajectory {trajectory}, which is not in the batch")))?;
            let leaf = leaves.value(row);
            // A fork without tokens of its own ends where it left its parent.
            let cut = (!branch_nodes.is_null(row) && branch_nodes.value(row) == leaf && !branch_ends.is_null(row))
                .then(|| branch_ends.value(row));
            let path = nodes.path(leaf, cut)?;
            layout.trajectory_rows.push(row);
            layout.add_steps(trajectory, &path, &nodes, &steps)?;
            layout.step_offsets.push(layout.step_rows.len() as i64);
            layout.path_nodes.extend(path);
            layout.path_offsets.push(layout.path_nodes.len());
        }
        Ok(layout)
    }

    fn add_steps(&mut self, trajectory: i64, path: &[PathNode], nodes: &Nodes<'_>, steps: &Steps<'_>) -> Result<()> {
        // Steps follow each other along the path, so one walk finds all of them.
        let mut from = 0;
        for step in steps.of(trajectory) {
            let find = |id: i64, from: usize| {
                path[from..].iter().position(|node| nodes.ids[node.row] == id).map(|found| from + found).ok_or_else(
                    || broken(format!("a step of trajectory {trajectory} names node {id}, which is not on its path")),
                )
            };
            from = find(steps.first_nodes.value(step), from)?;
            let last = find(steps.last_nodes.value(step), from)?;
            for node in &path[from..=last] {
                let (first, start) = (self.node_offsets[node.row], nodes.starts.value(node.row));
                self.node_tokens.extend((0..node.used as i64).map(|token| first + token));
                self.positions.extend((0..node.used as i32).map(|token| start + token));
                self.node_rows.extend(std::iter::repeat_n(node.row, node.used));
            }
            self.step_rows.push(step);
            self.token_offsets.push(self.node_tokens.len() as i64);
        }
        Ok(())
    }

    /// The path of a draw, root first.
    pub(super) fn path(&self, draw: usize) -> &[PathNode] {
        &self.path_nodes[self.path_offsets[draw]..self.path_offsets[draw + 1]]
    }

    /// Tokens of all draws' paths, shared ones counted once for each.
    pub(super) fn path_tokens(&self) -> usize {
        self.path_nodes.iter().map(|node| node.used).sum()
    }

    /// Steps of a draw, as a range of the step level.
    pub(super) fn steps(&self, draw: usize) -> std::ops::Range<usize> {
        self.step_offsets[draw] as usize..self.step_offsets[draw + 1] as usize
    }

    /// Action tokens of a draw, as a range of the token level.
    pub(super) fn tokens(&self, draw: usize) -> std::ops::Range<usize> {
        let steps = self.steps(draw);
        self.token_offsets[steps.start] as usize..self.token_offsets[steps.end] as usize
    }
}

struct Nodes<'a> {
    ids: &'a [i64],
    parents: &'a Int64Array,
    parent_ends: &'a arrow_array::Int32Array,
    starts: &'a arrow_array::Int32Array,
    offsets: &'a [i32],
}

impl<'a> Nodes<'a> {
    fn new(rows: &'a RecordBatch) -> Result<Self> {
        Ok(Self {
            ids: ascending(rows, "node_id", Table::Nodes)?,
            parents: i64s(rows, "parent_id")?,
            parent_ends: i32s(rows, "parent_end")?,
            starts: i32s(rows, "start")?,
            offsets: lists(rows, "tokens")?.value_offsets(),
        })
    }

    fn token_offsets(&self) -> Vec<i64> {
        self.offsets.iter().map(|&offset| i64::from(offset - self.offsets[0])).collect()
    }

    /// The path to a node, root first; `cut` is the number of the last node's tokens that are used.
    fn path(&self, leaf: i64, cut: Option<i32>) -> Result<Vec<PathNode>> {
        let mut path = Vec::new();
        let mut next = Some((leaf, cut));
        while let Some((id, cut)) = next {
            let row = row_of(self.ids, id).ok_or_else(|| broken(format!("node {id} is not in the batch")))?;
            let length = (self.offsets[row + 1] - self.offsets[row]) as usize;
            let used = cut.map_or(length, |cut| cut as usize);
            // Ids of parents are smaller, so a walk upwards always ends.
            let parent = (!self.parents.is_null(row)).then(|| self.parents.value(row));
            if used > length || parent.is_some_and(|parent| parent >= id) {
                return Err(broken(format!("node {id} is cut after its end or comes before its parent")));
            }
            path.push(PathNode { row, used });
            let end = (!self.parent_ends.is_null(row)).then(|| self.parent_ends.value(row));
            next = parent.map(|parent| (parent, end));
        }
        path.reverse();
        Ok(path)
    }
}

struct Steps<'a> {
    trajectories: &'a [i64],
    first_nodes: &'a Int64Array,
    last_nodes: &'a Int64Array,
}

impl<'a> Steps<'a> {
    fn new(rows: &'a RecordBatch) -> Result<Self> {
        let trajectories = i64s(rows, "trajectory_id")?.values();
        if !trajectories.is_sorted() {
            return Err(broken("the rows of steps are not in the order of their trajectories".to_owned()));
        }
        Ok(Self { trajectories, first_nodes: i64s(rows, "first_node_id")?, last_nodes: i64s(rows, "node_id")? })
    }

    fn of(&self, trajectory: i64) -> std::ops::Range<usize> {
        let from = self.trajectories.partition_point(|&id| id < trajectory);
        from..from + self.trajectories[from..].partition_point(|&id| id == trajectory)
    }
}

fn ascending<'a>(rows: &'a RecordBatch, name: &str, table: Table) -> Result<&'a [i64]> {
    let ids = i64s(rows, name)?.values();
    if ids.windows(2).all(|pair| pair[0] < pair[1]) {
        return Ok(ids);
    }
    Err(broken(format!("{name} of table {} is not strictly ascending", table.name())))
}

/// Row of an id among ascending ids, which are dense almost always.
fn row_of(ids: &[i64], id: i64) -> Option<usize> {
    let guess = id.checked_sub(*ids.first()?).and_then(|guess| usize::try_from(guess).ok())?;
    if ids.get(guess) == Some(&id) { Some(guess) } else { ids.binary_search(&id).ok() }
}

fn broken(message: String) -> Error {
    Error::new(ErrorKind::Corrupt, message)
}
