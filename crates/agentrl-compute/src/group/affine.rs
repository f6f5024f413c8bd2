//! The rule of a group: centre and divisor that turn its values into results, computed from its statistics.

use std::ops::Range;

use super::beta;
use super::columns::Columns;
use super::extent::greater;
use super::lanes::{LANES, LaneStatistics, Sink};
use super::moments::Statistics;
use super::options::{Center, Options, Scale, Singleton};
use super::per_group::{Group, Grouped, Work};
use super::quantiles::median;
use super::statistics::{check_distance, of_votes};
use super::vote_buffer::Buffer;
use crate::simd::wide;
use crate::{Error, Float, Result};

/// Rule for the rows of one group.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Rule {
    pub(super) line: Line,
    pub(super) weight: f64,
    /// Whether there are too few votes: then values are divided without centring.
    pub(super) small: bool,
}

/// Linear map of values to results: `(value - centre) / divisor`.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Line {
    pub(super) centre: f64,
    /// Infinite if all rows get 0.
    pub(super) divisor: f64,
}

impl Options {
    #[inline]
    pub(super) fn divisor(&self, spread: f64) -> f64 {
        if self.scale == Scale::None {
            return 1.0;
        }
        self.bounded(spread, if self.variance_eps > 0.0 { enlarged(spread, self.variance_eps) } else { spread })
    }

    /// Return the divisor for a spread; `root` is `sqrt(spread² + variance_eps)`. Branchless, so that several are
    /// computed at once.
    #[inline(always)]
    fn bounded(&self, spread: f64, root: f64) -> f64 {
        let divisor = greater(root, self.scale_at_least) + self.eps;
        let is_none = (spread <= self.scale_above) & (self.scale_above > 0.0) | (divisor == 0.0);
        if is_none { f64::INFINITY } else { divisor }
    }
}

/// Not inlined; otherwise every group would pay for the root.
#[inline(never)]
fn enlarged(spread: f64, variance_eps: f64) -> f64 {
    (spread * spread + variance_eps).sqrt()
}

/// Return the rule of each group. Columns must be checked before and have no units.
pub(super) fn rules<T: Float>(
    columns: &Columns<'_, T>,
    count: usize,
    sorted: bool,
    options: &Options,
) -> Result<Vec<Rule>> {
    let maker = Maker::new(columns, count, sorted, options)?;
    columns.grouped(count, sorted)?.each(|group| maker.rule(group))
}

/// Builder of rules: everything that a group's rule depends on besides its votes.
#[derive(Clone, Copy, Debug)]
pub(super) struct Maker<'a> {
    name: &'a str,
    options: &'a Options,
    /// `α` and `β` of the Beta distribution.
    shape: (f64, f64),
    /// Smallest number of votes with which a group is normalised.
    fewest: u64,
    /// Whether the centre is the mean, the scale the standard deviation, and `variance_eps` 0.
    is_common: bool,
    needs_median: bool,
}

impl<'a> Maker<'a> {
    /// Create a builder for columns of `count` groups.
    pub(super) fn new<T: Float>(
        columns: &Columns<'a, T>,
        count: usize,
        sorted: bool,
        options: &'a Options,
    ) -> Result<Self> {
        let name = columns.name;
        let shape = match options.scale {
            Scale::Beta => fit(name, &of_votes(columns, count, sorted, options.ddof)?, options.ddof)?,
            _ => (1.0, 1.0),
        };
        let is_common = options.scale == Scale::Std
            && matches!(options.center, Center::Mean | Center::LeaveOneOut)
            && options.variance_eps <= 0.0;
        let needs_median = options.center == Center::Median || options.scale == Scale::Mad;
        Ok(Self { name, options, shape, fewest: options.fewest(), is_common, needs_median })
    }

    /// Return the rule of a group.
    #[inline(always)]
    pub(super) fn rule<T: Float>(&self, group: &mut Group<'_, '_, T>) -> Result<Rule> {
        let options = self.options;
        let middle = if self.needs_median { median(&group.votes(), options.median) } else { (f64::NAN, f64::NAN) };
        let index = group.index();
        self.of_statistics(index, group.statistics(options.ddof)?, middle)
    }

    /// Return the rule of a group with these statistics. `middle` holds the median and the median distance from it.
    #[inline(always)]
    fn of_statistics(&self, index: usize, found: &Statistics, middle: (f64, f64)) -> Result<Rule> {
        check_distance(self.name, index, found)?;
        // Most groups take these few inlined instructions.
        if self.is_common && found.count >= self.fewest && !found.std.is_nan() {
            let line = Line { centre: found.mean, divisor: self.options.divisor(found.std) };
            return Ok(Rule { line, weight: found.weight, small: false });
        }
        Ok(self.any(found, middle))
    }

