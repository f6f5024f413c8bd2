//! Returns and advantages over time, for tokens, steps or the turns of an agent.
//!
//! Recursive returns scan the rows of a [`Paths`] in reverse: rows that are not the policy's are skipped, and at an end
//! the bootstrap value of the caller replaces the value of the next row.

mod n_step;
mod reverse_scan;
mod token_baseline;

pub use n_step::n_step;
pub use reverse_scan::Paths;
pub use token_baseline::{Align, TokenBaseline, optimal_token_baseline};

use crate::argument_checks::{same_length, within};
use crate::group::{Extent, whitened};
use crate::{Float, Result};

/// A float type for which this crate compiles the functions of this module, because the calling crate may be compiled
/// for size.
pub trait ReturnsFloat: Float {
    /// [`discounted`] of columns of this type.
    fn discounted(rewards: &[Self], paths: &Paths<'_, Self>, gamma: f64, out: &mut [Self]) -> Result<()>;

    /// [`gae`] of columns of this type.
    fn gae(
        rewards: &[Self],
        values: &[Self],
        paths: &Paths<'_, Self>,
        options: &Gae,
        out: [&mut [Self]; 2],
    ) -> Result<()>;

    /// [`v_trace`] of columns of this type: rewards, values and log-ratios.
    fn v_trace(columns: [&[Self]; 3], paths: &Paths<'_, Self>, options: &VTrace, out: [&mut [Self]; 2]) -> Result<()>;
}

macro_rules! returns_floats {
    ($($type:ty),+) => {
        $(impl ReturnsFloat for $type {
            fn discounted(rewards: &[Self], paths: &Paths<'_, Self>, gamma: f64, out: &mut [Self]) -> Result<()> {
                discounted_into(rewards, paths, gamma, out)
            }

            fn gae(
                rewards: &[Self],
                values: &[Self],
                paths: &Paths<'_, Self>,
                options: &Gae,
                out: [&mut [Self]; 2],
            ) -> Result<()> {
                gae_into(rewards, values, paths, options, out)
            }

            fn v_trace(
                columns: [&[Self]; 3],
                paths: &Paths<'_, Self>,
                options: &VTrace,
                out: [&mut [Self]; 2],
            ) -> Result<()> {
                v_trace_into(columns, paths, options, out)
            }
        })+
    };
}

returns_floats!(f32, f64);

/// Discounted reward-to-go: `G_t = r_t + gamma · G_{t+1}`, and `gamma · bootstrap` after an end.
///
/// ```
/// use agentrl_compute::returns::{Paths, discounted};
///
/// let mut returns = [0.0; 4];
/// discounted(&[0.0, 0.0, 1.0, 5.0], &Paths::new(&[0, 3, 4]), 0.5, &mut returns)?;
/// assert_eq!(returns, [0.25, 0.5, 1.0, 5.0]);
/// # Ok::<(), agentrl_compute::Error>(())
/// ```
///
/// # Errors
/// `InvalidInput` if lengths differ, offsets are wrong, `gamma` is outside [0, 1] or a reward is not finite (give 0 for
/// rows without a reward); `Overflow` if a return is too large for its type.
pub fn discounted<T: ReturnsFloat>(rewards: &[T], paths: &Paths<'_, T>, gamma: f64, out: &mut [T]) -> Result<()> {
    T::discounted(rewards, paths, gamma, out)
}

fn discounted_into<T: Float>(rewards: &[T], paths: &Paths<'_, T>, gamma: f64, out: &mut [T]) -> Result<()> {
    within("gamma", gamma, 0.0, 1.0)?;
    let rows = [("rewards", rewards)];
    paths
        .backward(
            rows,
            [out],
            |next| next,
            |[reward], next| {
                let to_come = reward + gamma * next;
                (to_come, [to_come])
            },
            |_, _| (),
        )
        .map(drop)
}

/// Options of [`gae`].
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Gae {
    /// Discount factor.
    pub gamma: f64,
    /// Weight of later temporal differences: 0 ignores them, 1 counts them fully.
    pub lam: f64,
    /// Whiten the advantages, with this number added to their variance; `None` does not whiten.
    pub whiten: Option<f64>,
}

/// Generalised advantage estimates and the returns `A + V` (lambda-returns).
///
/// `δ_t = r_t + gamma · V_{t+1} - V_t` and `A_t = δ_t + gamma · lam · A_{t+1}`, where t + 1 is the next row of the
/// policy; after an end `V` is the bootstrap and `A` is 0. Source: arXiv:1506.02438; rows are skipped as in verl 0.9.1.
///
/// With `whiten`, which is added to the variance, the advantages of all the policy's rows are then shifted and scaled
/// to mean 0 and unbiased variance 1, with the same bits as by [`normalise`](crate::group::normalise); the returns do
/// not change.
///
/// ```
/// use agentrl_compute::returns::{Gae, Paths, gae};
///
/// // The second row is the output of a tool.
/// let paths = Paths { mask: Some(&[true, false, true]), ..Paths::new(&[0, 3]) };
/// let (mut advantages, mut returns) = ([0.0; 3], [0.0; 3]);
/// let options = Gae { gamma: 1.0, lam: 0.5, whiten: None };
/// gae(&[0.0, 0.0, 1.0], &[0.5, 9.0, 0.25], &paths, &options, [&mut advantages, &mut returns])?;
/// assert_eq!((advantages, returns), ([0.125, 0.0, 0.75], [0.625, 0.0, 1.0]));
/// # Ok::<(), agentrl_compute::Error>(())
/// ```
///
/// # Errors
/// See [`discounted`]. Also if `lam` is outside [0, 1] or `whiten` is negative.
pub fn gae<T: ReturnsFloat>(
    rewards: &[T],
    values: &[T],
    paths: &Paths<'_, T>,
    options: &Gae,
    out: [&mut [T]; 2],
) -> Result<()> {
    T::gae(rewards, values, paths, options, out)
}

fn gae_into<T: Float>(
    rewards: &[T],
    values: &[T],
    paths: &Paths<'_, T>,
    options: &Gae,
    [advantages, returns]: [&mut [T]; 2],
) -> Result<()> {
    let Gae { gamma, lam, whiten } = *options;
    within("gamma", gamma, 0.0, 1.0)?;
    within("lam", lam, 0.0, 1.0)?;
    whiten.map_or(Ok(()), |eps| within("whiten", eps, 0.0, f64::MAX))?;
    same_length("values", values.len(), "rewards", rewards.len())?;
    let decay = gamma * lam;
    let extents = paths.backward(
        [("rewards", rewards), ("values", values)],
        [&mut *advantages, returns],
        |next| (next, 0.0),
        |[reward, value], (next, later)| {
            let advantage = reward + gamma * next - value + decay * later;
            ((value, advantage), [advantage, advantage + value])
        },
        |row, [advantages, _]| {
            let valid = paths.mask.map(|mask| &mask[row..row + advantages.len()]);
            whiten.map(|_| Extent::of_valid(advantages, valid))
        },
    )?;
    let Some(variance_eps) = whiten else { return Ok(()) };
    let extent = extents.into_iter().flatten().fold(Extent::EMPTY, Extent::merge);
    whitened("advantages", advantages, paths.mask, extent, variance_eps)
}

/// Options of [`v_trace`].
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct VTrace {
    /// Discount factor.
    pub gamma: f64,
    /// Factor of the trace weights.
    pub lam: f64,
    /// Upper bound of ρ, the weight of a temporal difference.
    pub rho_at_most: f64,
    /// Upper bound of c, the weight of later rows.
    pub c_at_most: f64,
}

impl Default for VTrace {
    fn default() -> Self {
        Self { gamma: 1.0, lam: 1.0, rho_at_most: 1.0, c_at_most: 1.0 }
    }
}

/// V-trace advantages and targets.
///
/// With `ρ = min(rho_at_most, e^l)`, `c = lam · min(c_at_most, e^l)`, l the log-probability ratio of target to behaviour
/// policy, and `δ_t = r_t + gamma · V_{t+1} - V_t`: targets `v_t = V_t + ρ_t δ_t + gamma · c_t (v_{t+1} - V_{t+1})`,
/// advantages `ρ_t (r_t + gamma · v_{t+1} - V_t)`. Source: arXiv:1802.01561.
///
/// # Errors
/// See [`gae`]. Also if a cap is negative.
pub fn v_trace<T: ReturnsFloat>(
    rewards: &[T],
    values: &[T],
    log_ratios: &[T],
    paths: &Paths<'_, T>,
    options: &VTrace,
    out: [&mut [T]; 2],
) -> Result<()> {
    T::v_trace([rewards, values, log_ratios], paths, options, out)
}

fn v_trace_into<T: Float>(
    [rewards, values, log_ratios]: [&[T]; 3],
    paths: &Paths<'_, T>,
    options: &VTrace,
    out: [&mut [T]; 2],
) -> Result<()> {
    let &VTrace { gamma, lam, rho_at_most, c_at_most } = options;
    within("gamma", gamma, 0.0, 1.0)?;
    within("lam", lam, 0.0, 1.0)?;
    within("rho_at_most", rho_at_most, 0.0, f64::MAX)?;
    within("c_at_most", c_at_most, 0.0, f64::MAX)?;
    same_length("values", values.len(), "rewards", rewards.len())?;
    same_length("log_ratios", log_ratios.len(), "rewards", rewards.len())?;
    let inputs = [("rewards", rewards), ("values", values), ("log_ratios", log_ratios)];
    paths
        .backward(
            inputs,
            out,
            |next| (next, next),
            |[reward, value, log_ratio], (next, next_target)| {
                let ratio = log_ratio.exp();
                let (rho, c) = (ratio.min(rho_at_most), lam * ratio.min(c_at_most));
                let target = value + rho * (reward + gamma * next - value) + gamma * c * (next_target - next);
                ((value, target), [rho * (reward + gamma * next_target - value), target])
            },
            |_, _| (),
        )
        .map(drop)
}

#[cfg(test)]
mod tests;
