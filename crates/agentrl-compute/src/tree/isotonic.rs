//! Isotonic regression on a tree: the nearest values that do not decrease from a root to its leaves.

use std::cmp::Reverse;
use std::collections::{BTreeSet, BinaryHeap};

use super::Topology;
use super::fuse::{mean, total};
use crate::argument_checks::{finite, mask_length, same_length};
use crate::group::Accumulator;
use crate::{Error, Result, names};

names! {
    /// A limit on the norm of the result of [`isotonic`], tree by tree: `‖a‖² ≤ N` or `= N`, N the number of valid
    /// nodes.
    "radius" Radius {
        /// No limit: the projection as it is.
        Free = "none",
        /// Centred (`Σ a = 0`), and scaled down to `‖a‖² = N` if its norm is larger.
        Soft = "soft",
        /// Centred, and scaled to `‖a‖² = N`; a tree of zeros stays zero.
        Hard = "hard",
    }
}

/// Nodes that are pooled into one value.
struct Block {
    sum: Accumulator,
    weight: Accumulator,
    mean: f64,
    /// The blocks directly below, smallest mean first.
    below: BinaryHeap<Reverse<(Ordered, u32)>>,
}

/// Isotonic regression on a tree: `argmin Σ w·(a - x)²` subject to `a(parent) + margin ≤ a(child)` on every edge. A
/// parent that exceeds its smallest child block is pooled with it (Pardalos and Xue, 1999).
///
/// Nodes where `valid` is false are skipped and get 0; their children are attached to the nearest valid ancestor. With
/// `Radius::Soft` and scores of 0 and 1 this is the soft projection of Tree-OPO, arXiv:2509.09284.
///
/// ```
/// use agentrl_compute::tree::{Radius, Topology, isotonic};
///
/// let tree = Topology::new(&[-1, 0, 0])?;
/// // The root must not exceed its first child: both become 0.5.
/// assert_eq!(isotonic(&tree, &[1.0, 0.0, 3.0], None, None, 0.0, Radius::Free)?, [0.5, 0.5, 3.0]);
/// # Ok::<(), agentrl_compute::Error>(())
/// ```
///
/// # Errors
/// `InvalidInput` if lengths differ, a valid value is not finite, a weight is not positive or the margin is negative.
pub fn isotonic(
    tree: &Topology,
    values: &[f64],
    weights: Option<&[f64]>,
    valid: Option<&[bool]>,
    margin: f64,
    radius: Radius,
) -> Result<Vec<f64>> {
    let count = tree.len();
    same_length("values", values.len(), "parents", count)?;
    mask_length(valid, "parents", count)?;
    if let Some(weights) = weights {
        same_length("weights", weights.len(), "parents", count)?;
    }
    if !(margin.is_finite() && margin >= 0.0) {
        return Err(Error::invalid(format!("margin is {margin}; give a finite number of at least 0")));
    }
    let is_valid = |node: usize| valid.is_none_or(|valid| valid[node]);
    let weight = |node: usize| weights.map_or(1.0, |weights| weights[node]);
    for node in (0..count).filter(|&node| is_valid(node)) {
        finite("values", node, values[node])?;
        if !(weight(node).is_finite() && weight(node) > 0.0) {
            return Err(Error::invalid(format!("weights[{node}] is {}; give a finite number above 0", weight(node))));
        }
    }
    // Subtract a margin for every valid node from the root down: the constraint becomes a(parent) <= a(child).
    let mut steps: Vec<u32> = (0..count).map(|node| u32::from(is_valid(node))).collect();
    tree.fold_down(&mut steps, |above, own| *own += above)?;
    let shift = |node: usize| margin * f64::from(steps[node]);
    let shifted = |node: usize| values[node] - shift(node);
    // One grid for all sums, so that any order of pooling gives the same bits.
    let rows = || (0..count).filter(|&node| is_valid(node));
    let largest = rows().map(|node| (weight(node) * shifted(node)).abs()).fold(0.0, f64::max);
    let heaviest = rows().map(weight).fold(0.0, f64::max);
    let mut blocks: Vec<Option<Block>> = (0..count).map(|_| None).collect();
    // Blocks below a skipped node belong to the next valid node above it.
    let mut orphans: Vec<BinaryHeap<Reverse<(Ordered, u32)>>> = (0..count).map(|_| BinaryHeap::new()).collect();
    let mut pooled: Vec<u32> = (0..count as u32).collect();
    for &node in tree.preorder().iter().rev() {
        let row = node as usize;
        let mut below = std::mem::take(&mut orphans[row]);
        if is_valid(row) {
            let mut sum = Accumulator::new(largest, count as u64);
            let mut mass = Accumulator::new(heaviest, count as u64);
            sum.add(weight(row) * shifted(row));
            mass.add(weight(row));
            let mut mean = shifted(row);
            while let Some(&Reverse((Ordered(least), child))) = below.peek()
                && least < mean
            {
                below.pop();
                let Some(taken) = blocks[child as usize].take() else { continue };
                pooled[child as usize] = node;
                sum.merge(&taken.sum);
                mass.merge(&taken.weight);
                mean = sum.divided_by(mass.divided_by(1.0));
                below = melded(below, taken.below);
            }
            blocks[row] = Some(Block { sum, weight: mass, mean, below });
            below = BinaryHeap::from([Reverse((Ordered(mean), node))]);
        }
        if let Some(parent) = tree.parent(node) {
            let above = std::mem::take(&mut orphans[parent as usize]);
            orphans[parent as usize] = melded(above, below);
        }
    }
    // A pooled node names the node that absorbed it, which is one of its ancestors.
    let mut fitted = vec![0.0; count];
    for &node in tree.preorder().iter().filter(|&&node| is_valid(node as usize)) {
        let row = node as usize;
        let owner = pooled[row] as usize;
        pooled[row] = if owner == row { node } else { pooled[owner] };
        fitted[row] = blocks[pooled[row] as usize].as_ref().map_or(0.0, |block| block.mean);
    }
    for node in rows() {
        fitted[node] += shift(node);
    }
    if radius != Radius::Free {
        scale(tree, &mut fitted, is_valid, radius);
    }
    for (node, &value) in fitted.iter().enumerate() {
        <f64 as crate::Float>::result(node, value)?;
    }
    Ok(fitted)
}

