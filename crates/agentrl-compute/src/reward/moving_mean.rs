//! Moving-window means of ragged rows.

use crate::argument_checks::all_finite;
use crate::ragged::Ragged;
use crate::{Error, Result};

/// Mean of each value and the next `width - 1` values of its row; of fewer values near the end of the row. Source: the
/// window entropy of ARES, arXiv:2510.08457.
///
/// ```
/// use agentrl_compute::ragged::Ragged;
/// use agentrl_compute::reward::window_means;
///
/// let found = window_means(Ragged::new(&[9.0, 1.0, 3.0, 8.0, 9.0], &[0, 4, 5])?, 2)?;
/// assert_eq!(found, [5.0, 2.0, 5.5, 8.0, 9.0]);
/// # Ok::<(), agentrl_compute::Error>(())
/// ```
///
/// # Errors
/// `InvalidInput` if a value is not finite or `width` is 0.
pub fn window_means(rows: Ragged<'_, f64>, width: usize) -> Result<Vec<f64>> {
    if width == 0 {
        return Err(Error::invalid("width is 0; give a number of at least 1"));
    }
    let mut means = Vec::new();
    for row in rows.iter() {
        all_finite("values", row)?;
        means.extend((0..row.len()).map(|first| {
            let window = &row[first..row.len().min(first.saturating_add(width))];
            window.iter().sum::<f64>() / window.len() as f64
        }));
    }
    Ok(means)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn it_is_the_naive_mean(lengths in prop::collection::vec(0_usize..9, 0..6), width in 1_usize..12) {
            let mut offsets = vec![0_i64];
            offsets.extend(lengths.iter().scan(0_i64, |end, &length| { *end += length as i64; Some(*end) }));
            let values: Vec<f64> = (0..offsets[offsets.len() - 1]).map(|place| (place * 37 % 11) as f64).collect();
            let found = window_means(Ragged::new(&values, &offsets)?, width)?;
            prop_assert_eq!(found.len(), values.len());
            for pair in offsets.windows(2) {
                for place in pair[0]..pair[1] {
                    let window: Vec<f64> = (place..pair[1]).take(width).map(|other| values[other as usize]).collect();
                    let mean = window.iter().sum::<f64>() / window.len() as f64;
                    prop_assert_eq!(found[place as usize].to_bits(), mean.to_bits());
                }
            }
        }
    }

    #[test]
    fn invalid_input_is_reported() -> Result<()> {
        assert!(window_means(Ragged::new(&[1.0], &[0, 1])?, 0).is_err());
        assert!(window_means(Ragged::new(&[f64::NAN], &[0, 1])?, 1).is_err());
        Ok(())
    }
}
