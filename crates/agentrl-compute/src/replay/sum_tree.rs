//! Sum tree for sampling in proportion to changing priorities; each node has eight children.

use crate::argument_checks::{same_length, within};
use crate::rng::uniform;
use crate::{Error, Result, names, thread_pool};

/// Children per node: one cache line of f64.
const WIDTH: usize = 8;

/// Values of sibling nodes, in one cache line.
#[derive(Clone, Copy, Debug, PartialEq)]
#[repr(align(64))]
struct Family([f64; WIDTH]);

/// Draws per chunk of work for one thread.
const DRAWS_PER_THREAD: usize = 1 << 13;

/// Number of nodes per draw up to which ascending targets scan a level, instead of descending from the root each time.
const STRIDE: usize = 2;

/// Priorities of rows, and their sums.
///
/// A sum is always computed from the values below it in one fixed order, never by adding a difference. A tree after any
/// number of updates is therefore bit-identical to a new tree with the same priorities. Updates are cheap: they only
/// record what changed, and the sums above are recomputed on the next read.
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
    /// Number of rows with a priority: those that can be drawn.
    drawable: usize,
    exponent: f64,
    /// Priority of each row to the power of the exponent; 0 if it is not drawn. Padded to whole families.
    leaves: Vec<Family>,
    /// Levels of nodes above the leaves, bottom up; the last level is one family.
    levels: Vec<TreeLevel>,
    /// Families of leaves that changed since the sums were computed, each once.
    changed: Vec<usize>,
    /// One bit per family of leaves: whether it is in `changed`. `settle` reuses the bits for the higher levels.
    seen: Vec<u64>,
}

/// One level of nodes, in whole families of siblings.
#[derive(Clone, Debug, PartialEq)]
struct TreeLevel {
    /// Sum of the leaves below each node.
    sums: Vec<Family>,
    /// Smallest leaf below each node that is not 0; infinite if there is none.
    least: Vec<Family>,
}

names! {
    /// The divisor of importance weights.
    "normalise" Normalise {
        /// No divisor.
        None = "none",
        /// The largest weight of the drawn rows.
        Drawn = "drawn",
        /// The largest weight that any row could have.
        All = "all",
    }
}

impl SumTree {
    /// Build a tree over rows with these priorities; row `i` is drawn in proportion to `priorities[i]^exponent`. O(n).
    ///
    /// # Errors
    /// `InvalidInput` for a priority that is zero, negative, NaN or infinite, a sum that is too large, or an exponent
    /// outside [0, 100].
    pub fn new(priorities: &[f64], exponent: f64) -> Result<Self> {
        within("exponent", exponent, 0.0, 100.0)?;
        let (rows, most) = (priorities.len(), most_of(priorities.len()));
        let mut leaves = vec![Family([0.0; WIDTH]); rows.div_ceil(WIDTH)];
        thread_pool::fill(&mut leaves, |start, piece| {
            for (first, family) in (start * WIDTH..rows).step_by(WIDTH).zip(piece) {
                for (row, leaf) in (first..rows).zip(&mut family.0) {
                    *leaf = raised(row, priorities[row], exponent, most)?;
                }
            }
            Ok(())
        })?;
        let (mut levels, mut nodes) = (Vec::new(), leaves.len());
        while nodes > 0 {
            let families = nodes.div_ceil(WIDTH);
            let of = |value| vec![Family([value; WIDTH]); families];
            levels.push(TreeLevel { sums: of(0.0), least: of(f64::INFINITY) });
            nodes = if nodes > WIDTH { families } else { 0 };
        }
        let mut seen = vec![0; leaves.len().div_ceil(64)];
        let changed = (0..leaves.len()).filter(|&family| first_time(&mut seen, family)).collect();
        let mut tree = Self { rows, drawable: rows, exponent, leaves, levels, changed, seen };
        tree.settle();
        Ok(tree)
    }

    /// Number of rows, including those that are not drawn.
    pub const fn len(&self) -> usize {
        self.rows
    }

    /// Whether there are no rows.
    pub const fn is_empty(&self) -> bool {
        self.rows == 0
    }

    /// Sum of all priorities, each to the power of the exponent.
    pub fn total(&mut self) -> f64 {
        self.settle();
        self.levels.last().map_or(0.0, |top| total_of(&top.sums[0]))
    }