/// Centre each tree and scale it to the radius.
fn scale(tree: &Topology, fitted: &mut [f64], is_valid: impl Fn(usize) -> bool, radius: Radius) {
    let roots: BTreeSet<u32> = tree.roots().collect();
    for root in roots {
        let (enter, exit) = (tree.enter()[root as usize] as usize, tree.exit()[root as usize] as usize);
        let nodes: Vec<usize> =
            tree.preorder()[enter..exit].iter().map(|&node| node as usize).filter(|&node| is_valid(node)).collect();
        if nodes.is_empty() {
            continue;
        }
        let centre = mean(nodes.iter().map(|&node| (fitted[node], 1.0))).0;
        let squared = total(nodes.iter().map(|&node| (fitted[node] - centre).powi(2)));
        let limit = (nodes.len() as f64 / squared).sqrt();
        let factor = match radius {
            _ if squared <= 0.0 => 0.0,
            Radius::Hard => limit,
            Radius::Soft | Radius::Free => limit.min(1.0),
        };
        for node in nodes {
            fitted[node] = (fitted[node] - centre) * factor;
        }
    }
}

/// Merge two heaps: the smaller goes into the larger, so that n nodes cost O(n log² n).
fn melded<T: Ord>(first: BinaryHeap<T>, second: BinaryHeap<T>) -> BinaryHeap<T> {
    let (mut large, small) = if first.len() >= second.len() { (first, second) } else { (second, first) };
    large.extend(small);
    large
}

/// A finite float with a total order.
#[derive(Clone, Copy, PartialEq)]
struct Ordered(f64);

impl Eq for Ordered {}

