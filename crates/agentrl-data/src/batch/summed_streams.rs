//! The summed streams of a pack, and the columns of action tokens that they are made of.

use agentrl_compute::pack::{Credit, Stream};

use crate::{Error, Result};

/// Columns of action tokens that the summed streams of packs are made of.
#[derive(Clone, Debug, Default)]
pub struct TokenCredit<'a> {
    /// Loss weights of an update, as [`super::Batch::token_weights`] returns them.
    pub weights: &'a [f64],
    /// Columns by name: `advantage`, `weight` (its factor), `kl_weight`, and, for tokens with two advantages,
    /// `advantage_positive` and `advantage_negative`. All are optional, but the streams `advantage_positive` and
    /// `advantage_negative` need `advantage`.
    pub columns: Vec<(&'a str, &'a [f32])>,
}

impl<'a> TokenCredit<'a> {
    /// Return the stream with a name: `advantage_positive`, `advantage_negative`, `weight_kl` or `weight_entropy`.
    pub fn stream(&self, name: &str) -> Result<Stream<'a>> {
        match name {
            "advantage_positive" => Ok(Stream::Positive(self.credit()?)),
            "advantage_negative" => Ok(Stream::Negative(self.credit()?)),
            "weight_kl" => Ok(Stream::Weight { weights: self.weights, factors: self.column("kl_weight") }),
            "weight_entropy" => Ok(Stream::Weight { weights: self.weights, factors: None }),
            _ => Err(Error::invalid(format!(
                "summed has {name:?}; use advantage_positive, advantage_negative, weight_kl or weight_entropy"
            ))),
        }
    }

    fn credit(&self) -> Result<Credit<'a>> {
        let missing = || Error::invalid("column \"advantage\" is missing; add it to the columns of the credit");
        Ok(Credit {
            weights: self.weights,
            factors: self.column("weight"),
            advantages: self.column("advantage").ok_or_else(missing)?,
            gains: self.column("advantage_positive"),
            losses: self.column("advantage_negative"),
        })
    }

    fn column(&self, name: &str) -> Option<&'a [f32]> {
        self.columns.iter().find(|(known, _)| *known == name).map(|&(_, values)| values)
    }
}
