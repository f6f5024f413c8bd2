//! How alike two runs of tokens are.

/// Levenshtein's distance: how many tokens have to be put in, taken out or changed to make one run of the other.
///
/// ```
/// use agentrl_compute::search::edit_distance;
///
/// assert_eq!(edit_distance(&[1, 2, 3, 4], &[1, 3, 4, 5]), 2);
/// ```
pub fn edit_distance(first: &[i32], second: &[i32]) -> usize {
    let mut row: Vec<usize> = (0..=second.len()).collect();
    for (place, one) in first.iter().enumerate() {
        let mut corner = std::mem::replace(&mut row[0], place + 1);
        for (column, other) in second.iter().enumerate() {
            let changed = corner + usize::from(one != other);
            corner = row[column + 1];
            row[column + 1] = changed.min(corner + 1).min(row[column] + 1);
        }
    }
    row[second.len()]
}

/// How many tokens the two runs have in common at their ends.
///
/// ```
/// use agentrl_compute::search::common_suffix;
///
/// assert_eq!(common_suffix(&[1, 2, 3], &[7, 2, 3]), 2);
/// ```
pub fn common_suffix(first: &[i32], second: &[i32]) -> usize {
    first.iter().rev().zip(second.iter().rev()).take_while(|(one, other)| one == other).count()
}

/// The length of a longest run of tokens that both have in this order, with others between them.
///
/// ```
/// use agentrl_compute::search::common_subsequence;
///
/// assert_eq!(common_subsequence(&[1, 2, 3, 4], &[2, 9, 4]), 2);
/// ```
pub fn common_subsequence(first: &[i32], second: &[i32]) -> usize {
    let mut row = vec![0; second.len() + 1];
    for one in first {
        let mut corner = 0;
        for (column, other) in second.iter().enumerate() {
            let found = if one == other { corner + 1 } else { row[column + 1].max(row[column]) };
            corner = std::mem::replace(&mut row[column + 1], found);
        }
    }
    row[second.len()]
}
