//! Sampling without replacement, and rank-based priorities.

use crate::argument_checks::same_length;
use crate::rng::uniform;
use crate::{Error, Result, thread_pool};

/// Arrival time of each row in a race: `-ln(1 - u) / weight`, where u is the uniform number of `key` with the row's id
/// as counter.
///
/// The first `k` arrivals are `k` rows drawn one after another without replacement, each in proportion to its weight
/// among the remaining rows (Efraimidis and Spirakis 2006). Without weights every set of `k` rows is equally likely.
/// The number u depends only on the row's id, so additional rows do not change the arrivals of others.
///
/// # Errors
/// `InvalidInput` if lengths differ, or a weight is zero, negative, NaN or infinite.
pub fn race(ids: &[i64], weights: Option<&[f64]>, key: u64) -> Result<Vec<f64>> {
    weights.map_or(Ok(()), |weights| same_length("weights", weights.len(), "ids", ids.len()))?;
    let mut arrivals = vec![0.0; ids.len()];
    thread_pool::fill(&mut arrivals, |start, piece| {
        for (row, arrival) in (start..).zip(piece) {
            let weight = weights.map_or(1.0, |weights| weights[row]);
            if !(weight > 0.0 && weight.is_finite()) {
                return Err(Error::invalid(format!(
                    "weights[{row}] is {weight}, but must be above 0 and finite; leave out rows that cannot be drawn"
                )));
            }
            *arrival = -(-uniform(key, ids[row] as u64)).ln_1p() / weight;
        }
        Ok(())
    })?;
    Ok(arrivals)
}

/// 1 / rank of each row; rank 1 is the largest priority, and ties go to the earlier row. O(n log n).
///
/// In a [`super::SumTree`] with exponent alpha, P(row) is proportional to rank^-alpha (rank-based prioritised replay,
/// arXiv:1511.05952).
///
/// # Errors
/// `InvalidInput` for a priority that is NaN.
pub fn rank_weights(priorities: &[f64]) -> Result<Vec<f64>> {
    if let Some(row) = priorities.iter().position(|priority| priority.is_nan()) {
        return Err(Error::invalid(format!("priorities[{row}] is NaN; give a number")));
    }
    let mut order: Vec<usize> = (0..priorities.len()).collect();
    order.sort_by(|&one, &other| (priorities[other] + 0.0).total_cmp(&(priorities[one] + 0.0)));
    let mut weights = vec![0.0; priorities.len()];
    for (rank, row) in order.into_iter().enumerate() {
        weights[row] = 1.0 / (rank + 1) as f64;
    }
    Ok(weights)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rng::structural_seed;

    /// Rows 0 to 3 have weights 1 to 4. Ordered pairs have `P(i, j) = w_i / 10 · w_j / (10 - w_i)`. The 12 cells have
    /// 11 degrees of freedom, with standard deviation 4.7.
    #[test]
    fn the_first_two_of_a_race_are_draws_without_putting_back() -> Result<()> {
        const RACES: u64 = 1 << 20;
        let weights = [1.0, 2.0, 3.0, 4.0];
        let mut counts = [[0.0_f64; 4]; 4];
        for round in 0..RACES {
            let arrivals = race(&[0, 1, 2, 3], Some(&weights), structural_seed(&[round]))?;
            let mut order = [0, 1, 2, 3];
            order.sort_by(|&one: &usize, &other| arrivals[one].total_cmp(&arrivals[other]));
            counts[order[0]][order[1]] += 1.0;
        }
        let mut chi_squared = 0.0;
        for (first, row) in counts.iter().enumerate() {
            for (second, count) in row.iter().enumerate().filter(|&(second, _)| second != first) {
                let expected = RACES as f64 * weights[first] / 10.0 * weights[second] / (10.0 - weights[first]);
                chi_squared += (count - expected).powi(2) / expected;
            }
        }
        assert!(chi_squared < 11.0 + 6.0 * 4.7, "{chi_squared}");
        Ok(())
    }

    #[test]
    fn an_arrival_depends_on_the_id_alone() -> Result<()> {
        let few = race(&[7, -3], None, 5)?;
        let many = race(&[1, -3, 2, 7], None, 5)?;
        assert_eq!([few[0].to_bits(), few[1].to_bits()], [many[3].to_bits(), many[1].to_bits()]);
        for wrong in [0.0, -1.0, f64::NAN, f64::INFINITY] {
            assert!(race(&[1], Some(&[wrong]), 0).is_err());
        }
        assert!(race(&[1, 2], Some(&[1.0]), 0).is_err());
        Ok(())
    }

    #[test]
    fn ranks_count_from_the_largest() -> Result<()> {
        let weights = rank_weights(&[0.5, 9.0, -0.0, 0.5, 0.0, f64::INFINITY])?;
        assert_eq!(weights, [1.0 / 3.0, 0.5, 0.2, 0.25, 1.0 / 6.0, 1.0]);
        assert!(rank_weights(&[1.0, f64::NAN]).is_err());
        Ok(())
    }
}
