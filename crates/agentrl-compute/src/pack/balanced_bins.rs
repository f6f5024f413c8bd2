//! Balance the cost of packs, so that ranks that run at the same time also end at the same time.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use crate::Result;
use crate::argument_checks::room;

/// Check that there is memory for `bins` bins; `name` is the user's option that sets the number.
pub fn room_for_bins(name: &str, bins: usize) -> Result<()> {
    // Bytes per bin: the bin itself, its place in the heap, and its Python object.
    room(name, bins, 256)
}

/// Assign items to bins of about equal cost, none above its capacity.
///
/// Longest processing time first: the most expensive item goes first, each into the cheapest bin with room for it; ties
/// go to the lower index. Return the items of each bin, ascending, or `None` if an item fits into no bin.
///
/// ```
/// use agentrl_compute::pack::balanced;
///
/// let bins = balanced(&[8, 7, 6, 5, 4], &[8, 7, 6, 5, 4], 2, 20);
/// assert_eq!(bins, Some(vec![vec![0, 3, 4], vec![1, 2]]));
/// assert_eq!(balanced(&[1, 1, 1], &[5, 5, 5], 2, 9), None);
/// ```
pub fn balanced(costs: &[u64], sizes: &[usize], bins: usize, capacity: usize) -> Option<Vec<Vec<usize>>> {
    let mut items: Vec<usize> = (0..costs.len()).collect();
    items.sort_unstable_by_key(|&item| (Reverse(costs[item]), item));
    let mut cheapest: BinaryHeap<Reverse<(u64, usize)>> = (0..bins).map(|bin| Reverse((0, bin))).collect();
    let mut used = vec![0; bins];
    let mut filled = vec![Vec::new(); bins];
    let mut full = Vec::new();
    for item in items {
        let found = loop {
            let Reverse((cost, bin)) = cheapest.pop()?;
            if used[bin] + sizes[item] <= capacity {
                break Reverse((cost + costs[item], bin));
            }
            full.push(Reverse((cost, bin)));
        };
        let Reverse((_, bin)) = found;
        used[bin] += sizes[item];
        filled[bin].push(item);
        cheapest.push(found);
        // A bin without room for this item may have room for a smaller one.
        cheapest.extend(full.drain(..));
    }
    for bin in &mut filled {
        bin.sort_unstable();
    }
    Some(filled)
}
