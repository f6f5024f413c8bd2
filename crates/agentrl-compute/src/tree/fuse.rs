//! Aggregate the values of rows in a tree, from the nodes at which rows end up to the roots.

use super::Topology;
use crate::argument_checks::{column, finite, mask_length, same_length, within};
use crate::group::Accumulator;
use crate::named_options::choice;
use crate::rows_by_group::Members;
use crate::{Error, Result};

/// Rule that combines the values below a node into its value.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Fusion {
    /// Weighted mean of all rows through the node (the success rate of a subtree).
    Leaves,
    /// Mean of its children, each counted once (`BranchGRPO`, uniform).
    Children,
    /// `Σ_c softmax_c(alpha · logp(c)) · V(c)` over its children (`BranchGRPO`, path probability).
    Path {
        /// Factor of the log-probabilities of the edges.
        alpha: f64,
    },
    /// Expectile of its children, each counted once: the `v` with `Σ_c |level - 1[V(c) < v]| · (V(c) - v) = 0`. Level 0
    /// is the smallest child, 0.5 the mean, and 1 the largest.
    Expectile {
        /// Level of the expectile, from 0 to 1.
        level: f64,
    },
    /// The largest value below it (any success).
    Max,
    /// The smallest value below it (no failure).
    Min,
    /// The sum of the values below it.
    Sum,
}

impl Fusion {
    /// Return the fusion with a name; only `"path"` uses `alpha`, only `"expectile"` uses `level`.
    ///
    /// # Errors
    /// `InvalidInput` if the name is not `leaves`, `children`, `path`, `expectile`, `max`, `min` or `sum`, or the
    /// expectile is outside [0, 1].
    pub fn from_name(name: &str, alpha: f64, level: f64) -> Result<Self> {
        let fusions = [
            ("leaves", Self::Leaves),
            ("children", Self::Children),
            ("path", Self::Path { alpha }),
            ("expectile", Self::Expectile { level }),
            ("max", Self::Max),
            ("min", Self::Min),
            ("sum", Self::Sum),
        ];
        let fusion = choice("kind", name, &fusions)?;
        if let Self::Expectile { level } = fusion {
            within("expectile", level, 0.0, 1.0)?;
        }
        Ok(fusion)
    }
}

/// The rows whose values enter a tree.
#[derive(Clone, Copy, Debug)]
pub struct Rows<'a> {
    /// The node at which each row ends; several rows may share one, and it may have children.
    pub nodes: &'a [u32],
    /// The value of each row.
    pub values: &'a [f64],
    /// Weight of each row, at least 0; `None` means 1.
    pub weights: Option<&'a [f64]>,
    /// Whether each row counts; `None` means all do.
    pub valid: Option<&'a [bool]>,
}

impl Rows<'_> {
    /// The rows that count, by node.
    fn members(&self, tree: &Topology) -> Result<Members> {
        let count = self.values.len();
        same_length("nodes", self.nodes.len(), "values", count)?;
        mask_length(self.valid, "values", count)?;
        if let Some(row) = self.nodes.iter().position(|&node| node as usize >= tree.len()) {
            return Err(Error::invalid(format!(
                "nodes[{row}] is {}, but the tree has {count} nodes; give an index below {count}",
                self.nodes[row],
                count = tree.len()
            )));
        }
        if let Some(weights) = self.weights {
            same_length("weights", weights.len(), "values", count)?;
        }
        if self.weights.is_none() {
            column("values", self.values, "values", count, self.valid)?;
            return Ok(Members::of(self.nodes, tree.len(), self.valid));
        }
        let mut counted = vec![u32::MAX; count];
        for row in (0..count).filter(|&row| self.valid.is_none_or(|valid| valid[row])) {
            finite("values", row, self.values[row])?;
            let weight = self.weight(row);
            if finite("weights", row, weight)? < 0.0 {
                return Err(Error::invalid(format!("weights[{row}] is {weight}; give a number of at least 0")));
            }
            if weight > 0.0 {
                counted[row] = self.nodes[row];
            }
        }
        Ok(Members::new(counted.iter().copied(), tree.len()))
    }

    fn weight(&self, row: usize) -> f64 {
        self.weights.map_or(1.0, |weights| weights[row])
    }
}

