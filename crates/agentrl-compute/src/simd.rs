//! The widest vectors that the processor has, chosen at run time.
//!
//! A wheel is compiled for the oldest processor of its kind. What is given to [`wide`] is compiled for later ones too, and
//! the one at hand decides. Only the width differs: nothing is fused but what is written so and no addition moves, so all give
//! the same bits.

use multiversion::multiversion;

/// Numbers that are worked on between two steps of a kernel: few enough for a core's nearest memory.
pub(crate) const BLOCK: usize = 256;

/// Does some work with the widest vectors. The closure is marked `#[inline(always)]`, or it is compiled for the oldest
/// processor after all.
#[multiversion(targets(
    "x86_64+avx512f+avx512bw+avx512cd+avx512dq+avx512vl+avx2+fma+bmi1+bmi2+lzcnt+popcnt",
    "x86_64+avx2+fma+bmi1+bmi2+lzcnt+popcnt"
))]
pub(crate) fn wide<R, F: FnOnce() -> R>(work: F) -> R {
    work()
}

/// Set numbers that are not marked to NaN.
pub(crate) fn keep(numbers: &mut [f64], mask: &[bool]) {
    wide(
        #[inline(always)]
        || {
            let marked = numbers.iter_mut().zip(mask);
            marked.for_each(|(number, &kept)| *number = if kept { *number } else { f64::NAN });
        },
    );
}

/// Number of interleaved summaries.
pub(crate) const SUMMARIES: usize = 16;

/// Interleaved summaries: number `i` enters summary `i % SUMMARIES`.
#[derive(Debug)]
pub(crate) struct Summaries {
    sums: [f64; SUMMARIES],
    counts: [u64; SUMMARIES],
    least: [f64; SUMMARIES],
    most: [f64; SUMMARIES],
}

impl Summaries {
    pub(crate) const EMPTY: Self = Self {
        sums: [0.0; SUMMARIES],
        counts: [0; SUMMARIES],
        least: [f64::INFINITY; SUMMARIES],
        most: [f64::NEG_INFINITY; SUMMARIES],
    };

    /// Add numbers, except those that are NaN.
    pub(crate) fn add(&mut self, numbers: &[f64]) {
        // Moved into the closure: lanes that it only borrows stay in memory, and are read again before they are written.
        let Self { mut sums, mut counts, mut least, mut most } = *self;
        *self = wide(
            #[inline(always)]
            move || {
                let (chunks, rest) = numbers.as_chunks::<SUMMARIES>();
                let mut last = [f64::NAN; SUMMARIES];
                last[..rest.len()].copy_from_slice(rest);
                for numbers in chunks.iter().chain([&last]) {
                    for (lane, &number) in numbers.iter().enumerate() {
                        counts[lane] += u64::from(!number.is_nan());
                        sums[lane] += if number.is_nan() { 0.0 } else { number };
                        least[lane] = if number < least[lane] { number } else { least[lane] };
                        most[lane] = if number > most[lane] { number } else { most[lane] };
                    }
                }
                Self { sums, counts, least, most }
            },
        );
    }

    /// Return the summary of all.
    pub(crate) fn sum(&self) -> Summary {
        Summary {
            total: self.sums.iter().sum(),
            count: self.counts.iter().sum(),
            least: self.least.iter().copied().fold(f64::INFINITY, f64::min),
            most: self.most.iter().copied().fold(f64::NEG_INFINITY, f64::max),
        }
    }
}

/// Add numbers, none of which is NaN, to interleaved sums, as [`Summaries`] does: number `i` to sum `i % SUMMARIES`.
pub(crate) fn add(numbers: &[f64], sums: &mut [f64; SUMMARIES]) {
    wide(
        #[inline(always)]
        || {
            let (chunks, rest) = numbers.as_chunks::<SUMMARIES>();
            for numbers in chunks {
                sums.iter_mut().zip(numbers).for_each(|(sum, &number)| *sum += number);
            }
            sums.iter_mut().zip(rest).for_each(|(sum, &number)| *sum += number);
        },
    );
}

