//! Throughput of group normalisation and statistics: `cargo bench -p agentrl-compute`. One sample is a million rows.

use agentrl_compute::Result;
use agentrl_compute::group::{Center, Columns, Extra, Middle, Options, Scale, Statistics, normalise, statistics};
use divan::Bencher;
use divan::counter::ItemsCount;

const ROWS: usize = 1 << 20;
const MEMBERS: usize = 16;

fn main() {
    divan::main();
}

/// Make rewards from 0 to 1 in groups of [`MEMBERS`]: contiguous, or scattered so that neighbours are never in the same
/// group.
fn column(scattered: bool) -> (Vec<f64>, Vec<u32>) {
    let groups = ROWS / MEMBERS;
    let group = |row: usize| if scattered { row % groups } else { row / MEMBERS };
    let values = (0..ROWS).map(|row| f64::from((row * 2_654_435_761 % 64) as u32) / 63.0).collect();
    (values, (0..ROWS).map(|row| group(row) as u32).collect())
}

/// Run a kernel on the same rows in every sample.
fn run<T>(bencher: Bencher<'_, '_>, scattered: bool, kernel: impl Fn(&Columns<'_, f64>) -> Result<T> + Sync) {
    let (values, groups) = column(scattered);
    bencher.counter(ItemsCount::new(ROWS)).bench(|| kernel(&Columns::new("values", &values, &groups)));
}

fn compared(columns: &Columns<'_, f64>, options: &Options) -> Result<Vec<f64>> {
    let mut out = vec![0.0; columns.values.len()];
    normalise(columns, options, Extra::default(), &mut out).map(|()| out)
}

#[divan::bench(args = [false, true])]
fn group_relative(bencher: Bencher<'_, '_>, scattered: bool) {
    run(bencher, scattered, |columns| compared(columns, &Options::default()));
}

#[divan::bench(args = [false, true])]
fn leave_one_out(bencher: Bencher<'_, '_>, scattered: bool) {
    let options = Options { center: Center::LeaveOneOut, scale: Scale::None, ..Options::default() };
    run(bencher, scattered, |columns| compared(columns, &options));
}

#[divan::bench(args = [false, true])]
fn median(bencher: Bencher<'_, '_>, scattered: bool) {
    let options = Options { center: Center::Median, scale: Scale::Mad, median: Middle::Lower, ..Options::default() };
    run(bencher, scattered, |columns| compared(columns, &options));
}

#[divan::bench(args = [false, true])]
fn moments(bencher: Bencher<'_, '_>, scattered: bool) {
    run(bencher, scattered, |columns| -> Result<Vec<Statistics>> { statistics(columns, 1) });
}

/// One group of all rows.
#[divan::bench]
fn whole_batch(bencher: Bencher<'_, '_>) {
    let (values, _) = column(false);
    let groups = vec![0; ROWS];
    let columns = Columns::new("values", &values, &groups);
    bencher.counter(ItemsCount::new(ROWS)).bench(|| compared(&columns, &Options::default()));
}
