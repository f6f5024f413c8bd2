//! Edit distances between pairs of sequences.

use crate::argument_checks::same_length;
use crate::ragged::Ragged;
use crate::search::edit_distance_in;
use crate::{Result, thread_pool};

/// Pairs per chunk of work for one thread.
const PAIRS: usize = 64;

/// Levenshtein distance of each pair of rows: the fewest insertions, deletions and replacements that turn the first row
/// into the second. Takes O(n · m) time and O(m) memory per pair.
///
/// ```
/// use agentrl_compute::ragged::Ragged;
/// use agentrl_compute::reward::edit_distances;
///
/// let first = Ragged::new(&[1, 2, 3, 4], &[0, 3, 4])?;
/// let second = Ragged::new(&[1, 3, 4, 4], &[0, 3, 4])?;
/// assert_eq!(edit_distances(first, second)?, [2, 0]);
/// # Ok::<(), agentrl_compute::Error>(())
/// ```
///
/// # Errors
/// `InvalidInput` if `first` and `second` have different numbers of rows.
pub fn edit_distances(first: Ragged<'_, u32>, second: Ragged<'_, u32>) -> Result<Vec<i64>> {
    same_length("second", second.len(), "first", first.len())?;
    let pairs: Vec<_> = first.iter().zip(second.iter()).collect();
    let pieces = thread_pool::map(pairs.chunks(PAIRS).collect(), |piece| {
        let mut row = Vec::new();
        Ok(piece.iter().map(|(one, other)| edit_distance_in(one, other, &mut row) as i64).collect::<Vec<_>>())
    })?;
    Ok(pieces.concat())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rng::uniform;

    /// The recursive definition, on the last elements of both sequences.
    fn naive(first: &[u32], second: &[u32]) -> i64 {
        match (first, second) {
            ([], rest) | (rest, []) => rest.len() as i64,
            ([begin @ .., one], [start @ .., other]) => {
                let replaced = naive(begin, start) + i64::from(one != other);
                replaced.min(naive(begin, second) + 1).min(naive(first, start) + 1)
            }
        }
    }

    #[test]
    fn distances_are_those_of_the_recursion() -> Result<()> {
        let number = |counter: u64, below: f64| (uniform(5, counter) * below) as u32;
        let (mut values, mut offsets) = (Vec::new(), vec![0]);
        for row in 0..300 {
            values.extend((0..number(1_000 * row, 7.0)).map(|place| number(1_000 * row + 1 + u64::from(place), 3.0)));
            offsets.push(values.len() as i64);
        }
        let first = Ragged::new(&values, &offsets[..201])?;
        let second = Ragged::new(&values, &offsets[100..])?;
        let expected: Vec<_> = first.iter().zip(second.iter()).map(|(one, other)| naive(one, other)).collect();
        assert_eq!(edit_distances(first, second)?, expected);
        assert!(expected.iter().any(|&distance| distance > 3) && expected.contains(&0));
        assert!(edit_distances(first, Ragged::new(&values, &offsets)?).is_err());
        Ok(())
    }
}
