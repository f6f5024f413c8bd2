//! The index of a batch that joins draws, steps and tokens; it is built once.

use std::ops::Range;
use std::sync::Arc;

use arrow_array::{Array, Int32Array, Int64Array, RecordBatch};

use super::action_tokens::Actions;
use super::arrays::{i32s, i64s, lists};
use super::node_tree::{Ancestors, NodeTree, PathNode};
use crate::schema::Table;
use crate::{Check, Error, ErrorKind, Result};

/// A context of a trajectory: a path, and the steps that were taken along it. A trajectory whose context is never
/// rewritten has one.
#[derive(Clone, Debug)]
pub(crate) struct Context {
    /// Nodes of the path, root first.
    pub(crate) path: Vec<PathNode>,
    /// Rows in `steps`.
    pub(crate) steps: Range<usize>,
}

/// Joins of the tables. Levels are nested: draws, steps of draws, action tokens of those steps.
#[derive(Clone, Debug, Default)]
pub(super) struct Layout {
    /// The nodes as a tree.
    pub(super) tree: Arc<NodeTree>,
    /// Row in `trajectories` of each draw.
    pub(super) trajectory_rows: Vec<usize>,
    /// Steps of draw `i` are `step_offsets[i]..step_offsets[i + 1]`.
    pub(super) step_offsets: Vec<i64>,
    /// Row in `steps` of each step of a draw.
    pub(super) step_rows: Vec<usize>,
    /// Tokens of step `j` are `token_offsets[j]..token_offsets[j + 1]`.
    pub(super) token_offsets: Vec<i64>,
    /// Places of the action tokens.
    pub(super) actions: Actions,
    /// Contexts of draw `i` are `context_offsets[i]..context_offsets[i + 1]`.
    context_offsets: Vec<usize>,
    /// Steps of context `k` are `context_steps[k]..context_steps[k + 1]`.
    context_steps: Vec<usize>,
    /// Last node of each context's path. Paths are found from it: stored paths would be quadratic in a deep tree.
    leaves: Vec<PathNode>,
}

impl Layout {
    pub(super) fn build(tables: &[RecordBatch; Table::COUNT], check: Check<'_>) -> Result<Self> {
        let index = Index::new(tables)?;
        let drawn = i64s(&tables[Table::Draws as usize], "trajectory_id")?;
        let nodes = &index.nodes;
        let above: Vec<_> = (0..nodes.ids.len()).map(|row| nodes.above(row)).collect();
        let mut sound = vec![false; above.len()];
        for row in 0..sound.len() {
            // A parent comes before its children. A node with a broken path is an error only if it is drawn.
            sound[row] = above[row].map_or(nodes.parents.is_null(row), |parent| sound[parent.row]);
        }
        let tree = Arc::new(NodeTree::new(above, nodes.starts.clone(), nodes.token_offsets()));
        let ancestors = Ancestors::new(&tree);
        let mut layout = Self {
            actions: Actions::new(Arc::clone(&tree)),
            tree: Arc::clone(&tree),
            step_offsets: vec![0],
            token_offsets: vec![0],
            context_offsets: vec![0],
            context_steps: vec![0],
            ..Self::default()
        };
        for &trajectory in drawn.values() {
            check()?;
            let row = index
                .row(trajectory)
                .ok_or_else(|| broken(&format!("a draw names trajectory {trajectory}, which is not in the batch")))?;
            layout.trajectory_rows.push(row);
            for (leaf, steps) in contexts_of(row, &index, &ancestors, &sound)? {
                layout.add_steps(trajectory, leaf, steps, &index, &ancestors)?;
                layout.context_steps.push(layout.step_rows.len());
                layout.leaves.push(leaf);
            }
            layout.step_offsets.push(layout.step_rows.len() as i64);
            layout.context_offsets.push(layout.leaves.len());
        }
        Ok(layout)
    }

