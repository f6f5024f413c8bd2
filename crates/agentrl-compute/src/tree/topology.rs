//! Topology of a forest: order, subtrees, ancestors, folds. Nothing recurses, so chains of a million nodes are fine.

use std::sync::OnceLock;

use crate::argument_checks::same_length;
use crate::rows_by_group::Members;
use crate::{Error, Result};

/// Marks a root in `parents`.
const NO_PARENT: u32 = u32::MAX;

/// The shape of one or more trees whose nodes are the rows of a table.
///
/// Nodes are visited in preorder; roots, and the children of a node, are visited in row order. Construction takes
/// O(nodes) for any order of the rows.
///
/// ```
/// use agentrl_compute::tree::Topology;
///
/// //      0        3
/// //     / \       |
/// //    1   2      4
/// let tree = Topology::new(&[-1, 0, 0, -1, 3])?;
/// assert_eq!(tree.leaves().collect::<Vec<_>>(), [1, 2, 4]);
/// assert_eq!(tree.path(4), [3, 4]);
/// assert_eq!((tree.lowest_common_ancestor(1, 2), tree.lowest_common_ancestor(1, 4)), (Some(0), None));
/// let mut successes = [0.0, 1.0, 0.0, 0.0, 1.0];
/// tree.fold_up(&mut successes, |parent, child| *parent += child)?;
/// assert_eq!(successes, [1.0, 1.0, 0.0, 1.0, 1.0]);
/// # Ok::<(), agentrl_compute::Error>(())
/// ```
#[derive(Clone, Debug)]
pub struct Topology {
    parents: Vec<u32>,
    children: Members,
    /// The nodes, each after its parent; the children of a node are in row order.
    downwards: Vec<u32>,
    /// Computed on first use; folds do not need it.
    traversal: OnceLock<Traversal>,
}

/// Positions and depths of the nodes.
#[derive(Clone, Debug)]
struct Traversal {
    /// The nodes in preorder.
    order: Vec<u32>,
    /// Position of each node in `order`.
    enter: Vec<u32>,
    /// First position in `order` after each node's subtree.
    exit: Vec<u32>,
    depths: Vec<u32>,
    /// Jump pointer of each node: an ancestor that is further away the deeper the node is; roots point to themselves.
    /// With jump pointers and parents, the ancestor at which a monotone test changes is found in O(log depth) (Myers,
    /// skew-binary jump pointers).
    jumps: Vec<u32>,
}

impl Topology {
    /// Build the topology of rows from the row of each parent, or -1 for a root.
    ///
    /// # Errors
    /// `InvalidInput` if a parent is neither -1 nor a row, or a node is its own ancestor; `Overflow` for 2³² - 1 nodes
    /// or more.
    pub fn new(parents: &[i64]) -> Result<Self> {
        let count = parents.len();
        if u32::try_from(count).is_ok_and(|count| count < NO_PARENT) {
            Self::build(parents.iter().enumerate().map(|(row, &parent)| match u32::try_from(parent) {
                Ok(parent) if (parent as usize) < count => Ok(parent),
                _ if parent == -1 => Ok(NO_PARENT),
                _ => Err(Error::invalid(format!(
                    "parents[{row}] is {parent}; give -1 for a root, or the row of another node, below {count}"
                ))),
            }))
        } else {
            Err(Error::overflow(format!(
                "parents has {count} nodes; split the trees so that one table has less than 2^32 - 1"
            )))
        }
    }

    fn build(parents: impl Iterator<Item = Result<u32>>) -> Result<Self> {
        let parents = parents.collect::<Result<Vec<u32>>>()?;
        let count = parents.len();
        let children = Members::new(parents.iter().copied(), count);
        let mut downwards: Vec<u32> = (0..count as u32).collect();
        if downwards.iter().zip(&parents).any(|(&node, &parent)| parent != NO_PARENT && parent >= node) {
            // Breadth first. Nodes in or below a cycle are never reached.
            downwards.retain(|&node| parents[node as usize] == NO_PARENT);
            let mut next = 0;
            while let Some(&node) = downwards.get(next) {
                downwards.extend_from_slice(children.rows(node as usize));
                next += 1;
            }
            if downwards.len() < count {
                return Err(Error::invalid(cycle(&parents)));
            }
        }
        Ok(Self { parents, children, downwards, traversal: OnceLock::new() })
    }

    fn traversal(&self) -> &Traversal {
        self.traversal.get_or_init(|| self.find_traversal())
    }

