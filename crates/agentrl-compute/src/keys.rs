//! Dense ids: the first key seen is 0, the next new one 1, and so on. Every keyed function takes these.
//!
//! Rows of one group mostly stand together, so a key that equals the one before it costs a comparison and no look-up.

use std::collections::HashMap;
use std::hash::{BuildHasherDefault, Hash, Hasher};

use xxhash_rust::xxh3::xxh3_64_with_seed;

use crate::check::same_length;
use crate::{Error, Result};

/// Ids of the keys of some rows.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Keys {
    /// One id for each row: equal keys have equal ids, and ids count up in order of first appearance.
    pub ids: Vec<u32>,
    /// Number of different keys; ids are below it.
    pub count: u32,
}

/// Ids of integers.
///
/// ```
/// use agentrl_compute::keys::dense_i64;
///
/// let keys = dense_i64(&[7, 7, -1, 7])?;
/// assert_eq!((keys.ids, keys.count), (vec![0, 0, 1, 0], 2));
/// # Ok::<(), agentrl_compute::Error>(())
/// ```
///
/// # Errors
/// `Overflow` for more than 2³² different keys, here and in all functions of this module.
pub fn dense_i64(keys: &[i64]) -> Result<Keys> {
    dense(keys.iter().copied())
}

/// Ids of texts or other byte strings.
///
/// ```
/// use agentrl_compute::keys::dense_bytes;
///
/// assert_eq!(dense_bytes(["b", "a", "b"])?.ids, [0, 1, 0]);
/// # Ok::<(), agentrl_compute::Error>(())
/// ```
pub fn dense_bytes<'a, K: AsRef<[u8]> + ?Sized + 'a>(keys: impl IntoIterator<Item = &'a K>) -> Result<Keys> {
    dense(keys.into_iter().map(K::as_ref))
}

/// Ids of 128-bit hashes, such as state keys.
pub fn dense_hashes(keys: &[[u8; 16]]) -> Result<Keys> {
    dense(keys.iter().map(|&key| u128::from_ne_bytes(key)))
}

/// Ids of pairs of ids: rows are the same where both are.
///
/// ```
/// use agentrl_compute::keys::pair;
///
/// let groups = [0, 0, 1];
/// let states = [5, 5, 5];
/// assert_eq!(pair(&groups, &states)?.ids, [0, 0, 1]);
/// # Ok::<(), agentrl_compute::Error>(())
/// ```
///
/// # Errors
/// `InvalidInput` if the lengths differ.
pub fn pair(first: &[u32], second: &[u32]) -> Result<Keys> {
    same_length("second", second.len(), "first", first.len())?;
    dense(first.iter().zip(second).map(|(&first, &second)| u64::from(first) << 32 | u64::from(second)))
}

fn dense<K: Hash + Eq + Copy>(keys: impl Iterator<Item = K>) -> Result<Keys> {
    let mut known: HashMap<K, u32, BuildHasherDefault<FixedHasher>> = HashMap::default();
    let mut ids = Vec::with_capacity(keys.size_hint().0);
    let mut before: Option<(K, u32)> = None;
    for key in keys {
        let id = match before {
            Some((same, id)) if same == key => id,
            _ => {
                let next = u32::try_from(known.len())
                    .map_err(|_| Error::overflow("there are more than 2^32 different keys; split the rows"))?;
                *known.entry(key).or_insert(next)
            }
        };
        before = Some((key, id));
        ids.push(id);
    }
    let count = u32::try_from(known.len())
        .map_err(|_| Error::overflow("there are more than 2^32 - 1 different keys; split the rows"))?;
    Ok(Keys { ids, count })
}

/// Hashes words by one multiplication and everything else by XXH3: several times faster than the standard hasher.
#[derive(Default)]
pub(crate) struct FixedHasher(u64);

impl Hasher for FixedHasher {
    fn write(&mut self, bytes: &[u8]) {
        self.0 = xxh3_64_with_seed(bytes, self.0);
    }

    fn write_u64(&mut self, word: u64) {
        // Both halves of the product: the table looks at the highest and at the lowest bits.
        let product = u128::from(self.0 ^ word ^ 0x9e37_79b9_7f4a_7c15) * 0xd6e8_feb8_6659_fd93_u128;
        self.0 = (product >> 64) as u64 ^ product as u64;
    }

    fn write_usize(&mut self, word: usize) {
        self.write_u64(word as u64);
    }

    fn finish(&self) -> u64 {
        self.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// Quadratic and obviously right.
    fn naive<K: PartialEq>(keys: &[K]) -> Keys {
        let mut seen: Vec<&K> = Vec::new();
        let mut ids = Vec::new();
        for key in keys {
            let id = seen.iter().position(|&known| known == key).unwrap_or(seen.len());
            if id == seen.len() {
                seen.push(key);
            }
            ids.push(id as u32);
        }
        Keys { ids, count: seen.len() as u32 }
    }

    #[test]
    fn no_rows_have_no_keys() {
        let none = Some(Keys { ids: vec![], count: 0 });
        assert_eq!(dense_i64(&[]).ok(), none);
        assert_eq!(dense_hashes(&[]).ok(), none);
        assert_eq!(dense_bytes::<str>([]).ok(), none);
        assert_eq!(pair(&[], &[]).ok(), none);
    }

    #[test]
    fn pairs_of_different_length_are_refused() {
        let message = pair(&[0, 1], &[0]).map_err(|error| error.to_string());
        assert_eq!(
            message,
            Err("second has 1 values, but first has 2; give one value of each for every row".to_owned())
        );
    }

    /// Keys that a weak hash sends to the same place: multiples of large powers of two, neighbours, both ends.
    #[test]
    fn regular_keys_stay_apart_and_fast() -> Result<()> {
        let patterns: [fn(i64) -> i64; 4] = [|i| i << 44, |i| i, |i| i << 32 | 1, |i| i64::MIN + i];
        for pattern in patterns {
            let keys: Vec<i64> = (0..1 << 16).map(pattern).collect();
            let found = dense_i64(&keys)?;
            assert_eq!(found.count, 1 << 16);
            assert!(found.ids.iter().copied().eq(0..1 << 16));
        }
        Ok(())
    }

    proptest! {
        #[test]
        fn integers(keys in prop::collection::vec(prop_oneof![-3_i64..3, any::<i64>()], 0..60)) {
            prop_assert_eq!(dense_i64(&keys)?, naive(&keys));
        }

        #[test]
        fn bytes(keys in prop::collection::vec(prop::collection::vec(0_u8..3, 0..3), 0..60)) {
            prop_assert_eq!(dense_bytes(&keys)?, naive(&keys));
        }

        #[test]
        fn hashes(keys in prop::collection::vec(0_u8..5, 0..60)) {
            let keys: Vec<[u8; 16]> = keys.iter().map(|&byte| crate::hash::hash_bytes(&[byte])).collect();
            prop_assert_eq!(dense_hashes(&keys)?, naive(&keys));
        }

        #[test]
        fn pairs(rows in prop::collection::vec((0_u32..4, prop_oneof![0_u32..4, any::<u32>()]), 0..60)) {
            let (first, second): (Vec<u32>, Vec<u32>) = rows.iter().copied().unzip();
            prop_assert_eq!(pair(&first, &second)?, naive(&rows));
        }
    }
}
