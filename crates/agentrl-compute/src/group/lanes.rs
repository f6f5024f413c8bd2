//! Statistics of many small groups at once, with one group in each SIMD lane.

use super::extent::{greater, lesser};
use super::grid::{DIGITS, halves, nearest, squares};
use super::moments::Statistics;
use crate::simd::wide;

/// Number of groups processed at once. It is more than a vector holds: otherwise loops over groups are unrolled, and
/// vectors are formed across votes, which are not contiguous.
pub(super) const LANES: usize = 32;

/// Smallest number of groups for lanes. Fewer groups are faster one by one, because empty lanes cost as much.
const MIN_GROUPS: usize = LANES / 4;

/// Largest number of votes of a group in a lane.
const MAX_VOTES: usize = 64;

/// Groups with more than `MAX_RATIO * votes_per_group` votes have no lanes.
const MAX_RATIO: usize = 4;

/// Receiver of the statistics of groups, in group order.
pub(super) trait Sink {
    /// Receive the statistics of a group.
    fn push(&mut self, found: Statistics);

    /// Receive the statistics of the groups in all lanes, with their numbers of votes.
    fn push_lanes(&mut self, found: &LaneStatistics, counts: impl ExactSizeIterator<Item = u32> + Clone);
}

impl Sink for Vec<Statistics> {
    fn push(&mut self, found: Statistics) {
        self.push(found);
    }

    #[inline(always)]
    fn push_lanes(&mut self, found: &LaneStatistics, counts: impl ExactSizeIterator<Item = u32> + Clone) {
        self.extend(counts.enumerate().map(|(lane, count)| found.statistics(lane, count)));
    }
}

/// One number for each lane.
pub(super) type PerLane<N> = [N; LANES];

/// Compute the statistics of groups with contiguous votes, with the same bits as [`Statistics::of`]. `starts` holds the
/// start of each group and the end of the last; `starts[0]` is the start of `values`.
pub(super) fn statistics_of_runs(starts: &[u32], values: &[f64], ddof: u32, sink: &mut impl Sink) {
    let of_group = |ends: &[u32]| &values[(ends[0] - starts[0]) as usize..(ends[1] - starts[0]) as usize];
    if starts.len() <= MIN_GROUPS {
        return starts.windows(2).for_each(|ends| sink.push(Statistics::of(of_group(ends), &[], ddof)));
    }
    let (mut votes, mut lanes) = ([[0.0; LANES]; MAX_VOTES], LaneStatistics::default());
    for first in (0..starts.len() - 1).step_by(LANES) {
        let ends = &starts[first..starts.len().min(first + LANES + 1)];
        let groups = ends.windows(2).map(of_group);
        let lengths = groups.clone().map(<[f64]>::len);
        let (shortest, longest) = lengths.fold((usize::MAX, 0), |(least, most), len| (least.min(len), most.max(len)));
        if longest > MAX_VOTES {
            groups.for_each(|values| sink.push(Statistics::of(values, &[], ddof)));
            continue;
        }
        let votes = &mut votes[..longest];
        if shortest == longest && ends.len() > LANES {
            let values = &values[(ends[0] - starts[0]) as usize..(ends[LANES] - starts[0]) as usize];
            for (vote, lanes) in votes.iter_mut().enumerate() {
                lanes.iter_mut().zip(values.chunks_exact(longest)).for_each(|(lane, values)| *lane = values[vote]);
            }
        } else {
            votes.fill([f64::NAN; LANES]);
            for (lane, values) in groups.enumerate() {
                votes.iter_mut().zip(values).for_each(|(votes, &value)| votes[lane] = value);
            }
        }
        lanes.add(votes, ends.windows(2).map(|ends| ends[1] - ends[0]), ddof, sink);
    }
}

