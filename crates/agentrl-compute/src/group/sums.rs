//! Exact sums of the values of each group.

use super::fixed_point::Accumulator;
use crate::argument_checks::{finite, same_length};
use crate::{Error, Float, Result, thread_pool};

/// Return the sum of the values of each of `count` groups; 0 for a group without rows. Its bits do not depend on row
/// order.
///
/// A first pass finds the largest magnitude and the number of values of each group. They fix a grid of binary
/// fractions: 2^-94 of the largest value's power of two for 2^32 rows, and finer for fewer. On it, a second pass adds
/// 128-bit integers that cannot overflow. The sum is rounded to a float once, at the end. If values span less than 40
/// binary orders, it is the exactly rounded sum. Every finite float can be summed.
///
/// ```
/// use agentrl_compute::group::sums;
///
/// assert_eq!(sums(&[1e16, 1.0, -1e16, 0.5], &[0, 0, 0, 2], 3)?, [1.0, 0.0, 0.5]);
/// # Ok::<(), agentrl_compute::Error>(())
/// ```
///
/// # Errors
/// `InvalidInput` if the lengths differ, an id is not below `count` or a value is not finite; `Overflow` if a sum is
/// too large for a float.
pub fn sums<T: Float>(values: &[T], groups: &[u32], count: usize) -> Result<Vec<f64>> {
    same_length("groups", groups.len(), "values", values.len())?;
    let mut extents = vec![(0.0_f64, 0_u64); count];
    for (row, (&value, &group)) in values.iter().zip(groups).enumerate() {
        let Some((largest, members)) = extents.get_mut(group as usize) else {
            return Err(Error::invalid(format!(
                "groups[{row}] is {group}, but there are {count} groups; give ids below {count}"
            )));
        };
        *largest = largest.max(finite("values", row, value.to_f64())?.abs());
        *members += 1;
    }
    let mut sums: Vec<Accumulator> =
        extents.into_iter().map(|(largest, count)| Accumulator::new(largest, count)).collect();
    for (value, &group) in values.iter().zip(groups) {
        sums[group as usize].add(value.to_f64());
    }
    let sums: Vec<f64> = sums.iter().map(|sum| sum.divided_by(1.0)).collect();
    match sums.iter().position(|sum| sum.is_infinite()) {
        None => Ok(sums),
        Some(group) => Err(Error::overflow(format!(
            "the sum of the values of group {group} overflows a 64-bit float; scale \
                 them"
        ))),
    }
}

/// Return the sum of `count` terms, exact on the grid of multiples of 2^k that the largest term and `count` fix (see
/// [`sums`]); an error if the sum is too large for a float. Terms are computed twice.
pub(crate) fn total(count: usize, term: impl Fn(usize) -> f64 + Sync) -> Result<f64> {
    let largest = thread_pool::map(thread_pool::pieces(count), |piece| {
        Ok(piece.fold(0.0_f64, |largest, place| largest.max(term(place).abs())))
    })?;
    let largest = largest.into_iter().fold(0.0, f64::max);
    let too_large = || Error::overflow("a sum over the values is too large for a 64-bit float; scale the values");
    if !largest.is_finite() {
        return Err(too_large());
    }
    let empty = Accumulator::new(largest, count as u64);
    let parts = thread_pool::map(thread_pool::pieces(count), |piece| {
        let mut sum = empty;
        for place in piece {
            sum.add(term(place));
        }
        Ok(sum)
    })?;
    let mut sum = empty;
    for part in &parts {
        sum.merge(part);
    }
    Some(sum.divided_by(1.0)).filter(|sum| sum.is_finite()).ok_or_else(too_large)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::group::testing::{Group, groups, shuffle};
    use proptest::prelude::*;

    #[test]
    fn no_rows_and_empty_groups_sum_to_zero() -> Result<()> {
        assert_eq!(sums::<f32>(&[], &[], 0)?, Vec::<f64>::new());
        assert_eq!(sums::<f32>(&[], &[], 2)?, vec![0.0, 0.0]);
        Ok(())
    }

    #[test]
    fn invalid_input_is_reported() {
        for (values, expected) in [
            (&[1.0, 2.0][..], "groups[1] is 2, but there are 2 groups; give ids below 2"),
            (&[f64::NAN, 2.0], "values[0] is NaN, but must be finite; correct it or mark the row invalid"),
            (&[1.0], "groups has 2 values, but values has 1; give one value of each for every row"),
        ] {
            let message = sums(values, &[0, 2], 2).map_err(|error| error.to_string());
            assert_eq!(message, Err(expected.to_owned()));
        }
    }

    #[test]
    fn a_sum_beyond_the_range_is_an_error() {
        let message = sums(&[f64::MAX, f64::MAX], &[0, 0], 1).map_err(|error| error.to_string());
        assert_eq!(message, Err("the sum of the values of group 0 overflows a 64-bit float; scale them".to_owned()));
        for term in [f64::MAX, f64::INFINITY] {
            let message = total(2, |_| term).map_err(|error| error.to_string());
            assert_eq!(
                message,
                Err("a sum over the values is too large for a 64-bit float; scale the values".to_owned())
            );
        }
    }

    proptest! {
        #[test]
        fn as_plain_addition_in_any_order(groups in groups(), seed in any::<u64>()) {
            let Group { values, groups, count, .. } = groups;
            let found = sums(&values, &groups, count)?;
            for (group, &sum) in found.iter().enumerate() {
                let members = values.iter().zip(&groups).filter(|&(_, &of)| of as usize == group).map(|(&value, _)| value);
                let (plain, absolute) = members.fold((0.0, 0.0), |(sum, absolute), value| (sum + value, absolute + value.abs()));
                prop_assert!((sum - plain).abs() <= absolute * 1e-14, "{sum} {plain}");
            }
            let one_group = sums(&values, &vec![0; values.len()], 1)?;
            prop_assert_eq!(total(values.len(), |place| values[place])?.to_bits(), one_group[0].to_bits());
            let order = shuffle(values.len(), seed);
            let values: Vec<f64> = order.iter().map(|&row| values[row]).collect();
            let groups: Vec<u32> = order.iter().map(|&row| groups[row]).collect();
            let shuffled = sums(&values, &groups, count)?;
            prop_assert!(found.iter().zip(shuffled).all(|(a, b)| a.to_bits() == b.to_bits()));
        }
    }
}
