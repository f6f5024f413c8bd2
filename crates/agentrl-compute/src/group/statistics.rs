//! Count, mean and standard deviation of groups.

use super::accumulator::{Accumulator, binary_order, times_power_of_two};
use super::columns::Columns;
use super::options::check_ddof;
use crate::{Error, Float, Result};

/// What is known of one group.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Statistics {
    /// Number of valid rows.
    pub count: u64,
    /// Mean; NaN for a group without valid rows. Exactly the value if all are equal.
    pub mean: f64,
    /// Standard deviation `sqrt(Σ (x - mean)² / (count - ddof))`; NaN for fewer than `ddof + 1` rows. Exactly 0 if all
    /// values are equal.
    pub std: f64,
}

/// Count, mean and standard deviation of each group, independent of row order to the last bit.
///
/// Two passes: the variance is summed from deviations from the mean, scaled by a power of two so that neither large nor
/// small ones leave the range of a float.
///
/// ```
/// use agentrl_compute::group::statistics;
///
/// let found = statistics(&[1.0, 2.0, 3.0, 7.0], &[0, 0, 0, 1], 1, None)?;
/// assert_eq!((found[0].count, found[0].mean, found[0].std), (3, 2.0, 1.0));
/// assert_eq!((found[1].count, found[1].mean, found[1].std.is_nan()), (1, 7.0, true));
/// # Ok::<(), agentrl_compute::Error>(())
/// ```
///
/// # Errors
/// `InvalidInput` if lengths differ, ids are not dense, a valid value is not finite or `ddof` is neither 0 nor 1;
/// `Overflow` if a group's values are further apart than a float can say.
pub fn statistics<T: Float>(
    values: &[T],
    groups: &[u32],
    ddof: u32,
    valid: Option<&[bool]>,
) -> Result<Vec<Statistics>> {
    check_ddof(ddof)?;
    let columns = Columns::new("values", values, groups, valid)?;
    let centres = centres(&columns)?;
    let deviations = deviations(&columns, &centres, ddof);
    let both = centres.into_iter().zip(deviations);
    Ok(both.map(|(Centre { count, mean, .. }, std)| Statistics { count, mean, std }).collect())
}

/// Count, range and mean of one group.
#[derive(Clone, Copy, Debug)]
pub(super) struct Centre {
    pub(super) count: u64,
    least: f64,
    most: f64,
    pub(super) mean: f64,
}

/// Count, range and mean of each group.
pub(super) fn centres<T: Float>(columns: &Columns<'_, T>) -> Result<Vec<Centre>> {
    let nothing = Centre { count: 0, least: f64::INFINITY, most: f64::NEG_INFINITY, mean: f64::NAN };
    let mut centres = vec![nothing; columns.count()];
    for (_, group, value) in columns.rows() {
        let centre = &mut centres[group];
        centre.count += 1;
        centre.least = centre.least.min(value);
        centre.most = centre.most.max(value);
    }
    if let Some(group) = centres.iter().position(|centre| centre.most - centre.least == f64::INFINITY) {
        return Err(Error::overflow(format!(
            "{} of group {group} reach from {:e} to {:e}, a distance that f64 cannot hold; scale them",
            columns.name(),
            centres[group].least,
            centres[group].most
        )));
    }
    let empty = |centre: &Centre| Accumulator::new(centre.least.abs().max(centre.most.abs()), centre.count);
    let mut sums: Vec<Accumulator> = centres.iter().map(empty).collect();
    for (_, group, value) in columns.rows() {
        sums[group].add(value);
    }
    for (centre, sum) in centres.iter_mut().zip(sums).filter(|(centre, _)| centre.count > 0) {
        // The quotient is rounded and can miss the range by one digit; of equal values the mean is that value.
        centre.mean = sum.divided_by(centre.count as f64).clamp(centre.least, centre.most);
    }
    Ok(centres)
}

