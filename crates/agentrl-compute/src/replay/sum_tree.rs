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
    let leaf = if exponent == 1.0 { priority } else { priority.powf(exponent) };
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
mod tests {
    use super::*;
    use crate::rng::structural_seed;

    fn random(count: usize, seed: u64) -> Vec<f64> {
        (0..count).map(|row| uniform(seed, row as u64) + 1e-9).collect()
    }

    /// A tree and a plain list go through the same updates; `rounds` of `batch` each.
    fn churn(rows: usize, rounds: usize, batch: usize, whole: bool) -> Result<(SumTree, Vec<f64>)> {
        let value = |number: f64| if whole { (number * 1e6).floor() + 1.0 } else { number + 1e-9 };
        let mut plain: Vec<f64> = random(rows, 1).into_iter().map(value).collect();
        let mut tree = SumTree::new(&plain, 1.0)?;
        let (mut changed, mut priorities) = (vec![0; batch], vec![0.0; batch]);
        for round in 0..rounds {
            let seed = structural_seed(&[2, round as u64]);
            for place in 0..batch {
                let row = (uniform(seed, 2 * place as u64) * rows as f64) as usize;
                let priority = value(uniform(seed, 2 * place as u64 + 1));
                (changed[place], priorities[place], plain[row]) = (row as i64, priority, priority);
            }
            tree.update(&changed, &priorities)?;
        }
        Ok((tree, plain))
    }

    /// Whole numbers below 2^53 add up exactly, whatever the order: so must the tree.
    #[test]
    fn sums_are_exact_after_many_updates() -> Result<()> {
        for (rows, rounds, batch) in [(1, 3, 2), (15, 20, 7), (16, 20, 7), (17, 20, 7), (5_000, 200, 250)] {
            let (tree, plain) = churn(rows, rounds, batch, true)?;
            let exact: u64 = plain.iter().map(|&priority| priority as u64).sum();
            assert_eq!(tree.total().to_bits(), (exact as f64).to_bits());
            assert_eq!(tree, SumTree::new(&plain, 1.0)?);
            let (tree, plain) = churn(rows, rounds, batch, false)?;
            assert_eq!(tree, SumTree::new(&plain, 1.0)?, "bit for bit the tree that is made anew");
        }
        Ok(())
    }

    #[test]
    #[ignore = "half a minute: ten million updates"]
    fn sums_are_exact_after_ten_million_updates() -> Result<()> {
        for (rows, batch) in [(100_000, 1_000), (1_000_003, 4_096)] {
            let (tree, plain) = churn(rows, 10_000_000_usize.div_ceil(batch), batch, true)?;
            let exact: u64 = plain.iter().map(|&priority| priority as u64).sum();
            assert_eq!(tree.total().to_bits(), (exact as f64).to_bits());
            let (tree, plain) = churn(rows, 10_000_000_usize.div_ceil(batch), batch, false)?;
            assert_eq!(tree, SumTree::new(&plain, 1.0)?);
        }
        Ok(())
    }

    /// The row that a target falls on, by going along all rows with exact sums.
    fn naive(plain: &[f64], target: f64) -> usize {
        let mut sum = 0.0;
        plain
            .iter()
            .position(|&priority| {
                sum += priority;
                target < sum
            })
            .unwrap_or(plain.len())
    }

    #[test]
    fn targets_fall_on_the_row_that_a_walk_along_all_rows_finds() -> Result<()> {
        for rows in [1, 2, 16, 17, 256, 257, 5_000] {
            let (tree, mut plain) = churn(rows, 3, 50, true)?;
            let mut tree = tree;
            // Every third row is taken out.
            let out: Vec<i64> = (0..rows as i64).filter(|row| row % 3 == 1).collect();
            tree.remove(&out)?;
            for &row in &out {
                plain[row as usize] = 0.0;
            }
            let total = tree.total();
            let targets: Vec<f64> =
                (0..2_000).map(|draw| (uniform(9, draw) * total).floor()).chain([0.0, total - 1.0]).collect();
            let mut found = vec![0; targets.len()];
            tree.find(&mut found, |draw| targets[draw]);
            let expected: Vec<i64> = targets.iter().map(|&target| naive(&plain, target) as i64).collect();
            assert_eq!(found, expected);
        }
        Ok(())
    }

    /// What rounding leaves over must fall on a row that has a priority.
    #[test]
    fn a_target_at_the_very_end_falls_on_a_row_that_can_be_drawn() -> Result<()> {
        let mut tree = SumTree::new(&vec![0.1; 1_000], 1.0)?;
        tree.remove(&(900..1_000).collect::<Vec<_>>())?;
        let mut rows = [0; 3];
        let total = tree.total();
        tree.find(&mut rows, |draw| [total, total * (1.0 + 1e-9), 0.0][draw]);
        assert_eq!(rows, [899, 899, 0]);
        Ok(())
    }