/// Value of each node and total weight of the rows at and below it; both are 0 if there are no rows.
#[derive(Clone, Debug, PartialEq)]
pub struct Fused {
    /// One value for each node.
    pub values: Vec<f64>,
    /// The weight of the rows at and below each node.
    pub masses: Vec<f64>,
}

/// Compute the value of each node bottom-up from the rows that end at or below it, in O(nodes + rows).
///
/// Rows that end at a node with children count as one more child (their weighted mean). The result does not depend on
/// the order of rows or nodes, to the last bit. A mean of equal values is exactly that value.
///
/// ```
/// use agentrl_compute::tree::{Fusion, Rows, Topology, fuse};
///
/// let tree = Topology::new(&[-1, 0, 0, 1, 1])?;
/// let rows = Rows { nodes: &[3, 4, 2], values: &[1.0, 0.0, 1.0], weights: None, valid: None };
/// assert_eq!(fuse(&tree, &rows, Fusion::Children, None)?.values, [0.75, 0.5, 1.0, 1.0, 0.0]);
/// let leaves = fuse(&tree, &rows, Fusion::Leaves, None)?;
/// assert_eq!((leaves.values[0], leaves.masses[0]), (2.0 / 3.0, 3.0));
/// # Ok::<(), agentrl_compute::Error>(())
/// ```
///
/// # Errors
/// `InvalidInput` if lengths differ, a node does not exist, a value or weight is not finite, or a weight is negative.
/// Also if the log-probabilities of the edges are missing for [`Fusion::Path`] or given for another fusion, or if a row
/// ends above other rows with [`Fusion::Path`]. `Overflow` if a value is too large for f64.
pub fn fuse(tree: &Topology, rows: &Rows<'_>, fusion: Fusion, edge_logprobs: Option<&[f64]>) -> Result<Fused> {
    let members = rows.members(tree)?;
    let logprobs = edges(tree, fusion, edge_logprobs)?;
    let mut values = vec![0.0; tree.len()];
    let mut masses = vec![0.0; tree.len()];
    let mut items = Vec::new();
    for &node in tree.downwards().iter().rev() {
        let below = tree.children(node).iter().map(|&child| child as usize).filter(|&child| masses[child] > 0.0);
        // Collect the items first, because they are read several times.
        items.clear();
        let own = members.rows(node as usize).iter().map(|&row| row as usize);
        items.extend(own.map(|row| (rows.values[row], rows.weight(row))));
        let count = items.len();
        items.extend(below.clone().map(|child| (values[child], masses[child])));
        let (own, children) = items.split_at(count);
        if logprobs.is_some() && !own.is_empty() && !children.is_empty() {
            return Err(Error::invalid(format!(
                "nodes contains {node}, which has children, but kind=\"path\" needs leaves; give the leaf of each row"
            )));
        }
        let (average, mass) = mean(items.iter().copied());
        // The rows of a node count by their weights. Where each child counts once, these rows together count once.
        let alone = || (!own.is_empty()).then(|| mean(own.iter().copied()).0);
        let value = match fusion {
            _ if mass <= 0.0 => 0.0,
            Fusion::Leaves => average,
            Fusion::Children => mean(alone().into_iter().chain(of_each(children)).map(|value| (value, 1.0))).0,
            Fusion::Path { alpha } => match (alone(), logprobs) {
                (None, Some(logprobs)) => {
                    let score = |child: usize| alpha * logprobs[child];
                    let most = below.clone().map(score).fold(f64::NEG_INFINITY, f64::max);
                    mean(below.map(|child| (values[child], (score(child) - most).exp()))).0
                }
                (alone, _) => alone.unwrap_or(0.0),
            },
            Fusion::Expectile { level } => expectile(alone().into_iter().chain(of_each(children)), level),
            Fusion::Max => of_each(&items).fold(f64::NEG_INFINITY, f64::max),
            Fusion::Min => of_each(&items).fold(f64::INFINITY, f64::min),
            Fusion::Sum => total(own.iter().map(|(value, weight)| value * weight).chain(of_each(children))),
        };
        if !(value.is_finite() && mass.is_finite()) {
            return Err(Error::overflow(format!(
                "the value of node {node} is too large for a 64-bit float; scale the values"
            )));
        }
        values[node as usize] = value;
        masses[node as usize] = mass;
    }
    Ok(Fused { values, masses })
}