/// The standard deviation of each group; NaN for fewer than `ddof + 1` rows.
pub(super) fn deviations<T: Float>(columns: &Columns<'_, T>, centres: &[Centre], ddof: u32) -> Vec<f64> {
    // Deviations times `scale`, a power of two, are about 1 at most.
    let mut squares: Vec<(f64, Accumulator)> = centres
        .iter()
        .map(|centre| {
            let furthest = (centre.most - centre.mean).max(centre.mean - centre.least).max(0.0);
            let scale = times_power_of_two(1.0, -binary_order(furthest).min(1022));
            (scale, Accumulator::new((furthest * scale).powi(2), centre.count))
        })
        .collect();
    for (_, group, value) in columns.rows() {
        let (scale, sum) = &mut squares[group];
        sum.add(((value - centres[group].mean) * *scale).powi(2));
    }
    let deviation = |(centre, (scale, sum)): (&Centre, (f64, Accumulator))| {
        if centre.count <= u64::from(ddof) {
            return f64::NAN;
        }
        sum.divided_by(centre.count as f64 - f64::from(ddof)).sqrt() / scale
    };
    centres.iter().zip(squares).map(deviation).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::group::testing::{Group, masked_groups, naive, shuffle};
    use proptest::prelude::*;

    #[test]
    fn by_hand() -> Result<()> {
        let found = statistics(&[2.0_f32, 4.0, 4.0, 4.0, 5.0, 5.0, 7.0, 9.0], &[0; 8], 0, None)?;
        assert_eq!(found, [Statistics { count: 8, mean: 5.0, std: 2.0 }]);
        let found = statistics(&[1.0, -1.0], &[1, 1], 1, None)?;
        assert!(found[0].count == 0 && found[0].mean.is_nan() && found[0].std.is_nan());
        assert_eq!(found[1], Statistics { count: 2, mean: 0.0, std: 2.0_f64.sqrt() });
        assert!(statistics::<f64>(&[], &[], 1, None)?.is_empty());
        Ok(())
    }

    #[test]
    fn neither_an_offset_nor_size_costs_digits() -> Result<()> {
        let pattern = [1.0, 2.0, 3.0, 4.0];
        let std = (5.0_f64 / 3.0).sqrt();
        let offset = statistics(&pattern.map(|value| value + 1e12), &[0; 4], 1, None)?;
        assert_eq!(offset[0].mean.to_bits(), (1e12_f64 + 2.5).to_bits());
        assert!((offset[0].std / std - 1.0).abs() < 1e-15);
        for size in [1e-320, 1e-300, 1e300, 4e307] {
            let found = statistics(&pattern.map(|value| value * size), &[0; 4], 1, None)?;
            let tolerance = if size < 1e-310 { 1e-3 } else { 1e-15 };
            assert!((found[0].mean / size / 2.5 - 1.0).abs() < tolerance, "{size}");
            assert!((found[0].std / size / std - 1.0).abs() < tolerance, "{size}");
        }
        Ok(())
    }

    /// 1/3, 0.1 and their like times a count are not floats, so sum and quotient are rounded; the mean must not be.
    #[test]
    fn equal_values_are_their_own_mean() -> Result<()> {
        for count in 1..200 {
            for value in [0.1, 1.0 / 3.0, -0.7, 1e300, f64::MAX, 5e-324, 0.0] {
                let found = statistics(&vec![value; count], &vec![0; count], 0, None)?;
                assert_eq!((found[0].mean - value).to_bits(), 0);
                assert_eq!(found[0].std.to_bits(), 0);
            }
        }
        Ok(())
    }

    #[test]
    fn values_too_far_apart_are_an_error() {
        let message = statistics(&[f64::MAX, f64::MIN], &[0, 0], 1, None).map_err(|error| error.to_string());
        assert_eq!(
            message,
            Err("values of group 0 reach from -1.7976931348623157e308 to 1.7976931348623157e308, \
                 a distance that f64 cannot hold; scale them"
                .to_owned())
        );
        assert!(statistics(&[1.0], &[0], 2, None).is_err());
    }

    proptest! {
        #[test]
        fn as_the_textbook((group, valid) in masked_groups(), ddof in 0_u32..2) {
            let Group { values, groups, .. } = group;
            let found = statistics(&values, &groups, ddof, Some(&valid))?;
            for (group, found) in found.iter().enumerate() {
                let rows = (0..values.len()).filter(|&row| groups[row] as usize == group && valid[row]);
                let members: Vec<f64> = rows.map(|row| values[row]).collect();
                let largest = members.iter().fold(0.0, |largest: f64, value| largest.max(value.abs()));
                let (mean, std) = naive(&members, ddof);
                prop_assert_eq!(found.count, members.len() as u64);
                prop_assert_eq!(found.mean.is_nan(), members.is_empty());
                prop_assert_eq!(found.std.is_nan(), members.len() <= ddof as usize);
                if !members.is_empty() {
                    prop_assert!((found.mean - mean).abs() <= 1e-14 * largest, "{} {mean}", found.mean);
                }
                if members.len() > ddof as usize {
                    prop_assert!((found.std - std).abs() <= 1e-13 * largest, "{} {std}", found.std);
                }
            }
        }

        #[test]
        fn any_order_gives_the_same_bits((group, valid) in masked_groups(), seed in any::<u64>()) {
            let Group { values, groups, .. } = group;
            let order = shuffle(values.len(), seed);
            let shuffled: Vec<f64> = order.iter().map(|&row| values[row]).collect();
            let their_groups: Vec<u32> = order.iter().map(|&row| groups[row]).collect();
            let their_valid: Vec<bool> = order.iter().map(|&row| valid[row]).collect();
            let bits = |found: Vec<Statistics>| -> Vec<_> {
                found.iter().map(|found| (found.count, found.mean.to_bits(), found.std.to_bits())).collect()
            };
            prop_assert_eq!(
                bits(statistics(&values, &groups, 1, Some(&valid))?),
                bits(statistics(&shuffled, &their_groups, 1, Some(&their_valid))?)
            );
        }
    }
}