    /// Probability of each row in one draw; 0 for a row that is never drawn.
    ///
    /// # Errors
    /// `InvalidInput` if a row does not exist.
    pub fn probabilities(&mut self, rows: &[i64]) -> Result<Vec<f64>> {
        let total = self.total();
        let share = |row: usize| if total > 0.0 { self.leaf(row) / total } else { 0.0 };
        rows.iter().enumerate().map(|(place, &row)| self.check_row("rows", place, row).map(share)).collect()
    }

    /// Probability of a row in one draw.
    ///
    /// # Errors
    /// `InvalidInput` if the row does not exist.
    pub fn probability(&mut self, row: usize) -> Result<f64> {
        Ok(self.probabilities(&[row as i64])?[0])
    }

    /// Set the priorities of rows. If a row is named twice, the last priority counts. O(k). On an error nothing
    /// changes.
    ///
    /// # Errors
    /// `InvalidInput` if a row does not exist, or for a priority that [`SumTree::new`] rejects.
    pub fn update(&mut self, rows: &[i64], priorities: &[f64]) -> Result<()> {
        same_length("priorities", priorities.len(), "rows", rows.len())?;
        let (mut leaves, most) = (Vec::with_capacity(rows.len()), most_of(self.rows));
        for (place, (&row, &priority)) in rows.iter().zip(priorities).enumerate() {
            leaves.push((self.check_row("rows", place, row)?, raised(place, priority, self.exponent, most)?));
        }
        self.set(&leaves);
        Ok(())
    }

    /// Remove rows: they are not drawn until an update gives them a priority again.
    ///
    /// # Errors
    /// `InvalidInput` if a row does not exist.
    pub fn remove(&mut self, rows: &[i64]) -> Result<()> {
        let leaf = |(place, &row): (usize, &i64)| Ok((self.check_row("rows", place, row)?, 0.0));
        let leaves = rows.iter().enumerate().map(leaf).collect::<Result<Vec<_>>>()?;
        self.set(&leaves);
        Ok(())
    }

    /// Draw `count` rows with replacement. Draw `i` uses the `i`-th uniform number of `key`, scaled to the whole sum.
    /// With `stratified` it is scaled to the `i`-th of `count` equal parts of the sum, so that rows ascend.
    ///
    /// # Errors
    /// `InvalidInput` if no row has a priority and `count` is not 0.
    pub fn sample(&mut self, count: usize, key: u64, stratified: bool) -> Result<Vec<i64>> {
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
        let pieces: Vec<_> = rows.chunks_mut(DRAWS_PER_THREAD).enumerate().collect();
        thread_pool::map(pieces, |(place, piece)| {
            let target = |offset| target(place * DRAWS_PER_THREAD + offset);
            if stratified {
                self.walk(piece, count, target);
            } else {
                self.find(piece, target);
            }
            Ok(())
        })?;
        Ok(rows)
    }

    /// Importance weights `(n · probability)^-beta` of drawn rows, where n is the number of rows with a priority; see
    /// [`importance`].
    ///
    /// # Errors
    /// `InvalidInput` if a row does not exist or is never drawn, or beta is outside [0, 100].
    pub fn weights(&mut self, rows: &[i64], beta: f64, normalise: Normalise) -> Result<Vec<f64>> {
        let total = self.total();
        let probability = |(place, &row): (usize, &i64)| {
            let leaf = self.leaf(self.check_row("rows", place, row)?);
            if leaf > 0.0 {
                return Ok(leaf / total);
            }
            Err(Error::invalid(format!("rows[{place}] is {row}, but its priority is 0; give rows that were drawn")))
        };
        let probabilities = rows.iter().enumerate().map(probability).collect::<Result<Vec<_>>>()?;
        let least = self.levels.last().map_or(f64::INFINITY, |top| least_of(&top.least[0]));
        importance(&probabilities, self.drawable, beta, normalise, least / total)
    }

    /// Write the row that each target falls on.
    fn find(&self, rows: &mut [i64], target: impl Fn(usize) -> f64) {
        self.down(rows, self.levels.len(), |draw| (target(draw), 0));
    }

