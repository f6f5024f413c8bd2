//! Counter-based random numbers: each is a hash of the place where it is used, independent of the order of arrival.
//!
//! Both functions are 64-bit XXH3 with seed 0 over little-endian words. They are frozen: a run that is resumed with a
//! later version draws the same numbers.

use xxhash_rust::xxh3::{Xxh3, xxh3_64};

/// Return the seed for a place in a run, from the integers that identify it. It fits 63 bits, so an `i64` can hold it.
///
/// The length of the list matters: `[1]` and `[1, 0]` give unrelated seeds.
///
/// ```
/// use agentrl_compute::rng::structural_seed;
///
/// let (run, iteration, group, member) = (7, 0, 3, 1);
/// let seed = structural_seed(&[run, iteration, group, member]);
/// assert!(i64::try_from(seed).is_ok());
/// assert_ne!(seed, structural_seed(&[run, iteration, member, group]));
/// ```
pub fn structural_seed(parts: &[u64]) -> u64 {
    let mut hasher = Xxh3::new();
    for part in parts {
        hasher.update(&part.to_le_bytes());
    }
    hasher.digest() >> 1
}

/// Return the `counter`-th uniform random number of a seed, in [0, 1), with 53 random bits.
///
/// ```
/// use agentrl_compute::rng::uniform;
///
/// assert!((0.0..1.0).contains(&uniform(1, 0)));
/// assert!((uniform(1, 0) - uniform(1, 1)).abs() > 0.0);
/// ```
pub fn uniform(seed: u64, counter: u64) -> f64 {
    (word(seed, counter) >> 11) as f64 / (1_u64 << 53) as f64
}

/// Return the 64 random bits from which [`uniform`] is computed. In a few nanoseconds, this also derives a seed from a
/// seed and a number.
pub(crate) fn word(seed: u64, counter: u64) -> u64 {
    let mut words = [0; 16];
    words[..8].copy_from_slice(&seed.to_le_bytes());
    words[8..].copy_from_slice(&counter.to_le_bytes());
    xxh3_64(&words)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Expected values come from xxHash's own library.
    #[test]
    fn the_numbers_never_change() {
        let many: Vec<u64> = (0..40).collect();
        let seeds =
            [structural_seed(&[]), structural_seed(&[0]), structural_seed(&[7, 0, 3, 1]), structural_seed(&many)];
        assert_eq!(
            seeds,
            [
                1_622_210_670_741_801_569,
                7_187_073_606_193_763_948,
                6_945_856_000_368_859_427,
                3_275_732_639_833_027_255
            ]
        );
        let numbers = [uniform(0, 0), uniform(0, 1), uniform(u64::MAX, 12)].map(f64::to_bits);
        assert_eq!(
            numbers,
            [0.815_039_300_773_898_9_f64, 0.050_715_366_213_398_56, 0.764_506_236_743_473_3].map(f64::to_bits)
        );
    }

    #[test]
    fn seeds_have_63_bits_and_do_not_collide() {
        let mut seeds: Vec<u64> = (0..64_u64).flat_map(|a| (0..64).map(move |b| structural_seed(&[a, b]))).collect();
        seeds.extend((0..64).map(|a| structural_seed(&[a])));
        assert!(seeds.iter().all(|&seed| seed >> 63 == 0));
        assert!(seeds.iter().any(|&seed| seed >> 62 == 1));
        let count = seeds.len();
        seeds.sort_unstable();
        seeds.dedup();
        assert_eq!(seeds.len(), count);
    }

    /// Mean, variance, evenness and correlation of a long sequence, along counters and along seeds.
    #[test]
    fn the_numbers_are_uniform_and_independent() {
        const COUNT: usize = 1 << 17;
        let count = COUNT as f64;
        let sequences: [fn(u64) -> f64; 3] =
            [|i| uniform(5, i), |i| uniform(i, 0), |i| uniform(structural_seed(&[i]), 3)];
        for sequence in sequences {
            let numbers: Vec<f64> = (0..COUNT as u64).map(sequence).collect();
            assert!(numbers.iter().all(|number| (0.0..1.0).contains(number)));
            let mean = numbers.iter().sum::<f64>() / count;
            let variance = numbers.iter().map(|number| (number - 0.5).powi(2)).sum::<f64>() / count;
            // Five standard errors each: sqrt(1/12/n), sqrt(1/180/n), 1/sqrt(n).
            assert!((mean - 0.5).abs() < 5.0 * (1.0 / 12.0 / count).sqrt());
            assert!((variance - 1.0 / 12.0).abs() < 5.0 * (1.0 / 180.0 / count).sqrt());
            let products = numbers.windows(2).map(|pair| (pair[0] - 0.5) * (pair[1] - 0.5));
            assert!((products.sum::<f64>() * 12.0 / count).abs() < 5.0 / count.sqrt());
            let mut buckets = [0.0_f64; 256];
            for number in numbers {
                buckets[(number * 256.0) as usize] += 1.0;
            }
            let expected = count / 256.0;
            let chi_squared = buckets.iter().map(|found| (found - expected).powi(2) / expected).sum::<f64>();
            // 255 degrees of freedom: mean 255, standard deviation 22.6.
            assert!((255.0 - 113.0..255.0 + 113.0).contains(&chi_squared), "{chi_squared}");
        }
    }
}