    fn find_traversal(&self) -> Traversal {
        let (parents, count) = (&self.parents, self.parents.len());
        let mut sizes = vec![1_u32; count];
        for &node in self.downwards.iter().rev() {
            let parent = parents[node as usize];
            if parent != NO_PARENT {
                sizes[parent as usize] += sizes[node as usize];
            }
        }
        let (mut enter, mut exit, mut free) = (vec![0_u32; count], vec![0_u32; count], vec![0_u32; count]);
        let (mut depths, mut jumps, mut order) = (vec![0_u32; count], vec![0_u32; count], vec![0_u32; count]);
        let mut free_of_roots = 0;
        for &node in &self.downwards {
            let (row, parent) = (node as usize, parents[node as usize]);
            let place = if parent == NO_PARENT {
                jumps[row] = node;
                &mut free_of_roots
            } else {
                let above = jumps[parent as usize];
                let further = jumps[above as usize];
                depths[row] = depths[parent as usize] + 1;
                let steps = |from: u32, to: u32| depths[from as usize] - depths[to as usize];
                jumps[row] = if steps(parent, above) == steps(above, further) { further } else { parent };
                &mut free[parent as usize]
            };
            enter[row] = *place;
            *place += sizes[row];
            exit[row] = enter[row] + sizes[row];
            free[row] = enter[row] + 1;
            order[enter[row] as usize] = node;
        }
        Traversal { order, enter, exit, depths, jumps }
    }

    /// Number of nodes.
    pub fn len(&self) -> usize {
        self.parents.len()
    }

    /// Whether there are no nodes.
    pub fn is_empty(&self) -> bool {
        self.parents.is_empty()
    }

    /// The nodes in preorder: a node, then the subtrees of its children one after the other.
    pub fn preorder(&self) -> &[u32] {
        &self.traversal().order
    }

    /// Position of each node in preorder.
    pub fn enter(&self) -> &[u32] {
        &self.traversal().enter
    }

    /// First position in preorder after the subtree of each node: the subtree is `preorder()[enter[n]..exit[n]]`.
    pub fn exit(&self) -> &[u32] {
        &self.traversal().exit
    }

    /// Number of edges between each node and its root.
    pub fn depths(&self) -> &[u32] {
        &self.traversal().depths
    }

    /// The parent of a node; `None` for a root.
    pub fn parent(&self, node: u32) -> Option<u32> {
        Some(self.parents[node as usize]).filter(|&parent| parent != NO_PARENT)
    }

    /// The nodes, each after its parent.
    pub(super) fn downwards(&self) -> &[u32] {
        &self.downwards
    }

    /// The children of a node, in the order of their rows.
    pub fn children(&self, node: u32) -> &[u32] {
        self.children.rows(node as usize)
    }

    /// Whether a node has no children.
    pub fn is_leaf(&self, node: u32) -> bool {
        self.children(node).is_empty()
    }

    /// The nodes without children, in preorder.
    pub fn leaves(&self) -> impl Iterator<Item = u32> {
        self.preorder().iter().copied().filter(|&node| self.is_leaf(node))
    }

    /// The nodes without parents, in preorder.
    pub fn roots(&self) -> impl Iterator<Item = u32> {
        self.preorder().iter().copied().filter(|&node| self.parents[node as usize] == NO_PARENT)
    }

    /// The root of the tree of each node.
    pub fn root_of_each(&self) -> Vec<u32> {
        let mut roots: Vec<u32> = (0..self.len() as u32).collect();
        self.down(&mut roots, |&parent, child| *child = parent);
        roots
    }

    /// Number of nodes in the subtree of a node, itself included.
    pub fn subtree_size(&self, node: u32) -> u32 {
        self.exit()[node as usize] - self.enter()[node as usize]
    }

    /// Number of leaves in the subtree of each node; 1 for a leaf.
    pub fn leaf_counts(&self) -> Vec<u32> {
        let mut counts: Vec<u32> = (0..self.len() as u32).map(|node| u32::from(self.is_leaf(node))).collect();
        self.up(&mut counts, |parent, &child| *parent += child);
        counts
    }

    /// Whether `upper` is `lower` or one of its ancestors.
    pub fn contains(&self, upper: u32, lower: u32) -> bool {
        let Traversal { enter, exit, .. } = self.traversal();
        let place = enter[lower as usize];
        enter[upper as usize] <= place && place < exit[upper as usize]
    }

