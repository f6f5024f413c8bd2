//! Partial credit for failed rows, by their distance to the successes of their group.

use crate::argument_checks::{all_finite, same_length, within};
use crate::group::group_count;
use crate::rows_by_group::Members;
use crate::{Error, Result};

/// Options of [`success_distance`].
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ProgressOptions {
    /// Largest distance at which two successes are neighbours, in standard deviations of the successes.
    pub radius: f64,
    /// Number of neighbours, itself included, from which a success starts a cluster.
    pub members_at_least: u32,
    /// Upper bound of the reward of a failure.
    pub at_most: f64,
    /// Slope of the sigmoid from distance to reward.
    pub slope: f64,
}

impl Default for ProgressOptions {
    /// The settings of SRPO.
    fn default() -> Self {
        Self { radius: 0.5, members_at_least: 2, at_most: 0.6, slope: 10.0 }
    }
}

/// Reward rows by their distance to the successes of their group: 1 for a success, and
/// `at_most · σ(slope · (0.5 - d̂))` for a failure. `d̂` is the failure's distance to the nearest centre of the group's
/// successes, scaled from 0 for the nearest failure to 1 for the furthest (0.5 if all distances are equal).
///
/// Successes are standardised for clustering (DBSCAN) only. Centres are the means of the clusters, or the mean of all
/// successes if there is no cluster. Distances are Euclidean. Failures of a group without a success get 0. `embeddings`
/// has `width` numbers per row. Source: SRPO, arXiv:2511.15605.
///
/// ```
/// use agentrl_compute::reward::{ProgressOptions, success_distance};
///
/// let places = [0.0, 0.0, 1.0, 3.0];
/// let found = success_distance(&places, 1, &[true, true, false, false], &[0; 4], &ProgressOptions::default())?;
/// assert!(found[..2] == [1.0, 1.0] && found[2] > 0.59 && found[3] < 0.01);
/// # Ok::<(), agentrl_compute::Error>(())
/// ```
///
/// # Errors
/// `InvalidInput` if sizes do not fit, a number is not finite, or an option is out of range.
pub fn success_distance(
    embeddings: &[f64],
    width: usize,
    success: &[bool],
    groups: &[u32],
    options: &ProgressOptions,
) -> Result<Vec<f64>> {
    same_length("success", success.len(), "groups", groups.len())?;
    if width == 0 || embeddings.len() != groups.len() * width {
        return Err(Error::invalid(format!(
            "embeddings has {} numbers for {} rows of width {width}; give width numbers for each row, at least one",
            embeddings.len(),
            groups.len()
        )));
    }
    all_finite("embeddings", embeddings)?;
    within("radius", options.radius, 0.0, f64::MAX)?;
    within("slope", options.slope, 0.0, f64::MAX)?;
    all_finite("at_most", &[options.at_most])?;
    let place = |row: u32| &embeddings[row as usize * width..(row as usize + 1) * width];
    let mut rewards: Vec<f64> = success.iter().map(|&success| f64::from(u8::from(success))).collect();
    for rows in Members::of(groups, group_count("groups", groups)?, None).iter() {
        let (won, lost): (Vec<u32>, Vec<u32>) = rows.iter().partition(|&&row| success[row as usize]);
        if won.is_empty() || lost.is_empty() {
            continue;
        }
        let won: Vec<&[f64]> = won.iter().map(|&row| place(row)).collect();
        let centres = centres(&won, options);
        let nearest =
            |row: u32| centres.iter().map(|centre| distance(centre, place(row))).fold(f64::INFINITY, f64::min);
        let distances: Vec<f64> = lost.iter().map(|&row| nearest(row)).collect();
        let least = distances.iter().copied().fold(f64::INFINITY, f64::min);
        let range = distances.iter().copied().fold(f64::NEG_INFINITY, f64::max) - least;
        for (&row, distance) in lost.iter().zip(distances) {
            let relative = if range < 1e-6 { 0.5 } else { (distance - least) / range };
            rewards[row as usize] = options.at_most / (1.0 + (-options.slope * (0.5 - relative)).exp());
        }
    }
    Ok(rewards)
}

