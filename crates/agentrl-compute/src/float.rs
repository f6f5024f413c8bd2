//! The two float types of columns, f32 and f64. Arithmetic is always f64.
//!
//! Long computations read a column block by block, compute in f64, and write the results back. Reading and writing are
//! compiled once, in this crate, independently of how the calling crate is compiled. The same holds for whole
//! functions: see [`NormalisedFloat`](crate::group::NormalisedFloat) and
//! [`ReturnsFloat`](crate::returns::ReturnsFloat).

use crate::simd::wide;
use crate::{Error, Result};

mod sealed {
    pub trait Sealed {}
    impl Sealed for f32 {}
    impl Sealed for f64 {}
}

/// Number type of a column: f32 or f64. Functions compute in f64 and round once, at the end.
pub trait Float: sealed::Sealed + Copy + Send + Sync + std::fmt::Debug + 'static {
    /// Name of the type in messages.
    const NAME: &'static str;

    /// Convert to f64, exactly.
    fn to_f64(self) -> f64;

    /// Round to the nearest number of this type; infinite if it is too large.
    fn from_f64(value: f64) -> Self;

    /// Return whether all values are finite.
    fn all_finite(values: &[Self]) -> bool;

    /// Convert `values` to f64 and write them to `numbers`.
    fn read(values: &[Self], numbers: &mut [f64]);

    /// Round `numbers` to this type and write them to `values`.
    fn write(numbers: &[f64], values: &mut [Self]);

    /// Return values as f64: the slice itself if it is f64, otherwise converted into `buffer`.
    fn doubles<'a>(values: &'a [Self], buffer: &'a mut Vec<f64>) -> &'a [f64];

    /// Return a column of either type as a slice of this type; `None` if it has the other type.
    fn own<O: Float>(column: &mut [O]) -> Option<&mut [Self]>;

    /// Return a column as the enum variant of its type.
    fn column(column: &mut [Self]) -> Column<'_>;

    /// Round a row's result to this type; an error if the rounded number is not finite.
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

/// Mutable column of either type.
#[derive(Debug)]
pub enum Column<'a> {
    /// Column of f32.
    Single(&'a mut [f32]),
    /// Column of f64.
    Double(&'a mut [f64]),
}

/// Methods with the same source for both types, compiled for each of them.
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