    /// A node, its parent, and so on up to the root.
    pub fn ancestors(&self, node: u32) -> impl Iterator<Item = u32> {
        std::iter::successors(Some(node), |&node| self.parent(node))
    }

    /// The nodes from the root to a node, both included.
    pub fn path(&self, node: u32) -> Vec<u32> {
        let mut path: Vec<u32> = self.ancestors(node).collect();
        path.reverse();
        path
    }

    /// The deepest node whose subtree contains both nodes; `None` if they are in different trees. O(log depth).
    pub fn lowest_common_ancestor(&self, first: u32, second: u32) -> Option<u32> {
        let mut node = first;
        while !self.contains(node, second) {
            let far = self.traversal().jumps[node as usize];
            // A root points to itself: then only its missing parent is left.
            node = if far == node || self.contains(far, second) { self.parent(node)? } else { far };
        }
        Some(node)
    }

    /// Combine values from the leaves to the roots: call `fold(parent, child)` once per edge, after the child is
    /// complete; the children of a node are folded in reverse order.
    ///
    /// # Errors
    /// `InvalidInput` if the number of values is not the number of nodes.
    pub fn fold_up<T>(&self, values: &mut [T], fold: impl FnMut(&mut T, &T)) -> Result<()> {
        same_length("values", values.len(), "parents", self.len())?;
        self.up(values, fold);
        Ok(())
    }

    /// Combine values from the roots to the leaves: call `fold(parent, child)` once per edge, after the parent is
    /// complete.
    ///
    /// # Errors
    /// `InvalidInput` if the number of values is not the number of nodes.
    pub fn fold_down<T>(&self, values: &mut [T], fold: impl FnMut(&T, &mut T)) -> Result<()> {
        same_length("values", values.len(), "parents", self.len())?;
        self.down(values, fold);
        Ok(())
    }

    fn up<T>(&self, values: &mut [T], mut fold: impl FnMut(&mut T, &T)) {
        for &node in self.downwards.iter().rev() {
            if let Some((parent, child)) = self.edge(values, node) {
                fold(parent, child);
            }
        }
    }

    fn down<T>(&self, values: &mut [T], mut fold: impl FnMut(&T, &mut T)) {
        for &node in &self.downwards {
            if let Some((parent, child)) = self.edge(values, node) {
                fold(parent, child);
            }
        }
    }

    /// Return the values at both ends of the edge above a node.
    fn edge<'a, T>(&self, values: &'a mut [T], node: u32) -> Option<(&'a mut T, &'a mut T)> {
        let parent = self.parent(node)? as usize;
        // A node is never its own parent, and both are valid rows, so the pair exists.
        values.get_disjoint_mut([parent, node as usize]).ok().map(|[parent, child]| (parent, child))
    }
}

