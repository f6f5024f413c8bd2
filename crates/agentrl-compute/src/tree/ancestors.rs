//! Credit of rows relative to all rows with a common prefix, at every depth of the tree (`TreePO`).

use super::Topology;
use super::fuse::{Fused, Fusion, Rows, fuse};
use crate::group::Singleton;
use crate::{Result, names};

names! {
    /// Weights of the comparisons of a row at its ancestors.
    "weighting" Weighting {
        /// The weight of the rows below the ancestor (named as in `TreePO`).
        Size = "group_size",
        /// The same weight for every ancestor.
        Equal = "average",
    }
}

/// Options of [`ancestor_relative`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AncestorOptions {
    /// Weights of the comparisons.
    pub weighting: Weighting,
    /// Leave out ancestors below which all values are equal; the root is always kept.
    pub drop_constant: bool,
    /// Result of a row that is alone in its tree.
    pub singleton: Singleton,
}

/// Advantage of each row over the rows with a common prefix, averaged over its ancestors:
/// `A_i = Σ_a w_a · (R_i - V(a)) / Σ_a w_a`, where `V(a)` is the mean of the rows through `a`.
///
/// An ancestor counts if at least two rows go through it; the root always counts. Takes O(nodes + rows): one pass down
/// the tree accumulates `Σ w·V` and `Σ w`. Source: `TreePO`, arXiv:2508.17445.
///
/// ```
/// use agentrl_compute::group::Singleton;
/// use agentrl_compute::tree::{AncestorOptions, Rows, Topology, Weighting, ancestor_relative};
///
/// // Two branches of two leaves each.
/// let tree = Topology::new(&[-1, 0, 0, 1, 1, 2, 2])?;
/// let rows = Rows { nodes: &[3, 4, 5, 6], values: &[3.0, 0.0, 0.0, 0.0], weights: None, valid: None };
/// let options = AncestorOptions { weighting: Weighting::Size, drop_constant: false, singleton: Singleton::Zero };
/// // Leaf 3: (4 · (3 - 3/4) + 2 · (3 - 3/2)) / 6.
/// assert_eq!(ancestor_relative(&tree, &rows, &options)?, [2.0, -1.0, -0.5, -0.5]);
/// # Ok::<(), agentrl_compute::Error>(())
/// ```
///
/// # Errors
/// See [`fuse`].
pub fn ancestor_relative(tree: &Topology, rows: &Rows<'_>, options: &AncestorOptions) -> Result<Vec<f64>> {
    let Fused { values, masses } = fuse(tree, rows, Fusion::Leaves, None)?;
    // Number of rows through each node: their mass, if each row weighs 1.
    let mut counts: Vec<u32> =
        masses.iter().map(|&mass| if rows.weights.is_none() { mass as u32 } else { 0 }).collect();
    if rows.weights.is_some() {
        for row in (0..rows.values.len()).filter(|&row| rows.valid.is_none_or(|valid| valid[row])) {
            counts[rows.nodes[row] as usize] += 1;
        }
        tree.fold_up(&mut counts, |parent, child| *parent += child)?;
    }
    let mut constant = Vec::new();
    if options.drop_constant {
        let most = fuse(tree, rows, Fusion::Max, None)?.values;
        let least = fuse(tree, rows, Fusion::Min, None)?.values;
        constant = most.iter().zip(least).map(|(most, least)| *most <= least).collect();
    }
    // For each node: Σ w·V and Σ w over it and its ancestors, and the number of rows in its tree.
    let mut sums: Vec<(f64, f64, u32)> = (0..tree.len())
        .map(|node| {
            let is_root = tree.parent(node as u32).is_none();
            if masses[node] <= 0.0 || (!is_root && (counts[node] < 2 || constant.get(node) == Some(&true))) {
                return (0.0, 0.0, counts[node]);
            }
            let weight = if options.weighting == Weighting::Size { masses[node] } else { 1.0 };
            (weight * values[node], weight, counts[node])
        })
        .collect();
    tree.fold_down(&mut sums, |above, own| *own = (own.0 + above.0, own.1 + above.1, above.2))?;
    let credit = |row: usize| {
        let node = rows.nodes[row] as usize;
        let (value, (weighted, weight, of_tree)) = (rows.values[row], sums[node]);
        if rows.valid.is_some_and(|valid| !valid[row]) || weight <= 0.0 {
            0.0
        } else if of_tree == 1 {
            if options.singleton == Singleton::Raw { value } else { 0.0 }
        } else {
            value - weighted / weight
        }
    };
    Ok((0..rows.values.len()).map(credit).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    const OPTIONS: AncestorOptions =
        AncestorOptions { weighting: Weighting::Equal, drop_constant: false, singleton: Singleton::Zero };

    #[test]
    fn ancestors_below_which_all_are_equal_can_be_left_out() -> Result<()> {
        let tree = Topology::new(&[-1, 0, 0, 1, 1, 2, 2])?;
        let rows = Rows { nodes: &[3, 4, 5, 6], values: &[1.0, 0.0, 0.0, 0.0], weights: None, valid: None };
        assert_eq!(ancestor_relative(&tree, &rows, &OPTIONS)?, [0.625, -0.375, -0.125, -0.125]);
        let skip = AncestorOptions { drop_constant: true, ..OPTIONS };
        assert_eq!(ancestor_relative(&tree, &rows, &skip)?, [0.625, -0.375, -0.25, -0.25]);
        Ok(())
    }

    #[test]
    fn a_row_alone_in_its_tree() -> Result<()> {
        let tree = Topology::new(&[-1, 0, -1, 2])?;
        let valid = [true, false, true];
        let rows = Rows { nodes: &[1, 1, 3], values: &[5.0, 9.0, 3.0], weights: None, valid: Some(&valid) };
        assert_eq!(ancestor_relative(&tree, &rows, &OPTIONS)?, [0.0, 0.0, 0.0]);
        let raw = AncestorOptions { singleton: Singleton::Raw, ..OPTIONS };
        assert_eq!(ancestor_relative(&tree, &rows, &raw)?, [5.0, 0.0, 3.0]);
        Ok(())
    }
}
