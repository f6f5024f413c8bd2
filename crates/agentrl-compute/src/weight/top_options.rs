//! Options of selection by score: the number of rows of a group, the end of the scores, and the treatment of ties.

use crate::argument_checks::within;
use crate::{Error, Result, names};

names! {
    /// Rounding of a fraction of rows to a whole number.
    "rounding" Rounding {
        /// Down.
        Floor = "floor",
        /// Up.
        Ceil = "ceil",
        /// To the nearest; ties to even.
        Nearest = "nearest",
    }
}

/// Number of rows to choose in each group.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Amount {
    /// This number, or all rows if there are fewer.
    Count(usize),
    /// A fraction of the valid rows, at least `at_least` of them.
    Fraction {
        /// From 0 to 1.
        fraction: f64,
        /// Rounding of the result to a whole number.
        rounding: Rounding,
        /// The smallest number, as far as there are enough rows.
        at_least: usize,
    },
}

impl Amount {
    /// Create an amount from a count or a fraction; exactly one must be given.
    ///
    /// # Errors
    /// `InvalidInput` for both or none, or a fraction outside [0, 1].
    pub fn from_options(count: Option<usize>, fraction: Option<f64>, rounding: &str, at_least: usize) -> Result<Self> {
        match (count, fraction) {
            (Some(count), None) => Ok(Self::Count(count)),
            (None, Some(fraction)) => {
                within("fraction", fraction, 0.0, 1.0)?;
                Ok(Self::Fraction { fraction, rounding: Rounding::from_name(rounding)?, at_least })
            }
            _ => Err(Error::invalid("count and fraction are both given, or neither is; give exactly one of them")),
        }
    }

    pub(super) fn of(self, rows: usize) -> usize {
        match self {
            Self::Count(count) => count.min(rows),
            Self::Fraction { fraction, rounding, at_least } => {
                let part = fraction * rows as f64;
                let part = match rounding {
                    Rounding::Floor => part.floor(),
                    Rounding::Ceil => part.ceil(),
                    Rounding::Nearest => part.round_ties_even(),
                };
                (part as usize).max(at_least).min(rows)
            }
        }
    }
}

names! {
    /// Treatment of rows that tie with the last chosen one.
    "ties" Ties {
        /// Earlier rows are chosen first, so that the number is exact.
        First = "first",
        /// All are chosen.
        All = "all",
    }
}

/// Options of [`top`](super::top()).
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Top {
    /// Number of rows to choose in each group.
    pub amount: Amount,
    /// Whether the rows with the largest scores are chosen, or those with the smallest.
    pub largest: bool,
    /// Treatment of rows that tie with the last chosen one.
    pub ties: Ties,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_and_amounts() -> Result<()> {
        let message = |result: Result<Amount>| result.map_or_else(|error| error.to_string(), |_| "fine".to_owned());
        assert!(message(Amount::from_options(None, None, "floor", 0)).starts_with("count and fraction"));
        assert!(message(Amount::from_options(Some(1), Some(0.5), "floor", 0)).starts_with("count and fraction"));
        assert_eq!(
            message(Amount::from_options(None, Some(1.5), "floor", 0)),
            "fraction is 1.5; give a number from 0 to 1"
        );
        assert!(message(Amount::from_options(None, Some(0.5), "half", 0)).starts_with("rounding is \"half\""));
        for (rounding, expected) in [("floor", 2), ("ceil", 3), ("nearest", 2)] {
            assert_eq!(Amount::from_options(None, Some(0.5), rounding, 0)?.of(5), expected);
        }
        assert_eq!(Amount::from_options(None, Some(0.0), "floor", 1)?.of(5), 1);
        assert_eq!(Amount::from_options(None, Some(0.0), "floor", 1)?.of(0), 0);
        assert!(Ties::from_name("some").is_err());
        Ok(())
    }
}
