//! Ids by a look-up: in a table with a place for every key, or by hash.

use std::ops::Range;

use super::Keys;
use crate::par;
use crate::{Error, Result};

const NONE: u32 = u32::MAX;

/// Rows are counted in 32 bits, and so are ids.
pub(super) fn check(rows: usize) -> Result<()> {
    if rows < NONE as usize {
        return Ok(());
    }
    Err(Error::overflow(format!("there are {rows} rows; ids are made for at most 2^32 - 2 of them, so split them")))
}

/// Ids of keys that are themselves small numbers, below `range`.
pub(super) fn direct(rows: usize, range: usize, key: impl Fn(usize) -> usize) -> Result<Keys> {
    check(rows)?;
    let mut table = vec![NONE; range];
    let mut count = 0;
    let ids = (0..rows).map(|row| {
        let id = &mut table[key(row)];
        if *id == NONE {
            *id = count;
            count += 1;
        }
        *id
    });
    Ok(Keys { ids: ids.collect(), count })
}

/// Ids of keys of which equal ones stand together.
pub(super) fn in_runs<K: PartialEq + Sync>(keys: &[K]) -> Result<Keys> {
    check(keys.len())?;
    // Each piece with the key before it; of the first piece, the first key itself.
    let with_before = |piece: &Range<usize>| &keys[piece.start.saturating_sub(1)..piece.end];
    let starts = |pair: &[K]| u32::from(pair[0] != pair[1]);
    let pieces = par::pieces(keys.len());
    let counts = par::each(pieces.clone(), |piece| Ok(with_before(&piece).windows(2).map(starts).sum::<u32>()))?;
    let mut ids = vec![0; keys.len()];
    let mut last = 0;
    let mut items = Vec::with_capacity(pieces.len());
    for ((place, piece), count) in ids.chunks_mut(par::PIECE).zip(pieces).zip(counts) {
        items.push((place, piece, last));
        last += count;
    }
    par::each(items, |(place, piece, mut id)| {
        let place = if piece.start == 0 { &mut place[1..] } else { place };
        for (place, pair) in place.iter_mut().zip(with_before(&piece).windows(2)) {
            id += starts(pair);
            *place = id;
        }
        Ok(())
    })?;
    Ok(Keys { count: if ids.is_empty() { 0 } else { last + 1 }, ids })
}

/// Ids of keys that can be hashed and compared by their rows.
///
/// The keys are read in parallel. Where a key differs from the one before it, a run starts; only runs are looked up, one
/// after another, because ids count up in order of appearance.
pub(super) fn hashed(
    rows: usize,
    same: impl Fn(usize, usize) -> bool + Sync,
    hash: impl Fn(usize) -> u64 + Sync,
) -> Result<Keys> {
    check(rows)?;
    let runs = par::each(par::pieces(rows), |piece| {
        let first = piece.start;
        let starts = piece.filter(|&row| row == first || !same(row - 1, row));
        Ok(starts.map(|row| (hash(row), row as u32)).collect::<Vec<_>>())
    })?;
    let mut table = Table::new(1024);
    let mut runs_with_ids = Vec::with_capacity(runs.len());
    for mut run in runs {
        for (hash, row) in &mut run {
            *hash = u64::from(table.id(*hash, *row, &same));
        }
        runs_with_ids.push(run);
    }
    let mut ids = vec![0; rows];
    let pieces: Vec<_> = ids.chunks_mut(par::PIECE).zip(runs_with_ids).enumerate().collect();
    par::each(pieces, |(place, (piece, runs))| {
        let start = place * par::PIECE;
        let ends = runs.iter().skip(1).map(|&(_, row)| row as usize - start).chain([piece.len()]);
        let mut from = 0;
        for (&(id, _), end) in runs.iter().zip(ends) {
            piece[from..end].fill(id as u32);
            from = end;
        }
        Ok(())
    })?;
    Ok(Keys { ids, count: table.first.len() as u32 })
}

/// An open-addressed table from hashes to ids.
struct Table {
    /// The high half of the hash, and the id; `NONE` where the slot is free.
    slots: Vec<(u32, u32)>,
    /// Hash and first row of each id.
    first: Vec<(u64, u32)>,
}

impl Table {
    fn new(slots: usize) -> Self {
        Self { slots: vec![(0, NONE); slots], first: Vec::new() }
    }

    /// The id of a row's key; a new one if no row before it has the same.
    fn id(&mut self, hash: u64, row: u32, same: impl Fn(usize, usize) -> bool) -> u32 {
        let mask = self.slots.len() - 1;
        let tag = (hash >> 32) as u32;
        let mut place = hash as usize & mask;
        loop {
            let (found, id) = self.slots[place];
            if id == NONE {
                break;
            }
            if found == tag && same(self.first[id as usize].1 as usize, row as usize) {
                return id;
            }
            place = (place + 1) & mask;
        }
        let id = self.first.len() as u32;
        self.first.push((hash, row));
        self.slots[place] = (tag, id);
        if 2 * self.first.len() > self.slots.len() {
            self.grow();
        }
        id
    }

    fn grow(&mut self) {
        let mask = 4 * self.slots.len() - 1;
        let mut slots = vec![(0, NONE); mask + 1];
        for (id, &(hash, _)) in (0..).zip(&self.first) {
            let mut place = hash as usize & mask;
            while slots[place].1 != NONE {
                place = (place + 1) & mask;
            }
            slots[place] = ((hash >> 32) as u32, id);
        }
        self.slots = slots;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// All keys have one hash: they differ all the same.
    #[test]
    fn equal_hashes_are_told_apart() -> Result<()> {
        let keys = [5, 5, 3, 4, 5, 3];
        let found = hashed(keys.len(), |a, b| keys[a] == keys[b], |_| 42)?;
        assert_eq!(found, Keys { ids: vec![0, 0, 1, 2, 0, 1], count: 3 });
        Ok(())
    }

    #[test]
    fn too_many_rows_are_refused() {
        let message = direct(u32::MAX as usize, 1, |_| 0).map_err(|error| error.to_string());
        assert!(message.is_err_and(|message| message.starts_with("there are 4294967295 rows")));
    }
}
