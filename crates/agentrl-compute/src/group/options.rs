//! Options of group normalisation. They name choices that papers leave implicit.

use crate::{Error, Result, names};

names! {
    /// The centre that is subtracted from a value.
    "center" Center {
        /// Nothing.
        None = "none",
        /// The mean of the group's votes.
        Mean = "mean",
        /// The median of the group's votes.
        Median = "median",
        /// The mean of the group's other votes.
        LeaveOneOut = "leave_one_out",
        /// A number that the caller gives for each row.
        Baseline = "baseline",
    }
}

names! {
    /// The scale that a centred value is divided by.
    "scale" Scale {
        /// Nothing.
        None = "none",
        /// The standard deviation of the votes.
        Std = "std",
        /// The median distance from the median.
        Mad = "mad",
        /// The largest value minus the smallest.
        Range = "range",
        /// The density of a Beta distribution, fitted to the means of all groups, at the group's mean (`BNPO`).
        Beta = "beta",
        /// A number that the caller gives for each row.
        Divisor = "divisor",
    }
}

names! {
    /// Median of an even number of values.
    "median" Middle {
        /// The mean of the two middle values (`NumPy`).
        Midpoint = "midpoint",
        /// The lower of the two middle values (`PyTorch`).
        Lower = "lower",
    }
}

names! {
    /// The result of rows of a group with too few votes.
    "singleton" Singleton {
        /// Zero: there is nothing to compare with.
        Zero = "zero",
        /// Their own value, as if the centre were 0 and the spread 1 (verl).
        Raw = "raw",
    }
}

/// Options of [`normalise`](super::normalise).
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Options {
    /// The centre that is subtracted.
    pub center: Center,
    /// The scale that the difference is divided by.
    pub scale: Scale,
    /// Median of an even number of values.
    pub median: Middle,
    /// The variance is the sum of squares over `count - ddof`: 1 (unbiased) or 0.
    pub ddof: u32,
    /// Added to the spread.
    pub eps: f64,
    /// Added to the square of the spread, under the root.
    pub variance_eps: f64,
    /// Lower bound of the spread.
    pub scale_at_least: f64,
    /// If above 0, groups whose spread is at most this get 0.
    pub scale_above: f64,
    /// Groups with fewer votes follow `singleton`; `None`: the smallest number that centre and scale need.
    pub votes_at_least: Option<u64>,
    /// The result of rows of a group with too few votes.
    pub singleton: Singleton,
    /// Results are clipped to at most this magnitude.
    pub at_most: Option<f64>,
}

impl Default for Options {
    /// Return GRPO's options: mean, unbiased standard deviation plus 1e-6; 0 for groups with a single member.
    fn default() -> Self {
        Self {
            center: Center::Mean,
            scale: Scale::Std,
            median: Middle::Midpoint,
            ddof: 1,
            eps: 1e-6,
            variance_eps: 0.0,
            scale_at_least: 0.0,
            scale_above: 0.0,
            votes_at_least: None,
            singleton: Singleton::Zero,
            at_most: None,
        }
    }
}

impl Options {
    pub(super) fn check(&self) -> Result<()> {
        check_ddof(self.ddof)?;
        let at_most = self.at_most.unwrap_or(f64::MAX);
        for (name, value) in [
            ("eps", self.eps),
            ("variance_eps", self.variance_eps),
            ("scale_at_least", self.scale_at_least),
            ("scale_above", self.scale_above),
            ("at_most", at_most),
        ] {
            if !(0.0..f64::INFINITY).contains(&value) {
                return Err(Error::invalid(format!("{name} is {value}; give a finite number of at least 0")));
            }
        }
        Ok(())
    }

    /// Return the smallest number of votes with which a group is normalised.
    pub(super) fn fewest(&self) -> u64 {
        let center = match self.center {
            Center::Mean | Center::Median | Center::LeaveOneOut => 2,
            Center::None | Center::Baseline => 0,
        };
        let scale = match self.scale {
            Scale::Std | Scale::Mad | Scale::Range => 2,
            Scale::Beta => 1,
            Scale::None | Scale::Divisor => 0,
        };
        let needed = self.votes_at_least.unwrap_or(0).max(center);
        needed.max(scale)
    }
}

pub(crate) fn check_ddof(ddof: u32) -> Result<()> {
    if ddof <= 1 {
        return Ok(());
    }
    Err(Error::invalid(format!("ddof is {ddof}; use 1 (unbiased variance) or 0 (population variance)")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names() -> Result<()> {
        assert_eq!((Scale::from_name("std")?, Scale::from_name("beta")?), (Scale::Std, Scale::Beta));
        assert_eq!((Singleton::from_name("raw")?, Center::from_name("none")?), (Singleton::Raw, Center::None));
        assert_eq!(Middle::from_name("lower")?, Middle::Lower);
        let message = Singleton::from_name("one").map_err(|error| error.to_string());
        assert_eq!(message, Err("singleton is \"one\"; use \"zero\" or \"raw\"".to_owned()));
        Ok(())
    }

    #[test]
    fn options_out_of_range_are_refused() {
        let bad = [
            Options { ddof: 2, ..Options::default() },
            Options { eps: -1.0, ..Options::default() },
            Options { variance_eps: f64::NAN, ..Options::default() },
            Options { scale_at_least: f64::INFINITY, ..Options::default() },
            Options { at_most: Some(-1.0), ..Options::default() },
        ];
        assert!(bad.iter().all(|options| options.check().is_err()));
        assert!(Options::default().check().is_ok());
    }
}