/// Compute the same from votes in any order, each with its group. Most groups have at most `votes_per_group` votes.
/// Return false without computing any if there are few groups, or if some have far more votes, because lanes would be
/// mostly empty.
#[inline(never)]
pub(super) fn statistics_of_votes(
    votes: &(impl Iterator<Item = (u32, f64)> + Clone),
    groups: usize,
    votes_per_group: usize,
    ddof: u32,
    sink: &mut impl Sink,
) -> bool {
    let (mut places, mut room, mut longest) = (vec![0; groups], Vec::new(), votes_per_group.max(1));
    let counts = loop {
        if groups < MIN_GROUPS || longest > MAX_VOTES.min(MAX_RATIO * votes_per_group.max(1)) {
            return false;
        }
        let first = |group: usize| (group / LANES * longest * LANES + group % LANES) as u32;
        places.iter_mut().enumerate().for_each(|(group, place)| *place = first(group));
        room.clear();
        room.resize(groups.div_ceil(LANES) * longest, [f64::NAN; LANES]);
        let lanes = room.as_flattened_mut();
        // A group with more votes than its room overwrites others; the counts reveal this, and the loop repeats.
        votes.clone().for_each(|(group, value)| {
            let place = &mut places[group as usize];
            if let Some(vote) = lanes.get_mut(*place as usize) {
                *vote = value;
            }
            *place += LANES as u32;
        });
        let count = |(group, &place): (usize, &u32)| (place - first(group)) / LANES as u32;
        let counts: Vec<u32> = places.iter().enumerate().map(count).collect();
        match counts.iter().max() {
            Some(&most) if most as usize > longest => longest = most as usize,
            _ => break counts,
        }
    };
    let mut lanes = LaneStatistics::default();
    for (votes, counts) in room.chunks_mut(longest).zip(counts.chunks(LANES)) {
        lanes.add(votes, counts.iter().copied(), ddof, sink);
    }
    true
}

/// Statistics of the groups in all lanes.
#[derive(Debug, Default)]
pub(super) struct LaneStatistics {
    pub(super) counts: PerLane<f64>,
    pub(super) means: PerLane<f64>,
    pub(super) stds: PerLane<f64>,
    pub(super) least: PerLane<f64>,
    pub(super) most: PerLane<f64>,
}

impl LaneStatistics {
    /// Compute the statistics of groups and push them. `counts` holds their numbers of votes; missing votes are NaN.
    /// `votes` is overwritten.
    #[inline(always)]
    fn add(
        &mut self,
        votes: &mut [PerLane<f64>],
        counts: impl ExactSizeIterator<Item = u32> + Clone,
        ddof: u32,
        sink: &mut impl Sink,
    ) {
        self.counts = [0.0; LANES];
        self.counts.iter_mut().zip(counts.clone()).for_each(|(known, count)| *known = f64::from(count));
        if counts.len() == LANES && counts.clone().all(|count| count as usize == votes.len()) {
            wide(
                #[inline(always)]
                || self.fill::<true>(votes, f64::from(ddof)),
            );
        } else {
            wide(
                #[inline(always)]
                || self.fill::<false>(votes, f64::from(ddof)),
            );
        }
        sink.push_lanes(self, counts);
    }

