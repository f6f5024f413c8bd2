//! Random draws from Beta posteriors.

use crate::argument_checks::same_length;
use crate::rng::{uniform, word};
use crate::{Error, Result, thread_pool};

/// Draw once from Beta(alpha, beta) for each row: a plausible success rate, for Thompson sampling.
///
/// A draw depends only on the key and the row's own number. If both parameters are 1, it is a uniform number. If both
/// are larger than 1 and below a million, it uses the method BB of Cheng (1978). Otherwise it is
/// `1 / (1 + exp(ln y - ln x))` with x and y from Gamma(alpha) and Gamma(beta), by the method of Marsaglia and Tsang
/// (2000); the logarithms keep parameters near 0 exact.
///
/// ```
/// use agentrl_compute::select::beta_draws;
///
/// let draws = beta_draws(&[1e6, 1.0], &[1.0, 1e6], &[0, 1], 3)?;
/// assert!(draws[0] > 0.99 && draws[1] < 0.01);
/// # Ok::<(), agentrl_compute::Error>(())
/// ```
///
/// # Errors
/// `InvalidInput` if lengths differ or a parameter is not finite and above 0.
pub fn beta_draws(alpha: &[f64], beta: &[f64], rows: &[i64], key: u64) -> Result<Vec<f64>> {
    same_length("beta", beta.len(), "alpha", alpha.len())?;
    same_length("rows", rows.len(), "alpha", alpha.len())?;
    let mut draws = vec![0.0; alpha.len()];
    // A draw takes as long as dozens of rows of most kernels, so small chunks are worth a thread.
    let pieces = draws.chunks_mut(DRAWS_PER_PIECE).enumerate().collect();
    thread_pool::map(pieces, |(piece, draws): (usize, &mut [f64])| {
        for (place, draw) in (piece * DRAWS_PER_PIECE..).zip(draws) {
            positive("alpha", place, alpha[place])?;
            positive("beta", place, beta[place])?;
            *draw = beta_draw(alpha[place], beta[place], word(key, rows[place] as u64));
        }
        Ok(())
    })?;
    Ok(draws)
}

/// Draws per chunk of work for one thread.
const DRAWS_PER_PIECE: usize = 1 << 10;

fn positive(name: &str, place: usize, value: f64) -> Result<()> {
    if value.is_finite() && value > 0.0 {
        return Ok(());
    }
    Err(Error::invalid(format!("{name}[{place}] is {value}; give a finite number above 0")))
}

/// Bounds of method BB: outside, differences of numbers near 1 and logarithms of ratios near 1 lose their digits.
const BB_ABOVE: f64 = 1.0 + 1e-6;
const BB_BELOW: f64 = 1e6;

/// Draw once from Beta(alpha, beta).
fn beta_draw(alpha: f64, beta: f64, seed: u64) -> f64 {
    let (small, large) = (alpha.min(beta), alpha.max(beta));
    if small > BB_ABOVE && large < BB_BELOW {
        return large_beta_draw(alpha, small, large, seed);
    }
    if small >= 1.0 && large <= 1.0 {
        return uniform(seed, 0);
    }
    let (x, y) = (log_gamma_draw(alpha, word(seed, 0)), log_gamma_draw(beta, word(seed, 1)));
    1.0 / (1.0 + (y - x).exp())
}

