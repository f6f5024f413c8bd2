//! Choose rows by score: the largest, or at random.

use std::collections::HashSet;
use std::hash::BuildHasherDefault;
use std::ops::Range;

use super::best::{ROWS_PER_MASK, anywhere, best_of, reached_by};
use crate::argument_checks::same_length;
use crate::keys::FixedHasher;
use crate::rng::uniform;
use crate::simd::{BLOCK, exp, wide};
use crate::{Error, Result, thread_pool};

/// Half of the distance between neighbouring uniform numbers; adding it makes all of them larger than 0.
const HALF: f64 = 1.0 / (1_u64 << 54) as f64;

/// Return the first `count` rows of 0 to `total - 1` in the random order of a key, without the rows in `taken`.
///
/// Row `i` is sorted by `uniform(key + i, 0)`, so a larger count only adds rows at the end.
///
/// ```
/// use agentrl_compute::select::permuted;
///
/// let first = permuted(1_000, 3, 7, &[])?;
/// assert_eq!(permuted(1_000, 5, 7, &[])?[..3], first);
/// assert!(!permuted(1_000, 999, 7, &[first[0]])?.contains(&first[0]));
/// # Ok::<(), agentrl_compute::Error>(())
/// ```
///
/// # Errors
/// `InvalidInput` if fewer than `count` rows are free.
pub fn permuted(total: usize, count: usize, key: u64, taken: &[i64]) -> Result<Vec<i64>> {
    let taken: HashSet<usize> =
        taken.iter().filter_map(|&row| usize::try_from(row).ok()).filter(|&row| row < total).collect();
    let free = total - taken.len();
    if count > free {
        return Err(Error::invalid(format!(
            "count is {count}, but {free} of {total} tasks are free; request at most {free}, or enlarge the pool"
        )));
    }
    let number = |row: usize| uniform(key.wrapping_add(row as u64), 0);
    let score = |row: usize, _: f64| Ok((taken.is_empty() || !taken.contains(&row)).then(|| -number(row)));
    best_of(total, count, f64::NEG_INFINITY, anywhere, score, |_| 0.0)
}

/// Draw `count` rows of 0 to `total - 1`, all equally likely and each at most once, without the rows in `taken`. Only
/// drawn rows are visited, unless more than half of the rows are drawn or taken.
///
/// Draw `i` is `floor(total uniform(key, i))`; a row that was drawn before or is taken is drawn again. If more than
/// half of the rows are drawn or taken, the rows of [`permuted`] are returned.
///
/// ```
/// use agentrl_compute::select::drawn;
///
/// let rows = drawn(10_000_000, 256, 7, &[])?;
/// assert_eq!(drawn(10_000_000, 100, 7, &[])?, rows[..100]);
/// # Ok::<(), agentrl_compute::Error>(())
/// ```
///
/// # Errors
/// `InvalidInput` if fewer than `count` rows are free.
pub fn drawn(total: usize, count: usize, key: u64, taken: &[i64]) -> Result<Vec<i64>> {
    if count.saturating_add(taken.len()) > total / 2 {
        return permuted(total, count, key, taken);
    }
    let mut seen: HashSet<u64, BuildHasherDefault<FixedHasher>> = HashSet::default();
    // Limit the reservation: `count` may be far too large.
    seen.reserve(count.min(1 << 16) + taken.len());
    seen.extend(taken.iter().map(|&row| row as u64));
    let draw = |counter| (uniform(key, counter) * total as f64) as i64;
    Ok((0..).map(draw).filter(|&row| seen.insert(row as u64)).take(count).collect())
}

