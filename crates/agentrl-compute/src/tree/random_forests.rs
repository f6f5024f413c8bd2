//! Random forests for property tests: rows in any order, several roots, chains and wide trees.

use proptest::prelude::*;

/// Generate the parents of up to 30 nodes.
pub(crate) fn forests() -> impl Strategy<Value = Vec<i64>> {
    let node = prop_oneof![1 => Just(None), 3 => any::<u32>().prop_map(Some), 3 => Just(Some(u32::MAX))];
    (prop::collection::vec(node, 0..30), any::<u64>()).prop_map(|(nodes, seed)| {
        // Parents come first, and u32::MAX picks the newest node; then the rows are shuffled.
        let order = crate::group::testing::shuffle(nodes.len(), seed);
        let mut parents = vec![-1; nodes.len()];
        for (place, node) in nodes.iter().enumerate().skip(1) {
            let above = node.map(|pick| if pick == u32::MAX { place - 1 } else { pick as usize % place });
            parents[order[place]] = above.map_or(-1, |above| order[above] as i64);
        }
        parents
    })
}
