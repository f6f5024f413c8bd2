//! Ids by lookup: in a table with a slot for every key, or in a hash table.

use std::ops::Range;

use crate::thread_pool;
use crate::{Error, Result};

/// Dense ids of the keys of rows.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Keys {
    /// One id for each row: equal keys have equal ids, and ids ascend from 0 in order of first appearance.
    pub ids: Vec<u32>,
    /// Number of different keys; all ids are below it.
    pub count: u32,
}

const NO_ID: u32 = u32::MAX;

/// Check that row numbers and ids fit 32 bits.
pub(super) fn check(rows: usize) -> Result<()> {
    if rows < NO_ID as usize {
        return Ok(());
    }
    Err(Error::overflow(format!("there are {rows} rows, more than 2^32 - 2; split them into several calls")))
}

/// Return the ids of keys that are themselves small integers, below `range`.
pub(super) fn direct(rows: usize, range: usize, key: impl Fn(usize) -> usize) -> Result<Keys> {
    check(rows)?;
    let mut table = vec![NO_ID; range];
    let mut count = 0;
    let ids = (0..rows).map(|row| {
        let id = &mut table[key(row)];
        if *id == NO_ID {
            *id = count;
            count += 1;
        }
        *id
    });
    Ok(Keys { ids: ids.collect(), count })
}

/// Return the ids of keys if equal ones are contiguous.
pub(super) fn in_runs<K: PartialEq + Sync>(keys: &[K]) -> Result<Keys> {
    check(keys.len())?;
    // Each piece with the key before it; the first piece starts with the first key itself.
    let with_before = |piece: &Range<usize>| &keys[piece.start.saturating_sub(1)..piece.end];
    let starts = |pair: &[K]| u32::from(pair[0] != pair[1]);
    let pieces = thread_pool::pieces(keys.len());
    let counts = thread_pool::map(pieces.clone(), |piece| Ok(with_before(&piece).windows(2).map(starts).sum::<u32>()))?;
    let mut ids = vec![0; keys.len()];
    let mut last = 0;
    let mut items = Vec::with_capacity(pieces.len());
    for ((place, piece), count) in ids.chunks_mut(thread_pool::PIECE).zip(pieces).zip(counts) {
        items.push((place, piece, last));
        last += count;
    }
    thread_pool::map(items, |(place, piece, mut id)| {
        let place = if piece.start == 0 { &mut place[1..] } else { place };
        for (place, pair) in place.iter_mut().zip(with_before(&piece).windows(2)) {
            id += starts(pair);
            *place = id;
        }
        Ok(())
    })?;
    Ok(Keys { count: if ids.is_empty() { 0 } else { last + 1 }, ids })
}

/// Rows of a bucket: few enough that its table and keys fit a core's own cache.
const ROWS_PER_BUCKET: usize = 1 << 13;

/// The largest number of bits of a hash that select a bucket.
const MAX_BUCKET_BITS: u32 = 8;

/// Return the ids of keys that can be hashed and compared.
///
/// The keys are read in parallel. A run starts where a key differs from the one before it. Only runs are looked up,
/// each in the table of the bucket that the first bits of its hash select. Ids are in order of appearance: an id is the
/// number of first rows of other keys before the key's first row.
pub(super) fn hashed<K: Copy + PartialEq>(
    rows: usize,
    key: impl Fn(usize) -> K + Sync,
    hash: impl Fn(K) -> u64 + Sync,
) -> Result<Keys> {
    check(rows)?;
    let bits = rows.div_ceil(ROWS_PER_BUCKET).next_power_of_two().trailing_zeros().min(MAX_BUCKET_BITS);
    let mut pieces =
        thread_pool::map(thread_pool::pieces(rows), |piece| Ok(Runs::of(piece, &key, &hash).in_buckets(bits)))?;
    let mut buckets: Vec<Vec<&mut [Run]>> = (0..1 << bits).map(|_| Vec::with_capacity(pieces.len())).collect();
    for Runs { runs, ends } in &mut pieces {
        let mut runs = &mut runs[..];
        for (bucket, length) in buckets.iter_mut().zip(lengths(ends)) {
            bucket.push(runs.split_off_mut(..length).unwrap_or_default());
        }
    }
    let mut first = thread_pool::map(buckets, |bucket| {
        let mut table = Table::new(1024);
        for run in bucket.into_iter().flatten() {
            run.0 = table.id(*run, key(run.1 as usize));
        }
        Ok(table.first)
    })?;
    let count = number(rows, &mut first)?;
    let mut ids = vec![NO_ID; rows];
    let pieces: Vec<_> = ids.chunks_mut(thread_pool::PIECE).zip(pieces).enumerate().collect();
    thread_pool::map(pieces, |(place, (piece, Runs { runs, ends }))| {
        let start = (place * thread_pool::PIECE) as u32;
        let mut runs = &runs[..];
        for (first, length) in first.iter().zip(lengths(&ends)) {
            for &(id, row) in runs.split_off(..length).unwrap_or_default() {
                piece[(row - start) as usize] = first[id as usize].1;
            }
        }
        let mut last = NO_ID;
        for id in piece {
            last = if *id == NO_ID { last } else { *id };
            *id = last;
        }
        Ok(())
    })?;
    Ok(Keys { ids, count })
}

