//! Generators of ragged groups for property tests.
//!
//! Groups are interleaved, and some are empty, single or constant. Invalid rows hold NaN or infinity; values have every
//! magnitude.

use proptest::prelude::*;

/// Values and groups of rows, and the number of groups.
#[derive(Clone, Debug)]
pub(crate) struct Group {
    pub(crate) values: Vec<f64>,
    pub(crate) groups: Vec<u32>,
    pub(crate) count: usize,
}

/// Generate rows with group ids below the number of rows.
pub(crate) fn groups() -> impl Strategy<Value = Group> {
    let value = prop_oneof![
        3 => prop_oneof![Just(0.0), Just(1.0), Just(-1.0), Just(0.1)],
        3 => -10.0_f64..10.0,
        1 => (-10.0_f64..10.0).prop_map(|value| 1e12 + value),
        1 => (-10.0_f64..10.0).prop_map(|value| value * 1e300),
        1 => (-10.0_f64..10.0).prop_map(|value| value * 1e-300),
    ];
    // A third of the groups repeat one value.
    let row = (0_usize..6, value, 0_usize..18);
    (prop::collection::vec(row, 0..40), any::<u64>()).prop_map(|(rows, seed)| {
        let count = rows.len().min(6);
        let mut groups: Vec<u32> = rows.iter().map(|&(group, ..)| (group % count) as u32).collect();
        let mut values: Vec<f64> = rows.iter().map(|&(_, value, _)| value).collect();
        let constant = seed as usize % 3;
        for (row, group) in groups.iter().enumerate() {
            if *group as usize % 3 == constant {
                values[row] = 0.1 * f64::from(*group) + 1.0 / 3.0;
            }
        }
        // The last row has the largest id, so that there are exactly `count` groups.
        if let Some(last) = groups.last_mut() {
            *last = (count - 1) as u32;
        }
        Group { values, groups, count }
    })
}

/// Generate groups and a mask; invalid rows hold NaN or infinity.
pub(crate) fn masked_groups() -> impl Strategy<Value = (Group, Vec<bool>)> {
    (groups(), any::<u64>()).prop_map(|(mut group, seed)| {
        let draws = (0..group.values.len() as u64).map(|row| crate::rng::uniform(seed, row));
        let valid: Vec<bool> = draws.map(|draw| draw >= 0.2).collect();
        for (row, value) in group.values.iter_mut().enumerate().filter(|&(row, _)| !valid[row]) {
            *value = if row % 2 == 0 { f64::NAN } else { f64::INFINITY };
        }
        (group, valid)
    })
}

/// Return a random order of rows.
pub(crate) fn shuffle(rows: usize, seed: u64) -> Vec<usize> {
    let mut order: Vec<usize> = (0..rows).collect();
    order.sort_by_key(|&row| crate::rng::structural_seed(&[seed, row as u64]));
    order
}

/// Return the values of a column in this order.
pub(crate) fn at<V: Copy>(order: &[usize], values: &[V]) -> Vec<V> {
    order.iter().map(|&row| values[row]).collect()
}

/// Return mean and standard deviation by the textbook formulas, in plain floats of values scaled to near 1.
pub(crate) fn naive(members: &[f64], ddof: u32) -> (f64, f64) {
    let largest = members.iter().fold(f64::MIN_POSITIVE, |largest: f64, value| largest.max(value.abs()));
    let members: Vec<f64> = members.iter().map(|value| value / largest).collect();
    let count = members.len() as f64;
    let mean = members.iter().sum::<f64>() / count;
    let squares = members.iter().map(|value| (value - mean).powi(2)).sum::<f64>();
    (mean * largest, (squares / (count - f64::from(ddof))).sqrt() * largest)
}