    fn add_steps(
        &mut self,
        trajectory: i64,
        leaf: PathNode,
        steps: Range<usize>,
        index: &Index<'_>,
        ancestors: &Ancestors<'_>,
    ) -> Result<()> {
        let nodes = &index.nodes;
        let missing =
            |id: i64| broken(&format!("a step of trajectory {trajectory} names node {id}, which is not on its path"));
        let on_path = |from: PathNode, id: i64| {
            nodes.row(id).and_then(|row| ancestors.up_to(from, row)).ok_or_else(|| missing(id))
        };
        // Go from the last step upwards: each step ends before the next one begins.
        let mut found = Vec::with_capacity(steps.len());
        let mut at = leaf;
        for step in steps.clone().rev() {
            let (id, end) = index.steps.last(step);
            let last = on_path(at, id)?;
            at = on_path(last, index.steps.first_nodes.value(step))?;
            found.push((at.row, PathNode { row: last.row, used: end.unwrap_or(last.used) }));
        }
        for (step, (first, last)) in steps.zip(found.into_iter().rev()) {
            self.actions.push(first, last);
            self.step_rows.push(step);
            self.token_offsets.push(self.actions.len() as i64);
        }
        Ok(())
    }

    /// Return the contexts of a draw, in order: the number of each context, and its steps as a range of the step level.
    pub(super) fn contexts(&self, draw: usize) -> impl Iterator<Item = (usize, Range<usize>)> {
        (self.context_offsets[draw]..self.context_offsets[draw + 1])
            .map(|context| (context, self.context_steps[context]..self.context_steps[context + 1]))
    }

    /// Return the path of a context, root first.
    pub(super) fn path(&self, context: usize) -> Vec<PathNode> {
        let mut path: Vec<_> = self.tree.upwards(self.leaves[context]).collect();
        path.reverse();
        path
    }

    /// Number of tokens in the contexts of all draws; shared tokens count once for each context.
    pub(super) fn path_tokens(&self) -> usize {
        self.leaves.iter().map(|&leaf| self.tree.end(leaf)).sum()
    }

    /// First token of each node in the `node_token` level, and their number last.
    pub(super) fn node_offsets(&self) -> &[i64] {
        &self.tree.offsets
    }

    /// Steps of a draw, as a range of the step level.
    pub(super) fn steps(&self, draw: usize) -> Range<usize> {
        self.step_offsets[draw] as usize..self.step_offsets[draw + 1] as usize
    }

    /// Action tokens of some steps, as a range of the token level.
    pub(super) fn tokens_of(&self, steps: Range<usize>) -> Range<usize> {
        self.token_offsets[steps.start] as usize..self.token_offsets[steps.end] as usize
    }

    /// Action tokens of a draw, as a range of the token level.
    pub(super) fn tokens(&self, draw: usize) -> Range<usize> {
        self.tokens_of(self.steps(draw))
    }
}

/// Return the contexts of the trajectory in a row, as [`Index::contexts`] finds them: the last node and the steps of
/// each.
fn contexts_of(
    row: usize,
    index: &Index<'_>,
    ancestors: &Ancestors<'_>,
    sound: &[bool],
) -> Result<Vec<(PathNode, Range<usize>)>> {
    let nodes = &index.nodes;
    let leaf_of = |id: i64, cut: Option<usize>| {
        let found = nodes.row(id).filter(|&row| sound[row]).map(|row| (row, nodes.length(row)));
        match found {
            Some((row, length)) if cut.is_none_or(|cut| cut <= length) => {
                Ok(PathNode { row, used: cut.unwrap_or(length) })
            }
            // Walk the path, for an error that names the broken node.
            _ => nodes.path(id, cut).and_then(|_| Err(broken(&format!("the path to node {id} is broken")))),
        }
    };
    let mut leaf = leaf_of(index.leaves.value(row), index.leaf_end(row))?;
    let steps = index.steps.of(index.trajectories[row]);
    let (mut at, mut last) = (Some(leaf), steps.end);
    let mut contexts = Vec::new();
    // Go backwards, because the path of a step is the beginning of the path of the next step in the same context.
    for step in steps.clone().rev() {
        let (id, end) = index.steps.last(step);
        let found = at.and_then(|from| ancestors.up_to(from, nodes.row(id)?));
        at = found.filter(|node| node.used >= end.unwrap_or_else(|| nodes.length(node.row)));
        if at.is_none() {
            let earlier = leaf_of(id, end)?;
            contexts.push((std::mem::replace(&mut leaf, earlier), step + 1..last));
            (at, last) = (Some(earlier), step + 1);
        }
    }
    contexts.push((leaf, steps.start..last));
    contexts.reverse();
    Ok(contexts)
}

