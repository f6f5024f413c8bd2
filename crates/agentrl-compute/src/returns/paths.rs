//! Rows in time order, and how what comes later reaches what came before.

use crate::check::{finite, same_length};
use crate::{Error, Float, Result, par};

/// Sequences of rows that stand together, each in time order: trajectories of tokens, of steps, or of one agent's turns.
#[derive(Clone, Copy, Debug)]
pub struct Paths<'a, T> {
    /// Where each sequence starts, and where the last ends: from 0 to the number of rows.
    pub offsets: &'a [i64],
    /// Rows of the policy; the others are stepped over: they get 0, nothing of them is read, and what comes after them
    /// reaches what came before. `None`: all are the policy's.
    pub mask: Option<&'a [bool]>,
    /// Rows after which something else begins: nothing that comes later reaches them. The last row of a sequence always is
    /// such an end.
    pub ends: Option<&'a [bool]>,
    /// The value of what would have followed a row that is an end: 0 where an episode was over, the value of the next state
    /// where it was cut off. Not read elsewhere. `None`: 0 everywhere.
    pub bootstrap: Option<&'a [T]>,
}

impl<'a, T: Float> Paths<'a, T> {
    /// Sequences whose rows are all the policy's, and whose ends are over.
    pub fn new(offsets: &'a [i64]) -> Self {
        Self { offsets, mask: None, ends: None, bootstrap: None }
    }

    pub(super) fn check(&self, rows: usize) -> Result<()> {
        let (first, last) = (self.offsets.first(), self.offsets.last());
        if (first, last) != (Some(&0), Some(&(rows as i64))) {
            return Err(Error::invalid(format!(
                "offsets reach from {first:?} to {last:?}, but there are {rows} rows; give the start of each sequence, from 0, \
                 and the end of the last"
            )));
        }
        if let Some(place) = self.offsets.windows(2).position(|pair| pair[0] > pair[1]) {
            return Err(Error::invalid(format!(
                "offsets[{}] is {}, less than {} before it; offsets must not decrease",
                place + 1,
                self.offsets[place + 1],
                self.offsets[place]
            )));
        }
        for (name, mask) in [("mask", self.mask), ("ends", self.ends)] {
            mask.map_or(Ok(()), |mask| same_length(name, mask.len(), "rewards", rows))?;
        }
        self.bootstrap.map_or(Ok(()), |column| same_length("bootstrap", column.len(), "rewards", rows))
    }

    pub(super) fn counts(&self, row: usize) -> bool {
        self.mask.is_none_or(|mask| mask[row])
    }

    pub(super) fn is_end(&self, row: usize) -> bool {
        self.ends.is_some_and(|ends| ends[row])
    }

    pub(super) fn after(&self, row: usize) -> f64 {
        self.bootstrap.map_or(0.0, |column| column[row].to_f64())
    }

    /// Walks every sequence backwards and fills some columns.
    ///
    /// `start` makes the state after an end from its bootstrap; `step` takes a row of the policy and the state after it, and
    /// gives the state before it and the row's results. Where a result is not a number, the inputs are searched for the cause.
    /// `look` sees the results of neighbouring rows, of which the first is known, while they are still at hand.
    pub(super) fn backward<S: Copy, R: Send, const INPUTS: usize, const OUTPUTS: usize>(
        &self,
        inputs: [(&str, &[T]); INPUTS],
        out: [&mut [T]; OUTPUTS],
        start: impl Fn(f64) -> S + Sync,
        step: impl Fn(usize, S) -> (S, [f64; OUTPUTS]) + Sync,
        look: impl Fn(usize, [&[T]; OUTPUTS]) -> R + Sync,
    ) -> Result<Vec<R>> {
        let rows = inputs[0].1.len();
        self.check(rows)?;
        for column in &out {
            same_length("out", column.len(), inputs[0].0, rows)?;
        }
        let mut rest = out;
        let mut items = Vec::new();
        for sequences in par::together(self.offsets.len() - 1, |sequence| self.offsets[sequence] as usize) {
            let (from, end) = (self.offsets[sequences.start] as usize, self.offsets[sequences.end] as usize);
            let mut piece = rest.map(|column| column.split_at_mut(end - from));
            items.push((sequences, from, piece.each_mut().map(|(piece, _)| std::mem::take(piece))));
            rest = piece.map(|(_, rest)| rest);
        }
        let made = par::each(items, |(sequences, from, mut out)| {
            let mut seen = Vec::with_capacity(sequences.len());
            for sequence in sequences {
                let (begin, end) = (self.offsets[sequence] as usize, self.offsets[sequence + 1] as usize);
                if begin == end {
                    continue;
                }
                let mut state = start(self.after(end - 1));
                let mut sound = true;
                for row in (begin..end).rev() {
                    if self.is_end(row) {
                        state = start(self.after(row));
                    }
                    let made = if self.counts(row) {
                        let (before, made) = step(row, state);
                        state = before;
                        made
                    } else {
                        [0.0; OUTPUTS]
                    };
                    for (column, value) in out.iter_mut().zip(made) {
                        let value = T::from_f64(value);
                        sound &= value.to_f64().is_finite();
                        column[row - from] = value;
                    }
                }
                if !sound {
                    return Err(self.cause(&inputs, begin, end));
                }
                seen.push(look(begin, out.each_ref().map(|column| &column[begin - from..end - from])));
            }
            Ok(seen)
        })?;
        Ok(made.into_iter().flatten().collect())
    }

    /// Why a result within some rows is not a number.
    fn cause(&self, inputs: &[(&str, &[T])], begin: usize, end: usize) -> Error {
        let mut columns = inputs.to_vec();
        columns.extend(self.bootstrap.map(|column| ("bootstrap", column)));
        let found = columns.into_iter().find_map(|(name, column)| {
            (begin..end).filter(|&row| self.counts(row)).find_map(|row| finite(name, row, column[row].to_f64()).err())
        });
        found.unwrap_or_else(|| {
            Error::overflow(format!("a result of rows {begin} to {end} is too large for {}; scale the input", T::NAME))
        })
    }
}
