//! The last step that all group advantages share: subtract a number of the group, divide by another.

use super::columns::Columns;
use super::options::{GroupOptions, Scale, Singleton};
use super::statistics::{Centre, centres, deviations};
use crate::check::same_length;
use crate::{Float, Result};

/// What is done to each row of one group.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Rule {
    pub(super) centre: f64,
    pub(super) divisor: f64,
}

impl Rule {
    /// The value's place in its group.
    pub(crate) fn apply(self, value: f64) -> f64 {
        // The last term turns a negative zero into zero.
        (value - self.centre) / self.divisor + 0.0
    }
}

/// `(x - mean) / (std + eps)` or `x - mean` for each group.
pub(crate) fn relative_rules<T: Float>(columns: &Columns<'_, T>, options: &GroupOptions) -> Result<Vec<Rule>> {
    options.check()?;
    let centres = centres(columns)?;
    let deviations = match options.scale {
        Scale::None => None,
        Scale::Std => Some(deviations(columns, &centres, options.ddof)),
    };
    let rule = |(group, centre): (usize, &Centre)| {
        // Equal values all give 0, whatever it is divided by: also where eps is 0.
        let divide_by = |std: f64| if std == 0.0 { 1.0 } else { std + options.eps };
        match (centre.count, options.singleton) {
            (1, Singleton::Zero) => Rule { centre: centre.mean, divisor: 1.0 },
            (1, Singleton::Raw) => Rule { centre: 0.0, divisor: deviations.as_ref().map_or(1.0, |_| divide_by(1.0)) },
            _ => Rule { centre: centre.mean, divisor: deviations.as_ref().map_or(1.0, |stds| divide_by(stds[group])) },
        }
    };
    Ok(centres.iter().enumerate().map(rule).collect())
}

/// Applies each group's rule to its valid rows; the others get 0.
pub(super) fn write<T: Float>(columns: &Columns<'_, T>, rules: &[Rule], out: &mut [T]) -> Result<()> {
    same_length("out", out.len(), columns.name(), columns.len())?;
    out.fill(T::from_f64(0.0));
    for (row, group, value) in columns.rows() {
        out[row] = T::result(row, rules[group].apply(value))?;
    }
    Ok(())
}