/// Return the places of the `count` largest scores, largest first; the key breaks ties at random. A score of minus
/// infinity is never chosen, so there may be fewer.
///
/// ```
/// use agentrl_compute::select::top;
///
/// assert_eq!(top(&[0.25, 1.0, f64::NEG_INFINITY, 0.5], &[10, 11, 12, 13], 2, 0)?, [1, 3]);
/// # Ok::<(), agentrl_compute::Error>(())
/// ```
///
/// # Errors
/// `InvalidInput` if lengths differ or a score is NaN or infinite.
pub fn top(scores: &[f64], rows: &[i64], count: usize, key: u64) -> Result<Vec<i64>> {
    same_length("rows", rows.len(), "scores", scores.len())?;
    let score = |place: usize, _: f64| {
        let score = bounded("scores", place, scores[place])?;
        Ok((score > f64::NEG_INFINITY).then_some(score))
    };
    let near = |rows: Range<usize>, worst: f64, may: &mut [u8]| {
        let (few, rest) = scores[rows].as_chunks::<ROWS_PER_MASK>();
        wide(
            #[inline(always)]
            || {
                for (may, few) in may.iter_mut().zip(few) {
                    let bit = |(place, &score): (usize, &f64)| (1 - u8::from(score < worst)) << place;
                    *may = few.iter().enumerate().map(bit).fold(0, |may, bit| may | bit);
                }
            },
        );
        if !rest.is_empty() {
            may[few.len()] = u8::MAX;
        }
    };
    let best = |least| best_of(scores.len(), count, least, near, score, |place| uniform(key, rows[place] as u64));
    let chosen = best(reached_by(scores, count))?;
    if chosen.len() < count.min(scores.len()) { best(f64::NEG_INFINITY) } else { Ok(chosen) }
}

/// Draw `count` rows one after another without replacement and return their places. The probability of a row is
/// proportional to its `exp(logit)` among the remaining rows (Plackett-Luce, by the Gumbel trick). A logit of minus
/// infinity is never drawn.
///
/// ```
/// use agentrl_compute::select::successive;
///
/// assert_eq!(successive(&[0.0, f64::NEG_INFINITY], &[0, 1], 1, 3)?, [0]);
/// # Ok::<(), agentrl_compute::Error>(())
/// ```
///
/// # Errors
/// `InvalidInput` if lengths differ, a logit is NaN or plus infinity, or fewer than `count` rows can be drawn.
pub fn successive(logits: &[f64], rows: &[i64], count: usize, key: u64) -> Result<Vec<i64>> {
    same_length("rows", rows.len(), "logits", logits.len())?;
    let score = |place: usize, worst: f64| {
        let logit = bounded("logits", place, logits[place])?;
        let number = uniform(key, rows[place] as u64);
        if logit == f64::NEG_INFINITY || logit + noise_at_most(number) < worst {
            return Ok(None);
        }
        Ok(Some(logit - (-(number + HALF).ln()).ln()))
    };
    let chosen = best_of(logits.len(), count, f64::NEG_INFINITY, anywhere, score, |_| 0.0)?;
    if chosen.len() < count {
        return Err(Error::invalid(format!(
            "count is {count}, but {found} of {} rows have a weight above 0; request at most {found}, or \
             give more rows a weight",
            logits.len(),
            found = chosen.len()
        )));
    }
    Ok(chosen)
}

/// Upper bound of the Gumbel noise of a uniform number, without a logarithm: -ln(-ln u) <= -ln(1 - u), and 1 - u is at
/// least two to the power of its binary exponent. `HALF`, which is added to u later, can halve 1 - u at most.
fn noise_at_most(number: f64) -> f64 {
    let order = ((1.0 - number).to_bits() >> 52) as i32 - 1023;
    f64::from(1 - order) * std::f64::consts::LN_2
}

