//! Tokens that branches share, trained as one.

use crate::{Error, Float, Result};

/// Which items stand for the same prediction: pair `i` is `items[offsets[i]..offsets[i + 1]]`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Pairs {
    /// Where the items of each pair begin, and their number last.
    pub offsets: Vec<i64>,
    /// The items of each pair, ascending; pairs in the order of their first.
    pub items: Vec<i64>,
    /// The pair of each item; [`Pairs::NONE`] of one that is not trained.
    pub of: Vec<u32>,
}

impl Pairs {
    /// What [`Pairs::of`] says of an item without a pair.
    pub const NONE: u32 = u32::MAX;

    /// Number of pairs.
    pub fn len(&self) -> usize {
        self.offsets.len() - 1
    }

    /// Whether there is no pair.
    pub fn is_empty(&self) -> bool {
        self.items.is_empty()
    }

    /// The items of a pair.
    pub fn items(&self, pair: usize) -> &[i64] {
        &self.items[self.offsets[pair] as usize..self.offsets[pair + 1] as usize]
    }
}

/// Joins the trained items of one identity into a pair, if they agree in some columns; else each is a pair of its own.
///
/// Values agree if their bits do, or if both are NaN. `identities` are below `count`.
///
/// ```
/// use agentrl_compute::pack::fold;
///
/// let old = [-1.0_f32, -2.0, -1.0, -3.0, -9.0];
/// let pairs = fold(&[0, 1, 0, 1, 0], 2, &[true, true, true, true, false], &[&old])?;
/// assert_eq!((pairs.offsets, pairs.items), (vec![0, 2, 3, 4], vec![0, 2, 1, 3]));
/// # Ok::<(), agentrl_compute::Error>(())
/// ```
///
/// # Errors
/// `InvalidInput` if a column has another length than there are items; `Overflow` for 2³² - 1 items or more.
pub fn fold(identities: &[u32], count: usize, trained: &[bool], same: &[&[f32]]) -> Result<Pairs> {
    let items = identities.len();
    if items >= Pairs::NONE as usize {
        return Err(Error::overflow(format!("{items} tokens are too many for one update; make it of fewer draws")));
    }
    if let Some(other) = std::iter::once(trained.len()).chain(same.iter().map(|c| c.len())).find(|&len| len != items) {
        return Err(Error::invalid(format!("a column has {other} values for {items} tokens; give one for each")));
    }
    let mut first = vec![Pairs::NONE; count];
    let mut apart = vec![false; count];
    for (item, &identity) in identities.iter().enumerate().filter(|&(item, _)| trained[item]) {
        let known = &mut first[identity as usize];
        if *known == Pairs::NONE {
            *known = item as u32;
        } else if !same.iter().all(|column| agree(column[*known as usize], column[item])) {
            apart[identity as usize] = true;
        }
    }
    let mut pairs = Pairs { offsets: Vec::with_capacity(items + 1), items: Vec::new(), of: vec![Pairs::NONE; items] };
    // Sizes first, one place further on, so that their running sums are the places at which to begin.
    pairs.offsets.push(0);
    for (item, &identity) in identities.iter().enumerate().filter(|&(item, _)| trained[item]) {
        let earliest = first[identity as usize];
        pairs.of[item] = if apart[identity as usize] || earliest == item as u32 {
            pairs.offsets.push(0);
            pairs.offsets.len() as u32 - 2
        } else {
            pairs.of[earliest as usize]
        };
        pairs.offsets[pairs.of[item] as usize + 1] += 1;
    }
    for pair in 1..pairs.offsets.len() {
        pairs.offsets[pair] += pairs.offsets[pair - 1];
    }
    let mut next = pairs.offsets.clone();
    pairs.items = vec![0; pairs.offsets[pairs.offsets.len() - 1] as usize];
    for (item, &pair) in pairs.of.iter().enumerate().filter(|&(_, &pair)| pair != Pairs::NONE) {
        pairs.items[next[pair as usize] as usize] = item as i64;
        next[pair as usize] += 1;
    }
    Ok(pairs)
}

fn agree(a: f32, b: f32) -> bool {
    a.to_bits() == b.to_bits() || (a.is_nan() && b.is_nan())
}

/// Sums of a column over the items of each pair, in f64 and in the order of the items.
///
/// # Errors
/// `InvalidInput` if there is an item beyond the column, or another number of sums than of pairs.
pub fn sums<T: Float>(values: &[T], offsets: &[i64], items: &[i64], out: &mut [f32]) -> Result<()> {
    if offsets.len() != out.len() + 1 || offsets.last().is_none_or(|&last| last != items.len() as i64) {
        return Err(Error::invalid("the offsets of pairs do not fit their tokens; take both from one pack"));
    }
    if let Some(&beyond) = items.iter().find(|&&item| item as u64 >= values.len() as u64) {
        return Err(Error::invalid(format!(
            "a pair has token {beyond}, but the column has {} values; give one for each token",
            values.len()
        )));
    }
    if offsets.first() != Some(&0) || offsets.windows(2).any(|pair| pair[0] > pair[1]) {
        return Err(Error::invalid("the offsets of pairs do not start at 0, or decrease; take them from a pack"));
    }
    crate::par::fill(out, |start, out| {
        for (pair, out) in out.iter_mut().enumerate() {
            let items = &items[offsets[start + pair] as usize..offsets[start + pair + 1] as usize];
            let sum = items.iter().fold(0.0, |sum, &item| sum + values[item as usize].to_f64());
            *out = sum as f32;
        }
        Ok(())
    })
}
