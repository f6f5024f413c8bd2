//! Names for what papers leave implicit.

use crate::{Error, Result};

/// What a centred score is divided by.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scale {
    /// Nothing.
    None,
    /// The group's standard deviation plus `eps`.
    Std,
}

impl Scale {
    /// The scale of a name.
    ///
    /// # Errors
    /// `InvalidInput` for a name other than `none` and `std`.
    pub fn from_name(name: &str) -> Result<Self> {
        match name {
            "none" => Ok(Self::None),
            "std" => Ok(Self::Std),
            _ => Err(Error::invalid(format!("scale is {name:?}; use \"std\" or \"none\""))),
        }
    }
}

/// What the only member of a group gets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Singleton {
    /// Zero: it has nothing to be compared with.
    Zero,
    /// Its own score, as if the mean were 0 and the standard deviation 1 (verl).
    Raw,
}

impl Singleton {
    /// The rule of a name.
    ///
    /// # Errors
    /// `InvalidInput` for a name other than `zero` and `raw`.
    pub fn from_name(name: &str) -> Result<Self> {
        match name {
            "zero" => Ok(Self::Zero),
            "raw" => Ok(Self::Raw),
            _ => Err(Error::invalid(format!("singleton is {name:?}; use \"zero\" or \"raw\""))),
        }
    }
}

/// How a score is compared with its group.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct GroupOptions {
    /// What the centred score is divided by.
    pub scale: Scale,
    /// The variance is the sum of squares over `count - ddof`: 1 (unbiased) or 0.
    pub ddof: u32,
    /// Added to the standard deviation.
    pub eps: f64,
    /// What the only member of a group gets.
    pub singleton: Singleton,
}

impl Default for GroupOptions {
    /// GRPO's: unbiased standard deviation plus 1e-6; nothing for single members.
    fn default() -> Self {
        Self { scale: Scale::Std, ddof: 1, eps: 1e-6, singleton: Singleton::Zero }
    }
}

impl GroupOptions {
    pub(super) fn check(&self) -> Result<()> {
        check_ddof(self.ddof)?;
        if self.eps.is_finite() && self.eps >= 0.0 {
            return Ok(());
        }
        Err(Error::invalid(format!("eps is {}, but must be a number of at least 0", self.eps)))
    }
}

pub(super) fn check_ddof(ddof: u32) -> Result<()> {
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
        assert_eq!((Scale::from_name("std")?, Scale::from_name("none")?), (Scale::Std, Scale::None));
        assert_eq!((Singleton::from_name("raw")?, Singleton::from_name("zero")?), (Singleton::Raw, Singleton::Zero));
        let messages = [
            Scale::from_name("mad").map_err(|error| error.to_string()).err(),
            Singleton::from_name("one").map_err(|error| error.to_string()).err(),
        ];
        assert_eq!(messages[0].as_deref(), Some("scale is \"mad\"; use \"std\" or \"none\""));
        assert_eq!(messages[1].as_deref(), Some("singleton is \"one\"; use \"zero\" or \"raw\""));
        Ok(())
    }

    #[test]
    fn options_out_of_range_are_refused() {
        let bad = [
            GroupOptions { ddof: 2, ..GroupOptions::default() },
            GroupOptions { eps: -1.0, ..GroupOptions::default() },
            GroupOptions { eps: f64::NAN, ..GroupOptions::default() },
        ];
        assert!(bad.iter().all(|options| options.check().is_err()));
        assert!(GroupOptions::default().check().is_ok());
    }
}
