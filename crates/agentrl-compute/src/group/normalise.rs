//! Group normalisation: the advantage operator of GRPO, RLOO, whitening and related methods.

use std::cell::Cell;
use std::ops::Range;

use super::affine::{Line, Maker, Rule, rules};
use super::buckets::{GroupIds, SINGLE_BUCKET_ROWS};
use super::columns::{Columns, UnitRows};
use super::contiguous;
use super::options::{Center, Options, Scale};
use super::per_group::{Group, RowOrder, fill_by_group};
use crate::argument_checks::{finite, same_length};
use crate::keys::{Ids, Labels};
use crate::simd::{BLOCK, wide, within};
use crate::thread_pool::SingleThreaded;
use crate::{Error, Float, Result};

thread_local! {
    /// Memory for the lines of groups, kept for the next call: a new allocation would take a fifth of the time of
    /// everything else.
    static LINES: Cell<Vec<Line>> = const { Cell::new(Vec::new()) };
}

/// Largest number of lines for which memory is kept: 4 MB.
const KEPT: usize = 1 << 18;

/// Columns that only some centres and scales need.
#[derive(Clone, Copy, Debug, Default)]
pub struct Extra<'a> {
    /// For [`Center::Baseline`]: the number that is subtracted from each row.
    pub baseline: Option<&'a [f64]>,
    /// For [`Scale::Divisor`]: the spread of each row.
    pub divisor: Option<&'a [f64]>,
    /// Dense ids of other groups, over whose votes the spread is computed; `None`: the same groups.
    pub scale_groups: Option<&'a [u32]>,
}

/// Compare each value with its group: `clip((x - centre) / (max(sqrt(spread² + variance_eps), scale_at_least) + eps))`,
/// or the numerator alone with [`Scale::None`].
///
/// Centre and spread are computed over the votes of the row's group, or the spread over the groups of `scale_groups` if
/// they are given. The spread is that of the values before centring. The mean and the median of equal values are
/// exactly their value, so equal values give 0.
///
/// Rows that are not valid get 0. Groups get 0 if their spread is at most `scale_above`, or if it is 0 and nothing is
/// added to it. With [`Singleton::Zero`](super::Singleton::Zero), groups with too few votes get 0 too; with
/// [`Singleton::Raw`](super::Singleton::Raw), they get the value itself over the divisor of a spread of 1.
///
/// Sources: GRPO arXiv:2402.03300 (the defaults), Dr.GRPO arXiv:2503.20783 (no scale), RLOO arXiv:2402.14740 (leave one
/// out, no scale), MC-GRPO (median and mad), `BNPO` (beta).
///
/// ```
/// use agentrl_compute::group::{Center, Columns, Extra, Options, Scale, normalise};
///
/// let columns = Columns { valid: Some(&[true, true, true, false]), ..Columns::new("scores", &[1.0, 2.0, 6.0, 9.0], &[0; 4]) };
/// let options = Options { center: Center::LeaveOneOut, scale: Scale::None, ..Options::default() };
/// let mut advantages = [0.0; 4];
/// normalise(&columns, &options, Extra::default(), &mut advantages)?;
/// assert_eq!(advantages, [-3.0, -1.5, 4.5, 0.0]);
/// # Ok::<(), agentrl_compute::Error>(())
/// ```
///
/// # Errors
/// `InvalidInput` if lengths differ, a valid value, baseline or divisor is not finite (the message names its row), a
/// column that an option needs is missing, or an option is out of range; `Overflow` if a result or the range of a
/// group's values is too large for its type. `out` is unspecified after an error.
pub fn normalise<T: NormalisedFloat>(
    columns: &Columns<'_, T>,
    options: &Options,
    extra: Extra<'_>,
    out: &mut [T],
) -> Result<()> {
    normalise_by(&columns.groups, columns, options, extra, out)
}

/// Normalise as [`normalise`], with group ids of any type; the group ids of `columns` are not read. If the ids never
/// decrease, this takes one pass.
///
/// ```
/// use agentrl_compute::group::{Columns, Extra, Options, Scale, normalise_by};
///
/// let (ids, columns) = ([-7_i64, -7, 900], Columns::new("scores", &[1.0, 2.0, 6.0], &[]));
/// let mut advantages = [7.0; 3];
/// let options = Options { scale: Scale::None, ..Options::default() };
/// normalise_by(&&ids[..], &columns, &options, Extra::default(), &mut advantages)?;
/// assert_eq!(advantages, [-0.5, 0.5, 0.0]);
/// # Ok::<(), agentrl_compute::Error>(())
/// ```
///
/// # Errors
/// As [`normalise`].
pub fn normalise_by<T: NormalisedFloat>(
    ids: &dyn Ids,
    columns: &Columns<'_, T>,
    options: &Options,
    extra: Extra<'_>,
    out: &mut [T],
) -> Result<()> {
    T::normalise(ids, columns, options, extra, out)
}

