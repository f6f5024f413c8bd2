//! The frozen 128-bit content hash: the same bytes have the same hash in every version, on every machine.
//!
//! State keys are stored in files, so this function must never change. It is XXH3 with 128 bits and seed 0, in xxHash's
//! canonical (big-endian) byte order, as returned by `xxhash.xxh3_128_digest` in Python.

use std::fmt;

use xxhash_rust::xxh3::{Xxh3, xxh3_128};

/// Number of tokens converted to bytes at a time, without allocating.
const TOKENS_AT_ONCE: usize = 256;

/// Return the hash of bytes.
///
/// ```
/// use agentrl_compute::hash::hash_bytes;
///
/// assert_eq!(hash_bytes(b"")[..4], [0x99, 0xaa, 0x06, 0xd3]);
/// ```
pub fn hash_bytes(bytes: &[u8]) -> [u8; 16] {
    xxh3_128(bytes).to_be_bytes()
}

/// Return the hash of tokens: the hash of their little-endian bytes.
///
/// ```
/// use agentrl_compute::hash::{hash_bytes, hash_tokens};
///
/// assert_eq!(hash_tokens(&[1, -2]), hash_bytes(&[1, 0, 0, 0, 0xfe, 0xff, 0xff, 0xff]));
/// ```
pub fn hash_tokens(tokens: &[i32]) -> [u8; 16] {
    let mut hasher = Xxh3::new();
    update(&mut hasher, tokens);
    hasher.digest128().to_be_bytes()
}

fn update(hasher: &mut Xxh3, tokens: &[i32]) {
    let mut bytes = [0; 4 * TOKENS_AT_ONCE];
    for block in tokens.chunks(TOKENS_AT_ONCE) {
        for (token, place) in block.iter().zip(bytes.chunks_exact_mut(4)) {
            place.copy_from_slice(&token.to_le_bytes());
        }
        hasher.update(&bytes[..4 * block.len()]);
    }
}

/// Hasher of several parts. Each part is hashed after its number of bytes, so that parts cannot run into each other.
///
/// ```
/// use agentrl_compute::hash::Parts;
///
/// let hash = |parts: [&[u8]; 2]| {
///     let mut all = Parts::default();
///     parts.map(|part| all.add(part));
///     all.hash()
/// };
/// assert_ne!(hash([b"ab", b"c"]), hash([b"a", b"bc"]));
/// ```
#[derive(Clone, Default)]
pub struct Parts(Xxh3);

impl fmt::Debug for Parts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Parts").field(&u128::from_be_bytes(self.hash())).finish()
    }
}

impl Parts {
    /// Add the bytes of a part.
    pub fn add(&mut self, bytes: &[u8]) {
        self.0.update(&(bytes.len() as u64).to_le_bytes());
        self.0.update(bytes);
    }

    /// Add the little-endian bytes of tokens as a part.
    pub fn add_tokens(&mut self, tokens: &[i32]) {
        self.0.update(&(size_of_val(tokens) as u64).to_le_bytes());
        update(&mut self.0, tokens);
    }

    /// Return the hash of all parts added so far.
    pub fn hash(&self) -> [u8; 16] {
        self.0.digest128().to_be_bytes()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// Expected values come from xxHash's own library.
    #[test]
    fn the_hash_never_changes() {
        let counting: Vec<u8> = (0..=255).collect();
        let golden: [(&[u8], u128); 4] = [
            (b"", 0x99aa_06d3_0147_98d8_6001_c324_468d_497f),
            (b"abc", 0x06b0_5ab6_733a_6185_78af_5f94_892f_3950),
            (b"the state that an agent acted on", 0xaa17_18e7_f265_6dc8_018d_78ab_b582_3e14),
            (&counting, 0xf1f8_a93f_5084_9ac3_9408_a443_3b95_2d71),
        ];
        for (bytes, hash) in golden {
            assert_eq!(u128::from_be_bytes(hash_bytes(bytes)), hash, "{bytes:?}");
        }
        let hash = u128::from_be_bytes(hash_tokens(&[0, 1, -1, i32::MAX, i32::MIN]));
        assert_eq!(hash, 0x357e_d432_83a6_2007_25ab_7af6_12f5_912d);
    }

    proptest! {
        #[test]
        fn tokens_hash_as_their_bytes(tokens in prop::collection::vec(any::<i32>(), 0..3 * TOKENS_AT_ONCE)) {
            let bytes: Vec<u8> = tokens.iter().flat_map(|token| token.to_le_bytes()).collect();
            prop_assert_eq!(hash_tokens(&tokens), hash_bytes(&bytes));
        }

        #[test]
        fn parts_hash_as_their_bytes_behind_their_lengths(
            parts in prop::collection::vec(prop::collection::vec(any::<i32>(), 0..2 * TOKENS_AT_ONCE), 0..4), as_tokens in any::<u8>(),
        ) {
            let (mut all, mut bytes) = (Parts::default(), Vec::new());
            for (place, tokens) in parts.iter().enumerate() {
                let part: Vec<u8> = tokens.iter().flat_map(|token| token.to_le_bytes()).collect();
                bytes.extend((part.len() as u64).to_le_bytes());
                bytes.extend(&part);
                if as_tokens >> place & 1 == 1 { all.add_tokens(tokens) } else { all.add(&part) }
            }
            prop_assert_eq!(all.hash(), hash_bytes(&bytes));
        }
    }
}
