//! Returns over a fixed number of steps.

use super::Paths;
use crate::argument_checks::{finite, same_length, within};
use crate::{Error, Float, Result};

/// N-step returns `R_t = Σ_{k < n} gamma^k r_{t+k} + gamma^n V_{t+n}` over the rows of the policy; past an end, `V` is
/// its bootstrap.
///
/// ```
/// use agentrl_compute::returns::{Paths, n_step};
///
/// let mut returns = [0.0; 3];
/// n_step(&[1.0, 1.0, 1.0], &[8.0, 8.0, 8.0], &Paths::new(&[0, 3]), 0.5, 2, &mut returns)?;
/// assert_eq!(returns, [3.5, 1.5, 1.0]);
/// # Ok::<(), agentrl_compute::Error>(())
/// ```
///
/// # Errors
/// See [`gae`](super::gae). Also if `steps` is 0.
pub fn n_step<T: Float>(
    rewards: &[T],
    values: &[T],
    paths: &Paths<'_, T>,
    gamma: f64,
    steps: usize,
    out: &mut [T],
) -> Result<()> {
    within("gamma", gamma, 0.0, 1.0)?;
    if steps == 0 {
        return Err(Error::invalid("steps is 0; give 1 or more"));
    }
    same_length("values", values.len(), "rewards", rewards.len())?;
    same_length("out", out.len(), "rewards", rewards.len())?;
    paths.check(rewards.len())?;
    out.fill(T::from_f64(0.0));
    for bounds in paths.offsets.windows(2) {
        let (begin, end) = (bounds[0] as usize, bounds[1] as usize);
        let mut segment = Vec::new();
        for row in begin..end {
            if paths.counts(row) {
                finite("rewards", row, rewards[row].to_f64())?;
                finite("values", row, values[row].to_f64())?;
                segment.push(row);
            }
            if paths.is_end(row) || row + 1 == end {
                let after = finite("bootstrap", row, paths.after(row))?;
                for (place, &row) in segment.iter().enumerate() {
                    let stop = segment.len().min(place + steps);
                    let beyond = segment.get(stop).map_or(after, |&row| values[row].to_f64());
                    let sum =
                        segment[place..stop].iter().rev().fold(beyond, |sum, &row| rewards[row].to_f64() + gamma * sum);
                    out[row] = T::result(row, sum)?;
                }
                segment.clear();
            }
        }
    }
    Ok(())
}
