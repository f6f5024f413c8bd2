//! Top-k selection; a single comparison rejects most candidates.

use std::cmp::Ordering;
use std::ops::Range;

use crate::simd::BLOCK;
use crate::{Result, thread_pool};

/// A candidate of the top k.
#[derive(Clone, Copy)]
struct ScoredPlace {
    score: f64,
    tie: f64,
    place: usize,
}

/// Order by score, largest first; ties by the smaller `tie`, then by the earlier place.
fn before(one: &ScoredPlace, other: &ScoredPlace) -> Ordering {
    let of_equal = || one.tie.total_cmp(&other.tie).then(one.place.cmp(&other.place));
    other.score.total_cmp(&one.score).then_with(of_equal)
}

/// Rows per byte of a mask, one bit each.
pub(super) const ROWS_PER_MASK: usize = 8;

/// Number of scores in the sample that estimates the last chosen score.
const SAMPLE: usize = 512;

/// Keep the `count` best candidates, in any order.
fn cut(candidates: &mut Vec<ScoredPlace>, count: usize) {
    if count < candidates.len() && count > 0 {
        candidates.select_nth_unstable_by(count - 1, before);
    }
    candidates.truncate(count);
}

/// Return the places of the `count` best of `total` rows, best first: by score, then by `tie`. Only scores of at least
/// `least` are chosen.
///
/// `score(row, worst)` returns `None` for a row that cannot be chosen; a score below `worst` changes nothing and need
/// not be computed. `near(rows, worst, mask)` writes one bit for each row of a block: 0 if its score is below `worst`,
/// 1 if it may be larger or is invalid.
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
        // The score of the worst kept candidate: most rows are below it, and cost one comparison.
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

/// The `near` of [`best_of`] that skips no rows.
pub(super) fn anywhere(_: Range<usize>, _: f64, _: &mut [u8]) {}

/// Estimate a score that very likely at least `count` rows reach, and few others.
pub(super) fn reached_by(scores: &[f64], count: usize) -> f64 {
    let step = scores.len() / SAMPLE;
    if step < 4 {
        return f64::NEG_INFINITY;
    }
    let mut sample: Vec<f64> = scores.iter().copied().step_by(step).collect();
    // The expected number in the sample, plus three standard deviations.
    let expected = count as f64 * sample.len() as f64 / scores.len() as f64;
    let place = (expected + 3.0 * expected.sqrt()) as usize + 1;
    if place >= sample.len() {
        return f64::NEG_INFINITY;
    }
    *sample.select_nth_unstable_by(place, |one, other| other.total_cmp(one)).1
}
