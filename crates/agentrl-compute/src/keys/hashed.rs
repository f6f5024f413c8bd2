//! Dense ids of texts, of 128-bit words and of pairs of ids, by hashing.

use xxhash_rust::xxh3::xxh3_64;

use super::hash_table::{self, Keys};
use super::hasher::mix;
use crate::Result;
use crate::argument_checks::same_length;

/// Largest number of rows for which [`pair`] uses a direct table.
const FEW_PAIRS: usize = 1 << 9;

/// Return the ids of texts or other byte strings.
///
/// ```
/// use agentrl_compute::keys::dense_bytes;
///
/// assert_eq!(dense_bytes(["b", "a", "b"])?.ids, [0, 1, 0]);
/// # Ok::<(), agentrl_compute::Error>(())
/// ```
pub fn dense_bytes<'a, K: AsRef<[u8]> + ?Sized + 'a>(keys: impl IntoIterator<Item = &'a K>) -> Result<Keys> {
    let keys: Vec<&[u8]> = keys.into_iter().map(K::as_ref).collect();
    hash_table::hashed(keys.len(), |row| keys[row], xxh3_64)
}

/// Return the ids of the byte strings that `key` returns for each row.
pub fn dense_bytes_of<'a>(rows: usize, key: impl Fn(usize) -> &'a [u8] + Sync) -> Result<Keys> {
    dense_bytes_at(rows, &key)
}

/// Not generic over the function: a calling crate may be compiled for small size, but this is compiled here.
fn dense_bytes_at<'a>(rows: usize, key: &(dyn Fn(usize) -> &'a [u8] + Sync)) -> Result<Keys> {
    hash_table::hashed(rows, key, xxh3_64)
}

/// Return the ids of 128-bit words, such as short texts: several times faster than the ids of the texts.
///
/// ```
/// use agentrl_compute::keys::dense_words;
///
/// assert_eq!(dense_words(&[7, 1 << 100, 7])?.ids, [0, 1, 0]);
/// # Ok::<(), agentrl_compute::Error>(())
/// ```
pub fn dense_words(keys: &[u128]) -> Result<Keys> {
    hash_table::hashed(keys.len(), |row| keys[row], |key| mix(mix(0, key as u64), (key >> 64) as u64))
}

/// Return the ids of pairs of ids: rows have the same id if both ids are equal.
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
    // For few rows, a lookup in a table with a slot for each possible pair takes half as long as hashing.
    if first.len() <= FEW_PAIRS {
        let [range, width] = [first, second].map(|ids| ids.iter().max().map_or(0, |&most| most as usize + 1));
        if let Some(places) = range.checked_mul(width).filter(|&places| places <= 2 * FEW_PAIRS) {
            return hash_table::direct(first.len(), places, |row| first[row] as usize * width + second[row] as usize);
        }
    }
    let both = |row: usize| u64::from(first[row]) << 32 | u64::from(second[row]);
    hash_table::hashed(first.len(), both, |key| mix(0, key))
}
