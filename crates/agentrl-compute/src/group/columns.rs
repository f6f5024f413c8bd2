//! Input columns of group operations, and their checks.

use std::ops::Range;

use crate::argument_checks::{finite_piece, mask_length, same_length};
use crate::keys::pair;
use crate::simd::ascend;
use crate::{Error, Float, Result, thread_pool};

/// Values with their groups, and the weight, unit and validity of each row's vote in the statistics of its group.
#[derive(Clone, Copy, Debug)]
pub struct Columns<'a, T> {
    /// The caller's name of the values, for messages.
    pub name: &'a str,
    /// One number for each row.
    pub values: &'a [T],
    /// Dense ids of the groups.
    pub groups: &'a [u32],
    /// Frequency with which a row's vote counts, 0 or more; `None`: 1.
    pub weights: Option<&'a [f64]>,
    /// Dense ids: rows of a group with the same unit are one vote, the mean of their values. `None`: each row is one.
    pub units: Option<&'a [u32]>,
    /// Rows that are not valid neither vote nor get a value, and may hold anything; `None`: all are valid.
    pub valid: Option<&'a [bool]>,
}

impl<'a, T: Float> Columns<'a, T> {
    /// Create columns whose rows all vote once.
    pub fn new(name: &'a str, values: &'a [T], groups: &'a [u32]) -> Self {
        Self { name, values, groups, weights: None, units: None, valid: None }
    }

    /// Return the columns of a range of rows, without the ids of groups and units.
    pub(super) fn part(&self, rows: Range<usize>) -> Self {
        Self {
            name: self.name,
            values: &self.values[rows.clone()],
            groups: &[],
            weights: self.weights.map(|weights| &weights[rows.clone()]),
            units: None,
            valid: self.valid.map(|valid| &valid[rows]),
        }
    }

    /// Return whether a row is valid.
    pub(crate) fn counts(&self, row: usize) -> bool {
        self.valid.is_none_or(|valid| valid[row])
    }

    /// Return whether a row votes in the statistics of its group.
    pub(crate) fn votes(&self, row: usize) -> bool {
        self.counts(row) && self.weights.is_none_or(|weights| weights[row] > 0.0)
    }

    /// Check lengths and ids. Return the number of groups, and whether their ids never decrease.
    pub(crate) fn check(&self) -> Result<(usize, bool)> {
        let rows = self.values.len();
        same_length("groups", self.groups.len(), self.name, rows)?;
        self.check_lengths()?;
        let found = thread_pool::map(thread_pool::pieces(rows), |piece| {
            // Include the id before the piece, so that borders are compared too.
            let ids = &self.groups[piece.start.saturating_sub(1)..piece.end];
            let sorted = ascend(ids);
            let largest = if sorted { ids[ids.len() - 1] } else { ids.iter().fold(0, |largest, &id| largest.max(id)) };
            if largest as usize >= rows {
                let row = piece.clone().find(|&row| self.groups[row] as usize >= rows).unwrap_or(piece.start);
                return Err(sparse("groups", row, self.groups[row], rows));
            }
            Ok((largest, sorted))
        })?;
        let count = found.iter().map(|&(largest, _)| largest as usize + 1).max().unwrap_or(0);
        Ok((count, found.iter().all(|&(_, sorted)| sorted)))
    }

    /// Check lengths, values and weights.
    pub(crate) fn check_rows(&self) -> Result<()> {
        self.check_lengths()?;
        thread_pool::map(thread_pool::pieces(self.values.len()), |piece| self.check_piece(piece)).map(drop)
    }

    pub(super) fn check_lengths(&self) -> Result<()> {
        let rows = self.values.len();
        mask_length(self.valid, self.name, rows)?;
        self.weights.map_or(Ok(()), |weights| same_length("weights", weights.len(), self.name, rows))?;
        self.units.map_or(Ok(()), |units| same_length("voter_ids", units.len(), self.name, rows))
    }

    /// Check the values and weights of a range of rows.
    pub(super) fn check_piece(&self, piece: Range<usize>) -> Result<()> {
        finite_piece(self.name, self.values, self.valid, piece.clone())?;
        let Some(weights) = self.weights else { return Ok(()) };
        match piece.into_iter().find(|&row| self.counts(row) && !(0.0..f64::INFINITY).contains(&weights[row])) {
            None => Ok(()),
            Some(row) => Err(Error::invalid(format!(
                "weights[{row}] is {}; give a finite number of at least 0, or mark the row invalid",
                weights[row]
            ))),
        }
    }