/// The hash of a key, and the first row of a run of rows with that key.
type Run = (u32, u32);

/// Runs of a piece of rows, bucket after bucket, in row order within each bucket.
struct Runs {
    runs: Vec<Run>,
    /// End of each bucket.
    ends: Vec<u32>,
}

impl Runs {
    fn of<K: Copy + PartialEq>(rows: Range<usize>, key: impl Fn(usize) -> K, hash: impl Fn(K) -> u64) -> Self {
        let (mut runs, mut before) = (Vec::with_capacity(rows.len() / 4), None);
        for row in rows {
            let key = key(row);
            if before != Some(key) {
                runs.push(((hash(key) >> 32) as u32, row as u32));
                before = Some(key);
            }
        }
        Self { ends: vec![runs.len() as u32], runs }
    }

    /// Sort the runs into buckets by the first bits of their hashes.
    fn in_buckets(self, bits: u32) -> Self {
        if bits == 0 {
            return self;
        }
        let bucket = |hash: u32| (u64::from(hash) >> (u32::BITS - bits)) as usize;
        let mut ends = vec![0; 1 << bits];
        self.runs.iter().for_each(|&(hash, _)| ends[bucket(hash)] += 1);
        let mut end = 0;
        for length in &mut ends {
            end += *length;
            // The start of the bucket, until its runs are filled in; then the end.
            *length = end - *length;
        }
        let mut runs = vec![(0, 0); self.runs.len()];
        for run in self.runs {
            let place = &mut ends[bucket(run.0)];
            runs[*place as usize] = run;
            *place += 1;
        }
        Self { runs, ends }
    }
}

/// Return the lengths of consecutive ranges from their ends.
fn lengths(ends: &[u32]) -> impl Iterator<Item = usize> {
    let starts = std::iter::once(0).chain(ends.iter().copied());
    starts.zip(ends).map(|(start, end)| (end - start) as usize)
}

/// Replace the first row of each key by the number of first rows before it; return the number of keys.
fn number(rows: usize, first: &mut [Vec<Run>]) -> Result<u32> {
    let mut words = vec![(0_u64, 0_u32); rows.div_ceil(64)];
    for &(_, row) in first.iter().flatten() {
        words[row as usize / 64].0 |= 1 << (row % 64);
    }
    let mut count = 0;
    for (bits, before) in &mut words {
        *before = count;
        count += bits.count_ones();
    }
    thread_pool::map(first.iter_mut().collect(), |first| {
        for (_, row) in first {
            let (bits, before) = words[*row as usize / 64];
            *row = before + (bits & ((1 << (*row % 64)) - 1)).count_ones();
        }
        Ok(())
    })?;
    Ok(count)
}

/// An open-addressing hash table from hashes to ids.
struct Table<K> {
    /// Hash and id; the id is `NO_ID` if the slot is free.
    slots: Vec<(u32, u32)>,
    /// Hash and first row of each id.
    first: Vec<Run>,
    /// The key of each id: a copy, because the key's first row is far away in memory.
    keys: Vec<K>,
}

impl<K: PartialEq> Table<K> {
    fn new(slots: usize) -> Self {
        Self { slots: vec![(0, NO_ID); slots], first: Vec::new(), keys: Vec::new() }
    }

