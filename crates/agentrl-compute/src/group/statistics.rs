//! Count, mean, standard deviation and range of groups.

use super::columns::Columns;
use super::moments::Statistics;
use super::options::check_ddof;
use crate::{Error, Float, Result};

/// Return the statistics of each group, including empty ones. The bits do not depend on row order.
///
/// Sums are integers on a grid that depends on the number of votes and their range. A vote is rounded once, to 51
/// binary digits of the largest (fewer beyond 2²⁴ votes); nothing is lost after that.
///
/// ```
/// use agentrl_compute::group::{Columns, statistics};
///
/// let found = statistics(&Columns::new("values", &[1.0, 2.0, 3.0, 7.0], &[0, 0, 0, 1]), 1)?;
/// assert_eq!((found[0].count, found[0].mean, found[0].std), (3, 2.0, 1.0));
/// assert_eq!((found[1].count, found[1].mean, found[1].std.is_nan()), (1, 7.0, true));
/// # Ok::<(), agentrl_compute::Error>(())
/// ```
///
/// # Errors
/// `InvalidInput` if lengths differ, ids are not dense, a valid value is not finite, a weight is negative or `ddof` is
/// neither 0 nor 1; `Overflow` if the range of a group's values is too large for a float.
pub fn statistics<T: Float>(columns: &Columns<'_, T>, ddof: u32) -> Result<Vec<Statistics>> {
    check_ddof(ddof)?;
    let (count, sorted) = columns.check()?;
    if let Some(units) = columns.units {
        return of_votes(&columns.by_unit(units)?.columns(columns.name), count, false, ddof);
    }
    of_votes(columns, count, sorted, ddof)
}

/// Return the statistics of columns that are checked and have no units.
pub(super) fn of_votes<T: Float>(
    columns: &Columns<'_, T>,
    count: usize,
    sorted: bool,
    ddof: u32,
) -> Result<Vec<Statistics>> {
    columns.grouped(count, sorted)?.each(|group| {
        let index = group.index();
        let found = group.statistics(ddof)?;
        check_distance(columns.name, index, found).map(|()| *found)
    })
}

/// Check that the range of a group's values fits a float.
#[inline]
pub(super) fn check_distance(name: &str, group: usize, found: &Statistics) -> Result<()> {
    if found.most - found.least < f64::INFINITY || found.count == 0 { Ok(()) } else { Err(too_far(name, group, found)) }
}

#[cold]
fn too_far(name: &str, group: usize, found: &Statistics) -> Error {
    Error::overflow(format!(
        "{name} of group {group} range from {:e} to {:e}, which overflows a 64-bit float; scale them",
        found.least, found.most
    ))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::group::testing::{Group, at, masked_groups, naive, shuffle};
    use crate::thread_pool;
    use proptest::prelude::*;

    #[test]
    fn by_hand() -> Result<()> {
        let found = statistics(&Columns::new("values", &[1.0, -1.0], &[1, 1]), 1)?;
        assert!(found[0].count == 0 && found[0].mean.is_nan() && found[0].std.is_nan());
        assert_eq!((found[1].count, found[1].mean, found[1].std), (2, 0.0, 2.0_f64.sqrt()));
        assert!(statistics::<f64>(&Columns::new("values", &[], &[]), 1)?.is_empty());
        Ok(())
    }

    /// Trajectory 0 has three rows with mean 2, trajectory 1 has one row: each votes once.
    #[test]
    fn a_unit_votes_once_with_its_mean() -> Result<()> {
        let columns = Columns {
            units: Some(&[0, 0, 1, 0, 2]),
            valid: Some(&[true, true, true, true, false]),
            ..Columns::new("values", &[1.0, 2.0, 4.0, 3.0, 9.0], &[0; 5])
        };
        let found = statistics(&columns, 0)?;
        assert_eq!((found[0].count, found[0].mean, found[0].std), (2, 3.0, 1.0));
        let heavy = Columns { weights: Some(&[3.0, 0.0, 1.0, 1.0, 1.0]), ..columns };
        assert_eq!(statistics(&heavy, 0)?[0].mean.to_bits(), 2.75_f64.to_bits());
        Ok(())
    }

    #[test]
    fn values_too_far_apart_are_an_error() {
        let columns = Columns::new("values", &[f64::MAX, f64::MIN], &[0, 0]);
        let message = statistics(&columns, 1).map_err(|error| error.to_string());
        assert_eq!(
            message,
            Err("values of group 0 range from -1.7976931348623157e308 to 1.7976931348623157e308, \
                 which overflows a 64-bit float; scale them"
                .to_owned())
        );
        assert!(statistics(&Columns::new("values", &[1.0], &[0]), 2).is_err());
    }

    fn bits(found: &[Statistics]) -> Vec<(u64, u64, u64)> {
        found.iter().map(|found| (found.count, found.mean.to_bits(), found.std.to_bits())).collect()
    }

    /// One group of many pieces, of magnitudes from 1e-300 to 1e300, and many small ones.
    #[test]
    fn any_number_of_threads_gives_the_same_bits() -> Result<()> {
        let rows = 5 * thread_pool::PIECE + 7;
        let draw = |row: usize| crate::rng::uniform(7, row as u64);
        let values: Vec<f64> = (0..rows).map(|row| (draw(row) - 0.5) * 10_f64.powi((row % 600) as i32 - 300)).collect();
        let mixed: Vec<u32> = (0..rows).map(|row| if row % 3 == 0 { (draw(row) * 9000.0) as u32 } else { 4 }).collect();
        let order = shuffle(rows, 3);
        for groups in [vec![0; rows], mixed] {
            let mut expected = None;
            for threads in [1, 2, 4] {
                thread_pool::set_threads(threads)?;
                let found = bits(&statistics(&Columns::new("values", &values, &groups), 1)?);
                assert_eq!(*expected.get_or_insert_with(|| found.clone()), found, "{threads}");
            }
            let (values, groups) = (at(&order, &values), at(&order, &groups));
            let found = bits(&statistics(&Columns::new("values", &values, &groups), 1)?);
            assert_eq!(expected, Some(found));
        }
        Ok(())
    }

    proptest! {
        #[test]
        fn as_the_textbook((group, valid) in masked_groups(), ddof in 0_u32..2) {
            let Group { values, groups, .. } = group;
            let columns = Columns { valid: Some(&valid), ..Columns::new("values", &values, &groups) };
            for (group, found) in statistics(&columns, ddof)?.iter().enumerate() {
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
        fn any_order_gives_the_same_bits((group, valid) in masked_groups(), seed in any::<u64>(), weighted in any::<bool>()) {
            let Group { values, groups, .. } = group;
            let order = shuffle(values.len(), seed);
            let weights: Vec<f64> = (0..values.len()).map(|row| (row % 4) as f64 * 0.3).collect();
            let columns = Columns {
                valid: Some(&valid),
                weights: weighted.then_some(&weights),
                ..Columns::new("values", &values, &groups)
            };
            let found = bits(&statistics(&columns, 1)?);
            let (values, groups, valid, weights) =
                (at(&order, &values), at(&order, &groups), at(&order, &valid), at(&order, &weights));
            let columns = Columns {
                valid: Some(&valid),
                weights: weighted.then_some(&weights),
                ..Columns::new("values", &values, &groups)
            };
            prop_assert_eq!(bits(&statistics(&columns, 1)?), found);
        }
    }
}
