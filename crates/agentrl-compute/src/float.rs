//! The two float types that columns may have. Arithmetic is always f64.
//!
//! Long work reads a column block by block, computes in f64 alone, and writes the column back. Reading and writing are compiled
//! once, here, however the calling crate is compiled. So are whole functions: see
//! [`NormalisedFloat`](crate::group::NormalisedFloat) and [`ReturnsFloat`](crate::returns::ReturnsFloat).

use crate::simd::wide;
use crate::{Error, Result};

mod sealed {
    pub trait Sealed {}
    impl Sealed for f32 {}
    impl Sealed for f64 {}
}

/// A column's number: f32 or f64. Functions compute in f64 and round once, at the end.
pub trait Float: sealed::Sealed + Copy + Send + Sync + std::fmt::Debug + 'static {
    /// Name of the type in messages.
    const NAME: &'static str;

    /// The same number as f64, exactly.
    fn to_f64(self) -> f64;

    /// The nearest number of this type; infinite if it is too large.
    fn from_f64(value: f64) -> Self;

    /// Whether all are finite.
    fn all_finite(values: &[Self]) -> bool;

    /// Writes numbers as f64.
    fn read(values: &[Self], numbers: &mut [f64]);

    /// Writes the nearest numbers of this type.
    fn write(numbers: &[f64], values: &mut [Self]);

    /// Numbers as f64: as they stand, or read into a buffer.
    fn doubles<'a>(values: &'a [Self], buffer: &'a mut Vec<f64>) -> &'a [f64];

    /// A column of either type, if its type is this one.
    fn own<O: Float>(column: &mut [O]) -> Option<&mut [Self]>;

    /// A column, by its type.
    fn column(column: &mut [Self]) -> Column<'_>;

    /// A row's result in this type; an error if it is too large for it.
    fn result(row: usize, value: f64) -> Result<Self> {
        let rounded = Self::from_f64(value);
        if rounded.to_f64().is_finite() {
            return Ok(rounded);
        }
        Err(Error::overflow(format!(
            "the result of row {row} is {value:e}, too large for {}; scale the input",
            Self::NAME
        )))
    }
}

/// A column of one of the types.
#[derive(Debug)]
pub enum Column<'a> {
    /// Of f32.
    Single(&'a mut [f32]),
    /// Of f64.
    Double(&'a mut [f64]),
}

/// Methods that read the same for both types, compiled for each of them.
macro_rules! in_vectors {
    () => {
        fn all_finite(values: &[Self]) -> bool {
            wide(
                #[inline(always)]
                || values.iter().fold(true, |finite, value| finite & value.is_finite()),
            )
        }

        fn read(values: &[Self], numbers: &mut [f64]) {
            wide(
                #[inline(always)]
                || numbers.iter_mut().zip(values).for_each(|(number, value)| *number = value.to_f64()),
            );
        }

        fn write(numbers: &[f64], values: &mut [Self]) {
            wide(
                #[inline(always)]
                || values.iter_mut().zip(numbers).for_each(|(value, &number)| *value = Self::from_f64(number)),
            );
        }
    };
}

impl Float for f32 {
    const NAME: &'static str = "f32";

    in_vectors!();

    fn own<O: Float>(column: &mut [O]) -> Option<&mut [Self]> {
        if let Column::Single(column) = O::column(column) { Some(column) } else { None }
    }

    fn column(column: &mut [Self]) -> Column<'_> {
        Column::Single(column)
    }

    #[inline(always)]
    fn to_f64(self) -> f64 {
        f64::from(self)
    }

    #[inline(always)]
    fn from_f64(value: f64) -> Self {
        value as f32
    }

    fn doubles<'a>(values: &'a [Self], buffer: &'a mut Vec<f64>) -> &'a [f64] {
        buffer.resize(values.len(), 0.0);
        Self::read(values, buffer);
        buffer
    }
}

impl Float for f64 {
    const NAME: &'static str = "f64";

    in_vectors!();

    fn own<O: Float>(column: &mut [O]) -> Option<&mut [Self]> {
        if let Column::Double(column) = O::column(column) { Some(column) } else { None }
    }

    fn column(column: &mut [Self]) -> Column<'_> {
        Column::Double(column)
    }

    #[inline(always)]
    fn to_f64(self) -> f64 {
        self
    }

    #[inline(always)]
    fn from_f64(value: f64) -> Self {
        value
    }

    fn doubles<'a>(values: &'a [Self], _: &'a mut Vec<f64>) -> &'a [f64] {
        values
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_result_that_does_not_fit_is_an_error() {
        assert_eq!(f32::result(3, 0.1).ok().map(f32::to_bits), Some(0.1_f32.to_bits()));
        let message = f32::result(3, 1e39).map_err(|error| error.to_string());
        assert_eq!(message, Err("the result of row 3 is 1e39, too large for f32; scale the input".to_owned()));
        assert!(f64::result(3, 1e39).is_ok());
        assert!(f64::result(3, f64::NAN).is_err());
    }
}
