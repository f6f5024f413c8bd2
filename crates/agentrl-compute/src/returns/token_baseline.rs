//! Optimal token baseline: minimises the variance of a policy gradient at every token position of a group.

use super::Paths;
use crate::argument_checks::{all_finite, same_length, within};
use crate::group::{group_count, sums};
use crate::keys::pair;
use crate::{Result, names};

names! {
    /// Definition of a token's position, by which the sequences of a group are aligned.
    "align" Align {
        /// The k-th token of the policy: tool outputs in between do not shift the rest (verl's
        /// `tir_optimal_token_baseline`).
        Policy = "policy",
        /// The k-th token of the sequence (verl's `optimal_token_baseline`).
        Sequence = "sequence",
    }
}

/// Options of [`optimal_token_baseline`].
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct TokenBaseline {
    /// Definition of a token's position.
    pub align: Align,
    /// Added to the sum of weights in the denominator.
    pub eps: f64,
    /// Use baseline 0 for the tokens of a group's longest sequence beyond the length of the second longest.
    pub zero_tail: bool,
}

impl Default for TokenBaseline {
    fn default() -> Self {
        Self { align: Align::Policy, eps: 1e-8, zero_tail: true }
    }
}

/// Returns minus the optimal baseline of their position: `b_t = Σ_i G_it W_it / (Σ_i W_it + eps)`,
/// `W_it = Σ_{j ≤ t} w_ij`.
///
/// The sums run over the sequences of a group with a policy token at position t. `energies` are the w: squared norms of
/// the score of one token, for which `1 - 2 π + Σ π²` is a proxy. A group with one sequence has baseline 0. Rows that
/// are not the policy's get 0. Source: verl 0.9.1.
///
/// ```
/// use agentrl_compute::returns::{Paths, TokenBaseline, optimal_token_baseline};
///
/// let options = TokenBaseline { eps: 0.0, ..TokenBaseline::default() };
/// let paths = Paths::new(&[0, 2, 3]);
/// let found = optimal_token_baseline(&[4.0, 4.0, 0.0], &[1.0, 1.0, 3.0], &paths, &[0, 0], &options)?;
/// assert_eq!(found, [3.0, 4.0, -1.0]);
/// # Ok::<(), agentrl_compute::Error>(())
/// ```
///
/// # Errors
/// `InvalidInput` if lengths differ, group ids are not dense, a number is not finite or `eps` is negative.
pub fn optimal_token_baseline(
    returns: &[f64],
    energies: &[f64],
    paths: &Paths<'_, f64>,
    groups: &[u32],
    options: &TokenBaseline,
) -> Result<Vec<f64>> {
    let rows = returns.len();
    same_length("energies", energies.len(), "returns", rows)?;
    within("eps", options.eps, 0.0, f64::MAX)?;
    paths.check(rows)?;
    same_length("group_ids", groups.len(), "sequences", paths.offsets.len() - 1)?;
    all_finite("returns", returns)?;
    all_finite("energies", energies)?;
    // Lengths of the longest and the second longest sequence of each group, and its number of sequences.
    let mut longest = vec![(0_u32, 0_u32, 0_u32); group_count("group_ids", groups)?];
    let lengths: Vec<u32> = paths
        .offsets
        .windows(2)
        .map(|bounds| (bounds[0] as usize..bounds[1] as usize).filter(|&row| paths.counts(row)).count() as u32)
        .collect();
    for (&length, &group) in lengths.iter().zip(groups).filter(|(length, _)| **length > 0) {
        let (first, second, sequences) = &mut longest[group as usize];
        *second = (*first).min(length).max(*second);
        *first = (*first).max(length);
        *sequences += 1;
    }
    let (mut tokens, mut members, mut positions, mut weights) = (Vec::new(), Vec::new(), Vec::new(), Vec::new());
    for (bounds, &group) in paths.offsets.windows(2).zip(groups) {
        let (mut position, mut weight) = (0, 0.0);
        let rows = bounds[0] as usize..bounds[1] as usize;
        for (row, energy) in rows.clone().zip(&energies[rows]) {
            if paths.counts(row) {
                weight += energy;
                tokens.push(row);
                members.push(group);
                positions.push(position);
                weights.push(weight);
            }
            position += u32::from(paths.counts(row) || options.align == Align::Sequence);
        }
    }
    let keys = pair(&members, &positions)?;
    let products: Vec<f64> = tokens.iter().zip(&weights).map(|(&row, weight)| returns[row] * weight).collect();
    let above = sums(&products, &keys.ids, keys.count as usize)?;
    let below = sums(&weights, &keys.ids, keys.count as usize)?;
    let mut out = vec![0.0; rows];
    let mut sequence = 0;
    for (token, &row) in tokens.iter().enumerate() {
        while paths.offsets[sequence + 1] <= row as i64 {
            sequence += 1;
        }
        let (first, second, sequences) = longest[members[token] as usize];
        let alone = options.zero_tail && lengths[sequence] == first && first > second && positions[token] >= second;
        let key = keys.ids[token] as usize;
        let total = below[key] + options.eps;
        let baseline = if sequences < 2 || alone || total == 0.0 { 0.0 } else { above[key] / total };
        out[row] = returns[row] - baseline;
    }
    Ok(out)
}
