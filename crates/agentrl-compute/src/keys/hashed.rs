//! Dense ids of texts, of words of 128 bits and of pairs of ids, by hash.

use xxhash_rust::xxh3::xxh3_64;

use super::hasher::mix;
use super::table::{self, Keys};
use crate::Result;
use crate::check::same_length;

/// Rows that are few for [`pair`].
const FEW_PAIRS: usize = 1 << 9;

/// Ids of texts or other byte strings.
///
/// ```
/// use agentrl_compute::keys::dense_bytes;
///
/// assert_eq!(dense_bytes(["b", "a", "b"])?.ids, [0, 1, 0]);
/// # Ok::<(), agentrl_compute::Error>(())
/// ```
pub fn dense_bytes<'a, K: AsRef<[u8]> + ?Sized + 'a>(keys: impl IntoIterator<Item = &'a K>) -> Result<Keys> {
    let keys: Vec<&[u8]> = keys.into_iter().map(K::as_ref).collect();
    table::hashed(keys.len(), |row| keys[row], xxh3_64)
}

/// Ids of the byte strings that a function gives for each of some rows.
pub fn dense_bytes_of<'a>(rows: usize, key: impl Fn(usize) -> &'a [u8] + Sync) -> Result<Keys> {
    dense_bytes_at(rows, &key)
}

/// Not for every function: what calls this may be compiled to be small, and this is compiled here.
fn dense_bytes_at<'a>(rows: usize, key: &(dyn Fn(usize) -> &'a [u8] + Sync)) -> Result<Keys> {
    table::hashed(rows, key, xxh3_64)
}

/// Ids of keys that are words of 128 bits, as short texts can be: several times faster than those of the texts.
///
/// ```
/// use agentrl_compute::keys::dense_words;
///
/// assert_eq!(dense_words(&[7, 1 << 100, 7])?.ids, [0, 1, 0]);
/// # Ok::<(), agentrl_compute::Error>(())
/// ```
pub fn dense_words(keys: &[u128]) -> Result<Keys> {
    table::hashed(keys.len(), |row| keys[row], |key| mix(mix(0, key as u64), (key >> 64) as u64))
}

/// Ids of pairs of ids: rows have the same id if both ids are the same.
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
    // Where there are few rows, to look into a table with a place for each pair takes half as long as to hash.
    if first.len() <= FEW_PAIRS {
        let [range, width] = [first, second].map(|ids| ids.iter().max().map_or(0, |&most| most as usize + 1));
        if let Some(places) = range.checked_mul(width).filter(|&places| places <= 2 * FEW_PAIRS) {
            return table::direct(first.len(), places, |row| first[row] as usize * width + second[row] as usize);
        }
    }
    let both = |row: usize| u64::from(first[row]) << 32 | u64::from(second[row]);
    table::hashed(first.len(), both, |key| mix(0, key))
}
