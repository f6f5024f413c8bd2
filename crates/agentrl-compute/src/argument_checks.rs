//! Argument checks shared by several functions, so that the same mistake gives the same message everywhere.

use std::ops::Range;

use crate::{Error, Float, Result, thread_pool};

/// Check that two arguments have the same length.
pub(crate) fn same_length(name: &str, length: usize, other: &str, expected: usize) -> Result<()> {
    if length == expected {
        return Ok(());
    }
    Err(Error::invalid(format!(
        "{name} has {length} values, but {other} has {expected}; give one value of each for every row"
    )))
}

/// Check that a mask, if given, has one value for each row.
pub(crate) fn mask_length(valid: Option<&[bool]>, other: &str, expected: usize) -> Result<()> {
    valid.map_or(Ok(()), |valid| same_length("valid", valid.len(), other, expected))
}

/// Check that a value of an argument is finite, and return it.
pub(crate) fn finite(name: &str, row: usize, value: f64) -> Result<f64> {
    if value.is_finite() {
        return Ok(value);
    }
    Err(Error::invalid(format!("{name}[{row}] is {value}, but must be finite; correct it or mark the row invalid")))
}

/// Check that all values of an argument are finite.
pub(crate) fn all_finite<T: Float>(name: &str, values: &[T]) -> Result<()> {
    column(name, values, name, values.len(), None)
}

/// Check that a column is as long as another and that its valid rows are finite. Invalid rows may hold anything.
pub(crate) fn column<T: Float>(
    name: &str,
    values: &[T],
    other: &str,
    expected: usize,
    valid: Option<&[bool]>,
) -> Result<()> {
    same_length(name, values.len(), other, expected)?;
    thread_pool::map(thread_pool::pieces(values.len()), |piece| finite_piece(name, values, valid, piece)).map(drop)
}

/// Check that the valid rows of a piece are finite.
pub(crate) fn finite_piece<T: Float>(
    name: &str,
    values: &[T],
    valid: Option<&[bool]>,
    piece: Range<usize>,
) -> Result<()> {
    if T::all_finite(&values[piece.clone()]) {
        return Ok(());
    }
    for row in piece.filter(|&row| valid.is_none_or(|valid| valid[row])) {
        finite(name, row, values[row].to_f64())?;
    }
    Ok(())
}

/// Check that `count` items of `bytes` bytes each can be allocated. `count` is an option of the user.
pub(crate) fn room(name: &str, count: usize, bytes: usize) -> Result<()> {
    let found = count.checked_mul(bytes).is_some_and(|bytes| Vec::<u8>::new().try_reserve_exact(bytes).is_ok());
    if found {
        return Ok(());
    }
    Err(Error::invalid(format!("{name} is {count}: not enough memory; give a smaller number")))
}

/// Check that an option lies in a range, both ends included.
pub(crate) fn within(name: &str, value: f64, least: f64, most: f64) -> Result<()> {
    if (least..=most).contains(&value) {
        return Ok(());
    }
    let range = if most < f64::MAX { format!("from {least} to {most}") } else { format!("of at least {least}") };
    Err(Error::invalid(format!("{name} is {value}; give a number {range}")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_name_both_arguments_and_their_lengths() {
        let message = same_length("groups", 3, "scores", 4).map_err(|error| error.to_string());
        assert_eq!(
            message,
            Err("groups has 3 values, but scores has 4; give one value of each for every row".to_owned())
        );
        assert!(same_length("groups", 4, "scores", 4).is_ok());
    }

    #[test]
    fn a_missing_mask_has_every_length() {
        assert!(mask_length(None, "scores", 4).is_ok());
        assert!(mask_length(Some(&[true; 3]), "scores", 4).is_err());
    }

    #[test]
    fn only_numbers_are_finite() {
        assert!(finite("scores", 0, 1.0).is_ok());
        for value in [f64::NAN, f64::INFINITY, f64::NEG_INFINITY] {
            assert!(finite("scores", 0, value).is_err());
        }
    }
}