    /// Compute the lines of the groups in lanes, from mean and standard deviation. Return false if some need the
    /// general rule.
    fn are_usual(&self, found: &LaneStatistics, lines: &mut [Line; LANES]) -> bool {
        let (options, fewest) = (self.options, self.fewest as f64);
        wide(
            #[inline(always)]
            || {
                let mut usual = true;
                for (lane, line) in lines.iter_mut().enumerate() {
                    usual &= (found.most[lane] - found.least[lane] < f64::INFINITY)
                        & (found.counts[lane] >= fewest)
                        & !found.stds[lane].is_nan();
                    let spread = found.stds[lane];
                    *line = Line { centre: found.means[lane], divisor: options.bounded(spread, spread) };
                }
                usual
            },
        )
    }

    /// Return the rule for any centre and scale.
    #[inline(never)]
    fn any(&self, found: &Statistics, (middle, distance): (f64, f64)) -> Rule {
        let &Self { options, shape, fewest, .. } = self;
        let centre = match options.center {
            Center::None | Center::Baseline => 0.0,
            Center::Mean | Center::LeaveOneOut => found.mean,
            Center::Median => middle,
        };
        let divisor = match options.scale {
            Scale::None | Scale::Divisor => 1.0,
            Scale::Std => options.divisor(found.std),
            Scale::Mad => options.divisor(distance),
            Scale::Range => options.divisor(found.most - found.least),
            Scale::Beta => density(found.mean, shape),
        };
        // Weights that sum to 1 or less leave no unbiased variance.
        let no_spread = options.scale == Scale::Std && found.std.is_nan();
        if found.count < fewest || no_spread {
            let divisor = if options.singleton == Singleton::Raw { options.divisor(1.0) } else { f64::INFINITY };
            return Rule { line: Line { centre: 0.0, divisor }, weight: found.weight, small: true };
        }
        Rule { line: Line { centre, divisor }, weight: found.weight, small: false }
    }
}

/// Work that computes only the lines of groups.
impl<T: Float> Work<T, Line> for Maker<'_> {
    fn on_group(&self, group: &mut Group<'_, '_, T>) -> Result<Line> {
        self.rule(group).map(|rule| rule.line)
    }

    fn on_piece(
        &self,
        grouped: &Grouped<'_, T>,
        groups: &Range<usize>,
        buffer: &mut Buffer,
    ) -> Result<Option<Vec<Line>>> {
        if self.needs_median {
            return Ok(None);
        }
        let mut lines =
            Lines { maker: self, first: groups.start, made: Vec::with_capacity(groups.len()), checked: Ok(()) };
        grouped.statistics(groups, self.options.ddof, buffer, &mut lines);
        lines.checked.map(|()| Some(lines.made))
    }
}

/// Receiver that turns the statistics of neighbouring groups into lines as soon as they are computed.
struct Lines<'m, 'a> {
    maker: &'m Maker<'a>,
    first: usize,
    made: Vec<Line>,
    /// The first error.
    checked: Result<()>,
}

impl Sink for Lines<'_, '_> {
    fn push(&mut self, found: Statistics) {
        if self.checked.is_ok() {
            let rule = self.maker.of_statistics(self.first + self.made.len(), &found, (f64::NAN, f64::NAN));
            self.checked = rule.map(|rule| self.made.push(rule.line));
        }
    }

    #[inline(always)]
    fn push_lanes(&mut self, found: &LaneStatistics, counts: impl ExactSizeIterator<Item = u32> + Clone) {
        let mut lines = [Line::default(); LANES];
        if counts.len() == LANES && self.maker.is_common && self.maker.are_usual(found, &mut lines) {
            self.made.extend_from_slice(&lines);
        } else {
            counts.enumerate().for_each(|(lane, count)| self.push(found.statistics(lane, count)));
        }
    }
}

/// Return the density, at least 1e-6: the weight 1 / density is at most a million.
#[inline(never)]
fn density(mean: f64, shape: (f64, f64)) -> f64 {
    beta::density(mean, shape.0, shape.1).max(1e-6)
}

/// Fit the Beta distribution to the means of all groups that have votes.
fn fit(name: &str, statistics: &[Statistics], ddof: u32) -> Result<(f64, f64)> {
    let outside = |found: &&Statistics| found.count > 0 && !(found.least >= 0.0 && found.most <= 1.0);
    if let Some(found) = statistics.iter().find(outside) {
        return Err(Error::invalid(format!(
            "{name} range from {} to {}, but scale \"beta\" is for rewards from 0 to 1; use scale \"std\"",
            found.least, found.most
        )));
    }
    let rates: Vec<f64> = statistics.iter().filter(|found| found.count > 0).map(|found| found.mean).collect();
    let groups = vec![0; rates.len()];
    let found = super::statistics(&Columns::new("means", &rates, &groups), ddof)?;
    Ok(found.first().map_or((1.0, 1.0), |found| beta::fit(found.mean, found.std * found.std)))
}