    /// Compute the statistics of all lanes. Unless `FULL`, missing votes are NaN. `votes` is overwritten.
    #[inline(always)]
    fn fill<const FULL: bool>(&mut self, votes: &mut [PerLane<f64>], ddof: f64) {
        let (mut least, mut most) = ([f64::INFINITY; LANES], [f64::NEG_INFINITY; LANES]);
        for votes in &*votes {
            for lane in 0..LANES {
                least[lane] = lesser(votes[lane], least[lane]);
                most[lane] = greater(votes[lane], most[lane]);
            }
        }
        let grids = Grids::of(&least, &most);
        let mut firsts = [0; LANES];
        for votes in &mut *votes {
            for lane in 0..LANES {
                let known = FULL || !votes[lane].is_nan();
                let rounded = if known { grids.round(lane, votes[lane]) } else { 0 };
                firsts[lane] += rounded;
                // Only if no vote is missing: a missing vote must stay NaN, and the bits of an integer can be those of
                // a NaN.
                if FULL {
                    votes[lane] = f64::from_bits(rounded.cast_unsigned());
                }
            }
        }
        let (mut means, mut nearests) = ([0.0; LANES], [0; LANES]);
        for lane in 0..LANES {
            means[lane] = firsts[lane] as f64 / self.counts[lane];
            nearests[lane] = nearest(means[lane]);
        }
        let (mut high, mut middle, mut low) = ([0; LANES], [0; LANES], [0; LANES]);
        for votes in votes {
            for lane in 0..LANES {
                let known = FULL || !votes[lane].is_nan();
                let rounded = if FULL { votes[lane].to_bits().cast_signed() } else { grids.round(lane, votes[lane]) };
                let [a, b] = halves(if known { rounded - nearests[lane] } else { 0 });
                high[lane] += a * a;
                middle[lane] += a * b;
                low[lane] += b * b;
            }
        }
        for lane in 0..LANES {
            let rest = ((middle[lane] & ((1 << 25) - 1)) << 27) + low[lane];
            let whole = high[lane] + (middle[lane] >> 25) + (rest >> 52);
            let divisor = self.counts[lane] - ddof;
            let variance = squares(whole, rest & ((1 << 52) - 1)) / divisor;
            let std = variance.sqrt() * grids.steps[0][lane] * grids.steps[1][lane];
            let mean = grids.origins[lane] + means[lane] * grids.steps[0][lane] * grids.steps[1][lane];
            // Rounding can move the mean out of the range by one digit.
            let mean = lesser(greater(mean, least[lane]), most[lane]);
            let equal = least[lane] >= most[lane];
            let std = if equal { 0.0 } else { std };
            self.means[lane] = if equal { least[lane] } else { mean };
            self.stds[lane] = if divisor > 0.0 { std } else { f64::NAN };
            self.least[lane] = least[lane];
            self.most[lane] = most[lane];
        }
    }

    /// Return the statistics of the group in a lane, which has `count` votes.
    #[inline]
    pub(super) fn statistics(&self, lane: usize, count: u32) -> Statistics {
        let [weight, mean, std, least, most] =
            [&self.counts, &self.means, &self.stds, &self.least, &self.most].map(|of| of[lane]);
        let known = |number: f64| if weight > 0.0 { number } else { f64::NAN };
        Statistics { count: u64::from(count), weight, mean: known(mean), std, least: known(least), most: known(most) }
    }
}

/// Grid of the group in each lane: see [`Grid`](super::Grid).
struct Grids {
    origins: PerLane<f64>,
    /// Two factors by which distances from the origin are multiplied, one after the other.
    scales: [PerLane<f64>; 2],
    /// Inverses of the scales.
    steps: [PerLane<f64>; 2],
}

impl Grids {
    #[inline(always)]
    fn of(least: &PerLane<f64>, most: &PerLane<f64>) -> Self {
        let (mut origins, mut scales, mut steps) = ([0.0; LANES], [[0.0; LANES]; 2], [[0.0; LANES]; 2]);
        for lane in 0..LANES {
            let (least, most) = (least[lane], most[lane]);
            let range = most - least;
            let origin = if 2.0 * range >= greater(most.abs(), least.abs()) { 0.0 } else { least + 0.5 * range };
            let furthest = greater((most - origin).abs(), (least - origin).abs());
            let order = ((furthest.to_bits() >> 52) as i64 & 0x7ff).max(1) - 1023;
            let exponent = i64::from(DIGITS) - 1 - order;
            let first = exponent.min(1000);
            origins[lane] = origin;
            for (place, exponent) in [first, exponent - first].into_iter().enumerate() {
                scales[place][lane] = f64::from_bits(((1023 + exponent) as u64) << 52);
                steps[place][lane] = f64::from_bits(((1023 - exponent) as u64) << 52);
            }
        }
        Self { origins, scales, steps }
    }