/// Look-up of rows of a batch's tables by id.
pub(crate) struct Index<'a> {
    nodes: Nodes<'a>,
    steps: StepColumns<'a>,
    trajectories: &'a [i64],
    leaves: &'a Int64Array,
    leaf_ends: &'a Int32Array,
}

impl<'a> Index<'a> {
    pub(crate) fn new(tables: &'a [RecordBatch; Table::COUNT]) -> Result<Self> {
        let trajectories = &tables[Table::Trajectories as usize];
        Ok(Self {
            nodes: Nodes::new(&tables[Table::Nodes as usize])?,
            steps: StepColumns::new(&tables[Table::Steps as usize])?,
            trajectories: ascending(trajectories, "trajectory_id", Table::Trajectories)?,
            leaves: i64s(trajectories, "leaf_node_id")?,
            leaf_ends: i32s(trajectories, "leaf_end")?,
        })
    }

    /// Row of a trajectory.
    pub(crate) fn row(&self, trajectory: i64) -> Option<usize> {
        row_of(self.trajectories, trajectory)
    }

    /// Row of a node.
    pub(crate) fn node_row(&self, node: i64) -> Option<usize> {
        self.nodes.row(node)
    }

    /// Return the number of tokens of its last node that the trajectory in a row uses; `None`: all.
    fn leaf_end(&self, row: usize) -> Option<usize> {
        (!self.leaf_ends.is_null(row)).then(|| self.leaf_ends.value(row) as usize)
    }

    /// Return the contexts of the trajectory in a row: maximal runs of steps whose paths extend each other. The last
    /// context continues to the trajectory's leaf.
    pub(crate) fn contexts(&self, row: usize) -> Result<Vec<Context>> {
        let mut path = self.nodes.path(self.leaves.value(row), self.leaf_end(row))?;
        let steps = self.steps.of(self.trajectories[row]);
        let (mut before, mut last) = (path.len(), steps.end);
        let mut contexts = Vec::new();
        // Go backwards, because the path of a step is the beginning of the path of the next step in the same context.
        for step in steps.clone().rev() {
            let (id, end) = self.steps.last(step);
            let holds = |node: &PathNode| {
                self.nodes.ids[node.row] == id && node.used >= end.unwrap_or_else(|| self.nodes.length(node.row))
            };
            if let Some(found) = path[..before].iter().rposition(holds) {
                before = found + 1;
            } else {
                let earlier = self.nodes.path(id, end)?;
                before = earlier.len();
                contexts.push(Context { path: std::mem::replace(&mut path, earlier), steps: step + 1..last });
                last = step + 1;
            }
        }
        contexts.push(Context { path, steps: steps.start..last });
        contexts.reverse();
        Ok(contexts)
    }
}