/// Return a message that names a cycle of `parents`, which must have one.
fn cycle(parents: &[u32]) -> String {
    let mut seen = vec![0_usize; parents.len()];
    for start in 0..parents.len() {
        let mut node = start;
        while seen[node] == 0 && parents[node] != NO_PARENT {
            seen[node] = start + 1;
            node = parents[node] as usize;
        }
        if seen[node] == start + 1 {
            return format!(
                "parents[{node}] is {}, which lies below node {node}; give a parent that is not below its own child",
                parents[node]
            );
        }
    }
    "parents has a cycle; give each node a parent that is not below it".to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tree::random_forests::forests;
    use proptest::prelude::*;

    fn message(parents: &[i64]) -> String {
        Topology::new(parents).map_or_else(|error| error.to_string(), |_| "fine".to_owned())
    }

    #[test]
    fn parents_that_do_not_form_a_tree_are_reported() {
        assert_eq!(message(&[]), "fine");
        assert_eq!(message(&[-1, 2]), "parents[1] is 2; give -1 for a root or the row of another node, below 2");
        assert_eq!(message(&[-2]), "parents[0] is -2; give -1 for a root or the row of another node, below 1");
        assert_eq!(
            message(&[0]),
            "parents[0] is 0, which lies below node 0; give a parent that is not below its own child"
        );
        assert_eq!(
            message(&[-1, 3, 1, 2, 0]),
            "parents[1] is 3, which lies below node 1; give a parent that is not below its own child"
        );
        assert_eq!(
            message(&[1, 2, 1]),
            "parents[1] is 2, which lies below node 1; give a parent that is not below its own child"
        );
        let tree = Topology::new(&[-1, 0]);
        let short = tree.and_then(|tree| tree.fold_up(&mut [0], |_, _| ())).map_err(|error| error.to_string());
        assert_eq!(
            short,
            Err("values has 1 values, but parents has 2; give one value of each for every row".to_owned())
        );
    }

    #[test]
    fn a_long_chain_and_a_wide_bush() -> Result<()> {
        let count = 300_000_u32;
        let chain: Vec<i64> = (0..i64::from(count)).map(|node| node - 1).collect();
        let tree = Topology::new(&chain)?;
        assert_eq!(tree.depths()[count as usize - 1], count - 1);
        assert_eq!(tree.lowest_common_ancestor(count - 1, 7), Some(7));
        assert_eq!(tree.leaf_counts(), vec![1; count as usize]);
        let bush: Vec<i64> = (0..count).map(|node| if node == 0 { -1 } else { 0 }).collect();
        let tree = Topology::new(&bush)?;
        assert_eq!(tree.leaf_counts()[0], count - 1);
        assert_eq!(tree.lowest_common_ancestor(count - 1, 7), Some(0));
        Ok(())
    }

    proptest! {
        #[test]
        fn as_by_walking(parents in forests(), pick in any::<(u32, u32)>()) {
            let tree = Topology::new(&parents)?;
            let count = parents.len() as u32;
            prop_assert_eq!((tree.len(), tree.is_empty()), (parents.len(), parents.is_empty()));
            let walk = |node: u32| -> Vec<u32> {
                let above = |&node: &u32| u32::try_from(parents[node as usize]).ok();
                std::iter::successors(Some(node), above).collect()
            };
            let roots = tree.root_of_each();
            let leaf_counts = tree.leaf_counts();
            for node in 0..count {
                let path = walk(node);
                let row = node as usize;
                prop_assert_eq!(tree.ancestors(node).collect::<Vec<_>>(), path.clone());
                prop_assert_eq!(tree.path(node), path.iter().rev().copied().collect::<Vec<_>>());
                prop_assert_eq!(tree.depths()[row] as usize, path.len() - 1);
                prop_assert_eq!(Some(&roots[row]), path.last());
                prop_assert_eq!(tree.preorder()[tree.enter()[row] as usize], node);
                let below: Vec<u32> = (0..count).filter(|&other| walk(other).contains(&node)).collect();
                let mut subtree = tree.preorder()[tree.enter()[row] as usize..tree.exit()[row] as usize].to_vec();
                subtree.sort_unstable();
                prop_assert_eq!(&subtree, &below);
                prop_assert_eq!(tree.subtree_size(node) as usize, below.len());
                let children: Vec<u32> = (0..count).filter(|&other| parents[other as usize] == i64::from(node)).collect();
                prop_assert_eq!(tree.children(node), &children);
                prop_assert_eq!(tree.is_leaf(node), children.is_empty());
                let leaves = below.iter().filter(|&&other| tree.is_leaf(other)).count();
                prop_assert_eq!(leaf_counts[row] as usize, leaves);
                // Children appear in preorder in the order of their rows.
                prop_assert!(children.windows(2).all(|pair| tree.enter()[pair[0] as usize] < tree.enter()[pair[1] as usize]));
            }
            prop_assert_eq!(tree.leaves().count(), (0..count).filter(|&node| tree.is_leaf(node)).count());
            prop_assert_eq!(tree.roots().collect::<Vec<_>>(), (0..count).filter(|&node| parents[node as usize] < 0).collect::<Vec<_>>());
            if count > 0 {
                let (first, second) = (pick.0 % count, pick.1 % count);
                let others = walk(second);
                let common = walk(first).into_iter().find(|node| others.contains(node));
                prop_assert_eq!(tree.lowest_common_ancestor(first, second), common);
            }
        }

        #[test]
        fn folds_follow_the_edges(parents in forests()) {
            let tree = Topology::new(&parents)?;
            let mut sizes = vec![1_u32; parents.len()];
            tree.fold_up(&mut sizes, |parent, child| *parent += child)?;
            prop_assert_eq!(sizes, (0..parents.len() as u32).map(|node| tree.subtree_size(node)).collect::<Vec<_>>());
            let mut depths = vec![0_u32; parents.len()];
            tree.fold_down(&mut depths, |parent, child| *child = parent + 1)?;
            prop_assert_eq!(&depths, tree.depths());
        }
    }
}
