//! Tokens that good and bad answers of a group share at the same position.

use std::collections::HashMap;

use crate::Result;
use crate::argument_checks::{column, same_length};
use crate::group::group_count;
use crate::ragged::Ragged;
use crate::rows_by_group::Members;

/// Masks of the tokens that rows of both signs share, in runs from either end of a row.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Conflicts {
    /// True if the token, and all before it in its row, occur at the same position from the start in a row of each
    /// sign.
    pub prefix: Vec<bool>,
    /// The same, with positions counted from the end.
    pub suffix: Vec<bool>,
}

/// Mark the conflict tokens of GTPO (arXiv:2508.03772). A token is a conflict if its id occurs at its position in a row
/// with a positive and in a row with a negative advantage of the group. Marking goes position by position from the
/// start (and from the end) and stops at the first token of a row that is no conflict. Rows with advantage 0 neither
/// cause conflicts nor have any.
///
/// ```
/// use agentrl_compute::ragged::Ragged;
/// use agentrl_compute::weight::conflict_tokens;
///
/// let tokens = [5, 6, 7, 9, 5, 8, 9];
/// let found = conflict_tokens(Ragged::new(&tokens, &[0, 4, 7])?, &[0, 0], &[1.0, -1.0])?;
/// assert_eq!(found.prefix, [true, false, false, false, true, false, false]);
/// assert_eq!(found.suffix, [false, false, false, true, false, false, true]);
/// # Ok::<(), agentrl_compute::Error>(())
/// ```
///
/// # Errors
/// `InvalidInput` if lengths differ, groups are not dense or an advantage is not finite.
pub fn conflict_tokens(tokens: Ragged<'_, i32>, groups: &[u32], advantages: &[f64]) -> Result<Conflicts> {
    same_length("groups", groups.len(), "tokens", tokens.len())?;
    column("advantages", advantages, "tokens", tokens.len(), None)?;
    let rows: Vec<&[i32]> = tokens.iter().collect();
    let starts: Vec<usize> = rows
        .iter()
        .scan(0, |end, row| {
            let start = *end;
            *end += row.len();
            Some(start)
        })
        .collect();
    let total = rows.iter().map(|row| row.len()).sum();
    let mut found = Conflicts { prefix: vec![false; total], suffix: vec![false; total] };
    for members in Members::of(groups, group_count("groups", groups)?, None).iter() {
        let voters: Vec<usize> =
            members.iter().map(|&row| row as usize).filter(|&row| advantages[row] != 0.0).collect();
        runs(
            &voters,
            advantages,
            |row, place| rows[row].get(place).copied(),
            |row, place| {
                found.prefix[starts[row] + place] = true;
            },
        );
        let from_end = |row: usize, place: usize| rows[row].len().checked_sub(place + 1);
        runs(
            &voters,
            advantages,
            |row, place| from_end(row, place).map(|index| rows[row][index]),
            |row, place| {
                if let Some(index) = from_end(row, place) {
                    found.suffix[starts[row] + index] = true;
                }
            },
        );
    }
    Ok(found)
}

/// Mark the run of each row: it continues as long as rows of both signs have its token at the same position.
fn runs(
    rows: &[usize],
    advantages: &[f64],
    token: impl Fn(usize, usize) -> Option<i32>,
    mut mark: impl FnMut(usize, usize),
) {
    let mut running = rows.to_vec();
    let mut place = 0;
    while !running.is_empty() {
        // Rows whose run has ended still count for the other rows.
        let mut signs: HashMap<i32, (bool, bool)> = HashMap::new();
        for &row in rows {
            if let Some(token) = token(row, place) {
                let seen = signs.entry(token).or_default();
                if advantages[row] > 0.0 { seen.0 = true } else { seen.1 = true }
            }
        }
        running.retain(|&row| token(row, place).is_some_and(|token| signs.get(&token) == Some(&(true, true))));
        for &row in &running {
            mark(row, place);
        }
        place += 1;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn one_sign_has_no_conflict() -> Result<()> {
        let found = conflict_tokens(Ragged::new(&[1, 1, 1], &[0, 1, 2, 3])?, &[0; 3], &[1.0, 1.0, 0.0])?;
        assert_eq!(found, Conflicts { prefix: vec![false; 3], suffix: vec![false; 3] });
        assert!(conflict_tokens(Ragged::new(&[1], &[0, 1])?, &[0], &[f64::NAN]).is_err());
        Ok(())
    }

    proptest! {
        #[test]
        fn as_defined(rows in prop::collection::vec((prop::collection::vec(0_i32..2, 0..6), -1_i8..2, 0_u32..2), 1..7)) {
            let mut offsets = vec![0];
            offsets.extend(rows.iter().scan(0, |end, row| { *end += row.0.len() as i64; Some(*end) }));
            let tokens: Vec<i32> = rows.iter().flat_map(|row| row.0.clone()).collect();
            let groups: Vec<u32> = rows.iter().map(|row| row.2 % rows.len() as u32).collect();
            let advantages: Vec<f64> = rows.iter().map(|row| f64::from(row.1)).collect();
            let found = conflict_tokens(Ragged::new(&tokens, &offsets)?, &groups, &advantages)?;
            let shared = |row: usize, place: usize, from_end: bool| {
                let at = |other: usize| {
                    let other = &rows[other].0;
                    if from_end { other.iter().rev().nth(place).copied() } else { other.get(place).copied() }
                };
                let has = |sign: f64| (0..rows.len()).any(|other| {
                    groups[other] == groups[row] && advantages[other] * sign > 0.0 && at(other).is_some() && at(other) == at(row)
                });
                advantages[row] != 0.0 && has(1.0) && has(-1.0)
            };
            for row in 0..rows.len() {
                let length = rows[row].0.len();
                for place in 0..length {
                    let index = offsets[row] as usize + place;
                    prop_assert_eq!(found.prefix[index], (0..=place).all(|before| shared(row, before, false)));
                    prop_assert_eq!(found.suffix[index], (0..length - place).all(|after| shared(row, after, true)));
                }
            }
        }
    }
}
