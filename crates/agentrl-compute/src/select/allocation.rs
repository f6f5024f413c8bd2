//! Allocate rollouts to tasks under a total budget.

use std::cmp::Ordering;
use std::collections::BinaryHeap;
use std::collections::binary_heap::PeekMut;

use crate::argument_checks::same_length;
use crate::{Error, Result, names};

names! {
    /// Value of n rollouts of a task whose success probability is p.
    "value" Value {
        /// Probability of at least one success and one failure: `1 - p^n - (1 - p)^n`.
        Mixed = "mixed",
        /// Expected number of failures next to at least one success: `n (1 - p) (1 - (1 - p)^(n - 1))`.
        Failures = "failures",
    }
}

impl Value {
    /// Return the value that rollout n + 1 adds.
    fn gain(self, p: f64, n: f64) -> f64 {
        let q = 1.0 - p;
        match self {
            Self::Mixed => p.powf(n) * q + q.powf(n) * p,
            Self::Failures => q * (1.0 - q.powf(n)) + n * p * q.powf(n),
        }
    }
}

/// Options of [`greedy`].
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Greedy {
    /// Value of a task's rollouts.
    pub value: Value,
    /// Number of rollouts of all tasks together.
    pub total: u64,
    /// Minimum number of rollouts of a task.
    pub low: u32,
    /// Maximum number of rollouts of a task.
    pub high: u32,
    /// Rollouts whose gain is at most this are not spent.
    pub gain_above: f64,
}

/// A task that can get another rollout, and the gain of that rollout.
struct Offer {
    gain: f64,
    row: usize,
}

impl PartialEq for Offer {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other) == Ordering::Equal
    }
}

impl Eq for Offer {}

