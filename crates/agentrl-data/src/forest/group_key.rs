//! The key of a group, which determines its seeds and the order of its rows independently of its number.

use agentrl_compute::rng::structural_seed;

use crate::{Error, Result};

/// Integers that identify the origin of a group: the iteration in which it began, its place there, and, if it was
/// derived from another group, its derivation. Keys are compared word by word.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct GroupKey(Vec<u64>);

impl GroupKey {
    /// Return the default key of a group: its iteration and its number.
    pub(super) fn of(iteration: i64, number: u32) -> Self {
        Self(vec![iteration as u64, u64::from(number)])
    }

    pub(super) fn new(words: &[u64]) -> Result<Self> {
        if words.is_empty() {
            return Err(Error::invalid("key is empty; give the numbers that identify the group"));
        }
        if let Some(place) = words.iter().position(|&word| i64::try_from(word).is_err()) {
            return Err(Error::invalid(format!(
                "key[{place}] is {}; give a number of at most {}",
                words[place],
                i64::MAX
            )));
        }
        Ok(Self(words.to_vec()))
    }

    pub(super) fn words(&self) -> &[u64] {
        &self.0
    }

    /// Return the two words of the group in the seeds of its segments; they come after the run's seed. A key of two
    /// words gives its own words. Any other key gives its hash and `u64::MAX`, which is larger than any second word of
    /// a key.
    pub(super) fn seeding(&self) -> [u64; 2] {
        match self.0[..] {
            [first, second] => [first, second],
            _ => [structural_seed(&self.0), u64::MAX],
        }
    }
}
