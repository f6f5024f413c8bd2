//! The sign-flip test of paired differences.

use crate::argument_checks::all_finite;
use crate::rng::{uniform, word};
use crate::{Error, Result, thread_pool};

/// Largest number of differences for which all sign flips are enumerated.
const EXACT: usize = 20;

/// Sums are equal if their difference, relative to the sum of all absolute differences, is less than this.
const SAME: f64 = 1e-12;

/// Return the two-sided p-value of paired differences: the share of sign flips whose mean is at least as far from 0 as
/// the observed mean.
///
/// Up to 20 differences, every flip is enumerated, so the smallest p-value of `n` differences is `2 / 2^n`. For more,
/// `resamples` flips are drawn, and the observed flip counts as one of them.
///
/// ```
/// use agentrl_compute::stats::sign_flip;
///
/// assert_eq!(sign_flip(&[1.0, 2.0, 3.0], 0, 0)?, 0.25);
/// # Ok::<(), agentrl_compute::Error>(())
/// ```
///
/// # Errors
/// `InvalidInput` if there are no differences, one is not finite, or `resamples` is 0 but needed.
pub fn sign_flip(differences: &[f64], resamples: usize, seed: u64) -> Result<f64> {
    all_finite("differences", differences)?;
    if differences.is_empty() {
        return Err(Error::invalid("differences is empty; give one for each pair"));
    }
    if differences.len() <= EXACT {
        return Ok(exact(differences));
    }
    if resamples == 0 {
        return Err(Error::invalid(format!(
            "resamples is 0, but {} differences have too many sign flips to try all; give at least 1",
            differences.len()
        )));
    }
    let least = least(differences);
    let pieces: Vec<_> = (0..resamples).step_by(256).map(|begin| begin..resamples.min(begin + 256)).collect();
    let counts = thread_pool::map(pieces, |rows| {
        Ok(rows.filter(|&row| drawn(differences, word(seed, row as u64)).abs() >= least).count())
    })?;
    Ok((counts.iter().sum::<usize>() + 1) as f64 / (resamples + 1) as f64)
}

/// Return the absolute sum that a flip must reach, with a tolerance for rounding.
fn least(differences: &[f64]) -> f64 {
    let observed = differences.iter().sum::<f64>().abs();
    observed - SAME * differences.iter().map(|difference| difference.abs()).sum::<f64>()
}

/// Count all flips in the order of a Gray code: each flip differs from the last by one sign.
fn exact(differences: &[f64]) -> f64 {
    let least = least(differences);
    // The first difference keeps its sign: with all signs inverted, the sum is equally far from 0.
    let flips = 1_u64 << (differences.len() - 1);
    let mut signs = vec![1.0; differences.len()];
    let mut count = 0_u64;
    let mut sum = differences.iter().sum::<f64>();
    for flip in 1..=flips {
        count += u64::from(sum.abs() >= least);
        let place = flip.trailing_zeros() as usize + 1;
        if place < differences.len() {
            signs[place] = -signs[place];
            sum += 2.0 * signs[place] * differences[place];
        }
    }
    count as f64 / flips as f64
}

/// Return the sum of one random flip.
fn drawn(differences: &[f64], seed: u64) -> f64 {
    let mut sum = 0.0;
    for (place, block) in differences.chunks(64).enumerate() {
        let bits = word(seed, place as u64);
        sum += block
            .iter()
            .enumerate()
            .map(|(bit, difference)| if bits >> bit & 1 == 0 { *difference } else { -difference })
            .sum::<f64>();
    }
    sum
}

