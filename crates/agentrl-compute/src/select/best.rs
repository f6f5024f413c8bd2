//! The best of many candidates. One comparison excludes most of the others.

use std::cmp::Ordering;
use std::ops::Range;

use crate::simd::BLOCK;
use crate::{Result, thread_pool};

/// A candidate while the best are sought.
#[derive(Clone, Copy)]
struct ScoredPlace {
    score: f64,
    tie: f64,
    place: usize,
}

/// The larger score first; of equal ones, the smaller `tie`, then the earlier.
fn before(one: &ScoredPlace, other: &ScoredPlace) -> Ordering {
    let of_equal = || one.tie.total_cmp(&other.tie).then(one.place.cmp(&other.place));
    other.score.total_cmp(&one.score).then_with(of_equal)
}

/// Rows that are looked at together, a bit each.
pub(super) const ROWS_PER_MASK: usize = 8;

/// Scores by which it is guessed how large the last chosen one is.
const SAMPLE: usize = 512;

/// The `count` best of some candidates, in any order.
fn cut(candidates: &mut Vec<ScoredPlace>, count: usize) {
    if count < candidates.len() && count > 0 {
        candidates.select_nth_unstable_by(count - 1, before);
    }
    candidates.truncate(count);
}

/// The places of the `count` best of `total` rows, in order: by their scores (None: a row cannot be chosen), then their ties;
/// of those only that score at least `least`. Who scores is told a number below which a score changes nothing. `near` says of
/// a block of rows which few of them may have a score that is not below that number, or is wrong.
pub(super) fn best_of(
    total: usize,
    count: usize,
    least: f64,
    near: impl Fn(Range<usize>, f64, &mut [u8]) + Sync,
    score: impl Fn(usize, f64) -> Result<Option<f64>> + Sync,
    tie: impl Fn(usize) -> f64 + Sync,
) -> Result<Vec<i64>> {
    let step = thread_pool::PIECE.max(count.saturating_mul(16));
    let pieces = (0..total).step_by(step).map(|start| start..total.min(start + step)).collect();
    let kept = thread_pool::map(pieces, |piece: Range<usize>| {
        // The worst of so many that are kept: most rows are worse, and cost a comparison.
        let (mut candidates, mut worst) = (Vec::<ScoredPlace>::new(), least);
        for start in piece.clone().step_by(BLOCK) {
            let block = start..piece.end.min(start + BLOCK);
            let mut may = [u8::MAX; BLOCK / ROWS_PER_MASK];
            near(block.clone(), worst, &mut may);
            for (first, mut may) in block.clone().step_by(ROWS_PER_MASK).zip(may) {
                while may > 0 {
                    let place = first + may.trailing_zeros() as usize;
                    may &= may - 1;
                    if place >= block.end {
                        break;
                    }
                    let Some(score) = score(place, worst)?.filter(|&score| score >= worst) else { continue };
                    candidates.push(ScoredPlace { score, tie: tie(place), place });
                    if candidates.len() >= 3 * count.max(32) {
                        cut(&mut candidates, count);
                        worst = candidates.last().map_or(f64::INFINITY, |last| last.score);
                    }
                }
            }
        }
        cut(&mut candidates, count);
        Ok(candidates)
    })?;
    let mut candidates = kept.concat();
    cut(&mut candidates, count);
    candidates.sort_unstable_by(before);
    Ok(candidates.into_iter().map(|candidate| candidate.place as i64).collect())
}

/// Nothing is known of rows before they are looked at.
pub(super) fn anywhere(_: Range<usize>, _: f64, _: &mut [u8]) {}

/// A number that very likely `count` scores and few others reach.
pub(super) fn reached_by(scores: &[f64], count: usize) -> f64 {
    let step = scores.len() / SAMPLE;
    if step < 4 {
        return f64::NEG_INFINITY;
    }
    let mut sample: Vec<f64> = scores.iter().copied().step_by(step).collect();
    // Three standard deviations of their number in the sample.
    let expected = count as f64 * sample.len() as f64 / scores.len() as f64;
    let place = (expected + 3.0 * expected.sqrt()) as usize + 1;
    if place >= sample.len() {
        return f64::NEG_INFINITY;
    }
    *sample.select_nth_unstable_by(place, |one, other| other.total_cmp(one)).1
}