    /// Return the id of a row's key; a new one if no row before has the key.
    fn id(&mut self, (hash, row): Run, key: K) -> u32 {
        let mask = self.slots.len() - 1;
        let mut place = hash as usize & mask;
        loop {
            let (found, id) = self.slots[place];
            if id == NO_ID {
                break;
            }
            if found == hash && self.keys[id as usize] == key {
                return id;
            }
            place = (place + 1) & mask;
        }
        let id = self.first.len() as u32;
        self.first.push((hash, row));
        self.keys.push(key);
        self.slots[place] = (hash, id);
        if 2 * self.first.len() > self.slots.len() {
            self.grow();
        }
        id
    }

    fn grow(&mut self) {
        let mask = 4 * self.slots.len() - 1;
        let mut slots = vec![(0, NO_ID); mask + 1];
        for (id, &(hash, _)) in (0..).zip(&self.first) {
            let mut place = hash as usize & mask;
            while slots[place].1 != NO_ID {
                place = (place + 1) & mask;
            }
            slots[place] = (hash, id);
        }
        self.slots = slots;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::HashMap;

    /// Keys with equal hashes still get different ids.
    #[test]
    fn different_keys_with_equal_hashes_are_distinguished() -> Result<()> {
        let keys = [5, 5, 3, 4, 5, 3];
        let found = hashed(keys.len(), |row| keys[row], |_| 42)?;
        assert_eq!(found, Keys { ids: vec![0, 0, 1, 2, 0, 1], count: 3 });
        Ok(())
    }

    /// Reference implementation with the standard map: ids in order of appearance.
    fn naive(keys: &[u64]) -> Keys {
        let mut known = HashMap::new();
        let mut id = |key: &u64| {
            let next = known.len() as u32;
            *known.entry(*key).or_insert(next)
        };
        let ids: Vec<u32> = keys.iter().map(&mut id).collect();
        Keys { ids, count: known.len() as u32 }
    }

    /// Many buckets and pieces. Keys recur in other pieces, in runs and alone. The hashes are good, put most keys into
    /// one bucket, or are shared by many keys.
    #[test]
    fn buckets_number_keys_in_order_of_appearance_on_any_number_of_threads() -> Result<()> {
        let hashes: [fn(u64) -> u64; 3] = [|key| uniform_word(key), |key| key << 32, |key| uniform_word(key % 500)];
        for (rows, kinds, run) in [
            (thread_pool::PIECE - 1, 40_u64, 3),
            (thread_pool::PIECE + 1, 40_000, 1),
            (3 * thread_pool::PIECE + 11, 9000, 2),
        ] {
            let keys: Vec<u64> = (0..rows as u64).map(|row| uniform_word(row / run) % kinds).collect();
            let expected = naive(&keys);
            for hash in hashes {
                for threads in [1, 2, 4] {
                    thread_pool::set_threads(threads)?;
                    assert!(hashed(rows, |row| keys[row], hash)? == expected, "{rows} {threads}");
                }
            }
        }
        Ok(())
    }

    fn uniform_word(place: u64) -> u64 {
        crate::rng::structural_seed(&[place])
    }

    proptest! {
        /// The same as if all rows were one piece, even if few bits select buckets and distinguish keys.
        #[test]
        fn runs_stay_in_order_in_their_buckets(keys in prop::collection::vec(0_u64..40, 0..200), bits in 0_u32..5, weak in any::<bool>()) {
            let hash = |key: u64| if weak { key << 61 } else { uniform_word(key) };
            let plain = Runs::of(0..keys.len(), |row| keys[row], hash).runs;
            let Runs { runs, ends } = Runs::of(0..keys.len(), |row| keys[row], hash).in_buckets(bits);
            prop_assert_eq!(ends.len(), 1 << bits);
            let mut start = 0;
            for (bucket, length) in lengths(&ends).enumerate() {
                let of_bucket = |&&(hash, _): &&Run| u64::from(hash) >> (32 - bits) == bucket as u64;
                let expected: Vec<Run> = plain.iter().filter(of_bucket).copied().collect();
                prop_assert_eq!(&runs[start..start + length], expected);
                start += length;
            }
            prop_assert_eq!(start, plain.len());
            prop_assert_eq!(hashed(keys.len(), |row| keys[row], hash)?, naive(&keys));
        }
    }

    #[test]
    fn too_many_rows_are_refused() {
        let message = direct(u32::MAX as usize, 1, |_| 0).map_err(|error| error.to_string());
        assert!(message.is_err_and(|message| message.starts_with("there are 4294967295 rows")));
    }
}
