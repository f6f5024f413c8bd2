//! Rewards of steps and tokens from log-probabilities.

use crate::argument_checks::{all_finite, column, same_length};
use crate::ragged::Ragged;
use crate::{Error, Result, names};

names! {
    /// The quantity whose difference is a gain.
    "kind" Gain {
        /// The difference of probabilities.
        Probability = "probability",
        /// The difference of log-probabilities.
        LogProbability = "log_probability",
    }
}

/// Return the gain of each step in the likelihood of the right answer: `g_k = P_k - P_{k-1}`, with `P = exp(l)` or `P = l`.
///
/// Row `i` of `answer_logprobs` is a trajectory: `l_k`, the mean log-probability of the answer's tokens when it is probed
/// after step `k`; `before[i]` is the same before the first step. Source: IGPO, arXiv:2510.14967.
///
/// ```
/// use agentrl_compute::ragged::Ragged;
/// use agentrl_compute::reward::{Gain, information_gain};
///
/// let probed = [-2.0, -1.0, -3.0];
/// let gains = information_gain(Ragged::new(&probed, &[0, 2, 3])?, &[-2.5, -3.0], Gain::LogProbability)?;
/// assert_eq!(gains, [0.5, 1.0, 0.0]);
/// # Ok::<(), agentrl_compute::Error>(())
/// ```
///
/// # Errors
/// `InvalidInput` if lengths differ, offsets do not cover the log-probabilities, or one of them is above 0 or not finite.
pub fn information_gain(answer_logprobs: Ragged<'_, f64>, before: &[f64], kind: Gain) -> Result<Vec<f64>> {
    same_length("before", before.len(), "answer_logprobs", answer_logprobs.len())?;
    answer_logprobs.covered("answer_logprobs")?;
    check_logprobs("before", before)?;
    let value = |logprob: f64| if kind == Gain::Probability { logprob.exp() } else { logprob };
    let mut gains = Vec::new();
    for (row, &start) in answer_logprobs.iter().zip(before) {
        check_logprobs("answer_logprobs", row)?;
        let mut known = value(start);
        gains.extend(row.iter().map(|&logprob| {
            let now = value(logprob);
            let gain = now - known;
            known = now;
            gain
        }));
    }
    Ok(gains)
}

fn check_logprobs(name: &str, values: &[f64]) -> Result<()> {
    all_finite(name, values)?;
    values.iter().position(|&value| value > 0.0).map_or(Ok(()), |row| {
        Err(Error::invalid(format!("{name}[{row}] is {}; give log-probabilities of at most 0", values[row])))
    })
}

/// Implicit rewards of a model: `beta · (log π(token) - log π_ref(token))` for each token, or summed over the tokens of
/// each row of `offsets` (steps or trajectories).
///
/// Sources: PRIME, arXiv:2502.01456 (tokens); iStar, arXiv:2509.19199 (steps).
///
/// ```
/// use agentrl_compute::reward::implicit_rewards;
///
/// let (model, reference) = ([-1.0, -2.0, -1.0], [-2.0, -1.0, -3.0]);
/// assert_eq!(implicit_rewards(&model, &reference, None, 0.5)?, [0.5, -0.5, 1.0]);
/// assert_eq!(implicit_rewards(&model, &reference, Some(&[0, 2, 3]), 0.5)?, [0.0, 1.0]);
/// # Ok::<(), agentrl_compute::Error>(())
/// ```
///
/// # Errors
/// `InvalidInput` if lengths differ, offsets are wrong or a number is not finite.
pub fn implicit_rewards(
    logprobs: &[f64],
    reference_logprobs: &[f64],
    offsets: Option<&[i64]>,
    beta: f64,
) -> Result<Vec<f64>> {
    column("reference_logprobs", reference_logprobs, "logprobs", logprobs.len(), None)?;
    all_finite("logprobs", logprobs)?;
    all_finite("beta", &[beta])?;
    let tokens = logprobs.iter().zip(reference_logprobs).map(|(own, reference)| beta * (own - reference));
    let tokens: Vec<f64> = tokens.collect();
    match offsets {
        None => Ok(tokens),
        Some(offsets) => Ok(Ragged::new(&tokens, offsets)?.iter().map(|row| row.iter().sum::<f64>() + 0.0).collect()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn gains_add_up_to_what_is_known_at_the_end() -> Result<()> {
        let probed = [-2.0, -0.5, -1.0, -0.1];
        let gains = information_gain(Ragged::new(&probed, &[0, 4])?, &[-3.0], Gain::Probability)?;
        assert!((gains.iter().sum::<f64>() - ((-0.1_f64).exp() - (-3.0_f64).exp())).abs() < 1e-15);
        assert!((gains[1] - ((-0.5_f64).exp() - (-2.0_f64).exp())).abs() < 1e-15);
        Ok(())
    }

    #[test]
    fn invalid_input_is_reported() -> Result<()> {
        let found = information_gain(Ragged::new(&[0.5], &[0, 1])?, &[0.0], Gain::Probability);
        let message = found.map_err(|error| error.to_string());
        assert_eq!(message, Err("answer_logprobs[0] is 0.5; give log-probabilities of at most 0".to_owned()));
        assert!(implicit_rewards(&[1.0], &[1.0, 2.0], None, 1.0).is_err());
        assert!(implicit_rewards(&[1.0], &[1.0], Some(&[0, 2]), 1.0).is_err());
        assert!(Gain::from_name("bits").is_err());
        Ok(())
    }
}