impl PartialOrd for Ordered {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Ordered {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        self.0.total_cmp(&other.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tree::random_forests::forests;
    use proptest::prelude::*;

    /// Minimax formula of isotonic regression on a chain: the maximum over starts of the minimum over ends of the mean.
    fn naive_chain(x: &[f64]) -> Vec<f64> {
        let mean = |j: usize, k: usize| x[j..=k].iter().sum::<f64>() / (k - j + 1) as f64;
        let fit = |i: usize| {
            let least = |j: usize| (i..x.len()).map(|k| mean(j, k)).fold(f64::INFINITY, f64::min);
            (0..=i).map(least).fold(f64::NEG_INFINITY, f64::max)
        };
        (0..x.len()).map(fit).collect()
    }

    #[test]
    fn by_hand() -> Result<()> {
        let chain = Topology::new(&[-1, 0, 1])?;
        let fit = |margin, radius| isotonic(&chain, &[1.0, 0.0, 0.5], None, None, margin, radius);
        assert_eq!(fit(0.0, Radius::Free)?, [0.5, 0.5, 0.5]);
        assert_eq!(fit(0.25, Radius::Free)?, [0.25, 0.5, 0.75]);
        assert_eq!(fit(0.0, Radius::Hard)?, [0.0, 0.0, 0.0]);
        let hard = isotonic(&chain, &[0.0, 1.0, 2.0], None, None, 0.0, Radius::Hard)?;
        assert!((hard[2] - 1.5_f64.sqrt()).abs() < 1e-15 && hard[1].abs() < 1e-15);
        assert_eq!(isotonic(&chain, &[0.0, 1.0, 2.0], None, None, 0.0, Radius::Soft)?, [-1.0, 0.0, 1.0]);
        // The middle node is skipped: the constraint holds between the root and the leaf.
        let valid = [true, false, true];
        assert_eq!(isotonic(&chain, &[1.0, 9.0, 0.0], None, Some(&valid), 0.0, Radius::Free)?, [0.5, 0.0, 0.5]);
        assert_eq!(
            isotonic(&chain, &[3.0, 0.0, 9.0], Some(&[1.0, 2.0, 1.0]), None, 0.0, Radius::Free)?,
            [1.0, 1.0, 9.0]
        );
        Ok(())
    }

    #[test]
    fn invalid_input_is_reported() -> Result<()> {
        let chain = Topology::new(&[-1, 0])?;
        let message = |values: &[f64], weights: Option<&[f64]>, margin| {
            isotonic(&chain, values, weights, None, margin, Radius::Free)
                .map_or_else(|error| error.to_string(), |_| "fine".to_owned())
        };
        assert!(message(&[1.0], None, 0.0).starts_with("values has 1 values"));
        assert_eq!(message(&[1.0, 0.0], Some(&[1.0, 0.0]), 0.0), "weights[1] is 0; give a finite number above 0");
        assert_eq!(message(&[1.0, 0.0], None, -1.0), "margin is -1; give a finite number of at least 0");
        assert!(Radius::from_name("firm").is_err());
        Ok(())
    }

    proptest! {
        #[test]
        fn as_the_formula_on_a_chain(x in prop::collection::vec(-5.0_f64..5.0, 1..9)) {
            let parents: Vec<i64> = (0..x.len() as i64).map(|node| node - 1).collect();
            let found = isotonic(&Topology::new(&parents)?, &x, None, None, 0.0, Radius::Free)?;
            prop_assert!(found.iter().zip(naive_chain(&x)).all(|(a, b)| (a - b).abs() < 1e-12), "{found:?}");
        }

        /// The result is feasible and meets the optimality conditions: the mean of each level set is its value, and no
        /// subtree within a level set can be raised alone.
        #[test]
        fn optimal_on_trees(parents in forests(), seed in any::<u64>()) {
            let tree = Topology::new(&parents)?;
            let x: Vec<f64> = (0..parents.len() as u64).map(|node| (crate::rng::uniform(seed, node) * 4.0).floor()).collect();
            let a = isotonic(&tree, &x, None, None, 0.0, Radius::Free)?;
            for (node, &parent) in parents.iter().enumerate() {
                prop_assert!(parent < 0 || a[parent as usize] <= a[node] + 1e-12);
                // The part of the node's block at and below the node: its mean must not exceed the value of the block.
                let same: Vec<usize> = (0..parents.len())
                    .filter(|&other| tree.contains(node as u32, other as u32))
                    .filter(|&other| tree.ancestors(other as u32).take_while(|&up| up != node as u32).all(|up| (a[up as usize] - a[node]).abs() < 1e-12))
                    .collect();
                let part = same.iter().map(|&other| x[other] - a[node]).sum::<f64>();
                prop_assert!(part <= 1e-9, "{part}");
                let is_top = parent < 0 || (a[parent as usize] - a[node]).abs() >= 1e-12;
                prop_assert!(!is_top || part.abs() <= 1e-9, "{part}");
            }
        }
    }
}
