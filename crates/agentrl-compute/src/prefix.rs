//! Common prefixes and repeated suffixes of token sequences.

/// Tokens compared at a time: a few vector registers, so that whole blocks are compared at memory speed.
const COMPARED_AT_ONCE: usize = 32;

/// Return the length of the common prefix of two slices, in tokens.
///
/// ```
/// use agentrl_compute::prefix::common_prefix;
///
/// assert_eq!(common_prefix(&[1, 2, 3, 4], &[1, 2, 5]), 2);
/// ```
pub fn common_prefix(a: &[i32], b: &[i32]) -> usize {
    let blocks =
        a.chunks_exact(COMPARED_AT_ONCE).zip(b.chunks_exact(COMPARED_AT_ONCE)).take_while(|(a, b)| a == b).count();
    let same = blocks * COMPARED_AT_ONCE;
    same + a[same..].iter().zip(&b[same..]).take_while(|(a, b)| a == b).count()
}

/// A suffix of one slice that occurs in another.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Repeat {
    /// Number of tokens.
    pub length: usize,
    /// End of the occurrence in the other slice (exclusive).
    pub end: usize,
}

/// Return the longest suffix of `old` that occurs in `new`, at its first occurrence; in linear time and memory.
///
/// ```
/// use agentrl_compute::prefix::{Repeat, repeated_end};
///
/// assert_eq!(repeated_end(&[7, 1, 2, 3], &[5, 2, 3, 9, 2, 3]), Repeat { length: 2, end: 3 });
/// ```
pub fn repeated_end(old: &[i32], new: &[i32]) -> Repeat {
    // Reversed, the suffix is a prefix, and the Z-function gives the longest prefix of `old` that begins at each index.
    let text: Vec<i32> = old.iter().rev().chain(new.iter().rev()).copied().collect();
    let lengths = prefix_lengths(&text);
    let mut best = Repeat::default();
    for end in 1..=new.len() {
        // A match that continues beyond `old` is a match of all of it.
        let length = lengths[text.len() - end].min(old.len());
        if length > best.length {
            best = Repeat { length, end };
        }
    }
    best
}

/// Compute the Z-function: for each index above 0, the number of tokens from there that equal the beginning of `text`.
fn prefix_lengths(text: &[i32]) -> Vec<usize> {
    let mut lengths = vec![0; text.len()];
    // The match that ends last: `left..right`.
    let (mut left, mut right) = (0, 0);
    for place in 1..text.len() {
        let known = if place < right { lengths[place - left].min(right - place) } else { 0 };
        let more = if place + known < right { 0 } else { common_prefix(&text[known..], &text[place + known..]) };
        lengths[place] = known + more;
        if place + lengths[place] > right {
            (left, right) = (place, place + lengths[place]);
        }
    }
    lengths
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// Reference implementation: try every length.
    fn slow_repeat(old: &[i32], new: &[i32]) -> Repeat {
        let mut best = Repeat::default();
        for length in 1..=old.len().min(new.len()) {
            let run = &old[old.len() - length..];
            if let Some(start) = new.windows(length).position(|window| window == run) {
                best = Repeat { length, end: start + length };
            }
        }
        best
    }

    #[test]
    fn empty_slices_have_nothing_in_common() {
        assert_eq!(common_prefix(&[], &[1]), 0);
        assert_eq!(repeated_end(&[], &[1]), Repeat::default());
        assert_eq!(repeated_end(&[1], &[]), Repeat::default());
        assert_eq!(repeated_end(&[1], &[2]), Repeat::default());
    }

    #[test]
    fn the_first_of_equal_runs_is_taken() {
        assert_eq!(repeated_end(&[1, 2], &[1, 2, 1, 2]), Repeat { length: 2, end: 2 });
        assert_eq!(repeated_end(&[1, 1, 1], &[1, 1]), Repeat { length: 2, end: 2 });
    }

    proptest! {
        #[test]
        fn a_common_prefix_ends_where_tokens_differ(
            same in prop::collection::vec(any::<i32>(), 0..100),
            a in prop::collection::vec(0..2, 0..40),
            b in prop::collection::vec(0..2, 0..40),
        ) {
            let (a, b) = ([same.clone(), a].concat(), [same, b].concat());
            let expected = a.iter().zip(&b).take_while(|(a, b)| a == b).count();
            prop_assert_eq!(common_prefix(&a, &b), expected);
        }

        #[test]
        fn repeats_are_those_of_the_definition(
            old in prop::collection::vec(0..3, 0..12),
            new in prop::collection::vec(0..3, 0..12),
        ) {
            prop_assert_eq!(repeated_end(&old, &new), slow_repeat(&old, &new));
        }
    }
}
