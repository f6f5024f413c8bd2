//! Draws in proportion to priorities that change: a tree of sums with 16 children a node.

use crate::check::{same_length, within};
use crate::rng::uniform;
use crate::{Error, Result, names, par};

/// Children of a node: two cache lines of f64.
const WIDTH: usize = 16;

/// Draws that are worth a thread of their own.
const MANY: usize = 1 << 11;

/// Priorities of rows, and their sums.
///
/// A sum is always made of the values below it, in one fixed order, and never by adding a difference. So a tree that was
/// updated any number of times equals, bit for bit, one that is made anew from the same priorities.
///
/// ```
/// use agentrl_compute::replay::SumTree;
///
/// let mut tree = SumTree::new(&[1.0, 3.0], 1.0)?;
/// tree.update(&[0], &[5.0])?;
/// assert_eq!((tree.total(), tree.probability(0)?), (8.0, 0.625));
/// # Ok::<(), agentrl_compute::Error>(())
/// ```
#[derive(Clone, Debug, PartialEq)]
pub struct SumTree {
    rows: usize,
    exponent: f64,
    /// Of each row its priority to the power of the exponent; 0: it is not drawn. Whole nodes.
    leaves: Vec<f64>,
    /// Nodes over the leaves, nodes over those, and so on; the last level is one family of siblings.
    levels: Vec<Level>,
    /// One bit a node of the widest level, all unset between calls.
    seen: Vec<u64>,
}

/// Nodes, in whole families of siblings.
#[derive(Clone, Debug, PartialEq)]
struct Level {
    /// What each holds.
    sums: Vec<f64>,
    /// What it and its elder siblings hold.
    running: Vec<f64>,
    /// The smallest leaf below it that is not 0; infinite where there is none.
    least: Vec<f64>,
}

names! {
    /// What importance weights are divided by.
    "normalise" Normalise {
        /// Nothing.
        None = "none",
        /// The largest of those drawn.
        Drawn = "drawn",
        /// The largest that any row could have.
        All = "all",
    }
}

impl SumTree {
    /// A tree over rows with these priorities; row `i` is drawn in proportion to `priorities[i]^exponent`. O(n).
    ///
    /// # Errors
    /// `InvalidInput` for a priority that is zero, negative, NaN or infinite, a sum that is too large, or an exponent
    /// outside [0, 100].
    pub fn new(priorities: &[f64], exponent: f64) -> Result<Self> {
        within("exponent", exponent, 0.0, 100.0)?;
        let mut leaves = vec![0.0; priorities.len().next_multiple_of(WIDTH)];
        par::fill(&mut leaves, |start, piece| {
            for (row, leaf) in (start..priorities.len()).zip(piece) {
                *leaf = raised(row, priorities[row], exponent)?;
            }
            Ok(())
        })?;
        let (mut levels, mut nodes) = (Vec::new(), leaves.len() / WIDTH);
        while nodes > 0 {
            let width = nodes.next_multiple_of(WIDTH);
            levels.push(Level { sums: vec![0.0; width], running: vec![0.0; width], least: vec![f64::INFINITY; width] });
            nodes = if nodes > WIDTH { width / WIDTH } else { 0 };
        }
        let nodes: Vec<usize> = (0..leaves.len() / WIDTH).collect();
        let seen = vec![0; nodes.len().div_ceil(64)];
        let mut tree = Self { rows: priorities.len(), exponent, leaves, levels, seen };
        tree.renew(nodes);
        tree.check_total()?;
        Ok(tree)
    }

    /// Number of rows, also of those that are not drawn.
    pub const fn len(&self) -> usize {
        self.rows
    }

    /// Whether there are no rows.
    pub const fn is_empty(&self) -> bool {
        self.rows == 0
    }

    /// The sum over all rows.
    pub fn total(&self) -> f64 {
        self.levels.last().map_or(0.0, |top| top.running[WIDTH - 1])
    }

    /// How probable rows are, in one draw; 0: never drawn.
    ///
    /// # Errors
    /// `InvalidInput` for a row that there is not.
    pub fn probabilities(&self, rows: &[i64]) -> Result<Vec<f64>> {
        rows.iter().enumerate().map(|(place, &row)| self.probability(self.check_row("rows", place, row)?)).collect()
    }

    /// How probable a row is, in one draw.
    ///
    /// # Errors
    /// `InvalidInput` for a row that there is not.
    pub fn probability(&self, row: usize) -> Result<f64> {
        self.check_row("row", 0, row as i64)?;
        let total = self.total();
        Ok(if total > 0.0 { self.leaves[row] / total } else { 0.0 })
    }

