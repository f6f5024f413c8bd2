//! The best scores of one long column, selected without sorting it.

use std::ops::Range;

use super::top_options::{Ties, Top};
use crate::argument_checks::{column, mask_length};
use crate::simd::{BLOCK, wide};
use crate::{Float, Result, thread_pool};

/// Number of sampled scores from which bounds around the last chosen score are estimated.
const SAMPLE: usize = 1 << 14;

/// Number of scores that are skipped at once if none lies between these bounds.
const SCORES_PER_CHECK: usize = 8;

/// Choose rows as [`top`](super::top) does, for rows that are all in one group.
///
/// ```
/// use agentrl_compute::weight::{Amount, Ties, Top, best};
///
/// let options = Top { amount: Amount::Count(2), largest: true, ties: Ties::First };
/// assert_eq!(best("scores", &[1.0, 3.0, 2.0, 9.0], None, &options)?, [false, true, false, true]);
/// # Ok::<(), agentrl_compute::Error>(())
/// ```
///
/// # Errors
/// `InvalidInput` if lengths differ or a valid score is not finite.
pub fn best<T: Float>(name: &str, scores: &[T], valid: Option<&[bool]>, options: &Top) -> Result<Vec<bool>> {
    mask_length(valid, name, scores.len())?;
    column(name, scores, name, scores.len(), valid)?;
    best_of_checked(scores, valid, options)
}

/// Do the same for a column that is already checked.
pub(super) fn best_of_checked<T: Float>(scores: &[T], valid: Option<&[bool]>, options: &Top) -> Result<Vec<bool>> {
    let rows = SignedScores { scores, valid, sign: if options.largest { -1.0 } else { 1.0 } };
    let votes = valid.map_or(scores.len(), |valid| valid.iter().filter(|&&valid| valid).count());
    let mut chosen = vec![false; scores.len()];
    let Some(place) = options.amount.of(votes).checked_sub(1) else { return Ok(chosen) };
    let last = rows.at(place, votes)?;
    thread_pool::fill(&mut chosen, |start, piece| {
        let mut numbers = [0.0; BLOCK];
        for (block, chosen) in (start..).step_by(BLOCK).zip(piece.chunks_mut(BLOCK)) {
            let numbers = &mut numbers[..chosen.len()];
            rows.read(block..block + chosen.len(), numbers);
            at_most(numbers, last.score, chosen);
        }
        Ok(())
    })?;
    if options.ties == Ties::First && last.chosen < last.equal {
        let mut equal = chosen
            .iter_mut()
            .zip(scores)
            .filter(|(chosen, score)| **chosen && rows.sign * score.to_f64() - last.score == 0.0);
        equal.by_ref().take(last.chosen).for_each(drop);
        equal.for_each(|(chosen, _)| *chosen = false);
    }
    Ok(chosen)
}

/// Scores with a sign: multiplied by it, the best scores are the smallest.
#[derive(Clone, Copy, Debug)]
struct SignedScores<'a, T> {
    scores: &'a [T],
    valid: Option<&'a [bool]>,
    sign: f64,
}

/// The last chosen score.
#[derive(Clone, Copy, Debug)]
struct Last {
    score: f64,
    /// Number of rows with this score.
    equal: usize,
    /// Number of these rows that are chosen.
    chosen: usize,
}

impl<T: Float> SignedScores<'_, T> {
    fn counts(&self, row: usize) -> bool {
        self.valid.is_none_or(|valid| valid[row])
    }

    /// Read the scores of a range of rows, times the sign; NaN for rows that are not valid.
    fn read(&self, rows: Range<usize>, numbers: &mut [f64]) {
        T::read(&self.scores[rows.clone()], numbers);
        let valid = self.valid.map(|valid| &valid[rows]);
        with_sign(numbers, self.sign, valid);
    }

    /// Return the score at an index of the sorted valid scores.
    fn at(&self, place: usize, votes: usize) -> Result<Last> {
        let (low, high) = self.around(place, votes);
        let (mut below, mut near) = self.between(low, high)?;
        if !(below..below + near.len()).contains(&place) {
            (below, near) = self.between(f64::NEG_INFINITY, f64::INFINITY)?;
        }
        let (before, &mut score, _) = near.select_nth_unstable_by(place - below, f64::total_cmp);
        let less = below + before.iter().filter(|&&other| other < score).count();
        let equal = near.iter().filter(|&&other| other - score == 0.0).count();
        Ok(Last { score, equal, chosen: place + 1 - less })
    }

    /// Return bounds between which the score at an index of the sorted scores very likely lies, with few others.
    fn around(&self, place: usize, votes: usize) -> (f64, f64) {
        let step = self.scores.len() / SAMPLE;
        if step < 8 {
            return (f64::NEG_INFINITY, f64::INFINITY);
        }
        let rows = (0..self.scores.len()).step_by(step).filter(|&row| self.counts(row));
        let mut sample: Vec<f64> = rows.map(|row| self.sign * self.scores[row].to_f64()).collect();
        let middle = (place as f64 * sample.len() as f64 / votes as f64) as usize;
        // Four standard deviations of an index in a sample. The deviation is largest in the middle: half a root.
        let margin = 2 * sample.len().isqrt();
        let (low, high) = (middle.checked_sub(margin), Some(middle + margin).filter(|&high| high < sample.len()));
        let mut at = |place: usize| *sample.select_nth_unstable_by(place, f64::total_cmp).1;
        (low.map_or(f64::NEG_INFINITY, &mut at), high.map_or(f64::INFINITY, at))
    }

    /// Return the number of scores below `low`, and the scores from `low` to `high`.
    fn between(&self, low: f64, high: f64) -> Result<(usize, Vec<f64>)> {
        let parts = thread_pool::map(thread_pool::pieces(self.scores.len()), |piece| {
            let (mut numbers, mut near, mut below) = ([0.0; BLOCK], Vec::new(), 0);
            for start in piece.clone().step_by(BLOCK) {
                let rows = start..piece.end.min(start + BLOCK);
                let numbers = &mut numbers[..rows.len()];
                self.read(rows, numbers);
                below += sort_out(numbers, low, high, &mut near);
            }
            Ok((below, near))
        })?;
        let below = parts.iter().map(|(below, _)| below).sum();
        Ok((below, parts.into_iter().flat_map(|(_, near)| near).collect()))
    }
}

