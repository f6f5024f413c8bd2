//! Id columns of the two most common integer types, for functions that return one result for each row.

use std::ops::Range;

use super::dense_integers::{LabelRange, Labels, label, label_integers, label_range};
use crate::Result;
use crate::simd::{ascend, wide};

/// A column of ids, of which only equality and order are used.
///
/// ```
/// use agentrl_compute::keys::Ids;
///
/// let ids: &[i64] = &[-7, -7, 900, 901];
/// assert!(ids.ascend(0..4));
/// assert_eq!(ids.starts(0..4), [0, 2, 3, 4]);
/// ```
pub trait Ids: Sync {
    /// Number of rows.
    fn rows(&self) -> usize;

    /// Return whether the ids of a range of rows never decrease, compared also with the row before the range.
    fn ascend(&self, rows: Range<usize>) -> bool;

    /// Return the first row of a range whose id differs from that of the row before it; `None` if there is none.
    fn end_of_run(&self, rows: Range<usize>) -> Option<usize>;

    /// Return the start of each run of equal ids in a range, and the end of the last run, relative to the start of the
    /// range.
    fn starts(&self, rows: Range<usize>) -> Vec<u32>;

    /// Return the labels of all ids, as [`label_integers`] does.
    fn labels(&self) -> Result<Labels<'_>>;

    /// Return the range from which [`read`](Self::read) computes labels without storing a column of them; `None` if the
    /// ids are not close together.
    fn label_range(&self) -> Result<Option<LabelRange>>;

    /// Append the labels of a range of rows.
    fn read(&self, rows: Range<usize>, range: &LabelRange, labels: &mut Vec<u32>);
}

/// Number of keys that are compared at once: one for each bit of a word.
const WORD: usize = u64::BITS as usize;

/// Return the start of each run of equal keys, and the end of the last run.
fn starts<K: Copy + PartialEq>(keys: &[K]) -> Vec<u32> {
    let mut starts = Vec::with_capacity(keys.len() / 4);
    starts.push(0);
    for first in (1..keys.len()).step_by(WORD) {
        let mut bits = differing(&keys[first - 1..keys.len().min(first + WORD)]);
        while bits > 0 {
            starts.push(first as u32 + bits.trailing_zeros());
            bits &= bits - 1;
        }
    }
    if !keys.is_empty() {
        starts.push(keys.len() as u32);
    }
    starts
}

/// Return a bit for each key but the first: whether it differs from the key before it.
fn differing<K: Copy + PartialEq>(keys: &[K]) -> u64 {
    let (before, keys) = (&keys[..keys.len() - 1], &keys[1..]);
    wide(
        #[inline(always)]
        || {
            if let (Some(before), Some(keys)) = (before.first_chunk::<WORD>(), keys.first_chunk::<WORD>()) {
                return (0..WORD).fold(0, |bits, place| bits | u64::from(before[place] != keys[place]) << place);
            }
            (0..keys.len()).fold(0, |bits, place| bits | u64::from(before[place] != keys[place]) << place)
        },
    )
}

// Not generic: a calling crate may be compiled for small size, but this is compiled here.
macro_rules! ids {
    ($($type:ty),+) => {
        $(impl Ids for &[$type] {
            fn rows(&self) -> usize {
                self.len()
            }

            fn ascend(&self, rows: Range<usize>) -> bool {
                ascend(&self[rows.start.saturating_sub(1)..rows.end])
            }

            fn end_of_run(&self, rows: Range<usize>) -> Option<usize> {
                let pairs = self[rows.start - 1..rows.end].windows(2);
                pairs.into_iter().position(|pair| pair[0] != pair[1]).map(|place| rows.start + place)
            }

            fn starts(&self, rows: Range<usize>) -> Vec<u32> {
                starts(&self[rows])
            }

            fn labels(&self) -> Result<Labels<'_>> {
                label_integers(self)
            }

            fn label_range(&self) -> Result<Option<LabelRange>> {
                label_range(self)
            }

            fn read(&self, rows: Range<usize>, range: &LabelRange, labels: &mut Vec<u32>) {
                labels.extend(self[rows].iter().map(|&key| label(key, range.least)));
            }
        })+
    };
}

ids!(i64, u32);

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        /// Ids that are close together are read as their labels, from any row on; for other ids there is no range.
        #[test]
        fn labels_are_read_where_ids_are_close(
            ids in prop::collection::vec(-60_i64..60, 0..100), base in prop_oneof![Just(0_i64), any::<i64>()], cut in 0_usize..100,
        ) {
            let ids: Vec<i64> = ids.into_iter().map(|id| base.saturating_add(id)).collect();
            let narrow: Vec<u32> = ids.iter().map(|&id| id as u32).collect();
            let cut = cut.min(ids.len());
            for (ids, least, most) in [
                (&(&ids[..]) as &dyn Ids, ids.iter().min().copied(), ids.iter().max().copied()),
                (&(&narrow[..]), narrow.iter().min().map(|&id| id.into()), narrow.iter().max().map(|&id| id.into())),
            ] {
                let close = least.zip(most).is_none_or(|(least, most)| most.abs_diff(least) < ids.rows() as u64);
                let range = ids.label_range()?;
                prop_assert_eq!(range.is_some(), close);
                let Some(range) = range else { continue };
                let (mut labels, mut all) = (Vec::new(), Vec::new());
                ids.read(cut..ids.rows(), &range, &mut labels);
                ids.read(0..ids.rows(), &range, &mut all);
                prop_assert!(all.iter().all(|&label| (label as usize) < range.count));
                prop_assert_eq!(&labels, &all[cut..]);
                prop_assert_eq!(range.sorted, ids.ascend(0..ids.rows()));
                let known = ids.labels()?.ids;
                for a in 0..labels.len() {
                    prop_assert!((0..a).all(|b| (labels[a] == labels[b]) == (known[cut + a] == known[cut + b])));
                }
            }
        }

        /// Compare with the definition, row by row. Words end before, at and after the last key.
        #[test]
        fn runs_and_their_ends(
            steps in prop::collection::vec(prop_oneof![6 => Just(0_i64), 2 => 1_i64..3, 1 => -1_i64..0], 0..300),
            cut in 0_usize..300,
        ) {
            let ids: Vec<i64> = steps.iter().scan(-5, |id, step| { *id += step; Some(*id) }).collect();
            let narrow: Vec<u32> = ids.iter().map(|&id| (id + 1000) as u32).collect();
            let cut = cut.min(ids.len());
            let expected: Vec<u32> = (cut..ids.len())
                .filter(|&row| row == cut || ids[row] != ids[row - 1])
                .chain([ids.len()])
                .map(|row| (row - cut) as u32)
                .collect();
            let next = (cut.max(1)..ids.len()).find(|&row| ids[row] != ids[row - 1]);
            for ids in [&(&ids[..]) as &dyn Ids, &(&narrow[..])] {
                let rows = ids.rows();
                prop_assert_eq!(&ids.starts(cut..rows), &expected);
                if cut > 0 {
                    prop_assert_eq!(ids.end_of_run(cut..rows), next);
                }
                if cut < rows {
                    let from = cut.saturating_sub(1);
                    prop_assert_eq!(ids.ascend(cut..rows), steps[from + 1..].iter().all(|&step| step >= 0));
                }
            }
        }
    }
}
