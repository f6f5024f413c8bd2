//! Stratified bootstrap of statistics over a table of scores.

use crate::argument_checks::all_finite;
use crate::rng::word;
use crate::{Error, Result, names, thread_pool};

names! {
    /// Summary statistic of all scores of a table.
    "statistic" Statistic {
        /// The mean of all scores.
        Mean = "mean",
        /// The median over tasks of each task's mean over runs.
        Median = "median",
        /// The interquartile mean: the mean of the middle half of all scores.
        Iqm = "iqm",
        /// The mean distance of scores below the threshold; higher scores count as the threshold.
        OptimalityGap = "optimality_gap",
    }
}

/// Scores of all tasks; the runs of each task are contiguous.
struct Table {
    by_task: Vec<f64>,
    runs: usize,
}

impl Table {
    /// Check `scores`, the rows of a table of runs by tasks, and transpose them to tasks by runs.
    fn new(name: &str, scores: &[f64], tasks: usize) -> Result<Self> {
        all_finite(name, scores)?;
        if tasks == 0 || scores.is_empty() || !scores.len().is_multiple_of(tasks) {
            return Err(Error::invalid(format!(
                "{name} has {} values, which do not form a table of runs by {tasks} tasks; give each run one score \
                 for each task, with at least one run and one task",
                scores.len()
            )));
        }
        let runs = scores.len() / tasks;
        let by_task = (0..tasks).flat_map(|task| (0..runs).map(move |run| scores[run * tasks + task])).collect();
        Ok(Self { by_task, runs })
    }

    /// Write one resample to `out`: for each task, runs drawn with replacement.
    fn resample(&self, draws: &mut Draws, out: &mut [f64]) {
        for (task, drawn) in self.by_task.chunks_exact(self.runs).zip(out.chunks_exact_mut(self.runs)) {
            for value in drawn {
                *value = task[draws.below(self.runs)];
            }
        }
    }
}

/// Counter-based random indices, two from each 64-bit word.
struct Draws {
    seed: u64,
    counter: u64,
    spare: Option<u32>,
}

impl Draws {
    /// Create the draws of one resample.
    fn of(seed: u64, resample: usize) -> Self {
        Self { seed: word(seed, resample as u64), counter: 0, spare: None }
    }

    /// Draw an index below `count`.
    fn below(&mut self, count: usize) -> usize {
        let half = self.spare.take().unwrap_or_else(|| {
            let bits = word(self.seed, self.counter);
            self.counter += 1;
            self.spare = Some((bits >> 32) as u32);
            bits as u32
        });
        ((u64::from(half) * count as u64) >> 32) as usize
    }
}

/// Return a statistic of scores in task order; the scores are reordered.
fn of(scores: &mut [f64], runs: usize, statistic: Statistic, threshold: f64) -> f64 {
    match statistic {
        Statistic::Mean => mean(scores),
        Statistic::OptimalityGap => {
            scores.iter().map(|&score| threshold - score.min(threshold)).sum::<f64>() / scores.len() as f64
        }
        Statistic::Iqm => {
            let cut = scores.len() / 4;
            let kept = scores.len() - 2 * cut;
            if cut > 0 {
                let (_, _, above) = scores.select_nth_unstable_by(cut - 1, f64::total_cmp);
                above.select_nth_unstable_by(kept - 1, f64::total_cmp);
            }
            mean(&scores[cut..cut + kept])
        }
        Statistic::Median => {
            let mut means: Vec<f64> = scores.chunks_exact(runs).map(mean).collect();
            means.sort_unstable_by(f64::total_cmp);
            let middle = means.len() / 2;
            if means.len() % 2 == 1 { means[middle] } else { f64::midpoint(means[middle - 1], means[middle]) }
        }
    }
}

fn mean(values: &[f64]) -> f64 {
    values.iter().sum::<f64>() / values.len() as f64
}

/// Return a statistic of `scores`, the rows of a table of runs by `tasks` tasks.
///
/// ```
/// use agentrl_compute::stats::{Statistic, statistic};
///
/// let scores = [0.0, 1.0, 0.2, 0.4, 0.4, 0.8, 1.0, 0.6]; // four runs of two tasks
/// assert_eq!(statistic(&scores, 2, Statistic::Median, 1.0)?, 0.55);
/// assert!((statistic(&scores, 2, Statistic::Iqm, 1.0)? - 0.55).abs() < 1e-15);
/// # Ok::<(), agentrl_compute::Error>(())
/// ```
///
/// # Errors
/// `InvalidInput` if a score is not finite, or the scores do not form a table.
pub fn statistic(scores: &[f64], tasks: usize, statistic: Statistic, threshold: f64) -> Result<f64> {
    let Table { mut by_task, runs } = Table::new("scores", scores, tasks)?;
    Ok(of(&mut by_task, runs, statistic, threshold))
}

