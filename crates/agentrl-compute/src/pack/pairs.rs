//! Fold trained tokens that branches share into one prediction.

use crate::{Error, Result};

/// Items grouped by prediction (CSR layout): pair `i` is `items[offsets[i]..offsets[i + 1]]`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Pairs {
    /// Offsets of the pairs in `items`, `[pairs + 1]`.
    pub offsets: Vec<i64>,
    /// The items of each pair, ascending; pairs are ordered by their first item.
    pub items: Vec<i64>,
    /// The pair of each item; [`Pairs::NONE`] for an item that is not trained.
    pub of: Vec<u32>,
}

impl Pairs {
    /// Value of [`Pairs::of`] for an item without a pair.
    pub const NONE: u32 = u32::MAX;

    /// Number of pairs.
    pub fn len(&self) -> usize {
        self.offsets.len() - 1
    }

    /// Whether there are no pairs.
    pub fn is_empty(&self) -> bool {
        self.items.is_empty()
    }

    /// The items of a pair.
    pub fn items(&self, pair: usize) -> &[i64] {
        &self.items[self.offsets[pair] as usize..self.offsets[pair + 1] as usize]
    }
}

/// Join trained items into pairs: items with the same identity whose values agree in all columns of `same`.
///
/// Two values agree if their bits are equal or both are NaN. `identities` are below `count`.
///
/// ```
/// use agentrl_compute::pack::fold;
///
/// let old = [-1.0_f32, -2.0, -1.0, -3.0, -9.0];
/// let pairs = fold(vec![0, 1, 0, 1, 0], 2, &[true, true, true, true, false], &[&old])?;
/// assert_eq!((pairs.offsets, pairs.items), (vec![0, 2, 3, 4], vec![0, 2, 1, 3]));
/// # Ok::<(), agentrl_compute::Error>(())
/// ```
///
/// # Errors
/// `InvalidInput` if a column's length is not the number of items; `Overflow` for 2³² - 2 items or more.
pub fn fold(identities: Vec<u32>, count: usize, trained: &[bool], same: &[&[f32]]) -> Result<Pairs> {
    let folded = Folded::new(identities, count, trained, same)?;
    let (mut offsets, mut items) = (vec![0; folded.pairs + 1], vec![0; folded.items]);
    folded.fill(&mut offsets, &mut items);
    Ok(Pairs { offsets, items, of: folded.of })
}

/// The pair of each item, before the items are grouped by pair.
#[derive(Clone, Debug)]
pub(super) struct Folded {
    /// See [`Pairs::of`].
    pub(super) of: Vec<u32>,
    /// Number of pairs.
    pub(super) pairs: usize,
    /// Number of trained items.
    pub(super) items: usize,
}

impl Folded {
    /// Like [`fold`], without grouping the items; reuses the memory of `identities` for the pairs.
    pub(super) fn new(identities: Vec<u32>, count: usize, trained: &[bool], same: &[&[f32]]) -> Result<Self> {
        let items = identities.len();
        if items >= Pairs::NONE as usize - 1 {
            return Err(Error::overflow(format!(
                "the update has {items} tokens, more than the 2^32 - 3 supported; use fewer draws"
            )));
        }
        let lengths = std::iter::once(trained.len()).chain(same.iter().map(|column| column.len()));
        if let Some(other) = lengths.into_iter().find(|&length| length != items) {
            return Err(Error::invalid(format!(
                "trained or a column has {other} values for {items} tokens; give one value for each token"
            )));
        }
        // `last`: the latest pair of each identity. `before`: the previous pair with the same identity. `earliest`:
        // first item.
        let mut last = vec![Pairs::NONE; count];
        let mut before: Vec<u32> = Vec::new();
        let mut earliest: Vec<u32> = Vec::new();
        let mut folded = Self { of: identities, pairs: 0, items: 0 };
        for (item, &trained) in trained.iter().enumerate() {
            if !trained {
                folded.of[item] = Pairs::NONE;
                continue;
            }
            let known = &mut last[folded.of[item] as usize];
            let mut pair = *known;
            while pair != Pairs::NONE {
                let other = earliest[pair as usize] as usize;
                if same.iter().all(|column| agree(column[other], column[item])) {
                    break;
                }
                pair = before[pair as usize];
            }
            if pair == Pairs::NONE {
                pair = earliest.len() as u32;
                earliest.push(item as u32);
                before.push(std::mem::replace(known, pair));
            }
            folded.of[item] = pair;
            folded.items += 1;
        }
        folded.pairs = earliest.len();
        Ok(folded)
    }

    /// Writes [`Pairs::offsets`] and [`Pairs::items`].
    pub(super) fn fill(&self, offsets: &mut [i64], items: &mut [i64]) {
        let trained = || self.of.iter().enumerate().filter(|&(_, &pair)| pair != Pairs::NONE);
        // Count the size of each pair two places to the right. The prefix sum then puts the start of each pair one
        // place to the right. Each written item advances it, so that at the end it is the start of the next pair.
        offsets.fill(0);
        for (_, &pair) in trained().filter(|&(_, &pair)| (pair as usize) + 1 < self.pairs) {
            offsets[pair as usize + 2] += 1;
        }
        for place in 2..offsets.len() {
            offsets[place] += offsets[place - 1];
        }
        for (item, &pair) in trained() {
            let next = &mut offsets[pair as usize + 1];
            items[*next as usize] = item as i64;
            *next += 1;
        }
    }
}

fn agree(a: f32, b: f32) -> bool {
    a.to_bits() == b.to_bits() || (a.is_nan() && b.is_nan())
}
