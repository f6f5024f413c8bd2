//! Rows that are a slice of a text followed by a tail, such as questions asked at several positions of the text.

use std::ops::Range;

use super::{Sequences, in_order, packs};
use crate::prefix::common_prefix;
use crate::ragged::Ragged;
use crate::{Error, Result};

/// Rows of tokens: each is a slice of a text, then a tail. Nothing is copied.
#[derive(Clone, Debug)]
pub struct Continuations<'a> {
    text: &'a [i32],
    tails: Ragged<'a, i32>,
    rows: Vec<(Range<usize>, usize)>,
}

impl<'a> Continuations<'a> {
    /// Create rows: row `i` is `text[begins[i]..ends[i]]`, then tail `tail_of[i]`.
    ///
    /// # Errors
    /// `InvalidInput` if the columns differ in length, or a row is outside the text or the tails.
    pub fn new(text: &'a [i32], begins: &[i64], ends: &[i64], tails: Ragged<'a, i32>, tail_of: &[i64]) -> Result<Self> {
        let count = begins.len();
        if ends.len() != count || tail_of.len() != count {
            return Err(Error::invalid(format!(
                "begins, ends and tail_of have {count}, {} and {} values; give one of each for every row",
                ends.len(),
                tail_of.len()
            )));
        }
        let row = |row: usize| {
            let (begin, end) = (usize::try_from(begins[row]).ok(), usize::try_from(ends[row]).ok());
            let tail = usize::try_from(tail_of[row]).ok().filter(|&tail| tail < tails.len());
            let range = begin.zip(end).filter(|&(begin, end)| begin <= end && end <= text.len());
            range.zip(tail).map(|((begin, end), tail)| (begin..end, tail)).ok_or_else(|| {
                Error::invalid(format!(
                    "row {row} is text[{}:{}] and tail {}, but there are {} text tokens and {} tails; \
                     give places in both",
                    begins[row],
                    ends[row],
                    tail_of[row],
                    text.len(),
                    tails.len()
                ))
            })
        };
        Ok(Self { text, tails, rows: (0..count).map(row).collect::<Result<_>>()? })
    }

    /// Assign rows to packs that read at most `capacity` tokens, and return the rows of each pack. Shared prefixes
    /// count once.
    ///
    /// ```
    /// use agentrl_compute::pack::Continuations;
    /// use agentrl_compute::ragged::Ragged;
    ///
    /// // The rows are 5, 8, 9 and 5, 6, 7, 8, 9. Read are 5, 6, 7, 8 and the 8 after 5: five tokens.
    /// let tails = Ragged::new(&[8, 9], &[0, 2])?;
    /// let rows = Continuations::new(&[5, 6, 7], &[0, 0], &[1, 3], tails, &[0, 0])?;
    /// assert_eq!(rows.packs(5)?.len(), 1);
    /// assert_eq!(rows.packs(4)?.len(), 2);
    /// # Ok::<(), agentrl_compute::Error>(())
    /// ```
    ///
    /// # Errors
    /// `InvalidInput` if a single row reads more than `capacity` tokens.
    pub fn packs(&self, capacity: usize) -> Result<Vec<Vec<usize>>> {
        let alone: Vec<Vec<usize>> = (0..self.rows.len()).map(|row| vec![row]).collect();
        packs(self, &alone, Some(&in_order(self, self.rows.len())), capacity, None)
    }

    /// Return the tokens of a row from `depth` to the end of its text slice, or of its tail if `depth` is past the
    /// slice.
    fn rest(&self, row: usize, depth: usize) -> &'a [i32] {
        let (text, tail) = &self.rows[row];
        match depth.checked_sub(text.len()) {
            None => &self.text[text.start + depth..text.end],
            Some(depth) => &self.tails.get(*tail).unwrap_or_default()[depth..],
        }
    }
}

impl Sequences for Continuations<'_> {
    fn length(&self, sequence: usize) -> usize {
        let (text, tail) = &self.rows[sequence];
        text.len() + self.tails.range(*tail).len()
    }

    fn common(&self, a: usize, b: usize) -> usize {
        let (left, right) = (&self.rows[a].0, &self.rows[b].0);
        let mut common = if left.start == right.start { left.len().min(right.len()) } else { 0 };
        loop {
            let (left, right) = (self.rest(a, common), self.rest(b, common));
            let count = left.len().min(right.len());
            let equal = common_prefix(&left[..count], &right[..count]);
            common += equal;
            if equal < count || count == 0 {
                return common;
            }
        }
    }

    fn element(&self, sequence: usize, depth: usize) -> i64 {
        self.rest(sequence, depth).first().map_or(-1, |&token| i64::from(token))
    }
}
