//! Row-wise reward shaping: penalties for excess amounts, and noise.

use crate::argument_checks::{all_finite, same_length, within};
use crate::rng::{structural_seed, uniform};
use crate::{Error, Result, names};

/// Penalty for amounts above a limit: `-coefficient · min(max(amount - free, 0) / (full_at - free), at_most)`. It is 0
/// up to `free`, linear above, and `-coefficient` at `full_at`.
///
/// With `free = longest - buffer` and `full_at = longest` this is DAPO's soft overlong punishment (arXiv:2503.14476).
/// With `full_at = free + 1` it is a price for each tool call after the first `free` calls.
///
/// ```
/// use agentrl_compute::reward::excess_penalty;
///
/// assert_eq!(excess_penalty(&[5.0, 15.0, 30.0], 10.0, 20.0, 1.0, Some(1.0))?, [0.0, -0.5, -1.0]);
/// # Ok::<(), agentrl_compute::Error>(())
/// ```
///
/// # Errors
/// `InvalidInput` if a number is not finite, `full_at` is not above `free`, or `coefficient` or `at_most` is
/// negative.
pub fn excess_penalty(
    amounts: &[f64],
    free: f64,
    full_at: f64,
    coefficient: f64,
    at_most: Option<f64>,
) -> Result<Vec<f64>> {
    all_finite("amounts", amounts)?;
    within("coefficient", coefficient, 0.0, f64::MAX)?;
    let at_most = at_most.unwrap_or(f64::INFINITY);
    within("at_most", at_most, 0.0, f64::INFINITY)?;
    if !(free.is_finite() && full_at.is_finite() && full_at > free) {
        return Err(Error::invalid(format!(
            "full_at is {full_at} and free is {free}; give finite numbers with free < full_at"
        )));
    }
    let penalty = |&amount: &f64| {
        let excess = ((amount - free).max(0.0) / (full_at - free)).min(at_most);
        if excess > 0.0 { -coefficient * excess } else { 0.0 }
    };
    Ok(amounts.iter().map(penalty).collect())
}

names! {
    /// The kind of noise; its standard deviation is `amplitude / √3`.
    "kind" Noise {
        /// Uniform in [-amplitude, amplitude].
        Uniform = "uniform",
        /// Normal.
        Normal = "normal",
    }
}

/// Add noise with mean 0 to scores (`ReDit`, arXiv:2506.18631). The noise of a row depends only on `seed` and its id.
///
/// ```
/// use agentrl_compute::reward::{Noise, dither};
///
/// let noisy = dither(&[1.0, 0.0], &[7, 8], 42, 0.05, Noise::Uniform)?;
/// assert!((noisy[0] - 1.0).abs() <= 0.05 && noisy[1].abs() <= 0.05);
/// assert_eq!(dither(&[0.0, 1.0], &[8, 7], 42, 0.05, Noise::Uniform)?, [noisy[1], noisy[0]]);
/// # Ok::<(), agentrl_compute::Error>(())
/// ```
///
/// # Errors
/// `InvalidInput` if lengths differ, a score is not finite or the amplitude is negative.
pub fn dither(scores: &[f64], ids: &[i64], seed: u64, amplitude: f64, kind: Noise) -> Result<Vec<f64>> {
    same_length("ids", ids.len(), "scores", scores.len())?;
    all_finite("scores", scores)?;
    within("amplitude", amplitude, 0.0, f64::MAX)?;
    let noise = |id: i64| {
        let own = structural_seed(&[seed, id.cast_unsigned()]);
        let (first, second) = (uniform(own, 0), uniform(own, 1));
        match kind {
            Noise::Uniform => 2.0 * first - 1.0,
            // Box-Muller transform; 1 - first is never 0.
            Noise::Normal => (-2.0 * (1.0 - first).ln() / 3.0).sqrt() * (std::f64::consts::TAU * second).cos(),
        }
    };
    Ok(scores.iter().zip(ids).map(|(score, &id)| score + amplitude * noise(id)).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn message<T>(result: Result<T>) -> String {
        result.map_or_else(|error| error.to_string(), |_| "fine".to_owned())
    }

    #[test]
    fn invalid_input_is_reported() {
        assert_eq!(
            message(excess_penalty(&[1.0], 2.0, 2.0, 1.0, None)),
            "full_at is 2 and free is 2; give finite numbers with free < full_at"
        );
        assert_eq!(
            message(excess_penalty(&[1.0], 2.0, 3.0, -1.0, None)),
            "coefficient is -1; give a number of at least 0"
        );
        assert!(Noise::from_name("pink").is_err());
    }

    #[test]
    fn noise_has_the_promised_moments() -> Result<()> {
        let ids: Vec<i64> = (0..40_000).collect();
        for kind in [Noise::Uniform, Noise::Normal] {
            let noise = dither(&vec![0.0; ids.len()], &ids, 3, 3.0, kind)?;
            let count = ids.len() as f64;
            let mean = noise.iter().sum::<f64>() / count;
            let variance = noise.iter().map(|x| x * x).sum::<f64>() / count;
            // The variance is amplitude² / 3 = 3; the tolerance is five standard errors.
            assert!(mean.abs() < 5.0 * (3.0 / count).sqrt(), "{kind:?} {mean}");
            assert!((variance - 3.0).abs() < 5.0 * (18.0 / count).sqrt(), "{kind:?} {variance}");
        }
        Ok(())
    }
}
