//! Look up the places of tasks of a batch in a list of known tasks.

use std::collections::HashMap;

use crate::{Error, Result};

/// Return the place of each row of `wanted` in `known`, or -1 if it is not there.
///
/// ```
/// use agentrl_compute::select::places;
///
/// assert_eq!(places(&[7, 3, 9], &[9, 4, 7])?, [2, -1, 0]);
/// # Ok::<(), agentrl_compute::Error>(())
/// ```
///
/// # Errors
/// `InvalidInput` if `known` has a wanted row twice.
pub fn places(known: &[i64], wanted: &[i64]) -> Result<Vec<i64>> {
    let mut found: HashMap<i64, i64> = wanted.iter().map(|&row| (row, -1)).collect();
    for (place, row) in known.iter().enumerate() {
        if let Some(at) = found.get_mut(row) {
            if *at >= 0 {
                return Err(Error::invalid(format!("known has row {row} at {at} and at {place}; give each row once")));
            }
            *at = place as i64;
        }
    }
    Ok(wanted.iter().map(|row| found[row]).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_are_found_or_not() -> Result<()> {
        assert_eq!(places(&[5, 2, 8], &[8, 8, 5, 0])?, [2, 2, 0, -1]);
        assert!(places(&[], &[])?.is_empty());
        let message = places(&[4, 4], &[4]).map_err(|error| error.to_string());
        assert_eq!(message, Err("known has row 4 at 0 and at 1; give each row once".to_owned()));
        Ok(())
    }
}