    /// Gives rows other priorities. Of a row that is named twice the last counts. O(k log n); all or nothing.
    ///
    /// # Errors
    /// `InvalidInput` for a row that there is not, or a priority that [`SumTree::new`] would refuse.
    pub fn update(&mut self, rows: &[i64], priorities: &[f64]) -> Result<()> {
        same_length("priorities", priorities.len(), "rows", rows.len())?;
        let raise = |(place, (&row, &priority)): (usize, (&i64, &f64))| {
            Ok((self.check_row("rows", place, row)?, raised(place, priority, self.exponent)?))
        };
        let leaves = rows.iter().zip(priorities).enumerate().map(raise).collect::<Result<Vec<_>>>()?;
        self.set(&leaves)
    }

    /// Takes rows out: they are not drawn until an update gives them a priority again.
    ///
    /// # Errors
    /// `InvalidInput` for a row that there is not.
    pub fn remove(&mut self, rows: &[i64]) -> Result<()> {
        let leaf = |(place, &row): (usize, &i64)| Ok((self.check_row("rows", place, row)?, 0.0));
        let leaves = rows.iter().enumerate().map(leaf).collect::<Result<Vec<_>>>()?;
        self.set(&leaves)
    }

    /// Draws `count` rows, with replacement. Draw `i` takes the `i`-th uniform number of `key`: out of the whole sum, or,
    /// `stratified`, out of the `i`-th of `count` equal parts of it, so that rows come in ascending order.
    ///
    /// # Errors
    /// `InvalidInput` where no row has a priority.
    pub fn sample(&self, count: usize, key: u64, stratified: bool) -> Result<Vec<i64>> {
        let total = self.total();
        if count > 0 && total <= 0.0 {
            return Err(Error::invalid(format!(
                "count is {count}, but no row has a priority; give some rows a priority before drawing"
            )));
        }
        let target = |draw: usize| {
            let number = uniform(key, draw as u64);
            if stratified { (draw as f64 + number) / count as f64 * total } else { number * total }
        };
        let mut rows = vec![0; count];
        let pieces: Vec<_> = rows.chunks_mut(MANY).enumerate().collect();
        par::each(pieces, |(place, piece)| {
            self.find(piece, |offset| target(place * MANY + offset));
            Ok(())
        })?;
        Ok(rows)
    }

    /// Importance weights (n · probability)^-beta of drawn rows, n rows having a priority; see [`importance`].
    ///
    /// # Errors
    /// `InvalidInput` for a row that there is not or that is never drawn, or a beta outside [0, 100].
    pub fn weights(&self, rows: &[i64], beta: f64, normalise: Normalise) -> Result<Vec<f64>> {
        let total = self.total();
        let probability = |(place, &row): (usize, &i64)| {
            let leaf = self.leaves[self.check_row("rows", place, row)?];
            if leaf > 0.0 {
                return Ok(leaf / total);
            }
            Err(Error::invalid(format!("rows[{place}] is {row}, which has no priority; give rows that were drawn")))
        };
        let probabilities = rows.iter().enumerate().map(probability).collect::<Result<Vec<_>>>()?;
        let least =
            self.levels.last().map_or(f64::INFINITY, |top| top.least.iter().copied().fold(f64::INFINITY, f64::min));
        importance(&probabilities, self.rows, beta, normalise, least / total)
    }

    /// The row that each target falls on.
    fn find(&self, rows: &mut [i64], target: impl Fn(usize) -> f64) {
        // Several draws go down side by side, so that one does not wait for the memory of another.
        const TOGETHER: usize = 16;
        for (first, rows) in rows.chunks_mut(TOGETHER).enumerate() {
            let (mut left, mut node) = ([0.0; TOGETHER], [0_usize; TOGETHER]);
            for (place, left) in left.iter_mut().enumerate().take(rows.len()) {
                *left = target(first * TOGETHER + place);
            }
            for level in self.levels.iter().rev() {
                for (left, node) in left.iter_mut().zip(&mut node).take(rows.len()) {
                    let running: &[f64; WIDTH] = family(&level.running, *node);
                    let before = running.iter().map(|&sum| usize::from(sum <= *left)).sum::<usize>();
                    // Rounding can leave more than there is: then it is the last that has anything.
                    let child = if before < WIDTH { before } else { last_with_any(running) };
                    if child > 0 {
                        *left -= running[child - 1];
                    }
                    *node = *node * WIDTH + child;
                }
            }
            for (row, (&left, &node)) in rows.iter_mut().zip(left.iter().zip(&node)) {
                let (mut sum, mut found) = (0.0, 0);
                for (child, &leaf) in family(&self.leaves, node).iter().enumerate() {
                    if leaf > 0.0 && (sum <= left || sum <= 0.0) {
                        found = child;
                    }
                    sum += leaf;
                }
                *row = (node * WIDTH + found) as i64;
            }
        }
    }

    fn set(&mut self, leaves: &[(usize, f64)]) -> Result<()> {
        let before: Vec<f64> = leaves.iter().map(|&(row, _)| self.leaves[row]).collect();
        for &(row, leaf) in leaves {
            self.leaves[row] = leaf;
        }
        let nodes = || leaves.iter().map(|&(row, _)| row / WIDTH).collect();
        self.renew(nodes());
        let checked = self.check_total();
        if checked.is_err() {
            for (&(row, _), &leaf) in leaves.iter().zip(&before).rev() {
                self.leaves[row] = leaf;
            }
            self.renew(nodes());
        }
        checked
    }

