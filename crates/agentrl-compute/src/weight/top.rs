//! Options of choices by score: how many rows of a group, which end of the scores, and what happens to ties.

use crate::check::within;
use crate::{Error, Result, names};

names! {
    /// How a part of a number of rows becomes whole.
    "rounding" Rounding {
        /// Down.
        Floor = "floor",
        /// Up.
        Ceil = "ceil",
        /// To the nearest; halves to even.
        Nearest = "nearest",
    }
}

/// How many rows of a group.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Amount {
    /// This number, or all if there are fewer.
    Count(usize),
    /// A part of the valid rows, at least `at_least` of them.
    Fraction {
        /// From 0 to 1.
        fraction: f64,
        /// How the part becomes whole.
        rounding: Rounding,
        /// The least number, if there are as many.
        at_least: usize,
    },
}

impl Amount {
    /// The amount of a count or a fraction, exactly one of which is given.
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
            _ => Err(Error::invalid("count and fraction name the same thing; give exactly one of them")),
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
    /// The treatment of rows that equal the last chosen one.
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
    /// How many rows of each group.
    pub amount: Amount,
    /// Whether those with the largest scores, or with the smallest.
    pub largest: bool,
    /// The treatment of rows that equal the last chosen one.
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
