//! A fast hasher with the same hashes in every run.

use std::hash::Hasher;

use xxhash_rust::xxh3::xxh3_64_with_seed;

/// Hash a word by one multiplication. Both halves of the product are combined, because a table uses the lowest and the
/// highest bits.
pub(super) fn mix(seed: u64, word: u64) -> u64 {
    let product = u128::from(seed ^ word ^ 0x9e37_79b9_7f4a_7c15) * 0xd6e8_feb8_6659_fd93_u128;
    (product >> 64) as u64 ^ product as u64
}

/// Hasher of words by one multiplication and of everything else by XXH3: several times faster than the standard hasher.
#[derive(Default)]
pub(crate) struct FixedHasher(u64);

impl Hasher for FixedHasher {
    fn write(&mut self, bytes: &[u8]) {
        self.0 = xxh3_64_with_seed(bytes, self.0);
    }

    fn write_u64(&mut self, word: u64) {
        self.0 = mix(self.0, word);
    }

    fn write_usize(&mut self, word: usize) {
        self.write_u64(word as u64);
    }

    fn finish(&self) -> u64 {
        self.0
    }
}