/// Return the values without their weights.
fn of_each(items: &[(f64, f64)]) -> impl Iterator<Item = f64> + Clone {
    items.iter().map(|&(value, _)| value)
}

/// Return the expectile of at least one value. Between two neighbours it is a weighted mean of the values below and
/// above.
fn expectile(values: impl Iterator<Item = f64>, level: f64) -> f64 {
    let mut sorted: Vec<f64> = values.collect();
    sorted.sort_unstable_by(f64::total_cmp);
    let (least, most) = (sorted[0], sorted[sorted.len() - 1]);
    let mut below = 0.0;
    let mut above: f64 = sorted.iter().sum();
    for (place, &value) in sorted.iter().enumerate() {
        let (weight_below, weight_above) = ((1.0 - level) * place as f64, level * (sorted.len() - place) as f64);
        let found = ((1.0 - level) * below + level * above) / (weight_below + weight_above);
        if found <= value {
            return found.clamp(least, most);
        }
        below += value;
        above -= value;
    }
    most
}

/// Check the log-probabilities of the edges, which path fusion needs and no other fusion takes.
fn edges<'a>(tree: &Topology, fusion: Fusion, logprobs: Option<&'a [f64]>) -> Result<Option<&'a [f64]>> {
    match (fusion, logprobs) {
        (Fusion::Path { alpha }, Some(logprobs)) => {
            same_length("edge_logprobs", logprobs.len(), "parents", tree.len())?;
            if !alpha.is_finite() {
                return Err(Error::invalid(format!("alpha is {alpha}; give a finite number")));
            }
            for (row, &logprob) in logprobs.iter().enumerate() {
                finite("edge_logprobs", row, logprob)?;
            }
            Ok(Some(logprobs))
        }
        (Fusion::Path { .. }, None) => Err(Error::invalid(
            "edge_logprobs is missing, but kind=\"path\" needs it; give one log-probability for each node",
        )),
        (_, None) => Ok(None),
        (_, Some(_)) => Err(Error::invalid("edge_logprobs is given, but only kind=\"path\" uses it; leave it out")),
    }
}

/// Sum terms in a way that does not depend on their order.
pub(super) fn total(terms: impl Iterator<Item = f64> + Clone) -> f64 {
    let mut sum = ExactSum::default();
    terms.clone().for_each(|term| sum.add(term));
    sum.finish(terms)
}

/// Return `Σ w·x / Σ w` and `Σ w`, in any order; the mean of equal values is exactly that value.
pub(super) fn mean(items: impl Iterator<Item = (f64, f64)> + Clone) -> (f64, f64) {
    // Fast path: most nodes are leaves at which one row ends.
    let mut first = items.clone();
    if let (Some(only), None) = (first.next(), first.next()) {
        return only;
    }
    let (mut least, mut most) = (f64::INFINITY, f64::NEG_INFINITY);
    let (mut weights, mut products) = (ExactSum::default(), ExactSum::default());
    for (value, weight) in items.clone() {
        (least, most) = (least.min(value), most.max(value));
        weights.add(weight);
        products.add(value * weight);
    }
    let weight = weights.finish(items.clone().map(|(_, weight)| weight));
    if least >= most {
        return (least, weight);
    }
    let sum = products.finish(items.map(|(value, weight)| value * weight));
    ((sum / weight).clamp(least, most), weight)
}