    /// Return the means of units as rows, and the unit row of each row of these columns.
    pub(crate) fn by_unit(&self, units: &[u32]) -> Result<UnitRows> {
        let keys = pair(self.groups, units)?;
        let mut groups = vec![0; keys.count as usize];
        for (&unit, &group) in keys.ids.iter().zip(self.groups) {
            groups[unit as usize] = group;
        }
        let of_units = Columns { groups: &keys.ids, units: None, ..*self };
        let grouped = of_units.grouped(groups.len(), keys.ids.is_sorted())?;
        let means: Vec<f64> = grouped.each(|group| Ok(group.statistics(0)?.mean))?;
        let valid = means.iter().map(|mean| !mean.is_nan()).collect();
        Ok(UnitRows { means, groups, valid, rows: keys.ids })
    }
}

/// The means of units, as rows.
#[derive(Debug)]
pub(crate) struct UnitRows {
    /// Mean of each unit; NaN if none of its rows votes.
    pub(crate) means: Vec<f64>,
    pub(crate) groups: Vec<u32>,
    pub(crate) valid: Vec<bool>,
    /// The unit row of each row.
    pub(crate) rows: Vec<u32>,
}

impl UnitRows {
    pub(crate) fn columns<'a>(&'a self, name: &'a str) -> Columns<'a, f64> {
        Columns { valid: Some(&self.valid), ..Columns::new(name, &self.means, &self.groups) }
    }
}

fn sparse(name: &str, row: usize, id: u32, rows: usize) -> Error {
    Error::invalid(format!(
        "{name}[{row}] is {id}, but dense ids lie below the number of rows, {rows}; make them with keys"
    ))
}

/// Return the number of groups of dense ids. An id that is not below the number of rows is an error.
pub(crate) fn group_count(name: &str, groups: &[u32]) -> Result<usize> {
    match groups.iter().position(|&group| group as usize >= groups.len()) {
        Some(row) => Err(sparse(name, row, groups[row], groups.len())),
        None => Ok(groups.iter().max().map_or(0, |&largest| largest as usize + 1)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn message(columns: Columns<'_, f64>) -> String {
        let checked = columns.check().and_then(|_| columns.check_rows());
        checked.map_or_else(|error| error.to_string(), |()| "fine".to_owned())
    }

    #[test]
    fn invalid_input_is_reported() {
        let columns = Columns::new("scores", &[1.0, 2.0], &[0, 0]);
        assert_eq!(message(columns), "fine");
        assert_eq!(
            message(Columns { values: &[1.0], ..columns }),
            "groups has 2 values, but scores has 1; give one value of each for every row"
        );
        for (name, wrong) in [
            ("valid", Columns { valid: Some(&[]), ..columns }),
            ("weights", Columns { weights: Some(&[]), ..columns }),
            ("voter_ids", Columns { units: Some(&[]), ..columns }),
        ] {
            assert_eq!(
                message(wrong),
                format!("{name} has 0 values, but scores has 2; give one value of each for every row")
            );
        }
        assert_eq!(
            message(Columns { groups: &[0, 7], ..columns }),
            "groups[1] is 7, but dense ids lie below the number of rows, 2; make them with keys"
        );
        assert_eq!(
            message(Columns { values: &[1.0, f64::NAN], ..columns }),
            "scores[1] is NaN, but must be finite; correct it or mark the row invalid"
        );
        assert_eq!(
            message(Columns { weights: Some(&[1.0, -1.0]), ..columns }),
            "weights[1] is -1; give a finite number of at least 0, or mark the row invalid"
        );
    }

    #[test]
    fn invalid_rows_may_hold_anything() {
        let columns = Columns {
            valid: Some(&[true, false]),
            weights: Some(&[1.0, f64::NAN]),
            ..Columns::new("scores", &[1.0, f64::NAN], &[0, 0])
        };
        assert_eq!(message(columns), "fine");
        assert_eq!(message(Columns::new("scores", &[], &[])), "fine");
    }
}