/// Draw from Beta if both parameters, `small` and `large`, are above 1; `alpha` is the first of the two. The method
/// proposes w / (large + w), where w has a log-logistic density, and accepts it by the ratio of the densities. A bound
/// that needs no logarithm accepts most proposals.
fn large_beta_draw(alpha: f64, small: f64, large: f64, seed: u64) -> f64 {
    const LN_4: f64 = 2.0 * std::f64::consts::LN_2;
    /// 1 + ln 5: ln z is at most 5 z - `BOUND`.
    const BOUND: f64 = 2.609_437_912_434_100_3;
    let sum = small + large;
    let width = ((sum - 2.0) / (2.0 * small * large - sum)).sqrt();
    let slope = small + 1.0 / width;
    let mut counter = 0;
    loop {
        let (one, other) = (uniform(seed, counter).max(f64::EPSILON / 4.0), uniform(seed, counter + 1));
        counter += 2;
        let logarithm = width * (one / (1.0 - one)).ln();
        let proposed = small * logarithm.exp();
        let chance = one * one * other;
        let fixed = slope * logarithm - LN_4;
        let least = small + fixed - proposed;
        if least + BOUND >= 5.0 * chance
            || least >= chance.ln()
            || fixed + sum * (sum / (large + proposed)).ln() >= chance.ln()
        {
            // If `proposed` overflows, the quotient is 1.
            let of_small = if proposed.is_finite() { proposed / (large + proposed) } else { 1.0 };
            return if alpha <= small { of_small } else { large / (large + proposed) };
        }
    }
}

/// Return the logarithm of one draw from Gamma(shape, 1).
fn log_gamma_draw(shape: f64, seed: u64) -> f64 {
    // A draw for a shape below 1 is a draw for shape + 1, times u^(1 / shape).
    let (shape, shrunk) = if shape < 1.0 { (shape + 1.0, above_zero(seed, 0).ln() / shape) } else { (shape, 0.0) };
    let d = shape - 1.0 / 3.0;
    let c = 1.0 / (9.0 * d).sqrt();
    let mut counter = 1;
    loop {
        let (one, other, coin) = (above_zero(seed, counter), uniform(seed, counter + 1), above_zero(seed, counter + 2));
        counter += 3;
        let normal = (-2.0 * one.ln()).sqrt() * (std::f64::consts::TAU * other).cos();
        let v = (1.0 + c * normal).powi(3);
        if v > 0.0 && coin.ln() < 0.5 * normal * normal + d - d * v + d * v.ln() {
            return d.ln() + v.ln() + shrunk;
        }
    }
}

