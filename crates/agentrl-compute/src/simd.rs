//! SIMD kernels, with the widest vectors of the processor chosen at run time.
//!
//! A wheel is compiled for the oldest processor of its kind. A closure passed to [`wide`] is also compiled for later
//! ones, and the version for the running processor is called. Only the vector width differs: only explicit `mul_add`
//! calls are fused and additions are not reordered, so all versions give the same bits.

use multiversion::multiversion;

/// Numbers processed between two steps of a kernel: few enough for a core's first-level cache.
pub(crate) const BLOCK: usize = 256;

/// Call a closure with the widest vectors. Mark the closure `#[inline(always)]`; otherwise it is compiled for the
/// oldest processor.
#[multiversion(targets(
    "x86_64+avx512f+avx512bw+avx512cd+avx512dq+avx512vl+avx2+fma+bmi1+bmi2+lzcnt+popcnt",
    "x86_64+avx2+fma+bmi1+bmi2+lzcnt+popcnt"
))]
pub(crate) fn wide<R, F: FnOnce() -> R>(work: F) -> R {
    work()
}

/// Set numbers whose mask is false to NaN.
pub(crate) fn keep(numbers: &mut [f64], mask: &[bool]) {
    wide(
        #[inline(always)]
        || {
            let marked = numbers.iter_mut().zip(mask);
            marked.for_each(|(number, &kept)| *number = if kept { *number } else { f64::NAN });
        },
    );
}

/// Number of interleaved partial summaries.
pub(crate) const SUMMARIES: usize = 16;

/// Interleaved partial summaries: number `i` is added to summary `i % SUMMARIES`.
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

    /// Add numbers; NaN is skipped.
    pub(crate) fn add(&mut self, numbers: &[f64]) {
        // Moved into the closure: lanes that it only borrows would stay in memory and be reloaded before each write.
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

    /// Return the summary of all numbers.
    pub(crate) fn sum(&self) -> Summary {
        Summary {
            total: self.sums.iter().sum(),
            count: self.counts.iter().sum(),
            least: self.least.iter().copied().fold(f64::INFINITY, f64::min),
            most: self.most.iter().copied().fold(f64::NEG_INFINITY, f64::max),
        }
    }
}

/// Add numbers without NaN to interleaved sums, as [`Summaries`] does: number `i` to sum `i % SUMMARIES`.
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

/// Sum, count and range of numbers.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Summary {
    pub(crate) total: f64,
    pub(crate) count: u64,
    pub(crate) least: f64,
    pub(crate) most: f64,
}

/// Return whether keys never decrease.
pub(crate) fn ascend<K: PartialOrd>(keys: &[K]) -> bool {
    // Each block includes the first key of the next one, so that borders are compared too.
    (0..keys.len()).step_by(4 * BLOCK).all(|start| {
        let block = &keys[start..keys.len().min(start + 4 * BLOCK + 1)];
        wide(
            #[inline(always)]
            || block.iter().zip(&block[1..]).fold(true, |ascending, (a, b)| ascending & (a <= b)),
        )
    })
}

/// Clamp a number to `[-bound, bound]`. Unlike `f64::clamp`, this does not check the range: a loop that can panic is
/// not vectorised.
#[inline(always)]
pub(crate) fn within(number: f64, bound: f64) -> f64 {
    let number = if number < -bound { -bound } else { number };
    if number > bound { bound } else { number }
}

/// Replace each number by `e^x`, to within one unit in the last place. Numbers are first clamped to ± `bound`, which is
/// at most 700.
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

/// Replace each number by `e^x - 1`, to within three units in the last place. Numbers are first clamped to ± 700.
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

/// `1.5 · 2^52`: floats between `2^52` and `2^53` are integers, so adding this rounds a small number to an integer.
const WHOLE: f64 = 1.5 * (1_u64 << 52) as f64;

/// `ln 2` in two parts. The first has so few digits that its products with integer orders are exact.
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

/// Split `x = order · ln 2 + rest`; return the integer order, and `e^rest - 1` by its Taylor series up to the power 13.
///
/// Terms are added in pairs, and pairs in pairs. In a chain in which each term waits for the one before, a core cannot
/// process enough numbers at a time to be busy. Fused multiply-adds round once: they halve the dependency chain and
/// give the same bits on every processor.
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

/// Return `2^order`, for an integer in the exponent range of normal floats. The lowest bits of `order + WHOLE` hold the
/// integer; they are shifted into the exponent.
#[inline(always)]
fn power_of_two(order: f64) -> f64 {
    f64::from_bits(((order + WHOLE).to_bits() << 52).wrapping_add(1.0_f64.to_bits()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// Return the distance of two floats, counted in representable floats.
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
    fn special_values_have_special_results() {
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
            // A number has the same result at any index, in a whole vector or in the remainder.
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
