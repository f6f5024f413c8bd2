//! Sequences of rows in time order, and reverse scans over them.

use std::ops::Range;

use crate::argument_checks::{finite, same_length};
use crate::{Error, Float, Result, thread_pool};

/// Contiguous sequences of rows, each in time order: trajectories of tokens, of steps, or of one agent's turns.
#[derive(Clone, Copy, Debug)]
pub struct Paths<'a, T> {
    /// Offsets of the sequences, `[sequences + 1]`, from 0 to the number of rows.
    pub offsets: &'a [i64],
    /// Mask of the policy's rows. The others are skipped: they get 0, their inputs are not read, and later rows still
    /// affect earlier ones. `None`: all rows are the policy's.
    pub mask: Option<&'a [bool]>,
    /// Rows after which something else begins: no later row affects them. The last row of a sequence always is an end.
    pub ends: Option<&'a [bool]>,
    /// Value after a row that is an end: 0 if the episode terminated, the value of the next state if it was truncated.
    /// Not read at other rows. `None`: 0 everywhere.
    pub bootstrap: Option<&'a [T]>,
}

impl<'a, T: Float> Paths<'a, T> {
    /// Sequences in which all rows are the policy's and all ends are terminations.
    pub fn new(offsets: &'a [i64]) -> Self {
        Self { offsets, mask: None, ends: None, bootstrap: None }
    }

    pub(super) fn check(&self, rows: usize) -> Result<()> {
        let (first, last) = (self.offsets.first(), self.offsets.last());
        if (first, last) != (Some(&0), Some(&(rows as i64))) {
            return Err(Error::invalid(format!(
                "offsets range from {} to {}, but there are {rows} rows; give the start of each sequence, from 0, \
                 and the end of the last",
                first.copied().unwrap_or_default(),
                last.copied().unwrap_or_default()
            )));
        }
        if let Some(place) = self.offsets.windows(2).position(|pair| pair[0] > pair[1]) {
            return Err(Error::invalid(format!(
                "offsets[{}] is {}, less than {} before it; give ascending offsets",
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

    /// Scan every sequence in reverse and fill columns.
    ///
    /// `start` returns the state after an end from its bootstrap. `step` takes the inputs of a policy row and the state
    /// after it, and returns the state before it and the row's results. If a result is not finite, the inputs are
    /// searched for the cause. `look` receives the first row and the results of a chunk of rows, while they are in
    /// cache.
    pub(super) fn backward<S: Copy, R: Send, const INPUTS: usize, const OUTPUTS: usize>(
        &self,
        inputs: [(&str, &[T]); INPUTS],
        out: [&mut [T]; OUTPUTS],
        start: impl Fn(f64) -> S + Sync,
        step: impl Fn([f64; INPUTS], S) -> (S, [f64; OUTPUTS]) + Sync,
        look: impl Fn(usize, [&[T]; OUTPUTS]) -> R + Sync,
    ) -> Result<Vec<R>> {
        let rows = inputs[0].1.len();
        self.check(rows)?;
        for column in &out {
            same_length("out", column.len(), inputs[0].0, rows)?;
        }
        let mut rest = out;
        let mut items = Vec::new();
        for sequences in thread_pool::row_pieces(self.offsets.len() - 1, |sequence| self.offsets[sequence] as usize) {
            let (from, end) = (self.offsets[sequences.start] as usize, self.offsets[sequences.end] as usize);
            items.push((sequences, from, taken(&mut rest, end - from)));
        }
        let columns = inputs.map(|(_, column)| column);
        thread_pool::map(items, |(sequences, from, mut out)| {
            let mut rest = out.each_mut().map(|column| &mut **column);
            for first in sequences.clone().step_by(2) {
                // Scan two sequences at once while both have rows: the steps of one run while those of the other wait.
                let both = [first, first + 1].map(|sequence| self.rows(sequence, sequences.end));
                let mut states =
                    both.clone().map(|rows| start(if rows.is_empty() { 0.0 } else { self.after(rows.end - 1) }));
                let abreast = both[0].len().min(both[1].len());
                let mut last = both.clone().map(|rows| taken(&mut rest, rows.len()));
                let before = last.each_mut().map(|columns| taken(columns, columns[0].len() - abreast));
                states = self.walk(columns, both.each_ref().map(|rows| rows.end), last, states, &start, &step);
                for ((rows, out), state) in both.into_iter().zip(before).zip(states) {
                    self.walk(columns, [rows.end - abreast], [out], [state], &start, &step);
                }
            }
            if !out.iter().all(|column| T::all_finite(column)) {
                return Err(self.cause(&inputs, sequences, from, &out));
            }
            Ok(look(from, out.each_ref().map(|column| &**column)))
        })
    }

    /// Return the rows of a sequence; empty from sequence `end` on.
    fn rows(&self, sequence: usize, end: usize) -> Range<usize> {
        self.offsets[sequence.min(end)] as usize..self.offsets[(sequence + 1).min(end)] as usize
    }

    /// Scan the rows before each of `places` in reverse, as many as the columns of `out` have, from the states after
    /// them; return the states before them.
    fn walk<S: Copy, const PARTS: usize, const INPUTS: usize, const OUTPUTS: usize>(
        &self,
        inputs: [&[T]; INPUTS],
        places: [usize; PARTS],
        out: [[&mut [T]; OUTPUTS]; PARTS],
        mut states: [S; PARTS],
        start: impl Fn(f64) -> S,
        step: impl Fn([f64; INPUTS], S) -> (S, [f64; OUTPUTS]),
    ) -> [S; PARTS] {
        let rows = out[0][0].len();
        let inputs = places.map(|place| inputs.map(|column| &column[place - rows..place]));
        let [mask, ends] =
            [self.mask, self.ends].map(|marks| marks.map(|marks| places.map(|place| &marks[place - rows..place])));
        let mut out = out.map(|columns| columns.map(|column| &mut column[..rows]));
        for row in (0..rows).rev() {
            for part in 0..PARTS {
                if ends.is_some_and(|ends| ends[part][row]) {
                    states[part] = start(self.after(places[part] - rows + row));
                }
                let mut made = [0.0; OUTPUTS];
                if mask.is_none_or(|mask| mask[part][row]) {
                    (states[part], made) = step(inputs[part].map(|column| column[row].to_f64()), states[part]);
                }
                for (column, made) in out[part].iter_mut().zip(made) {
                    column[row] = T::from_f64(made);
                }
            }
        }
        states
    }

    /// Find out why a result of some sequences is not finite; the rows of the first sequence start at `from`.
    fn cause(&self, inputs: &[(&str, &[T])], sequences: Range<usize>, from: usize, out: &[&mut [T]]) -> Error {
        let sound = |&sequence: &usize| {
            let rows = self.rows(sequence, sequences.end);
            out.iter().all(|column| T::all_finite(&column[rows.start - from..rows.end - from]))
        };
        let Range { start: begin, end } =
            self.rows(sequences.clone().find(|sequence| !sound(sequence)).unwrap_or(sequences.start), sequences.end);
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

/// Split the first `rows` rows off the columns.
fn taken<'a, T, const COLUMNS: usize>(columns: &mut [&'a mut [T]; COLUMNS], rows: usize) -> [&'a mut [T]; COLUMNS] {
    columns.each_mut().map(|column| column.split_off_mut(..rows).unwrap_or_default())
}