/// Float type for which [`normalise_by`] is compiled in this crate, because callers may be compiled for small size.
pub trait NormalisedFloat: Float {
    /// Run [`normalise_by`] on a column of this type.
    fn normalise(
        ids: &dyn Ids,
        columns: &Columns<'_, Self>,
        options: &Options,
        extra: Extra<'_>,
        out: &mut [Self],
    ) -> Result<()>;
}

macro_rules! normalised_floats {
    ($($type:ty),+) => {
        $(impl NormalisedFloat for $type {
            fn normalise(
                ids: &dyn Ids,
                columns: &Columns<'_, Self>,
                options: &Options,
                extra: Extra<'_>,
                out: &mut [Self],
            ) -> Result<()> {
                normalise_into(ids, columns, options, extra, out)
            }
        })+
    };
}

normalised_floats!(f32, f64);

/// Run [`normalise_by`] with a result column of either type.
pub(crate) fn normalise_into<T: Float, O: Float>(
    ids: &dyn Ids,
    columns: &Columns<'_, T>,
    options: &Options,
    extra: Extra<'_>,
    out: &mut [O],
) -> Result<()> {
    options.check()?;
    same_length("out", out.len(), columns.name, columns.values.len())?;
    same_length("groups", ids.rows(), columns.name, columns.values.len())?;
    columns.check_lengths()?;
    let baseline = given("baseline", "center", columns, options.center == Center::Baseline, extra.baseline)?;
    let divisor = given("divisor", "scale", columns, options.scale == Scale::Divisor, extra.divisor)?;
    // With these options, the results of a few groups do not depend on their rows alone.
    let whole = columns.units.is_some() || extra.scale_groups.is_some() || options.scale == Scale::Beta;
    let some_groups = |rows: Range<usize>, starts: Vec<u32>, out: &mut [O]| {
        let columns = columns.part(rows.clone());
        columns.check_piece(0..out.len())?;
        let [baseline, divisor] = [baseline, divisor].map(|column| column.map(|column| &column[rows.clone()]));
        let rows = RowInputs { columns: &columns, options, units: None, spreads: None, baseline, divisor };
        let rule = Maker::new(&columns, starts.len() - 1, true, options)?;
        rows.compare(RowOrder::Runs(starts), rule, out)
    };
    if !whole && contiguous::fill(ids, out, some_groups).is_some() {
        return Ok(());
    }
    let _alone = (ids.rows() <= SINGLE_BUCKET_ROWS).then(SingleThreaded::begin);
    // For many rows in any order, a column of labels is not created unless their ids are far apart.
    let range = if whole || ids.rows() <= SINGLE_BUCKET_ROWS { None } else { ids.label_range()? };
    if let Some(range) = range.filter(|range| !range.sorted) {
        let rows = RowInputs { columns, options, units: None, spreads: None, baseline, divisor };
        let rule = Maker::new(columns, range.count, false, options)?;
        return rows.compare(RowOrder::Anywhere(GroupIds::Labels(ids, &range), range.count), rule, out);
    }
    let Labels { ids, count, sorted } = ids.labels()?;
    let columns = &Columns { groups: &ids, ..*columns };
    let units = columns.units.map(|units| columns.by_unit(units)).transpose()?;
    let spreads = match extra.scale_groups {
        None => None,
        Some(_) if !matches!(options.scale, Scale::Std | Scale::Mad | Scale::Range) => {
            return Err(Error::invalid(
                "scale_groups is given, but this scale does not use it; choose scale std, mad \
                 or range",
            ));
        }
        Some(groups) => {
            let others = Columns { groups, ..*columns };
            let (count, sorted) = others.check()?;
            let options = Options { center: Center::None, votes_at_least: None, ..*options };
            Some((
                groups,
                match columns.units {
                    Some(units) => rules(&others.by_unit(units)?.columns(columns.name), count, false, &options)?,
                    None => rules(&others, count, sorted, &options)?,
                },
            ))
        }
    };
    let rows = RowInputs { columns, options, units: units.as_ref(), spreads, baseline, divisor };
    if let Some(units) = &units {
        let rules = rules(&units.columns(columns.name), count, false, options)?;
        return fill_by_group(GroupIds::Column(columns.groups), out, &rules, |start, out, rules| {
            rows.fill(start, out, rules)
        });
    }
    rows.compare(columns.row_order(count, sorted)?, Maker::new(columns, count, sorted, options)?, out)
}

/// Inputs of each row's result besides the rule of its group.
#[derive(Debug)]
struct RowInputs<'a, T> {
    columns: &'a Columns<'a, T>,
    options: &'a Options,
    units: Option<&'a UnitRows>,
    /// Groups over which the spread is computed, and their rules.
    spreads: Option<(&'a [u32], Vec<Rule>)>,
    baseline: Option<&'a [f64]>,
    divisor: Option<&'a [f64]>,
}