    /// Like `find`, for a slice of `count` targets that ascend over the whole sum: each starts where the previous one
    /// fell.
    fn walk(&self, rows: &mut [i64], count: usize, target: impl Fn(usize) -> f64) {
        let few = |level: &usize| self.levels[*level].sums.len() * WIDTH <= STRIDE * count;
        let Some(level) = (0..self.levels.len()).find(few) else { return self.find(rows, target) };
        let nodes = &self.levels[level].sums;
        let sum = |node: usize| nodes[node / WIDTH].0[node % WIDTH];
        let last = (0..nodes.len() * WIDTH).rev().find(|&node| sum(node) > 0.0).unwrap_or(0);
        let (mut node, mut left) = (0, target(0));
        for above in self.levels[level..].iter().rev() {
            let (child, before) = child_at(&above.sums[node], left);
            (node, left) = (node * WIDTH + child, left - before);
        }
        let mut before = target(0) - left;
        self.down(rows, level, |draw| {
            let target = target(draw);
            while node < last && target >= before + sum(node) {
                before += sum(node);
                node += 1;
            }
            ((target - before).max(0.0), node)
        });
    }

    /// Descend from nodes of a level to rows, by the remainder of each target.
    fn down(&self, rows: &mut [i64], level: usize, mut start: impl FnMut(usize) -> (f64, usize)) {
        // Several draws descend side by side, so that their memory accesses overlap.
        const TOGETHER: usize = 16;
        for (first, rows) in rows.chunks_mut(TOGETHER).enumerate() {
            let (mut left, mut node) = ([0.0; TOGETHER], [0_usize; TOGETHER]);
            for (place, (left, node)) in left.iter_mut().zip(&mut node).enumerate().take(rows.len()) {
                (*left, *node) = start(first * TOGETHER + place);
            }
            let levels = self.levels[..level].iter().rev().map(|level| &level.sums);
            for families in levels.chain([&self.leaves]) {
                for (left, node) in left.iter_mut().zip(&mut node).take(rows.len()) {
                    let (child, before) = child_at(&families[*node], *left);
                    *left -= before;
                    *node = *node * WIDTH + child;
                }
            }
            for (row, &node) in rows.iter_mut().zip(&node) {
                *row = node as i64;
            }
        }
    }

    /// Return the priority of a row to the power of the exponent.
    fn leaf(&self, row: usize) -> f64 {
        self.leaves[row / WIDTH].0[row % WIDTH]
    }

    /// Set leaves; `settle` later recomputes the nodes above them.
    fn set(&mut self, leaves: &[(usize, f64)]) {
        for &(row, leaf) in leaves {
            let family = row / WIDTH;
            let old = std::mem::replace(&mut self.leaves[family].0[row % WIDTH], leaf);
            self.drawable = self.drawable + usize::from(leaf > 0.0) - usize::from(old > 0.0);
            if first_time(&mut self.seen, family) {
                self.changed.push(family);
            }
        }
    }

    /// Recompute all nodes above changed leaves.
    fn settle(&mut self) {
        let mut nodes = std::mem::take(&mut self.changed);
        if nodes.len() > self.seen.len() {
            // If many families changed, a scan of all bits is cheap and gives them in memory order.
            nodes.clear();
            nodes.extend(set_bits(&self.seen));
        }
        for (place, level) in (0..self.levels.len()).zip(1..) {
            for &node in &nodes {
                self.seen[node / 64] = 0;
            }
            let (below, above) = self.levels.split_at_mut(place);
            let Some(TreeLevel { sums, least }) = above.first_mut() else { break };
            for &node in &nodes {
                let (sum, smallest) = match below.last() {
                    Some(below) => (total_of(&below.sums[node]), least_of(&below.least[node])),
                    None => (total_of(&self.leaves[node]), least_drawn(&self.leaves[node])),
                };
                (sums[node / WIDTH].0[node % WIDTH], least[node / WIDTH].0[node % WIDTH]) = (sum, smallest);
            }
            if level < self.levels.len() {
                nodes.retain_mut(|node| {
                    *node /= WIDTH;
                    first_time(&mut self.seen, *node)
                });
            }
        }
        nodes.clear();
        self.changed = nodes;
    }

    fn check_row(&self, name: &str, place: usize, row: i64) -> Result<usize> {
        usize::try_from(row).ok().filter(|&row| row < self.rows).ok_or_else(|| {
            let rows = self.rows;
            Error::invalid(format!(
                "{name}[{place}] is {row}, but there are {rows} rows; give a row of at least 0 and below {rows}"
            ))
        })
    }
}

