//! Ragged rows: flat values and CSR offsets, the layout of every list column.

use crate::{Error, Result};

/// Flat values and the CSR offsets of their rows, checked once.
///
/// Row `i` is `values[offsets[i]..offsets[i + 1]]`. The first offset may be positive and the last may be less than the
/// number of values, as in slices of list columns.
///
/// ```
/// use agentrl_compute::ragged::Ragged;
///
/// let rows = Ragged::new(&[1, 2, 3], &[0, 2, 2, 3])?;
/// assert_eq!(rows.iter().collect::<Vec<_>>(), [&[1, 2][..], &[], &[3]]);
/// # Ok::<(), agentrl_compute::Error>(())
/// ```
#[derive(Clone, Copy, Debug)]
pub struct Ragged<'a, T> {
    values: &'a [T],
    offsets: &'a [i64],
}

impl<'a, T> Ragged<'a, T> {
    /// Create rows from values and offsets.
    ///
    /// # Errors
    /// `InvalidInput` unless the offsets start at zero or above, never decrease, and end within the values.
    pub fn new(values: &'a [T], offsets: &'a [i64]) -> Result<Self> {
        let (Some(&first), Some(&last)) = (offsets.first(), offsets.last()) else {
            return Err(Error::invalid("offsets is empty; give one offset more than there are rows"));
        };
        if first < 0 {
            return Err(Error::invalid(format!("offsets[0] is {first}; give a first offset of at least 0")));
        }
        if let Some(row) = offsets.windows(2).position(|pair| pair[0] > pair[1]) {
            return Err(Error::invalid(format!(
                "offsets[{}] is {}, less than {} before it; give ascending offsets",
                row + 1,
                offsets[row + 1],
                offsets[row]
            )));
        }
        if last as u64 > values.len() as u64 {
            return Err(Error::invalid(format!(
                "offsets end at {last}, but there are {count} values; give a last offset of at most {count}",
                count = values.len()
            )));
        }
        Ok(Self { values, offsets })
    }

    /// Number of rows.
    pub fn len(&self) -> usize {
        self.offsets.len() - 1
    }

    /// Whether there are no rows.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Return row `index`; `None` if it is out of range.
    pub fn get(&self, index: usize) -> Option<&'a [T]> {
        let (start, end) = (*self.offsets.get(index)?, *self.offsets.get(index.checked_add(1)?)?);
        Some(&self.values[start as usize..end as usize])
    }

    /// Return all values, including those before the first row and after the last.
    pub fn values(&self) -> &'a [T] {
        self.values
    }

    /// Return the range of the values of row `index`; empty if it is out of range.
    pub fn range(&self, index: usize) -> std::ops::Range<usize> {
        match self.offsets.get(index..index.saturating_add(2)) {
            Some(&[start, end]) => start as usize..end as usize,
            _ => 0..0,
        }
    }

    /// Check that the rows cover all values, for functions that return one result for each value.
    pub(crate) fn covered(&self, name: &str) -> Result<()> {
        let (first, last) = (self.offsets[0], self.offsets[self.offsets.len() - 1]);
        if first == 0 && last as usize == self.values.len() {
            return Ok(());
        }
        let count = self.values.len();
        Err(Error::invalid(format!(
            "offsets go from {first} to {last}, but {name} has {count} values; give offsets from 0 to {count}"
        )))
    }

    /// Iterate over the rows in order.
    pub fn iter(&self) -> impl ExactSizeIterator<Item = &'a [T]> + use<'a, T> {
        let values = self.values;
        self.offsets.windows(2).map(move |pair| &values[pair[0] as usize..pair[1] as usize])
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn message(offsets: &[i64]) -> String {
        Ragged::new(&[1, 2, 3], offsets).map_or_else(|error| error.to_string(), |_| "fine".to_owned())
    }

    #[test]
    fn bad_offsets_are_refused_with_their_values() {
        assert_eq!(message(&[]), "offsets is empty; give one offset more than there are rows");
        assert_eq!(message(&[-1, 2]), "offsets[0] is -1; give a first offset of at least 0");
        assert_eq!(message(&[0, 2, 1]), "offsets[2] is 1, less than 2 before it; give ascending offsets");
        assert_eq!(message(&[0, 4]), "offsets end at 4, but there are 3 values; give a last offset of at most 3");
    }

    #[test]
    fn no_rows_and_slices_are_fine() {
        assert_eq!(message(&[0]), "fine");
        let sliced = Ragged::new(&[1, 2, 3], &[1, 2]).map(|rows| rows.iter().map(<[i32]>::to_vec).collect::<Vec<_>>());
        assert_eq!(sliced.ok(), Some(vec![vec![2]]));
    }

    proptest! {
        #[test]
        fn rows_come_back(rows in prop::collection::vec(prop::collection::vec(any::<u8>(), 0..5), 0..10)) {
            let mut offsets = vec![0];
            for row in &rows {
                offsets.push(offsets[offsets.len() - 1] + row.len() as i64);
            }
            let values = rows.concat();
            let ragged = Ragged::new(&values, &offsets)?;
            prop_assert_eq!(ragged.len(), rows.len());
            prop_assert_eq!(ragged.is_empty(), rows.is_empty());
            prop_assert_eq!(ragged.get(rows.len()), None);
            for (index, row) in rows.iter().enumerate() {
                prop_assert_eq!(ragged.get(index), Some(row.as_slice()));
            }
            prop_assert_eq!(ragged.iter().map(<[u8]>::to_vec).collect::<Vec<_>>(), rows);
        }
    }
}
