//! The nodes of a batch as a tree, with fast look-up of nodes on a path.

use arrow_array::Int32Array;

/// A node on a path: its row in `nodes`, and the number of its tokens that the path uses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct PathNode {
    pub(crate) row: usize,
    pub(crate) used: usize,
}

/// The nodes by row. A parent comes before its children.
#[derive(Clone, Debug)]
pub(super) struct NodeTree {
    /// Parent of each node, with the number of the parent's tokens on the path to the node.
    above: Vec<Option<PathNode>>,
    /// Number of tokens on the path before each node.
    before: Vec<usize>,
    /// The same numbers, from column `start` of `nodes`.
    pub(super) starts: Int32Array,
    /// First token of each node in the `node_token` level, and their number last.
    pub(super) offsets: Vec<i64>,
}

impl Default for NodeTree {
    fn default() -> Self {
        Self::new(Vec::new(), Int32Array::from(Vec::<i32>::new()), Vec::new())
    }
}

impl NodeTree {
    pub(super) fn new(above: Vec<Option<PathNode>>, starts: Int32Array, offsets: Vec<i64>) -> Self {
        let mut before = Vec::with_capacity(above.len());
        for parent in &above {
            before.push(parent.map_or(0, |parent| before[parent.row] + parent.used));
        }
        Self { above, before, starts, offsets }
    }

    /// Return the number of tokens on the path before a node.
    pub(super) fn before(&self, row: usize) -> usize {
        self.before[row]
    }

    /// Return the number of tokens on a path that ends in a node.
    pub(super) fn end(&self, leaf: PathNode) -> usize {
        self.before[leaf.row] + leaf.used
    }

    /// Return a path from its last node to its root.
    pub(super) fn upwards(&self, leaf: PathNode) -> impl Iterator<Item = PathNode> {
        std::iter::successors(Some(leaf), |node| self.above[node.row])
    }
}

/// Finds nodes on paths without walking them: in preorder, the subtree of a node is one range.
pub(super) struct Ancestors<'a> {
    tree: &'a NodeTree,
    /// Position of each row in preorder.
    place: Vec<usize>,
    /// Number of nodes in the subtree of each row, itself included.
    size: Vec<usize>,
    /// Children of row `i` are `children[first_child[i]..first_child[i + 1]]`, in preorder.
    children: Vec<usize>,
    first_child: Vec<usize>,
}

impl<'a> Ancestors<'a> {
    pub(super) fn new(tree: &'a NodeTree) -> Self {
        let count = tree.above.len();
        let parent = |row: usize| tree.above[row].map(|parent| parent.row);
        let mut size = vec![1; count];
        let mut first_child = vec![0; count + 1];
        for row in (0..count).rev() {
            if let Some(parent) = parent(row) {
                size[parent] += size[row];
                first_child[parent + 1] += 1;
            }
        }
        for row in 0..count {
            first_child[row + 1] += first_child[row];
        }
        let mut children = vec![0; first_child[count]];
        let (mut next_child, mut next_root) = (first_child.clone(), 0);
        // Position in preorder of the next node below each node.
        let (mut place, mut next) = (vec![0; count], vec![0; count]);
        for row in 0..count {
            let parent = parent(row);
            let free = parent.map_or(&mut next_root, |parent| &mut next[parent]);
            place[row] = *free;
            *free += size[row];
            next[row] = place[row] + 1;
            if let Some(parent) = parent {
                children[next_child[parent]] = row;
                next_child[parent] += 1;
            }
        }
        Self { tree, place, size, children, first_child }
    }

    /// Return the node in `row` as the path to `from` uses it; `None` if it is not on that path.
    pub(super) fn up_to(&self, from: PathNode, row: usize) -> Option<PathNode> {
        if from.row == row {
            return Some(from);
        }
        let place = self.place[from.row];
        if !(self.place[row]..self.place[row] + self.size[row]).contains(&place) {
            return None;
        }
        let children = &self.children[self.first_child[row]..self.first_child[row + 1]];
        let child = children.partition_point(|&child| self.place[child] <= place);
        self.tree.above[*children.get(child.checked_sub(1)?)?]
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        /// Look-up finds the same node on a path as a walk upwards.
        #[test]
        fn ancestors_are_those_of_a_walk(parents in prop::collection::vec((any::<prop::sample::Index>(), 0_usize..3), 1..40)) {
            let above: Vec<_> = parents
                .iter()
                .enumerate()
                .map(|(row, (parent, used))| {
                    let parent = parent.index(row + 1);
                    (parent < row).then_some(PathNode { row: parent, used: *used })
                })
                .collect();
            let count = above.len();
            let tree = NodeTree::new(above, Int32Array::from(vec![0; count]), vec![0; count + 1]);
            let ancestors = Ancestors::new(&tree);
            for from in 0..count {
                let from = PathNode { row: from, used: 7 };
                for row in 0..count {
                    let walked = tree.upwards(from).find(|node| node.row == row);
                    prop_assert_eq!(ancestors.up_to(from, row), walked);
                }
            }
        }
    }
}