/// Sum, count and range of some numbers.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Summary {
    pub(crate) total: f64,
    pub(crate) count: u64,
    pub(crate) least: f64,
    pub(crate) most: f64,
}

/// Whether keys never decrease.
pub(crate) fn ascend<K: PartialOrd>(keys: &[K]) -> bool {
    // Each block with the key after it, so that blocks hang together.
    (0..keys.len()).step_by(4 * BLOCK).all(|start| {
        let block = &keys[start..keys.len().min(start + 4 * BLOCK + 1)];
        wide(
            #[inline(always)]
            || block.iter().zip(&block[1..]).fold(true, |ascending, (a, b)| ascending & (a <= b)),
        )
    })
}

/// A number, or the end of the range from minus a bound to it; `clamp` would also look whether there is such a range, and
/// where a loop can end in a panic it is not made of vectors.
#[inline(always)]
pub(crate) fn within(number: f64, bound: f64) -> f64 {
    let number = if number < -bound { -bound } else { number };
    if number > bound { bound } else { number }
}

/// `e^x` of each number, to within one unit in the last place, of what lies within a bound of at most 700; beyond it is that
/// of the bound.
#[inline(never)]
pub(crate) fn exp(numbers: &mut [f64], bound: f64) {
    wide(
        #[inline(always)]
        || {
            for number in numbers {
                let (order, power) = reduced(within(*number, bound));
                *number = (1.0 + power) * power_of_two(order);
            }
        },
    );
}

/// `e^x - 1` of each number, to within three units in the last place; of numbers beyond ± 700 it is that of ± 700.
#[inline(never)]
pub(crate) fn exp_m1(numbers: &mut [f64]) {
    wide(
        #[inline(always)]
        || {
            for number in numbers {
                let (order, power) = reduced(number.clamp(-700.0, 700.0));
                let scale = power_of_two(order);
                *number = power.mul_add(scale, scale - 1.0);
            }
        },
    );
}

/// A float from which on all are whole, in the middle of those of its binary order.
const WHOLE: f64 = 1.5 * (1_u64 << 52) as f64;

/// `ln 2`, in two parts: the first has so few digits that its products with the orders are exact.
const LN_2: [f64; 2] = [6.931_471_803_691_238e-1, 1.908_214_929_270_587_7e-10];

/// `1 / k!` from `1 / 2!` to `1 / 13!`.
const TAYLOR: [f64; 12] = [
    0.5,
    1.0 / 6.0,
    1.0 / 24.0,
    1.0 / 120.0,
    1.0 / 720.0,
    1.0 / 5_040.0,
    1.0 / 40_320.0,
    1.0 / 362_880.0,
    1.0 / 3_628_800.0,
    1.0 / 39_916_800.0,
    1.0 / 479_001_600.0,
    1.0 / 6_227_020_800.0,
];

/// `x = order · ln 2 + rest`: the whole order, and `e^rest - 1` by Taylor's series up to the power 13.
///
/// Terms are added in pairs, and pairs of these: where each waits for the one before, a core cannot begin so many numbers that
/// it is busy meanwhile. Products and sums are rounded once: half the steps to wait for, and the same bits on every processor.
#[inline(always)]
fn reduced(x: f64) -> (f64, f64) {
    let order = x.mul_add(std::f64::consts::LOG2_E, WHOLE) - WHOLE;
    let rest = order.mul_add(-LN_2[1], order.mul_add(-LN_2[0], x));
    let square = rest * rest;
    let two = |first: usize| TAYLOR[first + 1].mul_add(rest, TAYLOR[first]);
    let four = |first: usize| two(first + 2).mul_add(square, two(first));
    let fourth = square * square;
    let series = fourth.mul_add(fourth.mul_add(four(8), four(4)), four(0));
    (order, square.mul_add(series, rest))
}

