//! Whitening of one long column in place, as one group of all rows, with as few reads of the column as possible.

use super::extent::Extent;
use super::moments::{Moments, Statistics};
use super::options::Options;
use super::statistics::check_distance;
use crate::simd::{BLOCK, wide};
use crate::{Float, Result, thread_pool};

/// Shift and scale the valid values of a column to mean 0 and unbiased variance 1; set the others to 0.
///
/// The result is `(x - mean) / sqrt(variance + variance_eps)`, with the same bits as [`normalise`](super::normalise)
/// with one group of all rows. The valid values must be finite, and `extent` must be theirs.
pub(crate) fn whitened<T: Float>(
    name: &str,
    values: &mut [T],
    valid: Option<&[bool]>,
    extent: Extent,
    variance_eps: f64,
) -> Result<()> {
    // Backwards: the last values were just computed and are still in cache; then the first ones are in cache for the
    // second pass.
    let pieces = thread_pool::pieces(values.len()).into_iter().rev().collect();
    let moments = thread_pool::map(pieces, |piece| {
        Ok(Moments::of_valid(extent, &values[piece.clone()], valid.map(|valid| &valid[piece])))
    })?;
    let found = Statistics::finish(extent, moments.into_iter().fold(Moments::default(), Moments::merge), 1);
    check_distance(name, 0, &found)?;
    let options = Options { eps: 0.0, variance_eps, ..Options::default() };
    let alone = found.count < options.fewest();
    let (centre, divisor) = if alone { (0.0, f64::INFINITY) } else { (found.mean, options.divisor(found.std)) };
    thread_pool::fill(values, |start, piece| {
        let mut numbers = [0.0; BLOCK];
        for (row, values) in (start..).step_by(BLOCK).zip(piece.chunks_mut(BLOCK)) {
            let numbers = &mut numbers[..values.len()];
            T::read(values, numbers);
            shift(numbers, centre, divisor, valid.map(|valid| &valid[row..]));
            T::write(numbers, values);
        }
        Ok(())
    })
}

fn shift(numbers: &mut [f64], centre: f64, divisor: f64, valid: Option<&[bool]>) {
    wide(
        #[inline(always)]
        || {
            // Adding zero turns a negative zero into zero.
            for number in numbers.iter_mut() {
                *number = (*number - centre) / divisor + 0.0;
            }
            if let Some(valid) = valid {
                numbers.iter_mut().zip(valid).for_each(|(number, &valid)| *number = if valid { *number } else { 0.0 });
            }
        },
    );
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::group::testing::{Group, masked_groups};
    use crate::group::{Columns, Extra, NormalisedFloat, normalise};
    use proptest::prelude::*;

    fn of<T: Float>(values: &[T], valid: Option<&[bool]>) -> Result<Vec<T>> {
        let mut out = values.to_vec();
        let extent = Extent::of_valid(values, valid);
        whitened("values", &mut out, valid, extent, 1e-8).map(|()| out)
    }

    fn expected<T: NormalisedFloat>(values: &[T], valid: Option<&[bool]>) -> Result<Vec<T>> {
        let groups = vec![0; values.len()];
        let options = Options { eps: 0.0, variance_eps: 1e-8, ..Options::default() };
        let mut out = values.to_vec();
        let columns = Columns { valid, ..Columns::new("values", values, &groups) };
        normalise(&columns, &options, Extra::default(), &mut out).map(|()| out)
    }

    /// A column with more rows than a piece, on any number of threads.
    #[test]
    fn as_normalised_on_any_number_of_threads() -> Result<()> {
        let rows = 2 * thread_pool::PIECE + 77;
        let values: Vec<f32> = (0..rows as u32).map(|row| (row as f32 * 0.7).sin() * 3.0 + 1.0).collect();
        let valid: Vec<bool> = (0..rows).map(|row| row % 300 < 200).collect();
        for valid in [None, Some(&valid[..])] {
            let expected = expected(&values, valid)?;
            for threads in [1, 2, 4] {
                thread_pool::set_threads(threads)?;
                let found = of(&values, valid)?;
                assert!(found.iter().zip(&expected).all(|(found, expected)| found.to_bits() == expected.to_bits()));
            }
        }
        Ok(())
    }

    #[test]
    fn nothing_one_value_and_equal_values_become_zero() -> Result<()> {
        assert!(of::<f64>(&[], None)?.is_empty());
        assert_eq!(of(&[5.0], None)?, [0.0]);
        assert_eq!(of(&[5.0, 7.0, 5.0], Some(&[true, false, true]))?, [0.0; 3]);
        assert_eq!(of(&[5.0, 7.0], Some(&[false, false]))?, [0.0; 2]);
        Ok(())
    }

    proptest! {
        #[test]
        fn as_normalised((group, valid) in masked_groups()) {
            let Group { values, .. } = group;
            let known: Vec<f64> = values.iter().zip(&valid).map(|(&value, &valid)| if valid { value } else { 0.5 }).collect();
            for (values, valid) in [(&known, None), (&values, Some(&valid[..]))] {
                let (found, expected) = (of(values, valid)?, expected(values, valid)?);
                prop_assert!(found.iter().zip(expected).all(|(found, expected)| found.to_bits() == expected.to_bits()));
            }
        }
    }
}