/// Importance weights of rows drawn with these probabilities out of `rows`: w = (rows · p)^-beta, divided by the
/// largest of them, or by the weight of the least probable row, whose probability is `least`.
///
/// With beta 1 and no division, the expected mean of w · f over draws is the mean of f over all rows.
///
/// # Errors
/// `InvalidInput` for a probability outside (0, 1], or a beta outside [0, 100].
pub fn importance(probabilities: &[f64], rows: usize, beta: f64, normalise: Normalise, least: f64) -> Result<Vec<f64>> {
    within("beta", beta, 0.0, 100.0)?;
    for (place, &probability) in probabilities.iter().enumerate() {
        if !(probability > 0.0 && probability <= 1.0) {
            return Err(Error::invalid(format!(
                "probabilities[{place}] is {probability}; give the probability of each draw, above 0 and at most 1"
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

/// Largest value of a leaf with which the sum of all leaves stays finite.
fn most_of(rows: usize) -> f64 {
    f64::MAX / 2.0 / rows as f64
}

/// Return a priority to the power of an exponent; an error if it exceeds `most`.
fn raised(row: usize, priority: f64, exponent: f64, most: f64) -> Result<f64> {
    if !(priority > 0.0 && priority.is_finite()) {
        return Err(Error::invalid(format!(
            "priorities[{row}] is {priority}; give a finite number above 0 (add a small number to all), or remove the \
             row so that it is never drawn"
        )));
    }
    let leaf = if (exponent - 1.0).abs() < f64::EPSILON { priority } else { priority.powf(exponent) };
    if leaf > 0.0 && leaf <= most {
        return Ok(leaf);
    }
    Err(Error::invalid(format!(
        "priorities[{row}] is {priority}: raised to exponent {exponent} it is {leaf}, and the sum over all rows \
         overflows a 64-bit float; divide the priorities by the largest one, or give a smaller exponent"
    )))
}

/// Set a bit and return whether it was unset before.
fn first_time(seen: &mut [u64], node: usize) -> bool {
    let (word, bit) = (&mut seen[node / 64], 1 << (node % 64));
    let new = *word & bit == 0;
    *word |= bit;
    new
}

/// Return the indices of the bits that are set.
fn set_bits(words: &[u64]) -> impl Iterator<Item = usize> {
    (0..).zip(words).flat_map(|(place, &word)| {
        let rest = |&bits: &u64| (bits & (bits - 1) > 0).then_some(bits & bits.wrapping_sub(1));
        let words = std::iter::successors((word > 0).then_some(word), rest);
        words.map(move |bits| place * 64 + bits.trailing_zeros() as usize)
    })
}

/// Prefix sums of siblings, added in pairs so that no sum waits for more than three others. They never decrease, and a
/// sibling of 0 adds nothing.
fn running(family: &Family) -> [f64; WIDTH] {
    let held = family.0;
    let second = held[0] + held[1];
    let fourth = second + (held[2] + held[3]);
    let sixth = fourth + (held[4] + held[5]);
    let all = sixth + (held[6] + held[7]);
    [held[0], second, second + held[2], fourth, fourth + held[4], sixth, sixth + held[6], all]
}

/// Sum of siblings.
fn total_of(family: &Family) -> f64 {
    running(family)[WIDTH - 1]
}

/// Smallest sibling.
fn least_of(family: &Family) -> f64 {
    family.0.iter().copied().fold(f64::INFINITY, f64::min)
}

/// Smallest sibling that is not 0.
fn least_drawn(family: &Family) -> f64 {
    family.0.iter().copied().filter(|&leaf| leaf > 0.0).fold(f64::INFINITY, f64::min)
}

/// Return the child that a target falls on, and the sum of the siblings before it.
fn child_at(family: &Family, target: f64) -> (usize, f64) {
    let running = running(family);
    let before = running.iter().map(|&sum| usize::from(sum <= target)).sum::<usize>();
    // Rounding can leave a target beyond the sum: then it falls on the last child that is not 0.
    let last = || running.iter().position(|&sum| sum >= running[WIDTH - 1]).unwrap_or(0);
    let child = if before < WIDTH { before } else { last() };
    (child, if child > 0 { running[child - 1] } else { 0.0 })
}

#[cfg(test)]
#[path = "sum_tree_tests.rs"]
mod tests;