/// `ln sum exp(logit)`: the logarithm of the divisor of probabilities in the first draw of [`successive`].
///
/// ```
/// use agentrl_compute::select::log_total;
///
/// assert_eq!(log_total(&[1000.0, f64::NEG_INFINITY])?, 1000.0);
/// # Ok::<(), agentrl_compute::Error>(())
/// ```
///
/// # Errors
/// `InvalidInput` if a logit is NaN or plus infinity.
pub fn log_total(logits: &[f64]) -> Result<f64> {
    let largest = thread_pool::map(thread_pool::pieces(logits.len()), |piece| {
        let numbers = piece.clone().zip(&logits[piece]);
        numbers
            .map(|(place, &logit)| bounded("logits", place, logit))
            .try_fold(f64::NEG_INFINITY, |most, logit| Ok(most.max(logit?)))
    })?;
    let most = largest.into_iter().fold(f64::NEG_INFINITY, f64::max);
    if most == f64::NEG_INFINITY {
        return Ok(most);
    }
    let sums = thread_pool::map(thread_pool::pieces(logits.len()), |piece| {
        let mut block = [0.0; BLOCK];
        let sum = |numbers: &[f64]| {
            let powers = &mut block[..numbers.len()];
            powers.iter_mut().zip(numbers).for_each(|(power, number)| *power = number - most);
            exp(powers, 700.0);
            powers.iter().sum::<f64>()
        };
        Ok(logits[piece].chunks(BLOCK).map(sum).sum::<f64>())
    })?;
    Ok(most + sums.into_iter().sum::<f64>().ln())
}

/// Draw `count` rows independently (with replacement), in proportion to their weights, and return their places.
///
/// ```
/// use agentrl_compute::select::independent;
///
/// assert_eq!(independent(&[0.0, 2.0], 3, 1)?, [1, 1, 1]);
/// # Ok::<(), agentrl_compute::Error>(())
/// ```
///
/// # Errors
/// `InvalidInput` if a weight is negative, NaN or infinite, or their sum is 0 or too large.
pub fn independent(weights: &[f64], count: usize, key: u64) -> Result<Vec<i64>> {
    let mut sums = Vec::with_capacity(weights.len());
    let mut total = 0.0_f64;
    for (place, &weight) in weights.iter().enumerate() {
        total += weight_of(place, weight)?;
        sums.push(total);
    }
    if total == 0.0 || !total.is_finite() {
        return Err(Error::invalid(format!("the sum of weights is {total}; give weights with a finite sum above 0")));
    }
    // A number that rounds up to the total falls on the last row with a weight.
    let last = weights.iter().rposition(|&weight| weight > 0.0).unwrap_or(0);
    let draw = |draw: u64| sums.partition_point(|&sum| sum <= uniform(key, draw) * total).min(last) as i64;
    Ok((0..count as u64).map(draw).collect())
}

fn bounded(name: &str, place: usize, value: f64) -> Result<f64> {
    if value.is_nan() || value == f64::INFINITY {
        return Err(Error::invalid(format!(
            "{name}[{place}] is {value}; give a number, or -inf for a row that is never chosen"
        )));
    }
    Ok(value)
}