    /// Makes all that stands above some nodes of leaves again.
    fn renew(&mut self, mut nodes: Vec<usize>) {
        let Some(first) = self.levels.first_mut() else { return };
        once(&mut nodes, &mut self.seen);
        for &node in &nodes {
            let leaves: &[f64; WIDTH] = family(&self.leaves, node);
            first.sums[node] = leaves.iter().sum();
            let drawn = leaves.iter().filter(|&&leaf| leaf > 0.0);
            first.least[node] = drawn.copied().fold(f64::INFINITY, f64::min);
        }
        for level in 0..self.levels.len() {
            for node in &mut nodes {
                *node /= WIDTH;
            }
            once(&mut nodes, &mut self.seen);
            let (below, above) = self.levels.split_at_mut(level + 1);
            let below = &mut below[level];
            for &node in &nodes {
                let mut sum = 0.0;
                for place in node * WIDTH..(node + 1) * WIDTH {
                    sum += below.sums[place];
                    below.running[place] = sum;
                }
                if let Some(above) = above.first_mut() {
                    above.sums[node] = sum;
                    above.least[node] = family(&below.least, node).iter().copied().fold(f64::INFINITY, f64::min);
                }
            }
        }
    }

    fn check_row(&self, name: &str, place: usize, row: i64) -> Result<usize> {
        usize::try_from(row).ok().filter(|&row| row < self.rows).ok_or_else(|| {
            let rows = self.rows;
            Error::invalid(format!(
                "{name}[{place}] is {row}, but there are {rows} rows; give a row from 0 on, below {rows}"
            ))
        })
    }

    fn check_total(&self) -> Result<()> {
        if self.total().is_finite() {
            return Ok(());
        }
        Err(Error::invalid("the sum of all priorities is too large for f64; divide the priorities by their largest"))
    }
}

/// Importance weights of rows drawn with these probabilities out of `rows`: w = (rows · p)^-beta, divided by the largest of
/// them, or by that of the least probable row there is.
///
/// With beta 1 and undivided, the mean of w · f over draws is the mean of f over all rows.
///
/// # Errors
/// `InvalidInput` for a probability outside (0, 1], or a beta outside [0, 100].
pub fn importance(probabilities: &[f64], rows: usize, beta: f64, normalise: Normalise, least: f64) -> Result<Vec<f64>> {
    within("beta", beta, 0.0, 100.0)?;
    for (place, &probability) in probabilities.iter().enumerate() {
        if !(probability > 0.0 && probability <= 1.0) {
            return Err(Error::invalid(format!(
                "probabilities[{place}] is {probability}; give those that the rows were drawn with, above 0 and at most 1"
            )));
        }
    }
    let base = match normalise {
        Normalise::None => 1.0 / rows as f64,
        Normalise::Drawn => probabilities.iter().copied().fold(f64::INFINITY, f64::min),
        Normalise::All => least,
    };
    Ok(probabilities.iter().map(|&probability| (base / probability).powf(beta)).collect())
}

/// A priority to the power of an exponent.
fn raised(row: usize, priority: f64, exponent: f64) -> Result<f64> {
    if !(priority > 0.0 && priority.is_finite()) {
        return Err(Error::invalid(format!(
            "priorities[{row}] is {priority}, but must be above 0 and finite; take a row out to draw it no more, and add a \
             small number to priorities that can be 0"
        )));
    }
    let leaf = if (exponent - 1.0).abs() < f64::EPSILON { priority } else { priority.powf(exponent) };
    if leaf > 0.0 && leaf.is_finite() {
        return Ok(leaf);
    }
    Err(Error::invalid(format!(
        "priorities[{row}] is {priority}, whose power {exponent} is {leaf}; scale the priorities or give a smaller exponent"
    )))
}

/// Keeps the first of equal nodes.
fn once(nodes: &mut Vec<usize>, seen: &mut [u64]) {
    nodes.retain(|node| {
        let (word, bit) = (node / 64, 1 << (node % 64));
        let new = seen[word] & bit == 0;
        seen[word] |= bit;
        new
    });
    for node in nodes {
        seen[*node / 64] = 0;
    }
}

/// The last of siblings that holds anything.
fn last_with_any(running: &[f64; WIDTH]) -> usize {
    running.iter().position(|&sum| sum >= running[WIDTH - 1]).unwrap_or(0)
}

/// The values of siblings.
fn family(values: &[f64], node: usize) -> &[f64; WIDTH] {
    const NONE: [f64; WIDTH] = [0.0; WIDTH];
    values[node * WIDTH..].first_chunk().unwrap_or(&NONE)
}

#[cfg(test)]
#[path = "sum_tree_tests.rs"]
mod tests;
