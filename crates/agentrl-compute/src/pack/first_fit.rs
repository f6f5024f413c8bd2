//! Bin packing by first-fit decreasing.

use std::cmp::Reverse;

use crate::{Error, Result};

/// Pack lengths into bins of a capacity: longest first, each into the first bin with room for it.
///
/// Return the indices in each bin: bins in the order in which they were opened, indices ascending. Among equal lengths
/// the lower index goes first, so equal input gives equal bins. The number of bins is at most 11/9 of the optimum, plus
/// one. Takes O(n log n): a tree of the largest remaining capacities finds the first bin with room.
///
/// ```
/// use agentrl_compute::pack::first_fit_decreasing;
///
/// assert_eq!(first_fit_decreasing(&[2, 5, 4, 3], 7)?, [[0, 1], [2, 3]]);
/// # Ok::<(), agentrl_compute::Error>(())
/// ```
///
/// # Errors
/// `InvalidInput` if a length is larger than the capacity.
pub fn first_fit_decreasing(lengths: &[usize], capacity: usize) -> Result<Vec<Vec<usize>>> {
    if let Some(index) = lengths.iter().position(|&length| length > capacity) {
        return Err(Error::invalid(format!(
            "lengths[{index}] is {}, more than the capacity {capacity}; raise the capacity or shorten the sequence",
            lengths[index]
        )));
    }
    let mut order: Vec<usize> = (0..lengths.len()).collect();
    order.sort_unstable_by_key(|&index| (Reverse(lengths[index]), index));
    let mut rooms = Rooms::new(lengths.len(), capacity);
    let mut bins: Vec<Vec<usize>> = Vec::new();
    for index in order {
        let bin = rooms.take_first(lengths[index]);
        if bin == bins.len() {
            bins.push(Vec::new());
        }
        bins[bin].push(index);
    }
    for bin in &mut bins {
        bin.sort_unstable();
    }
    Ok(bins)
}

/// Remaining capacities of bins, opened or not, in a complete binary tree of maxima; the root is node 1.
struct Rooms {
    largest: Vec<usize>,
    first_leaf: usize,
}

impl Rooms {
    /// Create one empty bin per item, which is always enough.
    fn new(bins: usize, capacity: usize) -> Self {
        let first_leaf = bins.next_power_of_two();
        Self { largest: vec![capacity; 2 * first_leaf], first_leaf }
    }

    /// Put an item into the first bin with room for it and return the bin's index.
    fn take_first(&mut self, length: usize) -> usize {
        let mut node = 1;
        while node < self.first_leaf {
            let left = 2 * node;
            node = if self.largest[left] >= length { left } else { left + 1 };
        }
        self.largest[node] -= length;
        let bin = node - self.first_leaf;
        while node > 1 {
            node /= 2;
            self.largest[node] = self.largest[2 * node].max(self.largest[2 * node + 1]);
        }
        bin
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// Quadratic reference implementation.
    fn naive(lengths: &[usize], capacity: usize) -> Vec<Vec<usize>> {
        let mut order: Vec<usize> = (0..lengths.len()).collect();
        order.sort_by(|&a, &b| lengths[b].cmp(&lengths[a]));
        let mut bins: Vec<(usize, Vec<usize>)> = Vec::new();
        for index in order {
            match bins.iter_mut().find(|(used, _)| used + lengths[index] <= capacity) {
                Some((used, bin)) => {
                    *used += lengths[index];
                    bin.push(index);
                }
                None => bins.push((lengths[index], vec![index])),
            }
        }
        bins.into_iter()
            .map(|(_, mut bin)| {
                bin.sort_unstable();
                bin
            })
            .collect()
    }

    #[test]
    fn nothing_needs_no_bin_and_zeros_need_one() -> Result<()> {
        assert!(first_fit_decreasing(&[], 0)?.is_empty());
        assert_eq!(first_fit_decreasing(&[0, 0], 0)?, [[0, 1]]);
        assert_eq!(first_fit_decreasing(&[4], 4)?, [[0]]);
        Ok(())
    }

    #[test]
    fn a_length_over_the_capacity_is_named() {
        let message = first_fit_decreasing(&[3, 9], 8).map_err(|error| error.to_string());
        assert_eq!(
            message,
            Err("lengths[1] is 9, more than the capacity 8; raise the capacity or shorten the sequence".to_owned())
        );
    }

    proptest! {
        #[test]
        fn as_the_naive_search(lengths in prop::collection::vec(0_usize..12, 0..70), capacity in 11_usize..40) {
            let bins = first_fit_decreasing(&lengths, capacity)?;
            prop_assert_eq!(&bins, &naive(&lengths, capacity));
            let mut items = bins.concat();
            items.sort_unstable();
            prop_assert!(items.into_iter().eq(0..lengths.len()));
            for bin in bins {
                prop_assert!(bin.iter().map(|&index| lengths[index]).sum::<usize>() <= capacity);
            }
        }
    }
}