/// Multiply numbers by a sign and set those that are not valid to NaN.
fn with_sign(numbers: &mut [f64], sign: f64, valid: Option<&[bool]>) {
    wide(
        #[inline(always)]
        || {
            for number in numbers.iter_mut() {
                *number *= sign;
            }
            if let Some(valid) = valid {
                let rows = numbers.iter_mut().zip(valid);
                rows.for_each(|(number, &valid)| *number = if valid { *number } else { f64::NAN });
            }
        },
    );
}

/// Return how many numbers of a block are below `low`; append those from `low` to `high` to `near`.
fn sort_out(numbers: &[f64], low: f64, high: f64, near: &mut Vec<f64>) -> usize {
    let mut marks = [false; BLOCK];
    let below = wide(
        #[inline(always)]
        || {
            numbers.iter().zip(&mut marks).fold(0_u64, |below, (&number, near)| {
                *near = (low <= number) & (number <= high);
                below + u64::from(number < low)
            })
        },
    );
    // Branchless within a chunk: every number is written, and the next one overwrites it if it is not near.
    let (mut kept, mut found) = ([0.0; BLOCK + 1], 0);
    for (numbers, marks) in numbers.chunks(SCORES_PER_CHECK).zip(marks.as_chunks::<SCORES_PER_CHECK>().0) {
        if *marks != [false; SCORES_PER_CHECK] {
            for (&number, &near) in numbers.iter().zip(marks) {
                kept[found] = number;
                found += usize::from(near);
            }
        }
    }
    near.extend_from_slice(&kept[..found]);
    below as usize
}

/// Mark the numbers that are at most `bound`.
fn at_most(numbers: &[f64], bound: f64, out: &mut [bool]) {
    wide(
        #[inline(always)]
        || out.iter_mut().zip(numbers).for_each(|(out, &number)| *out = number <= bound),
    );
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::weight::Amount;

    /// Reference implementation by sorting: the rows with the best scores; on ties, the earlier rows.
    fn sorted(scores: &[f32], valid: &[bool], count: usize, largest: bool) -> Vec<bool> {
        let mut order: Vec<usize> = (0..scores.len()).filter(|&row| valid[row]).collect();
        let by = |a: &usize, b: &usize| scores[*a].total_cmp(&scores[*b]);
        order.sort_by(|a, b| if largest { by(b, a) } else { by(a, b) });
        let mut chosen = vec![false; scores.len()];
        order.iter().take(count).for_each(|&row| chosen[row] = true);
        chosen
    }

    /// So many rows that a sample is drawn: random, in order, with many ties, and such that the sample misleads.
    #[test]
    fn as_by_sorting() -> Result<()> {
        let rows = 9 * SAMPLE + 7;
        let random = |row: usize| crate::rng::uniform(3, row as u64) as f32;
        let columns: [&dyn Fn(usize) -> f32; 4] =
            [&|row| random(row) - 0.5, &|row| row as f32, &|row| (random(row) * 4.0).floor(), &|row| {
                if row % 9 == 0 { -1.0 } else { random(row) }
            }];
        for column in columns {
            let scores: Vec<f32> = (0..rows).map(column).collect();
            for (part, largest) in [(0.0, true), (0.2, true), (0.5, false), (1.0, false)] {
                let valid: Vec<bool> = (0..rows).map(|row| random(row + rows) < 0.8).collect();
                let votes = valid.iter().filter(|&&valid| valid).count();
                let count = (votes as f64 * part) as usize;
                let options = Top { amount: Amount::Count(count), largest, ties: Ties::First };
                assert_eq!(best("scores", &scores, Some(&valid), &options)?, sorted(&scores, &valid, count, largest));
            }
        }
        Ok(())
    }
}