/// Return the smallest effect that `pairs` normal differences detect with probability `power` at level `alpha`, in
/// standard deviations of a difference; infinity if no effect can be detected.
///
/// All effects use the same draws, so the power grows with the effect, and bisection finds the answer to within 0.001.
///
/// # Errors
/// `InvalidInput` if there are fewer than 2 or more than 20 pairs, a probability is outside (0, 1), or `simulations` is
/// 0.
pub fn detectable_effect(pairs: usize, alpha: f64, power: f64, simulations: usize, seed: u64) -> Result<f64> {
    const LARGEST: f64 = 64.0;
    if !(2..=EXACT).contains(&pairs) {
        return Err(Error::invalid(format!("pairs is {pairs}; an exact test needs 2 to {EXACT} pairs")));
    }
    for (name, value) in [("alpha", alpha), ("power", power)] {
        if !(value > 0.0 && value < 1.0) {
            return Err(Error::invalid(format!("{name} is {value}; give a probability between 0 and 1")));
        }
    }
    if simulations == 0 {
        return Err(Error::invalid("simulations is 0; give at least 1"));
    }
    let samples: Vec<Vec<f64>> = (0..simulations)
        .map(|sample| {
            let seed = word(seed, sample as u64);
            (0..pairs as u64).map(|pair| normal(seed, pair)).collect()
        })
        .collect();
    let reached = |effect: f64| -> Result<bool> {
        let shown = thread_pool::map(samples.iter().collect(), |sample: &Vec<f64>| {
            Ok(exact(&sample.iter().map(|noise| noise + effect).collect::<Vec<_>>()) <= alpha)
        })?;
        Ok(shown.iter().filter(|&&seen| seen).count() as f64 >= power * simulations as f64)
    };
    if !reached(LARGEST)? {
        return Ok(f64::INFINITY);
    }
    let (mut low, mut high) = (0.0, LARGEST);
    while high - low > 0.001 {
        let middle = f64::midpoint(low, high);
        if reached(middle)? { high = middle } else { low = middle }
    }
    Ok(high)
}

/// Return the `counter`-th standard normal number of a seed.
fn normal(seed: u64, counter: u64) -> f64 {
    let (one, other) = (uniform(seed, 2 * counter), uniform(seed, 2 * counter + 1));
    (-2.0 * (1.0 - one).ln()).sqrt() * (std::f64::consts::TAU * other).cos()
}

#[cfg(test)]
#[expect(clippy::float_cmp, reason = "exact in binary")]
mod tests {
    use super::*;

    /// Reference implementation: all flips, one after the other.
    fn naive(differences: &[f64]) -> f64 {
        let observed = differences.iter().sum::<f64>().abs();
        let flips = 1_usize << differences.len();
        let reached = (0..flips).filter(|flip| {
            let sum: f64 = differences
                .iter()
                .enumerate()
                .map(|(place, value)| if flip >> place & 1 == 0 { *value } else { -value })
                .sum();
            sum.abs() >= observed - 1e-9
        });
        reached.count() as f64 / flips as f64
    }

    #[test]
    fn all_flips_are_counted_once() -> Result<()> {
        for count in 1..=10 {
            for seed in 0..20 {
                // Integers, so that many sums are equal.
                let differences: Vec<f64> = (0..count).map(|at| (word(seed, at) % 7) as f64 - 3.0).collect();
                let found = sign_flip(&differences, 0, 0)?;
                assert!((found - naive(&differences)).abs() < 1e-12, "{differences:?}: {found}");
            }
        }
        Ok(())
    }

    #[test]
    fn by_hand() -> Result<()> {
        assert_eq!(sign_flip(&[1.0; 5], 0, 0)?, 2.0 / 32.0, "five seeds never come below 0.06");
        assert_eq!(sign_flip(&[0.0; 4], 0, 0)?, 1.0);
        assert_eq!(sign_flip(&[0.1, 0.2, 0.3], 0, 0)?, 0.25, "0.1 + 0.2 is not exactly 0.3");
        // Sums: 6, 4, 2, 0, 0, 2, 4, 6 in absolute value; 4 is reached by four of eight.
        assert_eq!(sign_flip(&[-1.0, 2.0, 3.0], 0, 0)?, 0.5);
        Ok(())
    }

    #[test]
    fn drawn_flips_come_near_the_exact_share() -> Result<()> {
        let twenty: Vec<f64> = (0..20).map(|at| normal(4, at) + 0.4).collect();
        let exact = sign_flip(&twenty, 0, 0)?;
        let with_a_zero: Vec<f64> = twenty.iter().copied().chain([0.0]).collect();
        let found = sign_flip(&with_a_zero, 100_000, 1)?;
        assert!((found - exact).abs() < 0.005, "{found} {exact}");
        Ok(())
    }

    #[test]
    fn the_effect_that_can_be_seen() -> Result<()> {
        assert_eq!(detectable_effect(5, 0.05, 0.8, 200, 0)?, f64::INFINITY);
        let (ten, fifteen) = (detectable_effect(10, 0.05, 0.8, 2_000, 0)?, detectable_effect(15, 0.05, 0.8, 500, 0)?);
        // The paired t-test detects 1.00 with 10 pairs and 0.78 with 15.
        assert!((0.92..1.12).contains(&ten), "{ten}");
        assert!((0.68..0.90).contains(&fifteen), "{fifteen}");
        Ok(())
    }
}