/// A sum of floats that is exact as long as its terms are small whole numbers, as most weights and rewards are.
struct ExactSum {
    plain: f64,
    whole: bool,
    largest: f64,
    count: u64,
}

impl Default for ExactSum {
    fn default() -> Self {
        Self { plain: 0.0, whole: true, largest: 0.0, count: 0 }
    }
}

impl ExactSum {
    fn add(&mut self, term: f64) {
        // 2^12 terms of this size stay below 2^53.
        const SMALL: f64 = (1_u64 << 40) as f64;
        /// From this value on all floats are whole numbers.
        const WHOLE: f64 = 1.5 * (1_u64 << 52) as f64;
        self.plain += term;
        self.whole &= (term.abs() < SMALL) & (term + WHOLE - WHOLE - term == 0.0);
        self.largest = self.largest.max(term.abs());
        self.count += 1;
    }

    /// Return the sum of the added terms, with the same bits in any order.
    fn finish(&self, terms: impl Iterator<Item = f64>) -> f64 {
        if self.whole && self.count < 1 << 12 {
            return self.plain;
        }
        let mut sum = Accumulator::new(self.largest, self.count);
        terms.for_each(|term| sum.add(term));
        sum.divided_by(1.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn message(rows: &Rows<'_>, fusion: Fusion, logprobs: Option<&[f64]>) -> String {
        let tree = Topology::new(&[-1, 0, 0]).expect("a tree");
        fuse(&tree, rows, fusion, logprobs).map_or_else(|error| error.to_string(), |_| "fine".to_owned())
    }

    #[test]
    fn sums_of_whole_numbers_are_those_of_the_accumulator() {
        let accumulated = |terms: &[f64]| {
            let mut sum =
                Accumulator::new(terms.iter().fold(0.0, |most, term| term.abs().max(most)), terms.len() as u64);
            for &term in terms {
                sum.add(term);
            }
            sum.divided_by(1.0)
        };
        for terms in
            [&[][..], &[-0.0], &[3.0, -1.0, 0.0], &[1e12, -7.0, 1.0], &[0.5, 1.0], &[2e12, 1.0], &[1e300, -1.0]]
        {
            assert_eq!(total(terms.iter().copied()).to_bits(), accumulated(terms).to_bits(), "{terms:?}");
        }
    }

    #[test]
    fn every_fusion_by_hand() -> Result<()> {
        //        0
        //      /   \
        //     1     2 (a row of its own)
        //    / \     \
        //   3   4     5
        let tree = Topology::new(&[-1, 0, 0, 1, 1, 2])?;
        let rows = Rows { nodes: &[3, 4, 5, 2], values: &[1.0, 0.0, 4.0, 2.0], weights: None, valid: None };
        let value = |fusion| fuse(&tree, &rows, fusion, None).map(|found| found.values);
        assert_eq!(value(Fusion::Leaves)?, [1.75, 0.5, 3.0, 1.0, 0.0, 4.0]);
        assert_eq!(value(Fusion::Children)?, [1.75, 0.5, 3.0, 1.0, 0.0, 4.0]);
        assert_eq!(value(Fusion::Max)?, [4.0, 1.0, 4.0, 1.0, 0.0, 4.0]);
        assert_eq!(value(Fusion::Min)?, [0.0, 0.0, 2.0, 1.0, 0.0, 4.0]);
        assert_eq!(value(Fusion::Sum)?, [7.0, 1.0, 6.0, 1.0, 0.0, 4.0]);
        let valid = [true, false, true, false];
        let some = fuse(&tree, &Rows { valid: Some(&valid), ..rows }, Fusion::Leaves, None)?;
        assert_eq!(
            (some.values, some.masses),
            (vec![2.5, 1.0, 4.0, 1.0, 0.0, 4.0], vec![2.0, 1.0, 1.0, 1.0, 0.0, 1.0])
        );
        Ok(())
    }

    #[test]
    fn expectiles_of_children() -> Result<()> {
        let tree = Topology::new(&[-1, 0, 0, 0])?;
        let rows = Rows { nodes: &[1, 2, 3], values: &[4.0, 0.0, 1.0], weights: None, valid: None };
        let of =
            |rows: &Rows<'_>, level| fuse(&tree, rows, Fusion::Expectile { level }, None).map(|found| found.values[0]);
        // 0.8 of (4 - v) against 0.2 of (v - 0) and (v - 1): v = 3.4 / 1.2.
        assert!((of(&rows, 0.8)? - 3.4 / 1.2).abs() < 1e-15);
        for (level, expected) in [(0.0, 0.0_f64), (0.5, 5.0 / 3.0), (1.0, 4.0)] {
            assert!((of(&rows, level)? - expected).abs() < 1e-15, "{level}");
            let other = Rows { nodes: &[3, 1, 2], values: &[4.0, 0.0, 1.0], ..rows };
            assert_eq!(of(&rows, level)?.to_bits(), of(&other, level)?.to_bits());
            assert_eq!(of(&Rows { values: &[0.1; 3], ..rows }, level)?.to_bits(), 0.1_f64.to_bits());
        }
        assert!(Fusion::from_name("expectile", 1.0, 1.5).is_err());
        Ok(())
    }

    #[test]
    fn children_count_by_their_probability() -> Result<()> {
        let tree = Topology::new(&[-1, 0, 0])?;
        let rows = Rows { nodes: &[1, 2], values: &[1.0, 0.0], weights: None, valid: None };
        let logprobs = [0.0, 0.75_f64.ln(), 0.25_f64.ln()];
        let by = |alpha| fuse(&tree, &rows, Fusion::Path { alpha }, Some(&logprobs)).map(|found| found.values[0]);
        assert!((by(1.0)? - 0.75).abs() < 1e-15);
        assert!((by(2.0)? - 0.9).abs() < 1e-15);
        assert!((by(0.0)? - 0.5).abs() < 1e-15);
        Ok(())
    }

    #[test]
    fn invalid_input_is_reported() {
        let rows = Rows { nodes: &[1, 2], values: &[1.0, 0.0], weights: None, valid: None };
        assert_eq!(
            message(&Rows { nodes: &[1, 3], ..rows }, Fusion::Leaves, None),
            "nodes[1] is 3, but the tree has 3 nodes; give an index below 3"
        );
        assert_eq!(
            message(&Rows { weights: Some(&[1.0, -1.0]), ..rows }, Fusion::Leaves, None),
            "weights[1] is -1; give a number of at least 0"
        );
        assert!(message(&rows, Fusion::Path { alpha: 1.0 }, None).starts_with("edge_logprobs is missing"));
        assert!(message(&rows, Fusion::Max, Some(&[0.0; 3])).starts_with("edge_logprobs is given"));
        let inner = Rows { nodes: &[0, 2], ..rows };
        assert!(
            message(&inner, Fusion::Path { alpha: 1.0 }, Some(&[0.0; 3]))
                .starts_with("nodes contains 0, which has children")
        );
        assert!(message(&Rows { values: &[f64::NAN, 0.0], ..rows }, Fusion::Max, None).contains("values[0] is NaN"));
        assert_eq!(
            message(&Rows { values: &[f64::MAX, f64::MAX], ..rows }, Fusion::Sum, None),
            "the value of node 0 is too large for a 64-bit float; scale the values"
        );
        assert!(Fusion::from_name("mode", 1.0, 0.7).is_err());
    }
}
