//! Values compared with their group: the one operator behind GRPO, RLOO, whitening and their relatives.

use super::columns::{Columns, Units};
use super::options::{Center, Options, Scale};
use super::rule::{Line, Rule, rule_maker, rules};
use crate::check::{finite, same_length};
use crate::simd::{BLOCK, wide, within};
use crate::{Error, Float, Result, par};

/// What a centre or a scale may need besides the columns.
#[derive(Clone, Copy, Debug, Default)]
pub struct Extra<'a> {
    /// For [`Center::Baseline`]: what is subtracted from each row.
    pub baseline: Option<&'a [f64]>,
    /// For [`Scale::Divisor`]: the spread of each row.
    pub divisor: Option<&'a [f64]>,
    /// Dense ids of other groups, over whose votes the spread is taken; `None`: the same groups.
    pub scale_groups: Option<&'a [u32]>,
}

/// Each value compared with its group: `clip((x - centre) / (max(sqrt(spread² + variance_eps), scale_at_least) + eps))`, or the
/// numerator alone with [`Scale::None`].
///
/// Centre and spread are taken over the votes of the row's group; the spread is that of the values themselves, over the
/// groups of `scale_groups` if they are given. Equal values have exactly themselves as mean and median, so they give 0.
/// Rows that are not valid get 0. So do groups whose spread is at most `scale_above`, or 0 where nothing is added to it, and,
/// by [`Singleton::Zero`](Singleton), groups with too few votes; [`Singleton::Raw`](Singleton) gives those the value itself
/// over the divisor of a spread of 1. Sources: GRPO arXiv:2402.03300 (the defaults), Dr.GRPO
/// arXiv:2503.20783 (no scale), RLOO arXiv:2402.14740 (leave one out, no scale), MC-GRPO (median and mad), `BNPO` (beta).
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
/// `InvalidInput` if lengths differ, ids are not dense, a valid value, baseline or divisor is not finite (the message names
/// its row), a column that an option needs is missing, or an option is out of range; `Overflow` if a result or the distance
/// of a group's values is too large for its type. `out` is unspecified after an error.
pub fn normalise<T: Float>(columns: &Columns<'_, T>, options: &Options, extra: Extra<'_>, out: &mut [T]) -> Result<()> {
    // Not in line: what calls this may be compiled to be small.
    T::normalise(columns, options, extra, out)
}