/// Return the statistic of each of `resamples` stratified resamples.
///
/// # Errors
/// `InvalidInput` if a score is not finite, or the scores do not form a table.
pub fn bootstrap(
    scores: &[f64],
    tasks: usize,
    statistic: Statistic,
    threshold: f64,
    resamples: usize,
    seed: u64,
) -> Result<Vec<f64>> {
    let table = Table::new("scores", scores, tasks)?;
    resampled(resamples, |rows| {
        let mut scores = vec![0.0; table.by_task.len()];
        rows.map(|row| {
            table.resample(&mut Draws::of(seed, row), &mut scores);
            of(&mut scores, table.runs, statistic, threshold)
        })
        .collect()
    })
}

/// Return the probability that a run of `first` is better than a run of `second` on the same task, averaged over tasks.
/// Ties count as half.
///
/// ```
/// use agentrl_compute::stats::improvement;
///
/// assert_eq!(improvement(&[0.5, 0.9], &[0.5, 0.1], 1)?, 0.875);
/// # Ok::<(), agentrl_compute::Error>(())
/// ```
///
/// # Errors
/// `InvalidInput` if a score is not finite, or the scores do not form a table.
pub fn improvement(first: &[f64], second: &[f64], tasks: usize) -> Result<f64> {
    Ok(Comparison::new(first, second, tasks)?.whole())
}

/// Return the same probability for each of `resamples` resamples of the runs of both.
///
/// # Errors
/// `InvalidInput` if a score is not finite, or the scores do not form a table.
pub fn improvements(first: &[f64], second: &[f64], tasks: usize, resamples: usize, seed: u64) -> Result<Vec<f64>> {
    let comparison = Comparison::new(first, second, tasks)?;
    resampled(resamples, |rows| {
        let mut taken = (vec![0; comparison.runs.0], vec![0; comparison.runs.1]);
        rows.map(|row| comparison.resampled(&mut Draws::of(seed, row), &mut taken)).collect()
    })
}

/// Points of each pair of runs, for each task: 2 if the first is better, 1 if both are equal, 0 otherwise.
struct Comparison {
    points: Vec<u8>,
    runs: (usize, usize),
}

impl Comparison {
    fn new(first: &[f64], second: &[f64], tasks: usize) -> Result<Self> {
        let (first, second) = (Table::new("first", first, tasks)?, Table::new("second", second, tasks)?);
        let runs = (first.runs, second.runs);
        let mut points = Vec::with_capacity(tasks * runs.0 * runs.1);
        for (ours, theirs) in first.by_task.chunks_exact(runs.0).zip(second.by_task.chunks_exact(runs.1)) {
            points.extend(
                ours.iter()
                    .flat_map(|one| theirs.iter().map(move |other| u8::from(one > other) + u8::from(one >= other))),
            );
        }
        Ok(Self { points, runs })
    }

    fn whole(&self) -> f64 {
        self.points.iter().map(|&points| u64::from(points)).sum::<u64>() as f64 / (2 * self.points.len()) as f64
    }

    fn resampled(&self, draws: &mut Draws, taken: &mut (Vec<usize>, Vec<usize>)) -> f64 {
        let mut total = 0_u64;
        for task in self.points.chunks_exact(self.runs.0 * self.runs.1) {
            taken.0.fill_with(|| draws.below(self.runs.0));
            taken.1.fill_with(|| draws.below(self.runs.1));
            for &one in &taken.0 {
                let row = &task[one * self.runs.1..][..self.runs.1];
                total += taken.1.iter().map(|&other| u64::from(row[other])).sum::<u64>();
            }
        }
        total as f64 / (2 * self.points.len()) as f64
    }
}

/// Number of resamples in one piece of work: enough to be worth waking a thread.
const PIECE: usize = 256;

/// Compute the resamples piece by piece.
fn resampled(resamples: usize, work: impl Fn(std::ops::Range<usize>) -> Vec<f64> + Sync) -> Result<Vec<f64>> {
    let pieces: Vec<_> = (0..resamples).step_by(PIECE).map(|begin| begin..resamples.min(begin + PIECE)).collect();
    Ok(thread_pool::map(pieces, |rows| Ok(work(rows)))?.concat())
}

#[cfg(test)]
#[expect(clippy::float_cmp, reason = "exact in binary")]
mod tests {
    use super::*;

