use proptest::prelude::*;

use super::*;
use crate::{Result, thread_pool};

/// Quadratic reference implementation.
fn naive<K: PartialEq>(keys: &[K]) -> Keys {
    let mut seen: Vec<&K> = Vec::new();
    let mut ids = Vec::new();
    for key in keys {
        let id = seen.iter().position(|&known| known == key).unwrap_or(seen.len());
        if id == seen.len() {
            seen.push(key);
        }
        ids.push(id as u32);
    }
    Keys { ids, count: seen.len() as u32 }
}

#[test]
fn no_rows_have_no_keys() {
    let none = Some(Keys { ids: vec![], count: 0 });
    assert_eq!(dense_integers::<i64>(&[]).ok(), none);
    assert_eq!(dense_bytes::<str>([]).ok(), none);
    assert_eq!(pair(&[], &[]).ok(), none);
}

#[test]
fn pairs_of_different_length_are_refused() {
    let message = pair(&[0, 1], &[0]).map_err(|error| error.to_string());
    assert_eq!(message, Err("second has 1 values, but first has 2; give one value of each for every row".to_owned()));
}

/// Keys that collide under a weak hash: multiples of large powers of two, neighbours, both ends of the range.
#[test]
fn regular_keys_stay_apart_and_fast() -> Result<()> {
    let patterns: [fn(i64) -> i64; 4] = [|i| i << 44, |i| i, |i| i << 32 | 1, |i| i64::MIN + i];
    for pattern in patterns {
        let keys: Vec<i64> = (0..1 << 16).map(pattern).collect();
        let found = dense_integers(&keys)?;
        assert_eq!(found.count, 1 << 16);
        assert!(found.ids.iter().copied().eq(0..1 << 16));
    }
    Ok(())
}

/// Both ends of the range of every width, and more rows than one piece, on any number of threads.
#[test]
fn every_width_and_any_number_of_threads() -> Result<()> {
    assert_eq!(dense_integers(&[i8::MIN, i8::MAX, i8::MIN])?.ids, [0, 1, 0]);
    assert_eq!(dense_integers(&[u64::MAX, 0, u64::MAX])?.ids, [0, 1, 0]);
    assert_eq!(dense_integers(&[i64::MAX, i64::MIN, i64::MAX])?.ids, [0, 1, 0]);
    let rows = 3 * thread_pool::PIECE + 11;
    let keys: Vec<u64> = (0..rows as u64).map(|row| crate::rng::structural_seed(&[row / 5 % 700])).collect();
    let texts: Vec<String> = keys.iter().map(u64::to_string).collect();
    let words: Vec<u128> = keys.iter().map(|&key| u128::from(key) << 32 | 0xC).collect();
    let expected: Vec<u32> = (0..rows as u32).map(|row| row / 5 % 700).collect();
    for threads in [1, 2, 4] {
        thread_pool::set_threads(threads)?;
        let found = dense_integers(&keys)?;
        assert!(found.count == 700 && found.ids == expected);
        assert_eq!(dense_integers(&label_integers(&keys)?.ids)?, found);
        assert_eq!(*label_integers(&expected)?.ids, expected);
        assert_eq!(dense_bytes(&texts)?, found);
        assert_eq!(dense_bytes_of(rows, |row| texts[row].as_bytes())?, found);
        assert_eq!(dense_words(&words)?, found);
    }
    Ok(())
}

proptest! {
    #[test]
    fn integers(keys in prop::collection::vec(prop_oneof![-3_i64..3, any::<i64>()], 0..60)) {
        prop_assert_eq!(dense_integers(&keys)?, naive(&keys));
    }

    /// For keys that are close together or far apart, labels distinguish the same rows as dense ids.
    #[test]
    fn labels(keys in prop::collection::vec(prop_oneof![-30_i64..30, -30_i64..30, any::<i64>()], 0..60), near in any::<bool>()) {
        let keys: Vec<i64> = keys.into_iter().map(|key| if near { key % 30 } else { key }).collect();
        let Labels { ids, count, sorted } = label_integers(&keys)?;
        prop_assert!(count <= keys.len() && ids.iter().all(|&id| (id as usize) < count));
        prop_assert_eq!(sorted, keys.is_sorted());
        prop_assert_eq!(dense_integers(&ids)?, naive(&keys));
    }

    #[test]
    fn bytes(keys in prop::collection::vec(prop::collection::vec(0_u8..3, 0..3), 0..60)) {
        prop_assert_eq!(dense_bytes(&keys)?, naive(&keys));
    }

    /// Words that differ in one half, or in both.
    #[test]
    fn words(keys in prop::collection::vec((prop_oneof![0_u64..3, any::<u64>()], 0_u64..3), 0..60), high in any::<bool>()) {
        let word = |&(a, b): &(u64, u64)| u128::from(a) << (64 * u32::from(high)) | u128::from(b) << (64 * u32::from(!high));
        let keys: Vec<u128> = keys.iter().map(word).collect();
        prop_assert_eq!(dense_words(&keys)?, naive(&keys));
    }

    #[test]
    fn pairs(rows in prop::collection::vec((0_u32..4, prop_oneof![0_u32..4, any::<u32>()]), 0..60)) {
        let (first, second): (Vec<u32>, Vec<u32>) = rows.iter().copied().unzip();
        prop_assert_eq!(pair(&first, &second)?, naive(&rows));
    }
}
