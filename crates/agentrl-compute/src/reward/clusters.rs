//! Votes over clusters of equivalent answers.

use crate::argument_checks::{column, mask_length, same_length};
use crate::group::{group_count, sums};
use crate::keys::pair;
use crate::rows_by_group::Members;
use crate::{Error, Result};

/// Votes for the answer clusters of each group.
#[derive(Clone, Debug, PartialEq)]
pub struct ClusterVotes {
    /// For each row: share of its cluster in the votes of its group; 0 for a row without an answer.
    pub shares: Vec<f64>,
    /// For each row: whether its cluster has the most votes of its group. On a tie, the cluster that appears first
    /// wins.
    pub winners: Vec<bool>,
    /// For each group: `-Σ_c p_c · ln p_c` over its clusters.
    pub entropies: Vec<f64>,
    /// For each group: `-mean_c ln p_c`, each cluster counted once (the Monte-Carlo form of SEED-GRPO).
    pub cluster_entropies: Vec<f64>,
    /// For each group: number of clusters.
    pub counts: Vec<u32>,
}

/// Count the votes for clusters of answers. Rows of a group agree if their `clusters` ids are equal.
///
/// A row that is not `parsed` has no answer and belongs to no cluster, but its vote counts in the denominator.
/// `weights` are the votes of the rows, for example sequence probabilities; `None` means one vote each. Sources: EMPO,
/// arXiv:2504.05812; TTRL, arXiv:2504.16084; SEED-GRPO, arXiv:2505.12346.
///
/// ```
/// use agentrl_compute::reward::cluster_votes;
///
/// let votes = cluster_votes(&[5, 5, 3, 0, 0, 0], &[0; 6], Some(&[true, true, true, true, false, false]), None)?;
/// assert_eq!(votes.shares[..3], [2.0 / 6.0, 2.0 / 6.0, 1.0 / 6.0]);
/// assert_eq!(votes.winners, [true, true, false, false, false, false]);
/// # Ok::<(), agentrl_compute::Error>(())
/// ```
///
/// # Errors
/// `InvalidInput` if lengths differ, groups are not dense, or a weight is negative or not finite.
pub fn cluster_votes(
    clusters: &[u32],
    groups: &[u32],
    parsed: Option<&[bool]>,
    weights: Option<&[f64]>,
) -> Result<ClusterVotes> {
    same_length("clusters", clusters.len(), "groups", groups.len())?;
    mask_length(parsed, "groups", groups.len())?;
    let count = group_count("groups", groups)?;
    let ones = vec![1.0; if weights.is_none() { groups.len() } else { 0 }];
    let weights = weights.unwrap_or(&ones);
    column("weights", weights, "groups", groups.len(), None)?;
    if let Some(row) = weights.iter().position(|&weight| weight < 0.0) {
        return Err(Error::invalid(format!("weights[{row}] is {}; give a number of at least 0", weights[row])));
    }
    let has_answer = |row: usize| parsed.is_none_or(|parsed| parsed[row]);
    let keys = pair(groups, clusters)?;
    let cast: Vec<f64> = (0..groups.len()).map(|row| if has_answer(row) { weights[row] } else { 0.0 }).collect();
    let of_cluster = sums(&cast, &keys.ids, keys.count as usize)?;
    let of_group = sums(weights, groups, count)?;
    let share = |row: usize| {
        let total = of_group[groups[row] as usize];
        if has_answer(row) && total > 0.0 { of_cluster[keys.ids[row] as usize] / total } else { 0.0 }
    };
    let mut votes = ClusterVotes {
        shares: (0..groups.len()).map(share).collect(),
        winners: vec![false; groups.len()],
        entropies: vec![0.0; count],
        cluster_entropies: vec![0.0; count],
        counts: vec![0; count],
    };
    let mut seen = vec![false; keys.count as usize];
    for (group, rows) in Members::of(groups, count, None).iter().enumerate() {
        // One row for each cluster that has votes, in order of first appearance.
        let rows = rows.iter().map(|&row| row as usize).filter(|&row| votes.shares[row] > 0.0);
        let firsts: Vec<usize> =
            rows.clone().filter(|&row| !std::mem::replace(&mut seen[keys.ids[row] as usize], true)).collect();
        let most = firsts.iter().map(|&row| votes.shares[row]).fold(0.0, f64::max);
        let winner = firsts.iter().find(|&&row| votes.shares[row] >= most).map(|&row| keys.ids[row]);
        let mut logs: Vec<(f64, f64)> =
            firsts.iter().map(|&row| (votes.shares[row], -votes.shares[row].ln())).collect();
        // Sorted, so that the sum does not depend on the order of rows.
        logs.sort_by(|a, b| a.0.total_cmp(&b.0));
        votes.entropies[group] = logs.iter().map(|(p, log)| p * log).sum::<f64>() + 0.0;
        votes.cluster_entropies[group] = logs.iter().map(|(_, log)| log).sum::<f64>() / logs.len().max(1) as f64 + 0.0;
        votes.counts[group] = firsts.len() as u32;
        for row in rows.collect::<Vec<_>>() {
            votes.winners[row] = Some(keys.ids[row]) == winner;
        }
    }
    Ok(votes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn entropies_by_hand() -> Result<()> {
        // Votes of (4, 1, 1), a unanimous group, and a group of distinct answers.
        let clusters = [0, 0, 0, 0, 1, 2, 7, 7, 4, 5];
        let groups = [0, 0, 0, 0, 0, 0, 1, 1, 2, 2];
        let votes = cluster_votes(&clusters, &groups, None, None)?;
        let (p, q) = (2.0_f64 / 3.0, 1.0_f64 / 6.0);
        assert!((votes.entropies[0] - (-p * p.ln() - 2.0 * q * q.ln())).abs() < 1e-15);
        assert!((votes.cluster_entropies[0] - (-p.ln() - 2.0 * q.ln()) / 3.0).abs() < 1e-15);
        assert_eq!((votes.entropies[1].to_bits(), votes.cluster_entropies[1].to_bits()), (0, 0));
        assert!((votes.entropies[2] - 2.0_f64.ln()).abs() < 1e-15);
        assert_eq!(votes.counts, [3, 1, 2]);
        assert_eq!(votes.winners[8..], [true, false]);
        Ok(())
    }

    #[test]
    fn weights_are_votes_and_silence_wins_nothing() -> Result<()> {
        let votes = cluster_votes(&[0, 1, 1], &[0; 3], None, Some(&[3.0, 1.0, 1.0]))?;
        assert_eq!((votes.shares, votes.winners), (vec![0.6, 0.4, 0.4], vec![true, false, false]));
        let silent = cluster_votes(&[0, 0], &[0, 0], Some(&[false, false]), None)?;
        assert_eq!((silent.shares, silent.winners, silent.counts), (vec![0.0; 2], vec![false; 2], vec![0]));
        let message = cluster_votes(&[0], &[0], None, Some(&[-1.0])).map_err(|error| error.to_string());
        assert_eq!(message, Err("weights[0] is -1; give a number of at least 0".to_owned()));
        Ok(())
    }
}