impl PartialOrd for Offer {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Offer {
    fn cmp(&self, other: &Self) -> Ordering {
        self.gain.total_cmp(&other.gain).then(other.row.cmp(&self.row))
    }
}

/// Allocate rollouts one at a time to the task with the largest gain of the weighted [`Value`]; ties go to the earlier
/// task. Every task gets `low <= n_i <= high` rollouts, and all together at most `total`.
///
/// [`Value::Mixed`] is concave in n for n of at least 1, so the result maximises
/// `sum_i weight_i (1 - p_i^n - (1 - p_i)^n)`. [`Value::Failures`] is not concave: a task whose next rollout gains
/// little waits, even if later ones would gain much. If `low` for every task is more than the total, the rollouts are
/// divided evenly, and the first tasks get one more. Rollouts that are left go to the tasks of `rest` in turn (in
/// Knapsack RL the tasks that were never solved).
///
/// ```
/// use agentrl_compute::select::{Greedy, Value, greedy};
///
/// let options = Greedy { value: Value::Mixed, total: 8, low: 2, high: 8, gain_above: 0.0 };
/// // The third rollout gains 0.25 for p = 0.5, 0.09 for p = 0.9, and nothing for p = 1.
/// assert_eq!(greedy(&[0.5, 0.9, 1.0], &[1.0; 3], None, &options)?, [4, 2, 2]);
/// # Ok::<(), agentrl_compute::Error>(())
/// ```
///
/// # Errors
/// `InvalidInput` if lengths differ, a probability lies outside [0, 1], a weight is negative or not finite, there are fewer
/// rollouts than tasks, or `low` is 0 or above `high`.
pub fn greedy(probabilities: &[f64], weights: &[f64], rest: Option<&[bool]>, options: &Greedy) -> Result<Vec<u32>> {
    let tasks = probabilities.len();
    same_length("weights", weights.len(), "probabilities", tasks)?;
    if let Some(rest) = rest {
        same_length("rest", rest.len(), "probabilities", tasks)?;
    }
    let Greedy { value, total, low, high, gain_above } = *options;
    bounds(tasks, total, low, high)?;
    if !(gain_above.is_finite() && gain_above >= 0.0) {
        return Err(Error::invalid(format!("gain_above is {gain_above}; give a finite number of at least 0")));
    }
    for row in 0..tasks {
        if !(0.0..=1.0).contains(&probabilities[row]) {
            return Err(Error::invalid(format!(
                "probabilities[{row}] is {}; give a number from 0 to 1",
                probabilities[row]
            )));
        }
        weight_of(row, weights[row])?;
    }
    if (tasks as u64).saturating_mul(u64::from(low)) > total {
        return Ok(even(tasks, total));
    }
    let mut counts = vec![low; tasks];
    let mut left = total - tasks as u64 * u64::from(low);
    let offer = |row: usize, count: u32| {
        let gain = weights[row] * value.gain(probabilities[row], f64::from(count));
        (count < high && gain > gain_above).then_some(Offer { gain, row })
    };
    let mut offers: BinaryHeap<Offer> = (0..tasks).filter_map(|row| offer(row, low)).collect();
    while left > 0 {
        let Some(mut best) = offers.peek_mut() else { break };
        let row = best.row;
        counts[row] += 1;
        left -= 1;
        // Replace the top of the heap in place, which restores the heap order once, not twice.
        match offer(row, counts[row]) {
            Some(next) => *best = next,
            None => drop(PeekMut::pop(best)),
        }
    }
    while left > 0 {
        let mut given = false;
        for row in (0..tasks).filter(|&row| rest.is_some_and(|rest| rest[row])) {
            if left > 0 && counts[row] < high {
                counts[row] += 1;
                left -= 1;
                given = true;
            }
        }
        if !given {
            break;
        }
    }
    Ok(counts)
}

/// Divide a total into whole numbers in proportion to weights, with `low <= n_i <= high`. They sum to the total
/// exactly, or as nearly as the bounds allow.
///
/// The parts are `q_i = min(max(c w_i, low), high)` with c such that they sum to the total, each rounded down. The rest
/// goes to the largest remainders; ties go to the earlier row.
///
/// ```
/// use agentrl_compute::select::shares;
///
/// // 10 (0.5, 0.3, 0.2) = 5, 3, 2; with at most 4 the rest is 6 (0.6, 0.4) = 3.6, 2.4.
/// assert_eq!(shares(&[0.5, 0.3, 0.2], 10, 0, 10)?, [5, 3, 2]);
/// assert_eq!(shares(&[0.5, 0.3, 0.2], 10, 0, 4)?, [4, 4, 2]);
/// # Ok::<(), agentrl_compute::Error>(())
/// ```
///
/// # Errors
/// `InvalidInput` if a weight is negative or not finite, all are 0, or `low` is above `high`.
pub fn shares(weights: &[f64], total: u64, low: u32, high: u32) -> Result<Vec<u32>> {
    for (row, &weight) in weights.iter().enumerate() {
        weight_of(row, weight)?;
    }
    if low > high {
        return Err(Error::invalid(format!("low is {low} and high is {high}; give low <= high")));
    }
    let largest = weights.iter().copied().fold(0.0, f64::max);
    if largest == 0.0 {
        return Err(Error::invalid("all weights are 0; give at least one weight above 0"));
    }
    let rows = weights.len() as u64;
    let target = total.clamp(rows.saturating_mul(u64::from(low)), rows.saturating_mul(u64::from(high)));
    let parts = parts(weights, largest, target as f64, f64::from(low), f64::from(high));
    let mut counts: Vec<u32> = parts.iter().map(|part| (part.floor() as u32).clamp(low, high)).collect();
    let given = |counts: &[u32]| counts.iter().map(|&count| u64::from(count)).sum::<u64>();
    let mut order: Vec<usize> = (0..weights.len()).collect();
    let remainder = |row: usize| parts[row] - parts[row].floor();
    // Remainders that differ in their last bits only are equal.
    order.sort_by(|&a, &b| {
        let (a_rest, b_rest) = (remainder(a), remainder(b));
        if (a_rest - b_rest).abs() < 1e-9 { a.cmp(&b) } else { b_rest.total_cmp(&a_rest) }
    });
    let mut left = target.saturating_sub(given(&counts));
    while left > 0 {
        let before = left;
        for &row in &order {
            if left > 0 && counts[row] < high && weights[row] > 0.0 {
                counts[row] += 1;
                left -= 1;
            }
        }
        if left == before {
            // Only rows with weight 0 have room: they get the rest.
            for &row in &order {
                let more = left.min(u64::from(high - counts[row]));
                counts[row] += more as u32;
                left -= more;
            }
        }
    }
    Ok(counts)
}

/// Return `min(max(c w_i, low), high)` with c such that the parts sum to `total`.
fn parts(weights: &[f64], largest: f64, total: f64, low: f64, high: f64) -> Vec<f64> {
    let at = |c: f64| weights.iter().map(move |&weight| (c * (weight / largest)).clamp(low, high));
    let (mut least, mut most) = (0.0, total.max(1.0));
    while at(most).sum::<f64>() < total && most < 1e300 {
        most *= 2.0;
    }
    // Bisect: the sum rises with c, and each round halves the interval, down to the last bit.
    for _ in 0..200 {
        let middle = 0.5 * (least + most);
        if middle <= least || middle >= most {
            break;
        }
        if at(middle).sum::<f64>() < total { least = middle } else { most = middle }
    }
    // Round parts that are nearly whole: a slightly smaller c would cost them one rollout when rounded down.
    let near = |part: f64| if (part - part.round()).abs() < 1e-9 { part.round() } else { part };
    at(most).map(near).collect()
}

/// Return the arm of each bin that maximises `sum_b values[b][arm_b]`. Each of the `sizes[b]` tasks of bin b gets
/// `arms[arm_b]` rollouts, `total` together. If no choice has that total, one of the nearest totals is used (of two,
/// the smaller).
///
/// `values` has one row of `arms.len()` numbers per bin. Exact, by dynamic programming over the number of spent
/// rollouts. Among equal choices, earlier bins spend fewer rollouts.
///
/// ```
/// use agentrl_compute::select::best_arms;
///
/// // Two bins of 1 and 2 tasks, arms of 2 and 4 rollouts, 8 together: 4 + 2 * 2 is the only way.
/// assert_eq!(best_arms(&[0.0, 0.0, 0.0, 9.0], &[1, 2], &[2, 4], 8)?, [1, 0]);
/// # Ok::<(), agentrl_compute::Error>(())
/// ```
///
/// # Errors
/// `InvalidInput` if there is no arm, lengths do not fit, a value is NaN or plus infinity, or the sums are too large.
pub fn best_arms(values: &[f64], sizes: &[u32], arms: &[u32], total: u64) -> Result<Vec<u32>> {
    const LARGEST: u64 = 1 << 26;
    if arms.is_empty() {
        return Err(Error::invalid("arms is empty; give the numbers of rollouts that a task may get"));
    }
    if sizes.len().checked_mul(arms.len()) != Some(values.len()) {
        return Err(Error::invalid(format!(
            "values has {} numbers for {} bins and {} arms; give one number for each bin and arm",
            values.len(),
            sizes.len(),
            arms.len()
        )));
    }
    for (place, &value) in values.iter().enumerate() {
        if value.is_nan() || value == f64::INFINITY {
            return Err(Error::invalid(format!(
                "values[{place}] is {value}; give a number, or -inf to exclude the choice"
            )));
        }
    }
    let tasks: u64 = sizes.iter().map(|&size| u64::from(size)).sum();
    let most = tasks * u64::from(arms.iter().copied().max().unwrap_or(0));
    if most.saturating_mul(sizes.len() as u64) > LARGEST {
        return Err(Error::invalid(format!(
            "sizes has {} bins, which can use up to {most} rollouts, too many to search; give fewer bins or smaller \
             arms",
            sizes.len()
        )));
    }
    let width = most as usize + 1;
    let mut best = vec![f64::NAN; width]; // NaN: cannot be spent
    best[0] = 0.0;
    let mut chosen = vec![u32::MAX; width * sizes.len()];
    for (bin, &size) in sizes.iter().enumerate() {
        let mut next = vec![f64::NAN; width];
        for spent in (0..width).filter(|&spent| !best[spent].is_nan()) {
            for (arm, &count) in arms.iter().enumerate() {
                let after = spent + size as usize * count as usize;
                let value = best[spent] + values[bin * arms.len() + arm];
                if next[after].is_nan() || value > next[after] {
                    next[after] = value;
                    chosen[bin * width + after] = arm as u32;
                }
            }
        }
        best = next;
    }
    let distance = |spent: usize| (spent as u64).abs_diff(total);
    let reached = (0..width).filter(|&spent| !best[spent].is_nan()).min_by_key(|&spent| (distance(spent), spent));
    let Some(mut spent) = reached else { return Ok(Vec::new()) };
    let mut found = vec![0; sizes.len()];
    for bin in (0..sizes.len()).rev() {
        let arm = chosen[bin * width + spent];
        found[bin] = arm;
        spent -= sizes[bin] as usize * arms[arm as usize] as usize;
    }
    Ok(found)
}

fn even(tasks: usize, total: u64) -> Vec<u32> {
    let (each, more) = (total / tasks as u64, total % tasks as u64);
    (0..tasks as u64).map(|task| (each + u64::from(task < more)) as u32).collect()
}

fn bounds(tasks: usize, total: u64, low: u32, high: u32) -> Result<()> {
    if low == 0 || low > high {
        return Err(Error::invalid(format!("low is {low} and high is {high}; give 1 <= low <= high")));
    }
    if (tasks as u64) <= total {
        return Ok(());
    }
    Err(Error::invalid(format!(
        "total is {total} rollouts, but there are {tasks} tasks; give a total of at least {tasks}"
    )))
}

fn weight_of(row: usize, weight: f64) -> Result<f64> {
    if weight.is_finite() && weight >= 0.0 {
        return Ok(weight);
    }
    Err(Error::invalid(format!("weights[{row}] is {weight}; give a finite number of at least 0")))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn message<T>(result: Result<T>) -> String {
        result.map_or_else(|error| error.to_string(), |_| "fine".to_owned())
    }

    fn value(probabilities: &[f64], weights: &[f64], counts: &[u32]) -> f64 {
        let one = |row: usize| {
            let (p, n) = (probabilities[row], f64::from(counts[row]));
            weights[row] * (1.0 - p.powf(n) - (1.0 - p).powf(n))
        };
        (0..counts.len()).map(one).sum()
    }

    /// Return every choice of `rows` numbers from `low` to `high`.
    fn choices(rows: usize, low: u32, high: u32) -> Vec<Vec<u32>> {
        (0..rows).fold(vec![Vec::new()], |all, _| {
            all.iter()
                .flat_map(|counts| (low..=high).map(move |count| [counts.as_slice(), &[count]].concat()))
                .collect()
        })
    }

    #[test]
    fn the_remaining_rollouts_go_to_unsolved_tasks() -> Result<()> {
        let options = Greedy { value: Value::Mixed, total: 20, low: 2, high: 8, gain_above: 0.1 };
        // p = 0.5: the third rollout gains 0.25, the fourth 0.125, the fifth 0.0625, so it gets four. p = 1 keeps two.
        // The two tasks with p = 0 share the other 14 and get 7 each, below their maximum of 8.
        let found = greedy(&[0.5, 1.0, 0.0, 0.0], &[1.0; 4], Some(&[false, false, true, true]), &options)?;
        assert_eq!(found, [4, 2, 7, 7]);
        let found = greedy(&[0.5, 1.0, 0.0, 0.0], &[1.0; 4], None, &options)?;
        assert_eq!(found, [4, 2, 2, 2]);
        let poor = Greedy { value: Value::Mixed, total: 5, low: 2, ..options };
        assert_eq!(greedy(&[0.5, 0.5, 0.5], &[1.0; 3], None, &poor)?, [2, 2, 1]);
        Ok(())
    }

    #[test]
    fn failures_beside_a_success() -> Result<()> {
        // Values of 1, 2, ... rollouts for p = 1/2: 0, 1/2, 9/8, 7/4; p = 3/4: 0, 3/8, 45/64. Gains: 1/2, 5/8, 5/8;
        // 3/8, 21/64.
        let options = Greedy { value: Value::Failures, total: 5, low: 1, high: 4, gain_above: 0.0 };
        assert_eq!(greedy(&[0.5, 0.75], &[1.0; 2], None, &options)?, [4, 1]);
        assert_eq!(greedy(&[0.5, 0.75], &[1.0; 2], None, &Greedy { total: 7, ..options })?, [4, 3]);
        assert_eq!(greedy(&[0.0, 1.0], &[1.0; 2], None, &options)?, [1, 1]);
        Ok(())
    }

    #[test]
    fn invalid_input_is_reported() {
        let options = Greedy { value: Value::Mixed, total: 4, low: 1, high: 4, gain_above: 0.0 };
        for p in [-0.1, 1.1, f64::NAN, f64::INFINITY] {
            assert_eq!(
                message(greedy(&[p], &[1.0], None, &options)),
                format!("probabilities[0] is {p}; give a number from 0 to 1")
            );
        }
        for weight in [-1.0, f64::NAN, f64::INFINITY] {
            let expected = format!("weights[0] is {weight}; give a finite number of at least 0");
            assert_eq!(message(greedy(&[0.5], &[weight], None, &options)), expected);
            assert_eq!(message(shares(&[weight], 1, 0, 1)), expected);
        }
        assert_eq!(
            message(greedy(&[0.5; 5], &[1.0; 5], None, &options)),
            "total is 4 rollouts, but there are 5 tasks; give a total of at least 5"
        );
        assert_eq!(
            message(greedy(&[0.5], &[1.0], None, &Greedy { low: 0, ..options })),
            "low is 0 and high is 4; give 1 <= low <= high"
        );
        assert_eq!(
            message(greedy(&[0.5], &[1.0], None, &Greedy { gain_above: f64::NAN, ..options })),
            "gain_above is NaN; give a finite number of at least 0"
        );
        assert_eq!(message(shares(&[0.0, 0.0], 2, 0, 2)), "all weights are 0; give at least one weight above 0");
        assert_eq!(message(shares(&[1.0], 2, 3, 2)), "low is 3 and high is 2; give low <= high");
        assert_eq!(
            message(best_arms(&[], &[1], &[], 1)),
            "arms is empty; give the numbers of rollouts that a task may get"
        );
        assert_eq!(
            message(best_arms(&[0.0, f64::NAN], &[1], &[1, 2], 1)),
            "values[1] is NaN; give a number, or -inf to exclude the choice"
        );
        assert_eq!(
            message(best_arms(&[0.0; 3], &[1], &[1, 2], 1)),
            "values has 3 numbers for 1 bins and 2 arms; give one number for each bin and arm"
        );
        assert_eq!(
            message(best_arms(&[0.0; 2], &[u32::MAX], &[1, 2], 1)),
            "sizes has 1 bins, which can use up to 8589934590 rollouts, too many to search; give fewer bins or smaller \
             arms"
        );
    }

    #[test]
    fn shares_within_bounds() -> Result<()> {
        assert_eq!(shares(&[1.0, 1.0, 1.0], 10, 0, 10)?, [4, 3, 3]);
        assert_eq!(shares(&[1.0, 0.0], 4, 1, 10)?, [3, 1]);
        assert_eq!(shares(&[1.0, 0.0], 10, 0, 4)?, [4, 4]);
        assert_eq!(shares(&[1e-12, 1.0], 10, 2, 10)?, [2, 8]);
        // Totals above and below the bounds.
        assert_eq!(shares(&[1.0, 2.0], 100, 0, 3)?, [3, 3]);
        assert_eq!(shares(&[1.0, 2.0], 0, 2, 3)?, [2, 2]);
        Ok(())
    }

    proptest! {
        #[test]
        fn greedy_is_as_good_as_any_choice(
            probabilities in prop::collection::vec(prop::sample::select(vec![0.0, 0.05, 0.3, 1.0 / 3.0, 0.5, 0.9, 1.0]), 1..5),
            weights in prop::collection::vec(0.0_f64..2.0, 5),
            (low, more, spare) in (1_u32..3, 0_u32..5, 0_u64..14),
        ) {
            let tasks = probabilities.len();
            let weights = &weights[..tasks];
            let high = low + more;
            let total = tasks as u64 * u64::from(low) + spare;
            let options = Greedy { value: Value::Mixed, total, low, high, gain_above: 0.0 };
            let found = greedy(&probabilities, weights, None, &options)?;
            prop_assert!(found.iter().map(|&n| u64::from(n)).sum::<u64>() <= total);
            prop_assert!(found.iter().all(|n| (low..=high).contains(n)));
            let fits = |counts: &&Vec<u32>| counts.iter().map(|&n| u64::from(n)).sum::<u64>() <= total;
            let all = choices(tasks, low, high);
            let best = all.iter().filter(fits).map(|counts| value(&probabilities, weights, counts)).fold(f64::MIN, f64::max);
            prop_assert!((value(&probabilities, weights, &found) - best).abs() < 1e-12);
        }

        #[test]
        fn gains_are_differences_of_values(p in 0.0_f64..=1.0, n in 1_u32..40) {
            let n = f64::from(n);
            let mixed = |n: f64| 1.0 - p.powf(n) - (1.0 - p).powf(n);
            let failures = |n: f64| n * (1.0 - p) * (1.0 - (1.0 - p).powf(n - 1.0));
            prop_assert!((Value::Mixed.gain(p, n) - (mixed(n + 1.0) - mixed(n))).abs() < 1e-12);
            prop_assert!((Value::Failures.gain(p, n) - (failures(n + 1.0) - failures(n))).abs() < 1e-12);
        }

        #[test]
        fn arms_are_as_good_as_any_choice(
            bins in prop::collection::vec((0_u32..4, prop::collection::vec(-3.0_f64..3.0, 3)), 1..5),
            total in 0_u64..40,
        ) {
            let arms = [2, 3, 5];
            let sizes: Vec<u32> = bins.iter().map(|bin| bin.0).collect();
            let values: Vec<f64> = bins.iter().flat_map(|bin| bin.1.clone()).collect();
            let spent = |choice: &[u32]| -> u64 {
                choice.iter().zip(&sizes).map(|(&arm, &size)| u64::from(size) * u64::from(arms[arm as usize])).sum()
            };
            let worth = |choice: &[u32]| -> f64 {
                choice.iter().enumerate().map(|(bin, &arm)| values[3 * bin + arm as usize]).sum()
            };
            let found = best_arms(&values, &sizes, &arms, total)?;
            let all = choices(sizes.len(), 0, 2);
            let nearest = all.iter().map(|choice| spent(choice).abs_diff(total)).min().unwrap_or(0);
            prop_assert_eq!(spent(&found).abs_diff(total), nearest);
            let same = |choice: &&Vec<u32>| spent(choice) == spent(&found);
            let best = all.iter().filter(same).map(|choice| worth(choice)).fold(f64::MIN, f64::max);
            prop_assert!((worth(&found) - best).abs() < 1e-12);
        }

        /// No other whole numbers with the same total are nearer to the parts.
        #[test]
        fn shares_are_as_near_as_any_choice(
            weights in prop::collection::vec(0.05_f64..2.0, 1..5), low in 0_u32..2, more in 0_u32..5, spare in 0_u64..12,
        ) {
            let high = low + more;
            let rows = weights.len() as u64;
            let total = (rows * u64::from(low) + spare).min(rows * u64::from(high));
            let found = shares(&weights, total, low, high)?;
            prop_assert_eq!(found.iter().map(|&n| u64::from(n)).sum::<u64>(), total);
            let largest = weights.iter().copied().fold(0.0, f64::max);
            let parts = parts(&weights, largest, total as f64, f64::from(low), f64::from(high));
            let away = |counts: &[u32]| -> f64 {
                counts.iter().zip(&parts).map(|(&n, q)| (f64::from(n) - q).abs()).sum()
            };
            let all = choices(weights.len(), low, high);
            let same = |counts: &&Vec<u32>| counts.iter().map(|&n| u64::from(n)).sum::<u64>() == total;
            let least = all.iter().filter(same).map(|counts| away(counts)).fold(f64::MAX, f64::min);
            prop_assert!((away(&found) - least).abs() < 1e-6);
        }
    }
}
