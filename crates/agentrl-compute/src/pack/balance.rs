//! Packs of equal cost: what several ranks do at the same time should end at the same time.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use crate::Result;
use crate::argument_checks::room;

/// Check that there is memory for some bins, a number that the user's option `name` sets.
pub fn room_for_bins(name: &str, bins: usize) -> Result<()> {
    // The bin itself, its place in the heap, and what becomes of it in Python.
    room(name, bins, 256)
}

/// Puts items into some bins so that the most expensive bin is as cheap as it gets, none with more than its capacity.
///
/// The most expensive item first, each into the cheapest bin with room for it (longest processing time); among equal ones
/// the first. Gives the items of each bin, ascending; None if an item finds no room.
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
        // A bin without room for this one may have room for a smaller one.
        cheapest.extend(full.drain(..));
    }
    for bin in &mut filled {
        bin.sort_unstable();
    }
    Some(filled)
}
