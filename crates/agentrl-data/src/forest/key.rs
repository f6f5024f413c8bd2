//! The key of a group, for all that may not depend on its number: seeds, and the order of rows.

use agentrl_compute::rng::structural_seed;

use crate::{Error, Result};

/// Whole numbers of a group's origin: the iteration in which it began and its place there, and for a group
/// that came of another one how it did. Keys are ordered word by word.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct GroupKey(Vec<u64>);

impl GroupKey {
    /// Return the key of a group that has no other.
    pub(super) fn of(iteration: i64, number: u32) -> Self {
        Self(vec![iteration as u64, u64::from(number)])
    }

    pub(super) fn new(words: &[u64]) -> Result<Self> {
        if words.is_empty() {
            return Err(Error::invalid("key is empty; give the numbers that identify the group"));
        }
        if let Some(place) = words.iter().position(|&word| i64::try_from(word).is_err()) {
            return Err(Error::invalid(format!("key[{place}] is {}; it must be at most {}", words[place], i64::MAX)));
        }
        Ok(Self(words.to_vec()))
    }

    pub(super) fn words(&self) -> &[u64] {
        &self.0
    }

    /// Return the first parts of the seeds of the group's segments, after the run's. Two words are taken as they are; no
    /// second word is as great as the one that tells hashes of other keys from them.
    pub(super) fn seeding(&self) -> [u64; 2] {
        match self.0[..] {
            [first, second] => [first, second],
            _ => [structural_seed(&self.0), u64::MAX],
        }
    }
}