/// The same into a column of either type.
pub(crate) fn normalise_into<T: Float, O: Float>(
    columns: &Columns<'_, T>,
    options: &Options,
    extra: Extra<'_>,
    out: &mut [O],
) -> Result<()> {
    options.check()?;
    same_length("out", out.len(), columns.name, columns.values.len())?;
    let baseline = given("baseline", "center", columns, options.center == Center::Baseline, extra.baseline)?;
    let divisor = given("divisor", "scale", columns, options.scale == Scale::Divisor, extra.divisor)?;
    let (count, sorted) = columns.check()?;
    let units = columns.units.map(|units| columns.by_unit(units)).transpose()?;
    let spreads = match extra.scale_groups {
        None => None,
        Some(_) if !matches!(options.scale, Scale::Std | Scale::Mad | Scale::Range) => {
            return Err(Error::invalid("scale_groups are given, but scale has no use for them; use std, mad or range"));
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
    let rows = Rows { columns, options, units: units.as_ref(), spreads, baseline, divisor };
    let by_rules = |start: usize, piece: &mut [O], rules: &[Rule], first| rows.fill(start, piece, rules, first);
    let by_lines = |start: usize, piece: &mut [O], lines: &[Line], first| rows.fill_lines(start, piece, lines, first);
    if let Some(units) = &units {
        let rules = rules(&units.columns(columns.name), count, false, options)?;
        return par::fill(out, |start, piece| by_rules(start, piece, &rules, 0));
    }
    let rule = rule_maker(columns, count, sorted, options)?;
    let grouped = columns.grouped(count, sorted)?;
    if rows.are_on_lines() {
        return grouped.fill(out, |group| rule(group).map(|rule| rule.line), by_lines);
    }
    grouped.fill(out, rule, by_rules)
}

/// All that a row's result depends on besides its group's rule.
#[derive(Debug)]
struct Rows<'a, T> {
    columns: &'a Columns<'a, T>,
    options: &'a Options,
    units: Option<&'a Units>,
    /// Groups over which the spread is taken, and their rules.
    spreads: Option<(&'a [u32], Vec<Rule>)>,
    baseline: Option<&'a [f64]>,
    divisor: Option<&'a [f64]>,
}

impl<T: Float> Rows<'_, T> {
    /// Whether a row's result depends on nothing but its value and the line of its group.
    fn are_on_lines(&self) -> bool {
        self.spreads.is_none()
            && self.divisor.is_none()
            && matches!(self.options.center, Center::None | Center::Mean | Center::Median)
    }

    /// Fills the results of neighbouring rows, by the rules of their groups, of which the first is known.
    fn fill<O: Float>(&self, start: usize, out: &mut [O], rules: &[Rule], first: usize) -> Result<()> {
        let bound = self.options.at_most.unwrap_or(f64::INFINITY);
        for (row, place) in (start..).zip(out) {
            let rule = rules[self.columns.groups[row] as usize - first];
            let result = if self.columns.counts(row) { cut(self.result(row, rule), bound) } else { 0.0 };
            *place = O::result(row, result)?;
        }
        Ok(())
    }

    /// The same where lines are enough, with few enough branches for several rows to be made at once.
    fn fill_lines<O: Float>(&self, start: usize, out: &mut [O], lines: &[Line], first: usize) -> Result<()> {
        let Columns { values, groups, valid, .. } = *self.columns;
        let bound = self.options.at_most.unwrap_or(f64::INFINITY);
        let rows = start..start + out.len();
        let line = |group: u32| lines[group as usize - first];
        let result = |value: T, Line { centre, divisor }: Line| cut((value.to_f64() - centre) / divisor, bound);
        let (mut numbers, mut of_rows) = ([0.0; BLOCK], [Line { centre: 0.0, divisor: 1.0 }; BLOCK]);
        let mut finite = true;
        for (start, out) in rows.clone().step_by(BLOCK).zip(out.chunks_mut(BLOCK)) {
            let (rows, numbers) = (start..start + out.len(), &mut numbers[..out.len()]);
            T::read(&values[rows.clone()], numbers);
            gather(lines, first, &groups[rows.clone()], &mut of_rows);
            compare(numbers, &of_rows, valid.map(|valid| &valid[rows]), bound);
            O::write(numbers, out);
            finite &= O::all_finite(out);
        }
        if finite {
            return Ok(());
        }
        let mut valid = rows.filter(|&row| self.columns.counts(row));
        valid.try_for_each(|row| O::result(row, result(values[row], line(groups[row]))).map(drop))
    }

    /// The result of a valid row.
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
            // The row's own unit is left out, which may differ from the row.
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

/// The lines of the groups of some rows.
fn gather(lines: &[Line], first: usize, groups: &[u32], of_rows: &mut [Line]) {
    of_rows.iter_mut().zip(groups).for_each(|(place, &group)| *place = lines[group as usize - first]);
}

/// The results of rows, by the lines of their groups; 0 where they are not valid.
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

/// A result within its bounds; adding zero turns a negative zero into zero.
#[inline(always)]
fn cut(value: f64, bound: f64) -> f64 {
    within(value, bound) + 0.0
}

/// A column that an option needs, checked; `None` where it needs none.
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
            Err(Error::invalid(format!("{name} is given, but {option} is not \"{name}\"; leave out one or the other")))
        }
        (true, None) => Err(Error::invalid(format!("{option} is \"{name}\", but there is no {name}; give one"))),
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
#[expect(clippy::approx_constant, reason = "a worked example, as rounded as its neighbours")]
mod tests {
    use super::*;
    use crate::group::testing::{Group, at, masked_groups, naive, shuffle};
    use crate::group::{Middle, Singleton};
    use proptest::prelude::*;

    fn run(columns: &Columns<'_, f64>, options: Options, extra: Extra<'_>) -> Result<Vec<f64>> {
        let mut out = vec![7.0; columns.values.len()];
        normalise(columns, &options, extra, &mut out)?;
        Ok(out)
    }

    fn plain(values: &[f64], groups: &[u32], options: Options) -> Result<Vec<f64>> {
        run(&Columns::new("scores", values, groups), options, Extra::default())
    }

    const CENTRED: Options = Options {
        scale: Scale::None,
        center: Center::Mean,
        median: Middle::Midpoint,
        ddof: 1,
        eps: 0.0,
        variance_eps: 0.0,
        scale_at_least: 0.0,
        scale_above: 0.0,
        votes_at_least: None,
        singleton: Singleton::Zero,
        at_most: None,
    };

    #[test]
    fn by_hand() -> Result<()> {
        let scaled = Options { scale: Scale::Std, ..CENTRED };
        assert_eq!(plain(&[1.0, 2.0, 3.0, 5.0, 5.0], &[0, 0, 0, 1, 1], scaled)?, [-1.0, 0.0, 1.0, 0.0, 0.0]);
        let population = Options { ddof: 0, eps: 1.0, ..scaled };
        assert_eq!(plain(&[1.0, 3.0], &[0, 0], population)?, [-0.5, 0.5]);
        // Variance 1, and 3 added under the root.
        assert_eq!(plain(&[1.0, 3.0], &[0, 0], Options { ddof: 0, variance_eps: 3.0, ..scaled })?, [-0.5, 0.5]);
        assert_eq!(plain(&[1.0, 3.0], &[0, 0], Options { ddof: 0, scale_at_least: 4.0, ..scaled })?, [-0.25, 0.25]);
        assert_eq!(plain(&[1.0, 3.0], &[0, 0], Options { ddof: 0, scale_above: 1.0, ..scaled })?, [0.0, 0.0]);
        assert_eq!(plain(&[1.0, 3.0, 8.0], &[0; 3], Options { at_most: Some(2.5), ..CENTRED })?, [-2.5, -1.0, 2.5]);
        let range = Options { scale: Scale::Range, ..CENTRED };
        assert_eq!(plain(&[1.0, 3.0, 5.0], &[0; 3], range)?, [-0.5, 0.0, 0.5]);
        assert_eq!(plain(&[1.0, 3.0], &[0, 0], Options { center: Center::None, ..CENTRED })?, [1.0, 3.0]);
        assert!(plain(&[], &[], CENTRED)?.is_empty());
        Ok(())
    }

    /// MC-GRPO: lower median 1, distances 1, 0, 0, 3 whose lower median is 0: the divisor is eps, or the least scale.
    #[test]
    fn medians() -> Result<()> {
        let options = Options { center: Center::Median, scale: Scale::Mad, median: Middle::Lower, eps: 0.5, ..CENTRED };
        let values = [0.0, 1.0, 1.0, 4.0];
        assert_eq!(plain(&values, &[0; 4], options)?, [-2.0, 0.0, 0.0, 6.0]);
        assert_eq!(
            plain(&values, &[0; 4], Options { scale_at_least: 1.0, eps: 0.0, ..options })?,
            [-1.0, 0.0, 0.0, 3.0]
        );
        assert_eq!(plain(&values, &[0; 4], Options { eps: 0.0, ..options })?, [0.0; 4]);
        assert_eq!(plain(&values, &[0; 4], Options { median: Middle::Midpoint, ..options })?, [-1.0, 0.0, 0.0, 3.0]);
        Ok(())
    }

    #[test]
    fn leaving_out_the_row_its_weight_or_its_unit() -> Result<()> {
        let options = Options { center: Center::LeaveOneOut, ..CENTRED };
        let values = [1.0, 2.0, 6.0];
        assert_eq!(plain(&values, &[0; 3], options)?, [-3.0, -1.5, 4.5]);
        // The last row counts twice: the others of the first are 2, 6, 6.
        let weighted = Columns { weights: Some(&[1.0, 1.0, 2.0]), ..Columns::new("scores", &values, &[0; 3]) };
        let found = run(&weighted, options, Extra::default())?;
        let expected = [1.0 - 14.0 / 3.0, 2.0 - 13.0 / 3.0, 6.0 - 1.5];
        assert!(found.iter().zip(expected).all(|(found, expected)| (found - expected).abs() < 1e-14), "{found:?}");
        // Units of mean 1.5 and 6.
        let units = Columns { units: Some(&[0, 0, 1]), ..Columns::new("scores", &values, &[0; 3]) };
        assert_eq!(run(&units, options, Extra::default())?, [-5.0, -4.0, 4.5]);
        Ok(())
    }

    /// Lite PPO: the mean of the group, the deviation of the batch.
    #[test]
    fn the_spread_of_other_groups() -> Result<()> {
        let columns = Columns::new("scores", &[0.0, 2.0, 4.0, 6.0], &[0, 0, 1, 1]);
        let options = Options { scale: Scale::Std, ddof: 0, ..CENTRED };
        let extra = Extra { scale_groups: Some(&[0; 4]), ..Extra::default() };
        let std = 5.0_f64.sqrt();
        assert_eq!(run(&columns, options, extra)?, [-1.0 / std, 1.0 / std, -1.0 / std, 1.0 / std]);
        let message = run(&columns, CENTRED, extra).map_err(|error| error.to_string());
        assert_eq!(
            message,
            Err("scale_groups are given, but scale has no use for them; use std, mad or range".to_owned())
        );
        Ok(())
    }

    #[test]
    fn a_baseline_and_a_divisor_of_the_caller() -> Result<()> {
        let options = Options { center: Center::Baseline, scale: Scale::Divisor, eps: 1.0, ..CENTRED };
        let extra = Extra { baseline: Some(&[1.0, 2.0]), divisor: Some(&[1.0, 3.0]), ..Extra::default() };
        let columns = Columns::new("scores", &[5.0, 10.0], &[0, 1]);
        assert_eq!(run(&columns, options, extra)?, [2.0, 2.0]);
        for (options, extra, expected) in [
            (options, Extra { divisor: None, ..extra }, "scale is \"divisor\", but there is no divisor; give one"),
            (CENTRED, extra, "baseline is given, but center is not \"baseline\"; leave out one or the other"),
            (
                options,
                Extra { baseline: Some(&[1.0, f64::NAN]), ..extra },
                "baseline[1] is NaN, but must be finite; correct it or mark the row invalid",
            ),
        ] {
            assert_eq!(run(&columns, options, extra).map_err(|error| error.to_string()), Err(expected.to_owned()));
        }
        Ok(())
    }

    /// The fixture of the catalogue: success rates .25, .5, .75 give α = β = 1.5.
    #[test]
    fn beta_of_three_prompts() -> Result<()> {
        let scores = [1.0, 0.0, 0.0, 0.0, 1.0, 0.0, 1.0, 0.0, 1.0, 1.0, 1.0, 0.0];
        let groups = [0, 0, 0, 0, 1, 1, 1, 1, 2, 2, 2, 2];
        let options = Options { scale: Scale::Beta, ..CENTRED };
        let found = plain(&scores, &groups, options)?;
        for (row, expected) in [(0, 0.680_175), (4, 0.392_699), (8, 0.226_725), (11, -0.680_175), (1, -0.226_725)] {
            assert!((found[row] - expected).abs() < 1e-6, "{row} {}", found[row]);
        }
        assert_eq!(plain(&[1.0, 1.0, 0.0, 0.0], &[0, 0, 1, 1], options)?, [0.0; 4]);
        assert!(plain(&[2.0, 0.0], &[0, 0], options).is_err());
        Ok(())
    }

    #[test]
    fn groups_with_too_few_votes() -> Result<()> {
        let with = |singleton, scale| Options { singleton, scale, eps: 1.0, ..CENTRED };
        let valid = [true, true, false];
        let columns = Columns { valid: Some(&valid), ..Columns::new("scores", &[6.0, 1.0, 4.0], &[0, 1, 1]) };
        for (options, expected) in [
            (with(Singleton::Zero, Scale::Std), [0.0, 0.0, 0.0]),
            (with(Singleton::Zero, Scale::None), [0.0, 0.0, 0.0]),
            (with(Singleton::Raw, Scale::Std), [3.0, 0.5, 0.0]),
            (with(Singleton::Raw, Scale::None), [6.0, 1.0, 0.0]),
            (Options { center: Center::LeaveOneOut, ..with(Singleton::Raw, Scale::None) }, [6.0, 1.0, 0.0]),
        ] {
            assert_eq!(run(&columns, options, Extra::default())?, expected);
        }
        let few = Options { votes_at_least: Some(3), ..CENTRED };
        assert_eq!(plain(&[0.0, 2.0, 0.0, 3.0, 3.0], &[0, 0, 1, 1, 1], few)?, [0.0, 0.0, -2.0, 1.0, 1.0]);
        Ok(())
    }

    /// Zero, and not negative zero, whatever rounding does to the mean.
    #[test]
    fn equal_scores_give_exactly_zero() -> Result<()> {
        for center in [Center::Mean, Center::Median, Center::LeaveOneOut] {
            for scale in [Scale::Std, Scale::None, Scale::Mad, Scale::Range] {
                for score in [0.1, 1.0 / 3.0, -7.3, 1e30, -0.0] {
                    for (count, eps) in [(2, 0.0), (3, 1e-6), (49, 0.0)] {
                        let options = Options { center, scale, eps, ..CENTRED };
                        let found = plain(&vec![score; count], &vec![0; count], options)?;
                        assert!(found.iter().all(|value| value.to_bits() == 0), "{options:?} {found:?}");
                    }
                }
            }
        }
        Ok(())
    }

    #[test]
    fn errors_name_the_row() {
        let mut short = [0.0];
        let columns = Columns::new("scores", &[1.0, 2.0], &[0, 0]);
        let message = normalise(&columns, &CENTRED, Extra::default(), &mut short).map_err(|error| error.to_string());
        assert_eq!(message, Err("out has 1 values, but scores has 2; give one value of each for every row".to_owned()));
        let (values, mut out) = ([f32::MAX, f32::MIN, f32::MIN], [0.0_f32; 3]);
        let columns = Columns::new("scores", &values, &[0; 3]);
        let message = normalise(&columns, &CENTRED, Extra::default(), &mut out).map_err(|error| error.to_string());
        assert_eq!(
            message,
            Err("the result of row 0 is 4.537097955180385e38, too large for f32; scale the input".to_owned())
        );
    }

    /// Runs are filled in one pass, large ones in pieces; rows that stand anywhere by way of buckets.
    #[test]
    fn runs_and_scattered_rows_get_the_same_bits_on_any_number_of_threads() -> Result<()> {
        let small = (0..3 * par::PIECE as u32).map(|row| row / 8);
        let large = vec![3 * par::PIECE as u32 / 8; 2 * par::PIECE + 5];
        let groups: Vec<u32> = small.chain(large).collect();
        let draw = |row: usize| crate::rng::uniform(5, row as u64) - 0.5;
        let values: Vec<f64> = (0..groups.len()).map(|row| draw(row) * 10_f64.powi((row % 40) as i32 - 20)).collect();
        let order = shuffle(values.len(), 9);
        let (mixed_values, mixed_groups) = (at(&order, &values), at(&order, &groups));
        let mut expected = None;
        for threads in [1, 2, 4] {
            par::set_threads(threads)?;
            let found: Vec<u64> = plain(&values, &groups, Options::default())?.into_iter().map(f64::to_bits).collect();
            let mixed = plain(&mixed_values, &mixed_groups, Options::default())?;
            assert!(order.iter().zip(mixed).all(|(&row, value)| found[row] == value.to_bits()), "{threads}");
            assert_eq!(*expected.get_or_insert_with(|| found.clone()), found, "{threads}");
        }
        Ok(())
    }

    proptest! {
        #[test]
        fn as_the_formula(
            (group, valid) in masked_groups(),
            scale in prop_oneof![Just(Scale::Std), Just(Scale::None)],
            center in prop_oneof![Just(Center::Mean), Just(Center::LeaveOneOut)],
            raw in any::<bool>(),
            ddof in 0_u32..2,
        ) {
            let Group { values, groups, .. } = group;
            let singleton = if raw { Singleton::Raw } else { Singleton::Zero };
            let options = Options { center, scale, ddof, eps: 1e-6, singleton, ..CENTRED };
            let columns = Columns { valid: Some(&valid), ..Columns::new("scores", &values, &groups) };
            let found = run(&columns, options, Extra::default())?;
            for row in 0..values.len() {
                if !valid[row] {
                    prop_assert_eq!(found[row].to_bits(), 0);
                    continue;
                }
                let rows = (0..values.len()).filter(|&other| groups[other] == groups[row] && valid[other]);
                let members: Vec<f64> = rows.map(|row| values[row]).collect();
                let count = members.len() as f64;
                let largest = members.iter().fold(0.0, |largest: f64, value| largest.max(value.abs()));
                let (mean, spread) = match (members.len(), singleton) {
                    (1, Singleton::Raw) => (0.0, 1.0),
                    (1, Singleton::Zero) => (values[row], 1.0),
                    _ => naive(&members, ddof),
                };
                let divisor = if scale == Scale::Std { spread + 1e-6 } else { 1.0 };
                let others = if center == Center::LeaveOneOut && count > 1.0 { count / (count - 1.0) } else { 1.0 };
                let expected = (values[row] - mean) * others / divisor;
                // What is rounded off the mean and the deviation, in units of the result.
                let tolerance = 2e-12 * (largest / divisor) * (1.0 + expected.abs().min(10.0));
                prop_assert!((found[row] - expected).abs() <= tolerance, "{} {expected}", found[row]);
            }
        }

        #[test]
        fn any_order_gives_the_same_bits(
            (group, valid) in masked_groups(),
            seed in any::<u64>(),
            scale in prop_oneof![Just(Scale::Std), Just(Scale::Mad), Just(Scale::Range)],
            center in prop_oneof![Just(Center::Mean), Just(Center::Median), Just(Center::LeaveOneOut)],
            by_unit in any::<bool>(),
        ) {
            let Group { values, groups, .. } = group;
            let units: Vec<u32> = (0..values.len() as u32).map(|row| row / 2).collect();
            let order = shuffle(values.len(), seed);
            let options = Options { center, scale, ..Options::default() };
            let columns = Columns {
                valid: Some(&valid), units: by_unit.then_some(&units), ..Columns::new("scores", &values, &groups)
            };
            let found = run(&columns, options, Extra::default())?;
            let (values, groups, valid, units) =
                (at(&order, &values), at(&order, &groups), at(&order, &valid), at(&order, &units));
            let columns = Columns {
                valid: Some(&valid), units: by_unit.then_some(&units), ..Columns::new("scores", &values, &groups)
            };
            let theirs = run(&columns, options, Extra::default())?;
            prop_assert!(order.iter().zip(theirs).all(|(&row, value)| found[row].to_bits() == value.to_bits()));
        }
    }
}