struct Nodes<'a> {
    ids: &'a [i64],
    parents: &'a Int64Array,
    parent_ends: &'a Int32Array,
    starts: &'a Int32Array,
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

    /// Number of tokens of the node in a row.
    fn length(&self, row: usize) -> usize {
        (self.offsets[row + 1] - self.offsets[row]) as usize
    }

    /// Row of a node.
    fn row(&self, node: i64) -> Option<usize> {
        row_of(self.ids, node)
    }

    /// Return the parent of the node in a row, with the number of the parent's tokens before the node. `None` for a
    /// root, and if the reference to the parent is broken.
    fn above(&self, row: usize) -> Option<PathNode> {
        let parent = (!self.parents.is_null(row)).then(|| self.parents.value(row)).filter(|&id| id < self.ids[row])?;
        let above = self.row(parent)?;
        let length = self.length(above);
        let used = if self.parent_ends.is_null(row) { length } else { self.parent_ends.value(row) as usize };
        (used <= length).then_some(PathNode { row: above, used })
    }

    /// Return the path to a node, root first. `cut` is the number of the last node's tokens that are used; `None`: all.
    fn path(&self, leaf: i64, cut: Option<usize>) -> Result<Vec<PathNode>> {
        let mut path = Vec::new();
        let mut next = Some((leaf, cut));
        while let Some((id, cut)) = next {
            let row = row_of(self.ids, id).ok_or_else(|| broken(&format!("node {id} is not in the batch")))?;
            let length = self.length(row);
            let used = cut.unwrap_or(length);
            // Ids of parents are smaller, so a walk upwards always ends.
            let parent = (!self.parents.is_null(row)).then(|| self.parents.value(row));
            if used > length || parent.is_some_and(|parent| parent >= id) {
                return Err(broken(&format!("node {id} is cut after its end or comes before its parent")));
            }
            path.push(PathNode { row, used });
            let end = (!self.parent_ends.is_null(row)).then(|| self.parent_ends.value(row) as usize);
            next = parent.map(|parent| (parent, end));
        }
        path.reverse();
        Ok(path)
    }
}

struct StepColumns<'a> {
    trajectories: &'a [i64],
    first_nodes: &'a Int64Array,
    last_nodes: &'a Int64Array,
    ends: &'a Int32Array,
}

impl<'a> StepColumns<'a> {
    fn new(rows: &'a RecordBatch) -> Result<Self> {
        let trajectories = i64s(rows, "trajectory_id")?.values();
        if !trajectories.is_sorted() {
            return Err(broken("the rows of steps are not in the order of their trajectories"));
        }
        let (first_nodes, last_nodes) = (i64s(rows, "first_node_id")?, i64s(rows, "node_id")?);
        Ok(Self { trajectories, first_nodes, last_nodes, ends: i32s(rows, "end")? })
    }

    /// Return the last node of a step's action, and the number of its tokens up to the end of the action; `None`: all.
    fn last(&self, step: usize) -> (i64, Option<usize>) {
        (self.last_nodes.value(step), (!self.ends.is_null(step)).then(|| self.ends.value(step) as usize))
    }

    fn of(&self, trajectory: i64) -> Range<usize> {
        let from = self.trajectories.partition_point(|&id| id < trajectory);
        from..from + self.trajectories[from..].partition_point(|&id| id == trajectory)
    }
}

fn ascending<'a>(rows: &'a RecordBatch, name: &str, table: Table) -> Result<&'a [i64]> {
    let ids = i64s(rows, name)?.values();
    if ids.windows(2).all(|pair| pair[0] < pair[1]) {
        return Ok(ids);
    }
    Err(broken(&format!("{name} of table {} is not strictly ascending", table.name())))
}

/// Return the row of an id among ascending ids. It is fast if they are dense, as they almost always are.
pub(super) fn row_of(ids: &[i64], id: i64) -> Option<usize> {
    let guess = id.checked_sub(*ids.first()?).and_then(|guess| usize::try_from(guess).ok())?;
    if ids.get(guess) == Some(&id) { Some(guess) } else { ids.binary_search(&id).ok() }
}

fn broken(message: &str) -> Error {
    Error::new(ErrorKind::Corrupt, format!("{message}; restore the batch from a copy"))
}