/// Two to the power of a whole number that a normal float can have: its bits stand at the end of those of the sum.
#[inline(always)]
fn power_of_two(order: f64) -> f64 {
    f64::from_bits(((order + WHOLE).to_bits() << 52).wrapping_add(1.0_f64.to_bits()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// How many floats one is away from another.
    fn steps(a: f64, b: f64) -> u64 {
        let place = |x: f64| if x.is_sign_negative() { -(x.abs().to_bits() as i64) } else { x.to_bits() as i64 };
        place(a).abs_diff(place(b))
    }

    #[test]
    fn keys_ascend_unless_one_is_below_the_one_before() {
        let mut keys: Vec<u32> = (0..10 * BLOCK as u32).map(|key| key / 3).collect();
        assert!(ascend(&keys) && ascend(&keys[..1]) && ascend::<u32>(&[]));
        for place in (0..keys.len()).step_by(61) {
            let key = std::mem::replace(&mut keys[place], u32::MAX);
            assert_eq!(ascend(&keys), place + 1 == 10 * BLOCK, "{place}");
            keys[place] = key;
        }
    }

    #[test]
    fn what_is_special_stays_special() {
        let mut found = [0.0, -0.0, f64::INFINITY, f64::NEG_INFINITY, 1e300, -1e300, 709.79, -745.2, f64::NAN];
        exp(&mut found, 20.0);
        let mut ends = [20.0, -20.0];
        exp(&mut ends, 700.0);
        let [most, least] = ends;
        assert_eq!(found[..8], [1.0, 1.0, most, least, most, least, most, least]);
        assert!(found[8].is_nan());
        let mut found = [0.0, f64::NAN, 1e-300, -1e-17];
        exp_m1(&mut found);
        assert!(found[0] == 0.0 && found[1].is_nan() && found[2..] == [1e-300, -1e-17]);
    }

    #[test]
    fn the_whole_range_is_as_in_the_standard_library() {
        let xs: Vec<f64> = (-140_000..140_000).map(|step| f64::from(step) * 0.005 + 1e-4).collect();
        let mut found = xs.clone();
        exp(&mut found, 700.0);
        let far = xs.iter().zip(&found).map(|(x, &found)| steps(found, x.exp())).max();
        assert!(far <= Some(1), "{far:?}");
        let xs: Vec<f64> = (-140_000..140_000).map(|step| f64::from(step) * 0.005 + 1e-4).collect();
        let mut found = xs.clone();
        exp_m1(&mut found);
        let far = xs.iter().zip(&found).map(|(x, &found)| steps(found, x.exp_m1())).max();
        assert!(far <= Some(3), "{far:?}");
    }

    proptest! {
        #[test]
        fn as_in_the_standard_library(xs in prop::collection::vec(prop_oneof![-1.0_f64..1.0, -40.0..40.0, -750.0..715.0], 1..80)) {
            let mut found = xs.clone();
            exp(&mut found, 700.0);
            for (x, found) in xs.iter().zip(&found) {
                prop_assert!(steps(*found, x.clamp(-700.0, 700.0).exp()) <= 1, "exp({x}) = {found}");
            }
            // A number has the same result wherever it stands, in a whole vector or in what is left behind the last.
            for (x, found) in xs.iter().zip(&found) {
                let mut alone = [*x];
                exp(&mut alone, 700.0);
                prop_assert_eq!(alone[0].to_bits(), found.to_bits());
            }
            let xs: Vec<f64> = xs.into_iter().filter(|x| x.abs() <= 700.0).collect();
            let mut found = xs.clone();
            exp_m1(&mut found);
            for (x, found) in xs.iter().zip(found) {
                prop_assert!(steps(found, x.exp_m1()) <= 3, "exp_m1({x}) = {found}");
            }
        }
    }
}