    #[inline(always)]
    fn round(&self, lane: usize, value: f64) -> i64 {
        nearest((value - self.origins[lane]) * self.scales[0][lane] * self.scales[1][lane])
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::group::testing::{at, shuffle};
    use proptest::prelude::*;

    fn bits(found: &Statistics) -> (u64, [u64; 5]) {
        let Statistics { count, weight, mean, std, least, most } = *found;
        (count, [weight, mean, std, least, most].map(f64::to_bits))
    }

    fn value() -> impl Strategy<Value = f64> {
        prop_oneof![
            4 => prop_oneof![Just(0.0), Just(1.0), Just(-1.0), Just(0.1), Just(f64::MAX), Just(5e-324)],
            3 => -10.0_f64..10.0,
            1 => (-10.0_f64..10.0).prop_map(|value| 1e12 + value),
            2 => prop::num::f64::NORMAL | prop::num::f64::SUBNORMAL,
        ]
    }

    /// Generate groups of any size, or groups of one size, enough to fill all lanes.
    fn groups() -> impl Strategy<Value = Vec<Vec<f64>>> {
        let of_one_size = (0..10_usize)
            .prop_flat_map(|size| prop::collection::vec(prop::collection::vec(value(), size), LANES..2 * LANES + 2));
        prop_oneof![3 => of_any_size(), 1 => of_one_size]
    }

    fn of_any_size() -> impl Strategy<Value = Vec<Vec<f64>>> {
        let size = prop_oneof![8 => 0..10_usize, 1 => MAX_VOTES - 2..MAX_VOTES + 3];
        prop::collection::vec((size, prop::collection::vec(value(), MAX_VOTES + 3), any::<bool>()), 1..40).prop_map(
            |groups| {
                let group = |(size, values, constant): (usize, Vec<f64>, bool)| {
                    if constant { vec![values[0]; size] } else { values[..size].to_vec() }
                };
                groups.into_iter().map(group).collect()
            },
        )
    }

    proptest! {
        #[test]
        fn as_one_by_one(groups in groups(), ddof in 0_u32..2, offset in 0_u32..9) {
            let mut starts = vec![offset];
            for group in &groups {
                starts.push(starts[starts.len() - 1] + group.len() as u32);
            }
            let mut found = Vec::new();
            statistics_of_runs(&starts, &groups.concat(), ddof, &mut found);
            let expected: Vec<_> = groups.iter().map(|group| bits(&Statistics::of(group, &[], ddof))).collect();
            prop_assert_eq!(found.iter().map(bits).collect::<Vec<_>>(), expected, "{:?}", groups);
        }

        #[test]
        fn as_one_by_one_of_votes_that_stand_anywhere(groups in groups(), ddof in 0_u32..2, votes_per_group in 0_usize..20, seed in any::<u64>()) {
            let votes: Vec<(u32, f64)> = (0..).zip(&groups).flat_map(|(id, group)| group.iter().map(move |&value| (id, value))).collect();
            let votes = at(&shuffle(votes.len(), seed), &votes);
            let most = groups.iter().map(Vec::len).max().unwrap_or(0);
            let mut found = Vec::new();
            let is_made = statistics_of_votes(&votes.into_iter(), groups.len(), votes_per_group, ddof, &mut found);
            prop_assert_eq!(is_made, groups.len() >= MIN_GROUPS && most <= MAX_VOTES.min(MAX_RATIO * votes_per_group.max(1)), "{} {}", most, votes_per_group);
            let expected: Vec<_> = groups.iter().map(|group| bits(&Statistics::of(group, &[], ddof))).collect();
            let found: Vec<_> = found.iter().map(bits).collect();
            prop_assert_eq!(found, if is_made { expected } else { Vec::new() }, "{:?}", groups);
        }
    }
}
