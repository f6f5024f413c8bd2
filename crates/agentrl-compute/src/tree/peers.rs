//! Groups of nodes that are compared with each other, for the statistics of [`group`](crate::group).

use super::Topology;
use crate::keys;
use crate::{Result, names};

names! {
    /// The nodes that a node is compared with.
    "kind" Peers {
        /// The children of the same parent (`TreeRPO`); roots have no siblings.
        Siblings = "siblings",
        /// The nodes of the same tree at the same depth (`BranchGRPO`).
        Depth = "depth",
        /// The nodes of the same tree.
        Tree = "tree",
    }
}

/// Return dense ids that are equal for peers. A root has no siblings: among siblings it has an id of its own.
///
/// ```
/// use agentrl_compute::tree::{Peers, Topology, peers};
///
/// let tree = Topology::new(&[-1, 0, 0, 1, 2])?;
/// assert_eq!(peers(&tree, Peers::Siblings)?, [0, 1, 1, 2, 3]);
/// assert_eq!(peers(&tree, Peers::Depth)?, [0, 1, 1, 2, 2]);
/// # Ok::<(), agentrl_compute::Error>(())
/// ```
///
/// # Errors
/// None for a valid tree.
pub fn peers(tree: &Topology, of: Peers) -> Result<Vec<u32>> {
    let made = match of {
        Peers::Siblings => {
            let parents = (0..tree.len() as u32).map(|node| tree.parent(node).map_or(-1 - i64::from(node), i64::from));
            keys::dense_integers(&parents.collect::<Vec<_>>())?
        }
        Peers::Depth => keys::pair(&tree.root_of_each(), tree.depths())?,
        Peers::Tree => keys::pair(&tree.root_of_each(), &vec![0; tree.len()])?,
    };
    Ok(made.ids)
}
