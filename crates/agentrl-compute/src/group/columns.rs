//! The rows of groups, checked once.

use crate::check::{finite, mask_length, same_length};
use crate::{Error, Float, Result};

/// Values by group, and which rows count; every value that counts is finite and every group below `count`.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Columns<'a, T> {
    name: &'a str,
    values: &'a [T],
    groups: &'a [u32],
    valid: Option<&'a [bool]>,
    count: usize,
}

impl<'a, T: Float> Columns<'a, T> {
    /// Checked columns; `name` is what the caller calls the values. The number of groups follows from the ids.
    pub(crate) fn new(name: &'a str, values: &'a [T], groups: &'a [u32], valid: Option<&'a [bool]>) -> Result<Self> {
        same_length("groups", groups.len(), name, values.len())?;
        Self::with_count(name, values, groups, valid, group_count("groups", groups)?)
    }

    /// Checked columns of a known number of groups.
    pub(crate) fn with_count(
        name: &'a str,
        values: &'a [T],
        groups: &'a [u32],
        valid: Option<&'a [bool]>,
        count: usize,
    ) -> Result<Self> {
        same_length("groups", groups.len(), name, values.len())?;
        mask_length(valid, name, values.len())?;
        if let Some(row) = groups.iter().position(|&group| group as usize >= count) {
            return Err(Error::invalid(format!(
                "groups[{row}] is {}, but there are {count} groups; ids lie below their number",
                groups[row]
            )));
        }
        let columns = Self { name, values, groups, valid, count };
        for (row, _, value) in columns.rows() {
            finite(name, row, value)?;
        }
        Ok(columns)
    }

    /// What the caller calls the values.
    pub(crate) fn name(&self) -> &'a str {
        self.name
    }

    /// Number of groups, empty ones included.
    pub(crate) fn count(&self) -> usize {
        self.count
    }

    /// Number of rows.
    pub(crate) fn len(&self) -> usize {
        self.values.len()
    }

    /// Whether a row is valid.
    fn counts(&self, row: usize) -> bool {
        self.valid.is_none_or(|valid| valid[row])
    }

    /// Row, group and value of each valid row.
    pub(crate) fn rows(&self) -> impl Iterator<Item = (usize, usize, f64)> {
        let rows = self.groups.iter().zip(self.values).enumerate();
        rows.filter(|&(row, _)| self.counts(row)).map(|(row, (&group, &value))| (row, group as usize, value.to_f64()))
    }
}

/// Number of groups of dense ids, which never exceeds the number of rows.
pub(crate) fn group_count(name: &str, groups: &[u32]) -> Result<usize> {
    let sparse = groups.iter().position(|&group| group as usize >= groups.len());
    if let Some(row) = sparse {
        return Err(Error::invalid(format!(
            "{name}[{row}] is {}, but dense ids lie below the number of rows, {}; make them with keys",
            groups[row],
            groups.len()
        )));
    }
    Ok(groups.iter().max().map_or(0, |&largest| largest as usize + 1))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn message(values: &[f64], groups: &[u32], valid: Option<&[bool]>) -> String {
        Columns::new("scores", values, groups, valid).map_or_else(|error| error.to_string(), |_| "fine".to_owned())
    }

    #[test]
    fn what_is_wrong_is_named() {
        assert_eq!(
            message(&[1.0], &[0, 0], None),
            "groups has 2 values, but scores has 1; give one value of each for every row"
        );
        assert_eq!(
            message(&[1.0], &[0], Some(&[])),
            "valid has 0 values, but scores has 1; give one value of each for every row"
        );
        assert_eq!(
            message(&[1.0, 2.0], &[0, 7], None),
            "groups[1] is 7, but dense ids lie below the number of rows, 2; make them with keys"
        );
        assert_eq!(
            message(&[1.0, f64::NAN], &[0, 0], None),
            "scores[1] is NaN, but must be finite; correct it or mark the row invalid"
        );
        let beyond = Columns::with_count("scores", &[1.0], &[2], None, 2).map_err(|error| error.to_string());
        assert_eq!(
            beyond.map(|columns| columns.len()),
            Err("groups[0] is 2, but there are 2 groups; ids lie below their number".to_owned())
        );
    }

    #[test]
    fn invalid_rows_may_hold_anything() {
        assert_eq!(message(&[1.0, f64::NAN], &[0, 0], Some(&[true, false])), "fine");
        assert_eq!(message(&[], &[], None), "fine");
    }
}
