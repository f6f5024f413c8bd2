//! Build a tree from the paths of rows.

use std::collections::HashMap;
use std::hash::BuildHasherDefault;

use crate::keys::FixedHasher;
use crate::ragged::Ragged;
use crate::{Error, Result};

/// The tree of some rows: one node for each distinct prefix of their paths.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Built {
    /// The parent of each node, -1 for a root; parents come before their children.
    pub parents: Vec<i64>,
    /// The node at which the path of each row ends.
    pub nodes: Vec<u32>,
}

/// Merge paths into trees: row `i` goes through `paths[i][0]`, `paths[i][1]`, and so on. Rows share a node if their
/// paths are equal up to that node. The first element identifies the tree (a prompt, a group).
///
/// Nodes are numbered in order of first appearance. A prefix that a row shares with the previous row costs comparisons;
/// only the rest needs look-ups.
///
/// ```
/// use agentrl_compute::ragged::Ragged;
/// use agentrl_compute::tree::build;
///
/// let found = build(Ragged::new(&[7, 1, 7, 2, 7, 1], &[0, 2, 4, 6])?)?;
/// assert_eq!((found.parents, found.nodes), (vec![-1, 0, 0], vec![1, 2, 1]));
/// # Ok::<(), agentrl_compute::Error>(())
/// ```
///
/// # Errors
/// `InvalidInput` for an empty path, which belongs to no tree; `Overflow` for 2³² - 1 nodes or more.
pub fn build(paths: Ragged<'_, i64>) -> Result<Built> {
    let mut known: HashMap<u128, u32, BuildHasherDefault<PairHasher>> = HashMap::default();
    let mut parents: Vec<i64> = Vec::new();
    let mut nodes = Vec::with_capacity(paths.len());
    let (mut before, mut trail): (&[i64], Vec<u32>) = (&[], Vec::new());
    for (row, path) in paths.iter().enumerate() {
        let shared = path.iter().zip(before).take_while(|(own, other)| own == other).count();
        trail.truncate(shared);
        for &element in &path[shared..] {
            let parent = trail.last().map_or(-1, |&node| i64::from(node));
            let key = u128::from(parent.cast_unsigned()) << 64 | u128::from(element.cast_unsigned());
            let node = *known.entry(key).or_insert(parents.len() as u32);
            if node as usize == parents.len() {
                if node == u32::MAX {
                    return Err(Error::overflow("paths has 2^32 - 1 nodes or more; give fewer rows"));
                }
                parents.push(parent);
            }
            trail.push(node);
        }
        let Some(&last) = trail.last() else {
            return Err(Error::invalid(format!(
                "paths[{row}] is empty; give at least the tree that the row belongs to"
            )));
        };
        nodes.push(last);
        before = path;
    }
    Ok(Built { parents, nodes })
}

/// Hasher of two words, one after the other.
#[derive(Default)]
struct PairHasher(FixedHasher);

impl std::hash::Hasher for PairHasher {
    fn write(&mut self, bytes: &[u8]) {
        self.0.write(bytes);
    }

    fn write_u128(&mut self, pair: u128) {
        self.0.write_u64((pair >> 64) as u64);
        self.0.write_u64(pair as u64);
    }

    fn finish(&self) -> u64 {
        self.0.finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tree::Topology;
    use proptest::prelude::*;

    #[test]
    fn an_empty_path_has_no_tree() -> Result<()> {
        let message = build(Ragged::new(&[1], &[0, 1, 1])?).map_err(|error| error.to_string());
        assert_eq!(message, Err("paths[1] is empty; give at least the tree that the row belongs to".to_owned()));
        Ok(())
    }

    proptest! {
        #[test]
        fn nodes_are_distinct_prefixes(paths in prop::collection::vec(prop::collection::vec(0_i64..3, 1..5), 0..20)) {
            let mut offsets = vec![0];
            offsets.extend(paths.iter().scan(0, |end, path| { *end += path.len() as i64; Some(*end) }));
            let flat = paths.concat();
            let found = build(Ragged::new(&flat, &offsets)?)?;
            let mut prefixes: Vec<&[i64]> = Vec::new();
            for path in &paths {
                for end in 1..=path.len() {
                    if !prefixes.contains(&&path[..end]) {
                        prefixes.push(&path[..end]);
                    }
                }
            }
            let place = |prefix: &[i64]| prefixes.iter().position(|known| *known == prefix);
            let parents: Vec<i64> = prefixes.iter().map(|prefix| place(&prefix[..prefix.len() - 1]).map_or(-1, |p| p as i64)).collect();
            prop_assert_eq!(&found.parents, &parents);
            prop_assert_eq!(found.nodes, paths.iter().filter_map(|path| place(path)).map(|node| node as u32).collect::<Vec<_>>());
            prop_assert!(Topology::new(&found.parents).is_ok());
        }
    }
}