/// Return the mean of each cluster of successes, or the mean of all successes if there is no cluster.
fn centres(points: &[&[f64]], options: &ProgressOptions) -> Vec<Vec<f64>> {
    let mean = |members: &[usize]| -> Vec<f64> {
        let of =
            |column: usize| members.iter().map(|&member| points[member][column]).sum::<f64>() / members.len() as f64;
        (0..points[0].len()).map(of).collect()
    };
    let all: Vec<usize> = (0..points.len()).collect();
    let centre = mean(&all);
    // A column without spread is centred but not scaled, as scikit-learn's StandardScaler does.
    let spread = |column: usize| {
        let squares = points.iter().map(|point| (point[column] - centre[column]).powi(2)).sum::<f64>();
        let spread = (squares / points.len() as f64).sqrt();
        if spread > 0.0 { spread } else { 1.0 }
    };
    let spreads: Vec<f64> = (0..centre.len()).map(spread).collect();
    let standard = |point: &[f64]| -> Vec<f64> {
        point.iter().enumerate().map(|(column, value)| (value - centre[column]) / spreads[column]).collect()
    };
    let standardised: Vec<Vec<f64>> = points.iter().map(|point| standard(point)).collect();
    let neighbours = |point: usize| -> Vec<usize> {
        all.iter()
            .copied()
            .filter(|&other| distance(&standardised[point], &standardised[other]) <= options.radius)
            .collect()
    };
    let mut cluster_of: Vec<Option<usize>> = vec![None; points.len()];
    let mut clusters: Vec<Vec<usize>> = Vec::new();
    for start in 0..points.len() {
        if cluster_of[start].is_some() || neighbours(start).len() < options.members_at_least as usize {
            continue;
        }
        let cluster = clusters.len();
        cluster_of[start] = Some(cluster);
        let mut members = vec![start];
        let mut next = 0;
        while let Some(&member) = members.get(next) {
            next += 1;
            let near = neighbours(member);
            if near.len() < options.members_at_least as usize {
                continue;
            }
            for other in near {
                if cluster_of[other].is_none() {
                    cluster_of[other] = Some(cluster);
                    members.push(other);
                }
            }
        }
        clusters.push(members);
    }
    if clusters.is_empty() { vec![centre] } else { clusters.iter().map(|members| mean(members)).collect() }
}

fn distance(first: &[f64], second: &[f64]) -> f64 {
    first.iter().zip(second).map(|(a, b)| (a - b).powi(2)).sum::<f64>().sqrt()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_nearest_cluster_counts_and_not_the_mean_of_all() -> Result<()> {
        // Successes near 0 and near 10, failures at 1, 5 and 10.5.
        let places = [0.0, 0.1, 10.0, 10.1, 1.0, 5.0, 10.5];
        let success = [true, true, true, true, false, false, false];
        let found = success_distance(&places, 1, &success, &[0; 7], &ProgressOptions::default())?;
        assert!(found[6] > found[4] && found[4] > found[5]);
        let sigmoid = |x: f64| 0.6 / (1.0 + (-10.0 * (0.5 - x)).exp());
        let (near, far) = (10.5 - 10.05, 5.0 - 0.05);
        assert!((found[6] - sigmoid(0.0)).abs() < 1e-12 && (found[5] - sigmoid(1.0)).abs() < 1e-12);
        assert!((found[4] - sigmoid((0.95 - near) / (far - near))).abs() < 1e-12);
        Ok(())
    }

    #[test]
    fn groups_of_one_kind_are_not_shaped() -> Result<()> {
        let found =
            success_distance(&[1.0, 2.0, 3.0], 1, &[true, false, false], &[0, 1, 1], &ProgressOptions::default())?;
        assert_eq!(found, [1.0, 0.0, 0.0]);
        // A single success forms no cluster, so the centre is its own position. Equally distant failures get half of
        // `at_most`.
        let found =
            success_distance(&[0.0, 1.0, -1.0], 1, &[true, false, false], &[0; 3], &ProgressOptions::default())?;
        assert_eq!(found, [1.0, 0.3, 0.3]);
        let message = success_distance(&[0.0], 2, &[true], &[0], &ProgressOptions::default());
        assert!(
            message.is_err_and(|error| error.to_string().starts_with("embeddings has 1 numbers for 1 rows of width 2"))
        );
        Ok(())
    }
}