fn weight_of(place: usize, weight: f64) -> Result<f64> {
    if weight.is_finite() && weight >= 0.0 {
        return Ok(weight);
    }
    Err(Error::invalid(format!("weights[{place}] is {weight}; give a finite number of at least 0")))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rng::structural_seed;
    use proptest::prelude::*;

    fn message<T>(result: Result<T>) -> String {
        result.map_or_else(|error| error.to_string(), |_| "fine".to_owned())
    }

    /// Pearson's chi-squared statistic of the counts of each outcome.
    fn chi_squared(found: &[u64], probabilities: &[f64]) -> f64 {
        let draws = found.iter().sum::<u64>() as f64;
        let term = |(&found, &p): (&u64, &f64)| (found as f64 - draws * p).powi(2) / (draws * p);
        found.iter().zip(probabilities).map(term).sum()
    }

    const WEIGHTS: [f64; 4] = [0.1, 0.2, 0.3, 0.4];

    /// Compare a million first draws, and the pairs of the first two draws, with their exact probabilities.
    #[test]
    fn successive_draws_have_the_probabilities_of_plackett_and_luce() -> Result<()> {
        const DRAWS: u64 = 1_000_000;
        let logits = WEIGHTS.map(f64::ln);
        let (mut first, mut pairs) = ([0_u64; 4], [0_u64; 16]);
        for draw in 0..DRAWS {
            let chosen = successive(&logits, &[0, 1, 2, 3], 2, structural_seed(&[5, draw]))?;
            first[chosen[0] as usize] += 1;
            pairs[(4 * chosen[0] + chosen[1]) as usize] += 1;
        }
        // 3 degrees of freedom: above 21.1 once in 10 000.
        assert!(chi_squared(&first, &WEIGHTS) < 21.1, "{first:?}");
        let pair = |place: usize| {
            let (a, b) = (place / 4, place % 4);
            (a != b).then(|| (pairs[place], WEIGHTS[a] * WEIGHTS[b] / (1.0 - WEIGHTS[a])))
        };
        let (found, expected): (Vec<_>, Vec<_>) = (0..16).filter_map(pair).unzip();
        assert!((expected.iter().sum::<f64>() - 1.0).abs() < 1e-12);
        // 11 degrees of freedom: above 37.4 once in 10 000.
        assert!(chi_squared(&found, &expected) < 37.4, "{found:?}");
        Ok(())
    }

    #[test]
    fn independent_draws_have_their_probabilities() -> Result<()> {
        let weights = [3.0, 0.0, 1.0, 0.5, 5.5];
        let mut found = [0_u64; 5];
        for place in independent(&weights, 1_000_000, 11)? {
            found[place as usize] += 1;
        }
        assert_eq!(found[1], 0);
        let found = [found[0], found[2], found[3], found[4]];
        // 3 degrees of freedom: above 21.1 once in 10 000.
        assert!(chi_squared(&found, &[0.3, 0.1, 0.05, 0.55]) < 21.1, "{found:?}");
        Ok(())
    }

    #[test]
    fn every_order_of_a_permutation_is_equally_likely() -> Result<()> {
        let mut found = [0_u64; 24];
        for draw in 0..1_000_000 {
            let order = permuted(4, 4, structural_seed(&[2, draw]), &[])?;
            // The index of a permutation: the position of each row among the remaining rows.
            let mut left = vec![0, 1, 2, 3];
            let mut number = 0;
            for row in order {
                let place = left.iter().position(|&other| other == row).unwrap_or(9);
                number = number * left.len() + place;
                left.remove(place);
            }
            found[number] += 1;
        }
        // 23 degrees of freedom: above 58.6 once in 10 000 (above 49.7 once in 1 000).
        assert!(chi_squared(&found, &[1.0 / 24.0; 24]) < 58.6, "{found:?}");
        Ok(())
    }

    /// A million draws of two rows out of six, one of them taken: every ordered pair of the others is equally likely.
    #[test]
    fn draws_are_even() -> Result<()> {
        let mut found = [0_u64; 36];
        for key in 0..1_000_000 {
            let rows = drawn(6, 2, structural_seed(&[9, key]), &[4])?;
            found[(6 * rows[0] + rows[1]) as usize] += 1;
        }
        let possible = |place: usize| place / 6 != place % 6 && place / 6 != 4 && place % 6 != 4;
        assert!((0..36).filter(|&place| !possible(place)).all(|place| found[place] == 0));
        let found: Vec<u64> = (0..36).filter(|&place| possible(place)).map(|place| found[place]).collect();
        // 19 degrees of freedom: above 52.8 once in 20 000.
        assert!(found.len() == 20 && chi_squared(&found, &[0.05; 20]) < 52.8, "{found:?}");
        assert_eq!(drawn(6, 5, 1, &[4])?, permuted(6, 5, 1, &[4])?);
        assert!(drawn(6, 6, 1, &[4]).is_err());
        Ok(())
    }

    #[test]
    fn equal_scores_are_chosen_evenly() -> Result<()> {
        let mut found = [0_u64; 4];
        for draw in 0..1_000_000 {
            let chosen = top(&[1.0, 1.0, 2.0, 1.0, 1.0], &[0, 1, 2, 3, 4], 2, structural_seed(&[draw]))?;
            assert_eq!(chosen[0], 2);
            found[if chosen[1] > 2 { chosen[1] - 1 } else { chosen[1] } as usize] += 1;
        }
        assert!(chi_squared(&found, &[0.25; 4]) < 21.1, "{found:?}");
        Ok(())
    }

    #[test]
    fn any_number_of_threads_chooses_the_same() -> Result<()> {
        let rows: Vec<i64> = (0..200_000).collect();
        let scores: Vec<f64> = rows.iter().map(|row| f64::from((row * 7919 % 1000) as i32)).collect();
        let mut found = Vec::new();
        for threads in [1, 2, 5] {
            thread_pool::set_threads(threads)?;
            let chosen = (
                top(&scores, &rows, 1000, 4)?,
                successive(&scores, &rows, 1000, 4)?,
                permuted(200_000, 1000, 4, &rows[..500])?,
            );
            found.push(chosen);
        }
        assert!(found[0] == found[1] && found[0] == found[2]);
        Ok(())
    }

    #[test]
    fn invalid_input_is_reported() {
        let rows = [0, 1];
        assert_eq!(
            message(top(&[0.0, f64::NAN], &rows, 1, 0)),
            "scores[1] is NaN; give a number, or -inf for a row that is never chosen"
        );
        assert_eq!(
            message(top(&[0.0], &rows, 1, 0)),
            "rows has 2 values, but scores has 1; give one value of each for every row"
        );
        assert_eq!(
            message(successive(&[f64::INFINITY, 0.0], &rows, 1, 0)),
            "logits[0] is inf; give a number, or -inf for a row that is never chosen"
        );
        assert_eq!(
            message(successive(&[f64::NEG_INFINITY, 0.0], &rows, 2, 0)),
            "count is 2, but 1 of 2 rows have a weight above 0; request at most 1, or give more rows a weight"
        );
        assert_eq!(
            message(log_total(&[0.0, f64::NAN]).map(|total| vec![total as i64])),
            "logits[1] is NaN; give a number, or -inf for a row that is never chosen"
        );
        assert_eq!(message(independent(&[1.0, -1.0], 1, 0)), "weights[1] is -1; give a finite number of at least 0");
        for weight in [f64::NAN, f64::INFINITY, f64::NEG_INFINITY] {
            assert_eq!(
                message(independent(&[weight], 1, 0)),
                format!("weights[0] is {weight}; give a finite number of at least 0")
            );
        }
        for weights in [&[][..], &[0.0, 0.0][..]] {
            assert_eq!(
                message(independent(weights, 1, 0)),
                "the sum of weights is 0; give weights with a finite sum above 0"
            );
        }
        assert_eq!(
            message(independent(&[f64::MAX, f64::MAX], 1, 0)),
            "the sum of weights is inf; give weights with a finite sum above 0"
        );
        assert_eq!(
            message(permuted(4, 4, 0, &[2, 9, -1])),
            "count is 4, but 3 of 4 tasks are free; request at most 3, or enlarge the pool"
        );
    }

    proptest! {
        /// Compare with a full sort.
        #[test]
        fn as_sorting_everything(
            scores in prop::collection::vec(prop::sample::select(vec![f64::NEG_INFINITY, -1.0, 0.0, 0.5, 2.0]), 0..40),
            count in 0_usize..45,
            key in any::<u64>(),
        ) {
            let rows: Vec<i64> = (0..scores.len() as i64).map(|row| 3 * row + 1).collect();
            let mut order: Vec<usize> = (0..scores.len()).filter(|&place| scores[place].is_finite()).collect();
            let tie = |place: usize| uniform(key, rows[place] as u64);
            order.sort_by(|&a, &b| scores[b].total_cmp(&scores[a]).then(tie(a).total_cmp(&tie(b))));
            let expected: Vec<i64> = order.iter().take(count).map(|&place| place as i64).collect();
            prop_assert_eq!(top(&scores, &rows, count, key)?, expected);
        }

        /// Enough rows for the sampled threshold: random scores, ties, sorted scores, and samples that mislead.
        #[test]
        fn as_sorting_many(
            rows in 2000_usize..6000, kind in 0_usize..5, count in 0_usize..600, key in any::<u64>(),
        ) {
            let score = |place: usize| match kind {
                0 => uniform(key, place as u64),
                1 => (4.0 * uniform(key, place as u64)).floor(),
                2 => place as f64,
                // A sample of every fourth to eleventh row has scores far above those of the others (kind 3), or below
                // (kind 4).
                3 => if (4..12).any(|step| place.is_multiple_of(step)) { 1.0 } else { uniform(key, place as u64) },
                _ => if place % 50 == 1 { uniform(key, place as u64) } else { f64::NEG_INFINITY },
            };
            let scores: Vec<f64> = (0..rows).map(score).collect();
            let ids: Vec<i64> = (0..rows as i64).collect();
            let mut order: Vec<usize> = (0..rows).filter(|&place| scores[place].is_finite()).collect();
            let tie = |place: usize| uniform(key, place as u64);
            order.sort_by(|&a, &b| scores[b].total_cmp(&scores[a]).then(tie(a).total_cmp(&tie(b))));
            let expected: Vec<i64> = order.iter().take(count).map(|&place| place as i64).collect();
            prop_assert_eq!(top(&scores, &ids, count, key)?, expected);
            let mut wrong = scores;
            wrong[rows / 2] = f64::NAN;
            let expected = format!("scores[{}] is NaN; give a number, or -inf for a row that is never chosen", rows / 2);
            prop_assert_eq!(message(top(&wrong, &ids, count, key)), expected);
        }

        /// Compare with a full sort of the logits plus noise; most rows are rejected before a logarithm is taken.
        #[test]
        fn draws_are_a_sort_with_noise(
            seed in any::<u64>(), rows in 1_usize..4000, count in 0_usize..60, scale in prop::sample::select(vec![0.0, 1.0, 300.0]),
        ) {
            let logit = |place: usize| if place % 7 == 3 { f64::NEG_INFINITY } else { scale * uniform(seed, place as u64) };
            let logits: Vec<f64> = (0..rows).map(logit).collect();
            let places: Vec<i64> = (0..rows as i64).map(|row| 5 * row).collect();
            let noisy = |place: usize| logits[place] - (-(uniform(seed, places[place] as u64) + HALF).ln()).ln();
            let mut order: Vec<usize> = (0..rows).filter(|&place| logits[place].is_finite()).collect();
            order.sort_by(|&a, &b| noisy(b).total_cmp(&noisy(a)));
            let expected: Vec<i64> = order.iter().take(count).map(|&place| place as i64).collect();
            match successive(&logits, &places, count, seed) {
                Ok(found) => prop_assert_eq!(found, expected),
                Err(_) => prop_assert!(order.len() < count),
            }
            let total = logits.iter().map(|logit| (logit - scale).exp()).sum::<f64>().ln() + scale;
            prop_assert!((log_total(&logits)? - total).abs() < 1e-9, "{} and not {total}", log_total(&logits)?);
        }

        #[test]
        fn noise_is_never_above_its_bound(number in 0_u64..1 << 53) {
            for number in [number, (1 << 53) - 2 - number % 4096, number % 4096] {
                let number = number as f64 / (1_u64 << 53) as f64;
                prop_assert!(-(-(number + HALF).ln()).ln() <= noise_at_most(number));
            }
        }

        #[test]
        fn a_permutation_is_a_sort_of_its_numbers(
            total in 1_usize..300, count in 0_usize..300, key in any::<u64>(), taken in prop::collection::vec(0_i64..300, 0..20),
        ) {
            let mut order: Vec<i64> = (0..total as i64).filter(|row| !taken.contains(row)).collect();
            order.sort_by(|&a, &b| {
                uniform(key.wrapping_add(a as u64), 0).total_cmp(&uniform(key.wrapping_add(b as u64), 0))
            });
            let found = permuted(total, count, key, &taken);
            if count > order.len() {
                prop_assert!(found.is_err());
            } else {
                prop_assert_eq!(found?, order[..count].to_vec());
            }
        }
    }
}