impl<T: Float> RowInputs<'_, T> {
    /// Fill the results of all rows, from the rule or the line of each group.
    fn compare<O: Float>(&self, stand: RowOrder<'_>, maker: Maker<'_>, out: &mut [O]) -> Result<()> {
        if !self.are_on_lines() {
            let by_group = |group: &mut Group<'_, '_, T>| maker.rule(group);
            return self
                .columns
                .fill(stand, out, &mut Vec::new(), &by_group, |start, out, rules| self.fill(start, out, rules));
        }
        let mut lines = LINES.take();
        let filled =
            self.columns.fill(stand, out, &mut lines, &maker, |start, out, lines| self.fill_lines(start, out, lines));
        if lines.capacity() <= KEPT {
            LINES.set(lines);
        }
        filled
    }

    /// Return whether a row's result depends only on its value and the line of its group.
    fn are_on_lines(&self) -> bool {
        self.spreads.is_none()
            && self.divisor.is_none()
            && matches!(self.options.center, Center::None | Center::Mean | Center::Median)
    }

    /// Fill the results of neighbouring rows from the rules of their groups.
    fn fill<O: Float>(&self, start: usize, out: &mut [O], rules: &[Rule]) -> Result<()> {
        let bound = self.options.at_most.unwrap_or(f64::INFINITY);
        for ((row, place), &rule) in (start..).zip(out).zip(rules) {
            let result = if self.columns.counts(row) { cut(self.result(row, rule), bound) } else { 0.0 };
            *place = O::result(row, result)?;
        }
        Ok(())
    }

    /// Fill the results of a block whose rules are lines, with few enough branches to be vectorised.
    fn fill_lines<O: Float>(&self, start: usize, out: &mut [O], lines: &[Line]) -> Result<()> {
        let bound = self.options.at_most.unwrap_or(f64::INFINITY);
        let rows = start..start + out.len();
        let mut numbers = [0.0; BLOCK];
        let numbers = &mut numbers[..out.len()];
        T::read(&self.columns.values[rows.clone()], numbers);
        compare(numbers, lines, self.columns.valid.map(|valid| &valid[rows.clone()]), bound);
        O::write(numbers, out);
        if O::all_finite(out) {
            return Ok(());
        }
        rows.zip(numbers).try_for_each(|(row, &mut number)| O::result(row, number).map(drop))
    }

    /// Return the result of a valid row.
    fn result(&self, row: usize, rule: Rule) -> f64 {
        let value = self.columns.values[row].to_f64();
        if rule.small {
            return value / rule.line.divisor;
        }
        let Line { centre, divisor } = rule.line;
        let scale = match (&self.spreads, self.divisor) {
            (Some((groups, rules)), _) => rules[groups[row] as usize].line.divisor,
            (None, Some(divisor)) => self.options.divisor(divisor[row]),
            (None, None) => divisor,
        };
        let centred = match (self.options.center, self.baseline, self.units) {
            (Center::LeaveOneOut, _, None) => {
                let weight = self.columns.weights.map_or(1.0, |weights| weights[row]);
                (value - centre) / ((rule.weight - weight) / rule.weight)
            }
            // The row's own unit is left out; its mean may differ from the row's value.
            (Center::LeaveOneOut, _, Some(units)) => {
                let own = units.means[units.rows[row] as usize];
                let others = (own - centre) / (rule.weight - 1.0);
                value - centre + others
            }
            (_, Some(baseline), _) => value - baseline[row],
            (..) => value - centre,
        };
        centred / scale
    }
}

/// Replace values by their results, from the lines of their groups; 0 if they are not valid.
fn compare(numbers: &mut [f64], lines: &[Line], valid: Option<&[bool]>, bound: f64) {
    wide(
        #[inline(always)]
        || {
            for (number, line) in numbers.iter_mut().zip(lines) {
                *number = cut((*number - line.centre) / line.divisor, bound);
            }
            if let Some(valid) = valid {
                numbers.iter_mut().zip(valid).for_each(|(number, &valid)| *number = if valid { *number } else { 0.0 });
            }
        },
    );
}

/// Clip a result to its bounds; adding zero turns a negative zero into zero.
#[inline(always)]
fn cut(value: f64, bound: f64) -> f64 {
    within(value, bound) + 0.0
}

/// Return the column that an option needs, checked; `None` if the option needs none.
fn given<'a, T: Float>(
    name: &str,
    option: &str,
    columns: &Columns<'_, T>,
    needed: bool,
    column: Option<&'a [f64]>,
) -> Result<Option<&'a [f64]>> {
    match (needed, column) {
        (false, None) => Ok(None),
        (false, Some(_)) => {
            Err(Error::invalid(format!("{name} is given, but {option} is not \"{name}\"; leave out {name}")))
        }
        (true, None) => {
            Err(Error::invalid(format!("{option} is \"{name}\", but {name} is missing; give one value for each row")))
        }
        (true, Some(column)) => {
            same_length(name, column.len(), columns.name, columns.values.len())?;
            for (row, &value) in column.iter().enumerate().filter(|&(row, _)| columns.counts(row)) {
                finite(name, row, value)?;
            }
            Ok(Some(column))
        }
    }
}

#[cfg(test)]
#[path = "normalise_tests.rs"]
#[expect(clippy::approx_constant, reason = "a worked example, as rounded as its neighbours")]
mod tests;
