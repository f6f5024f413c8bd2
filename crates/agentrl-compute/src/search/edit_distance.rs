//! Similarity of two token sequences.

/// Levenshtein distance: the fewest insertions, deletions and replacements that turn one sequence into the other. Takes
/// O(n · m) time and O(m) memory.
///
/// ```
/// use agentrl_compute::search::edit_distance;
///
/// assert_eq!(edit_distance(&[1, 2, 3, 4], &[1, 3, 4, 5]), 2);
/// ```
pub fn edit_distance<T: PartialEq>(first: &[T], second: &[T]) -> usize {
    edit_distance_in(first, second, &mut Vec::new())
}

/// Like [`edit_distance`]; `row` is a workspace that several calls can reuse.
pub(crate) fn edit_distance_in<T: PartialEq>(first: &[T], second: &[T], row: &mut Vec<usize>) -> usize {
    row.clear();
    row.extend(0..=second.len());
    for (number, element) in (1..).zip(first) {
        // The values to the upper left of a cell, and to its left.
        let (mut corner, mut left) = (row[0], number);
        row[0] = number;
        for (place, other) in row[1..].iter_mut().zip(second) {
            let replaced = corner + usize::from(element != other);
            corner = *place;
            left = replaced.min(corner + 1).min(left + 1);
            *place = left;
        }
    }
    row[second.len()]
}

/// Length of the common suffix of two sequences.
///
/// ```
/// use agentrl_compute::search::common_suffix;
///
/// assert_eq!(common_suffix(&[1, 2, 3], &[7, 2, 3]), 2);
/// ```
pub fn common_suffix(first: &[i32], second: &[i32]) -> usize {
    first.iter().rev().zip(second.iter().rev()).take_while(|(one, other)| one == other).count()
}

/// Length of the longest common subsequence: tokens in the same order, not necessarily adjacent.
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