    /// Reference implementation by sorting: the mean of the middle half.
    fn sorted_iqm(scores: &[f64]) -> f64 {
        let mut sorted = scores.to_vec();
        sorted.sort_by(f64::total_cmp);
        let cut = (0.25 * sorted.len() as f64) as usize;
        mean(&sorted[cut..sorted.len() - cut])
    }

    #[test]
    fn the_interquartile_mean_is_that_of_the_sorted_scores() -> Result<()> {
        for count in 1..60 {
            let scores: Vec<f64> = (0..count).map(|at| (word(3, at) % 13) as f64).collect();
            let found = statistic(&scores, 1, Statistic::Iqm, 1.0)?;
            assert!((found - sorted_iqm(&scores)).abs() < 1e-12, "{count}: {found}");
        }
        Ok(())
    }

    #[test]
    fn statistics_by_hand() -> Result<()> {
        // Tasks (0, 0.2, 1.4) and (1, 0.4, 0.6): means 1.6/3 and 2/3.
        let scores = [0.0, 1.0, 0.2, 0.4, 1.4, 0.6];
        let of = |kind| statistic(&scores, 2, kind, 1.0);
        assert!((of(Statistic::Mean)? - 0.6).abs() < 1e-15);
        assert!((of(Statistic::Median)? - 0.6).abs() < 1e-15);
        assert!((of(Statistic::Iqm)? - 0.55).abs() < 1e-15, "0.2, 0.4, 0.6 and 1 of six");
        assert!((of(Statistic::OptimalityGap)? - (1.0 + 0.0 + 0.8 + 0.6 + 0.0 + 0.4) / 6.0).abs() < 1e-15);
        Ok(())
    }

    /// With two runs, the better run of a task is drawn 0, 1 or 2 times, with probabilities 1/4, 1/2, 1/4.
    #[test]
    fn resamples_have_their_distribution_and_keep_tasks_apart() -> Result<()> {
        let resamples = 40_000;
        let found = bootstrap(&[0.0, 10.0, 1.0, 12.0], 2, Statistic::Mean, 1.0, resamples, 5)?;
        let mut counts = [0; 7];
        for value in &found {
            // Sums of both tasks: the first adds 0, 1 or 2, the second 20, 22 or 24.
            counts[(value * 4.0 - 20.0) as usize] += 1;
        }
        // The first task gives 0, 1, 2 (1, 2, 1 of 4), the second 0, 2, 4: 16ths by hand.
        for (count, of_16) in counts.into_iter().zip([1.0, 2.0, 3.0, 4.0, 3.0, 2.0, 1.0]) {
            let expected = of_16 / 16.0;
            let share = f64::from(count) / resamples as f64;
            assert!((share - expected).abs() < 0.01, "{counts:?}");
        }
        Ok(())
    }

    #[test]
    fn the_number_of_threads_changes_nothing() -> Result<()> {
        let scores: Vec<f64> = (0..60).map(|at| word(1, at) as f64 / 1e18).collect();
        let whole = bootstrap(&scores, 6, Statistic::Iqm, 1.0, 2_000, 9)?;
        let guard = thread_pool::SingleThreaded::begin();
        assert_eq!(whole, bootstrap(&scores, 6, Statistic::Iqm, 1.0, 2_000, 9)?);
        drop(guard);
        assert_eq!(whole[..100], bootstrap(&scores, 6, Statistic::Iqm, 1.0, 100, 9)?, "by counting");
        Ok(())
    }

    #[test]
    fn improvement_is_the_share_of_pairs() -> Result<()> {
        // Task 1: (1, 3) against (2, 3): 0, 0, 1, 1/2. Task 2: (0, 0) against (0, 0): four halves.
        let (first, second) = ([1.0, 0.0, 3.0, 0.0], [2.0, 0.0, 3.0, 0.0]);
        assert!((improvement(&first, &second, 2)? - 0.4375).abs() < 1e-15);
        let found = improvements(&first, &second, 2, 20_000, 1)?;
        assert!((mean(&found) - 0.4375).abs() < 0.005);
        assert!(improvements(&[2.0, 2.0], &[1.0, 1.0], 1, 50, 0)?.iter().all(|&share| share == 1.0));
        Ok(())
    }

    #[test]
    fn scores_that_do_not_form_a_table_are_refused() {
        for (scores, tasks, message) in [
            (&[][..], 1, "scores has 0 values, which do not form a table of runs by 1 tasks"),
            (&[1.0, 2.0, 3.0][..], 2, "scores has 3 values, which do not form a table of runs by 2 tasks"),
            (&[1.0, f64::NAN][..], 1, "scores[1] is NaN"),
        ] {
            let error = statistic(scores, tasks, Statistic::Mean, 1.0).unwrap_err().to_string();
            assert!(error.contains(message), "{error}");
        }
    }
}