    /// 10^6 draws and more: every cell within what chance allows. 999 degrees of freedom: mean 999, deviation 44.7.
    #[test]
    fn rows_are_drawn_as_often_as_their_priorities_say() -> Result<()> {
        const DRAWS: usize = 1 << 20;
        let priorities = random(1_000, 3);
        for exponent in [0.0, 0.6, 1.0] {
            let tree = SumTree::new(&priorities, exponent)?;
            let powers: Vec<f64> = priorities.iter().map(|priority| priority.powf(exponent)).collect();
            let total: f64 = powers.iter().sum();
            for stratified in [false, true] {
                let mut counts = vec![0.0; priorities.len()];
                for part in 0..DRAWS / 4_096 {
                    for row in tree.sample(4_096, structural_seed(&[part as u64]), stratified)? {
                        counts[row as usize] += 1.0;
                    }
                }
                let cell = |(&count, &power): (&f64, &f64)| {
                    let expected = power / total * DRAWS as f64;
                    (count - expected).powi(2) / expected.max(1e-9)
                };
                let chi_squared: f64 = counts.iter().zip(&powers).map(cell).sum();
                assert!(chi_squared < 999.0 + 6.0 * 44.7, "{chi_squared}");
                // Strata take variance away and never add any.
                assert!(stratified || chi_squared > 999.0 - 6.0 * 44.7, "{chi_squared}");
            }
        }
        Ok(())
    }

    #[test]
    fn the_same_key_draws_the_same_rows_whatever_the_number_of_threads() -> Result<()> {
        let tree = SumTree::new(&random(100_000, 4), 0.6)?;
        let mut drawn = Vec::new();
        for threads in [1, 2, 5] {
            par::set_threads(threads)?;
            drawn.push(tree.sample(3 * MANY + 7, 11, true)?);
        }
        assert_eq!(drawn[0], drawn[1]);
        assert_eq!(drawn[0], drawn[2]);
        assert!(drawn[0].is_sorted());
        assert_ne!(drawn[0], tree.sample(3 * MANY + 7, 12, true)?);
        Ok(())
    }

    /// Priorities 1, 3, 4 with exponent 1: p = 1/8, 3/8, 1/2, and 3 p = 3/8, 9/8, 3/2. Weights with beta 1: 8/3, 8/9, 2/3;
    /// divided by the largest of rows 1 and 2, 8/9: 1 and 3/4; by that of all rows, 8/3: 1/3 and 1/4.
    #[test]
    fn importance_weights_by_hand() -> Result<()> {
        let tree = SumTree::new(&[1.0, 3.0, 4.0], 1.0)?;
        let close = |found: Vec<f64>, expected: [f64; 2]| {
            assert!(found.iter().zip(expected).all(|(found, expected)| (found - expected).abs() < 1e-15), "{found:?}");
        };
        close(tree.weights(&[1, 2], 1.0, Normalise::None)?, [8.0 / 9.0, 2.0 / 3.0]);
        close(tree.weights(&[1, 2], 1.0, Normalise::Drawn)?, [1.0, 0.75]);
        close(tree.weights(&[1, 2], 1.0, Normalise::All)?, [1.0 / 3.0, 0.25]);
        close(tree.weights(&[1, 2], 0.5, Normalise::Drawn)?, [1.0, 0.75_f64.sqrt()]);
        close(tree.weights(&[1, 2], 0.0, Normalise::All)?, [1.0, 1.0]);
        Ok(())
    }

    #[test]
    fn what_cannot_be_a_priority_is_refused_and_changes_nothing() -> Result<()> {
        let mut tree = SumTree::new(&[1.0, 2.0], 1.0)?;
        let before = tree.clone();
        for wrong in [0.0, -1.0, f64::NAN, f64::INFINITY, f64::NEG_INFINITY] {
            let message = SumTree::new(&[1.0, wrong], 1.0).map_err(|error| error.to_string());
            assert!(
                message.is_err_and(|message| message.starts_with(&format!("priorities[1] is {wrong}, but must be")))
            );
            assert!(tree.update(&[0, 1], &[5.0, wrong]).is_err());
            assert_eq!(tree, before);
        }
        assert!(tree.update(&[0, 1], &[f64::MAX, f64::MAX]).is_err(), "the sum is infinite");
        assert!(tree.update(&[0, 2], &[1.0, 1.0]).is_err());
        assert!(tree.update(&[0, -1], &[1.0, 1.0]).is_err());
        assert!(tree.update(&[0], &[1.0, 1.0]).is_err());
        assert!(tree.remove(&[2]).is_err() && tree.probability(2).is_err());
        assert_eq!(tree, before);
        assert!(SumTree::new(&[1e-300], 2.0).is_err(), "the power is 0");
        assert!(SumTree::new(&[1.0], -0.5).is_err() && SumTree::new(&[1.0], f64::NAN).is_err());
        assert!(tree.weights(&[0], f64::NAN, Normalise::None).is_err());
        tree.remove(&[0, 1])?;
        assert!(tree.sample(1, 0, true).is_err() && tree.sample(0, 0, true).is_ok_and(|rows| rows.is_empty()));
        assert!(tree.weights(&[0], 1.0, Normalise::None).is_err());
        assert!(SumTree::new(&[], 1.0).is_ok_and(|tree| tree.is_empty() && tree.total() <= 0.0));
        assert!(SumTree::new(&[], 1.0)?.sample(1, 0, false).is_err());
        Ok(())
    }

    #[test]
    fn of_a_row_that_is_named_twice_the_last_priority_counts() -> Result<()> {
        let mut tree = SumTree::new(&[1.0; 40], 1.0)?;
        tree.update(&[3, 39, 3], &[7.0, 2.0, 5.0])?;
        assert_eq!((tree.total(), tree.probability(3)?, tree.len()), (45.0, 5.0 / 45.0, 40));
        Ok(())
    }
}