/// Return a uniform number in (0, 1).
fn above_zero(seed: u64, counter: u64) -> f64 {
    uniform(seed, counter) + 1.0 / (1_u64 << 54) as f64
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Distribution function of Beta with whole parameters: the probability of at least `alpha` successes in
    /// `alpha + beta - 1` trials.
    fn below(x: f64, alpha: i32, beta: i32) -> f64 {
        let n = alpha + beta - 1;
        let choose = |k: i32| (1..=k).fold(1.0, |product, i| product * f64::from(n - k + i) / f64::from(i));
        (alpha..=n).map(|k| choose(k) * x.powi(k) * (1.0 - x).powi(n - k)).sum()
    }

    /// Compare a million draws in ten bins with the exact probabilities.
    #[test]
    fn draws_have_the_distribution() -> Result<()> {
        const DRAWS: usize = 1_000_000;
        let rows: Vec<i64> = (0..DRAWS as i64).collect();
        for (alpha, beta) in [(1, 1), (2, 5), (9, 1), (7, 2), (3, 3), (2, 2), (40, 9)] {
            let draws = beta_draws(&vec![f64::from(alpha); DRAWS], &vec![f64::from(beta); DRAWS], &rows, 17)?;
            let mut found = [0_u64; 10];
            for draw in &draws {
                found[((draw * 10.0) as usize).min(9)] += 1;
            }
            let mut statistic = 0.0;
            for (bin, &found) in found.iter().enumerate() {
                let (low, high) = (bin as f64 / 10.0, (bin + 1) as f64 / 10.0);
                let expected = DRAWS as f64 * (below(high, alpha, beta) - below(low, alpha, beta));
                // The statistic is not reliable for bins with five or fewer expected draws.
                if expected > 5.0 {
                    statistic += (found as f64 - expected).powi(2) / expected;
                }
            }
            // 9 degrees of freedom: above 33.7 once in 10 000.
            assert!(statistic < 33.7, "Beta({alpha}, {beta}): {statistic}, {found:?}");
        }
        Ok(())
    }

    /// Shapes below 1 use another method. The mean is `a / (a + b)`, the variance `a b / ((a + b)^2 (a + b + 1))`.
    #[test]
    fn draws_of_small_parameters_have_the_moments() -> Result<()> {
        const DRAWS: usize = 1_000_000;
        let rows: Vec<i64> = (0..DRAWS as i64).collect();
        for (alpha, beta) in [(0.25, 0.5), (0.01, 0.02), (0.5, 3.0)] {
            let draws = beta_draws(&vec![alpha; DRAWS], &vec![beta; DRAWS], &rows, 23)?;
            let count = DRAWS as f64;
            let mean = draws.iter().sum::<f64>() / count;
            let sum: f64 = alpha + beta;
            let (expected, variance) = (alpha / sum, alpha * beta / (sum * sum * (sum + 1.0)));
            assert!((mean - expected).abs() < 5.0 * (variance / count).sqrt(), "{alpha} {beta}: {mean}");
            let spread = draws.iter().map(|draw| (draw - mean).powi(2)).sum::<f64>() / count;
            assert!((spread / variance - 1.0).abs() < 0.01, "{alpha} {beta}: {spread} and not {variance}");
        }
        Ok(())
    }

    /// Both methods on both sides of their boundary. The mean is `a / (a + b)`, the variance
    /// `a b / ((a + b)^2 (a + b + 1))`.
    #[test]
    fn draws_of_uneven_parameters_have_the_moments() -> Result<()> {
        const DRAWS: usize = 400_000;
        let rows: Vec<i64> = (0..DRAWS as i64).collect();
        for (alpha, beta) in
            [(1.000_002, 1.000_002), (1.000_000_5, 1.5), (1.25, 700.0), (2.5, 9e5), (2.5, 1.1e6), (3e4, 2.0)]
        {
            let draws = beta_draws(&vec![alpha; DRAWS], &vec![beta; DRAWS], &rows, 29)?;
            let (count, sum): (f64, f64) = (DRAWS as f64, alpha + beta);
            let (expected, variance) = (alpha / sum, alpha * beta / (sum * sum * (sum + 1.0)));
            let mean = draws.iter().sum::<f64>() / count;
            assert!((mean - expected).abs() < 5.0 * (variance / count).sqrt(), "{alpha} {beta}: {mean}");
            let spread = draws.iter().map(|draw| (draw - mean).powi(2)).sum::<f64>() / count;
            assert!((spread / variance - 1.0).abs() < 0.03, "{alpha} {beta}: {spread} and not {variance}");
        }
        Ok(())
    }

    #[test]
    fn a_draw_is_that_of_its_row() -> Result<()> {
        let all = beta_draws(&[1.0, 2.0, 3.0], &[1.0; 3], &[7, 8, 9], 5)?;
        assert_eq!(beta_draws(&[3.0, 1.0], &[1.0; 2], &[9, 7], 5)?, [all[2], all[0]]);
        assert!(beta_draws(&[1.0], &[1.0], &[7], 6)? != all[..1]);
        // Parameters so small that both gammas are 0 in floating point still give a number.
        let tiny = beta_draws(&[1e-300; 8], &[1e-300; 8], &[0, 1, 2, 3, 4, 5, 6, 7], 1)?;
        assert!(tiny.iter().all(|draw| [0.0_f64, 1.0].map(f64::to_bits).contains(&draw.to_bits())));
        Ok(())
    }

    #[test]
    fn bad_parameters_are_named() {
        for value in [0.0, -1.0, f64::NAN, f64::INFINITY] {
            let message = |result: Result<Vec<f64>>| result.map_err(|error| error.to_string());
            assert_eq!(
                message(beta_draws(&[1.0, value], &[1.0, 1.0], &[0, 1], 0)),
                Err(format!("alpha[1] is {value}; give a finite number above 0"))
            );
            assert_eq!(
                message(beta_draws(&[1.0], &[value], &[0], 0)),
                Err(format!("beta[0] is {value}; give a finite number above 0"))
            );
        }
    }
}
