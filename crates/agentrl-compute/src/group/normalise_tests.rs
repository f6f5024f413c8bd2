//! Tests of normalisation: by hand, against the formula, and in any row order and code path.

use super::*;
use crate::group::testing::{Group, at, masked_groups, naive, shuffle};
use crate::group::{Middle, Singleton};
use crate::thread_pool;
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
    // Variance 1, plus 3 under the root.
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

/// MC-GRPO: the lower median is 1, the lower median of distances 1, 0, 0, 3 is 0: the divisor is eps or the least
/// scale.
#[test]
fn medians() -> Result<()> {
    let options = Options { center: Center::Median, scale: Scale::Mad, median: Middle::Lower, eps: 0.5, ..CENTRED };
    let values = [0.0, 1.0, 1.0, 4.0];
    assert_eq!(plain(&values, &[0; 4], options)?, [-2.0, 0.0, 0.0, 6.0]);
    assert_eq!(plain(&values, &[0; 4], Options { scale_at_least: 1.0, eps: 0.0, ..options })?, [-1.0, 0.0, 0.0, 3.0]);
    assert_eq!(plain(&values, &[0; 4], Options { eps: 0.0, ..options })?, [0.0; 4]);
    assert_eq!(plain(&values, &[0; 4], Options { median: Middle::Midpoint, ..options })?, [-1.0, 0.0, 0.0, 3.0]);
    Ok(())
}

#[test]
fn leaving_out_the_row_its_weight_or_its_unit() -> Result<()> {
    let options = Options { center: Center::LeaveOneOut, ..CENTRED };
    let values = [1.0, 2.0, 6.0];
    assert_eq!(plain(&values, &[0; 3], options)?, [-3.0, -1.5, 4.5]);
    // The last row counts twice: the votes besides the first row are 2, 6, 6.
    let weighted = Columns { weights: Some(&[1.0, 1.0, 2.0]), ..Columns::new("scores", &values, &[0; 3]) };
    let found = run(&weighted, options, Extra::default())?;
    let expected = [1.0 - 14.0 / 3.0, 2.0 - 13.0 / 3.0, 6.0 - 1.5];
    assert!(found.iter().zip(expected).all(|(found, expected)| (found - expected).abs() < 1e-14), "{found:?}");
    // Units with means 1.5 and 6.
    let units = Columns { units: Some(&[0, 0, 1]), ..Columns::new("scores", &values, &[0; 3]) };
    assert_eq!(run(&units, options, Extra::default())?, [-5.0, -4.0, 4.5]);
    Ok(())
}

/// Lite PPO: the mean of the group, the standard deviation of the batch.
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
        Err("scale_groups is given, but this scale does not use it; choose scale std, mad or range".to_owned())
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
        (
            options,
            Extra { divisor: None, ..extra },
            "scale is \"divisor\", but divisor is missing; give one value for each row",
        ),
        (CENTRED, extra, "baseline is given, but center is not \"baseline\"; leave out baseline"),
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

/// The result is zero, not negative zero, for any rounding of the mean.
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

/// Runs are filled in one pass, large ones in pieces; rows in any order are filled through buckets.
#[test]
fn runs_and_scattered_rows_get_the_same_bits_on_any_number_of_threads() -> Result<()> {
    let small = (0..3 * thread_pool::PIECE as u32).map(|row| row / 8);
    let large = vec![3 * thread_pool::PIECE as u32 / 8; 2 * thread_pool::PIECE + 5];
    let groups: Vec<u32> = small.chain(large).collect();
    let draw = |row: usize| crate::rng::uniform(5, row as u64) - 0.5;
    let values: Vec<f64> = (0..groups.len()).map(|row| draw(row) * 10_f64.powi((row % 40) as i32 - 20)).collect();
    let order = shuffle(values.len(), 9);
    let (mixed_values, mixed_groups) = (at(&order, &values), at(&order, &groups));
    let mut expected = None;
    for threads in [1, 2, 4] {
        thread_pool::set_threads(threads)?;
        let found: Vec<u64> = plain(&values, &groups, Options::default())?.into_iter().map(f64::to_bits).collect();
        let mixed = plain(&mixed_values, &mixed_groups, Options::default())?;
        assert!(order.iter().zip(mixed).all(|(&row, value)| found[row] == value.to_bits()), "{threads}");
        assert_eq!(*expected.get_or_insert_with(|| found.clone()), found, "{threads}");
    }
    Ok(())
}

/// Return the results of a column of one type, written to a column of another type that held other values.
fn into<T: Float, O: Float>(columns: &Columns<'_, f64>, ids: &dyn Ids, options: &Options) -> Result<Vec<f64>> {
    let values: Vec<T> = columns.values.iter().map(|&value| T::from_f64(value)).collect();
    let Columns { name, weights, units, valid, .. } = *columns;
    let mut out = vec![O::from_f64(7.0); values.len()];
    let columns = Columns { name, values: &values, groups: &[], weights, units, valid };
    normalise_into(ids, &columns, options, Extra::default(), &mut out)?;
    Ok(out.into_iter().map(Float::to_f64).collect())
}

/// Rows in any order get the same results as in group order, in columns of either type, and follow the formula. Covers
/// the borders of pieces, one bucket and many, and all rows or few of them voting.
#[test]
fn the_room_of_results_holds_the_votes_before() -> Result<()> {
    let draw = |seed: u64, row: usize| crate::rng::uniform(seed, row as u64);
    let median = Options { center: Center::Median, scale: Scale::Mad, ..Options::default() };
    let mut checked = 0;
    for (rows, groups) in [
        (thread_pool::PIECE - 1, 4000),
        (thread_pool::PIECE, 9),
        (thread_pool::PIECE + 1, 1),
        (thread_pool::PIECE + 1, thread_pool::PIECE / 8),
        (2 * thread_pool::PIECE + 3, 2 * thread_pool::PIECE + 3),
        (3 * thread_pool::PIECE - 2, 300),
    ] {
        // Rounded to f32, so that both types hold the same values.
        let values: Vec<f64> = (0..rows).map(|row| f64::from((draw(1, row) - 0.4) as f32)).collect();
        let ids: Vec<u32> = (0..rows).map(|row| (draw(2, row) * groups as f64) as u32).collect();
        let close: Vec<i64> = ids.iter().map(|&id| i64::from(id) - 9000).collect();
        let far: Vec<i64> = ids.iter().map(|&id| (i64::from(id) - 9000) * 7_000_000_000).collect();
        let valid: Vec<bool> = (0..rows).map(|row| draw(3, row) < 0.6).collect();
        let weights: Vec<f64> = (0..rows).map(|row| (draw(4, row) * 4.0).floor()).collect();
        let order = {
            let mut order: Vec<usize> = (0..rows).collect();
            order.sort_by_key(|&row| ids[row]);
            order
        };
        let sorted = (at(&order, &values), at(&order, &ids), at(&order, &valid), at(&order, &weights));
        for (masked, weighted, options) in [
            (false, false, Options::default()),
            (true, false, Options::default()),
            (true, true, Options::default()),
            (true, false, median),
        ] {
            let columns = |values, valid, weights| Columns {
                valid: masked.then_some(valid),
                weights: weighted.then_some(weights),
                ..Columns::new("scores", values, &[])
            };
            let in_order = columns(&sorted.0[..], &sorted.2[..], &sorted.3[..]);
            let mixed = columns(&values[..], &valid[..], &weights[..]);
            let expected = into::<f64, f64>(&in_order, &&sorted.1[..], &options)?;
            for threads in [1, 4] {
                thread_pool::set_threads(threads)?;
                let doubles =
                    [into::<f64, f64>(&mixed, &&ids[..], &options)?, into::<f32, f64>(&mixed, &&far[..], &options)?];
                let singles = into::<f32, f32>(&mixed, &&close[..], &options)?;
                for (place, &row) in order.iter().enumerate() {
                    let expected = expected[place];
                    assert!(
                        doubles.iter().all(|found| found[row].to_bits() == expected.to_bits()),
                        "{rows} {groups} {row}"
                    );
                    assert_eq!(singles[row].to_bits(), f64::from(expected as f32).to_bits(), "{rows} {groups} {row}");
                    checked += 1;
                }
            }
        }
        let found = into::<f64, f64>(&Columns::new("scores", &values, &[]), &&close[..], &Options::default())?;
        for row in (0..rows).step_by(rows / 5) {
            let members: Vec<f64> = (0..rows).filter(|&other| ids[other] == ids[row]).map(|row| values[row]).collect();
            let (mean, std) = naive(&members, 1);
            let expected = if members.len() > 1 { (values[row] - mean) / (std + Options::default().eps) } else { 0.0 };
            assert!((found[row] - expected).abs() < 1e-9, "{rows} {groups} {row}: {} {expected}", found[row]);
        }
    }
    assert!(checked > 6 * thread_pool::PIECE, "{checked}");
    Ok(())
}

/// Ids that never decrease, with groups of any size, give the results of each group alone. A few whole groups are
/// processed at a time; a group can be longer than that.
#[test]
fn ids_in_runs_give_what_each_group_gives_alone() -> Result<()> {
    let draw = |place: usize| crate::rng::uniform(11, place as u64);
    let sizes = (0..4000).map(|group| if group % 900 == 7 { 9000 } else { (draw(group) * 17.0) as usize });
    let ids: Vec<i64> =
        sizes.enumerate().flat_map(|(group, size)| vec![group as i64 * 7_000_000_000 - 5; size]).collect();
    let rows = ids.len();
    assert!(rows > 2 * thread_pool::PIECE, "{rows}");
    let values: Vec<f64> = (0..rows).map(|row| if row % 11 == 3 { f64::NAN } else { draw(row) - 0.3 }).collect();
    let valid: Vec<bool> = values.iter().map(|value| !value.is_nan()).collect();
    let weights: Vec<f64> = (0..rows).map(|row| (row % 4) as f64).collect();
    let baseline: Vec<f64> = (0..rows).map(|row| draw(row + 5)).collect();
    let median = Options { center: Center::Median, scale: Scale::Mad, ..Options::default() };
    let leave_one_out = Options { center: Center::LeaveOneOut, scale: Scale::None, ..Options::default() };
    let given = Options { center: Center::Baseline, scale: Scale::Divisor, ..Options::default() };
    for options in [Options::default(), median, leave_one_out, given] {
        let extra = |rows: Range<usize>| Extra {
            baseline: (options.center == Center::Baseline).then_some(&baseline[rows.clone()]),
            divisor: (options.scale == Scale::Divisor).then_some(&baseline[rows]),
            scale_groups: None,
        };
        let part = |rows: Range<usize>| Columns {
            valid: Some(&valid[rows.clone()]),
            weights: Some(&weights[rows.clone()]),
            ..Columns::new("scores", &values[rows], &[])
        };
        let (mut expected, mut start) = (Vec::new(), 0);
        for group in ids.chunk_by(|a, b| a == b) {
            let rows = start..start + group.len();
            let one = vec![0; group.len()];
            expected.extend(run(&Columns { groups: &one, ..part(rows.clone()) }, options, extra(rows.clone()))?);
            start = rows.end;
        }
        for threads in [1, 2, 4] {
            thread_pool::set_threads(threads)?;
            let mut found = vec![7.0; rows];
            normalise_by(&&ids[..], &part(0..rows), &options, extra(0..rows), &mut found)?;
            let same = found.iter().zip(&expected).all(|(found, expected)| found.to_bits() == expected.to_bits());
            assert!(same, "{options:?} {threads}");
        }
    }
    Ok(())
}

/// An id that recurs at the very end, after all other rows were processed, still belongs to its one group.
#[test]
fn an_id_that_comes_back_belongs_to_its_group() -> Result<()> {
    let rows = 2 * thread_pool::PIECE + 9;
    let values: Vec<f64> = (0..rows).map(|row| crate::rng::uniform(3, row as u64)).collect();
    for last in [0, 5] {
        let mut ids: Vec<u32> = (0..rows as u32).map(|row| row / 4).collect();
        ids[rows - 1] = last;
        let mut order: Vec<usize> = (0..rows).collect();
        order.sort_by_key(|&row| ids[row]);
        let sorted = plain(&at(&order, &values), &at(&order, &ids), Options::default())?;
        let found = plain(&values, &ids, Options::default())?;
        assert!(order.iter().zip(sorted).all(|(&row, value)| found[row].to_bits() == value.to_bits()), "{last}");
    }
    Ok(())
}

/// An error in a late row names that row, and ids of another length are rejected.
#[test]
fn errors_of_late_rows_name_them() {
    let mut values = vec![0.5; thread_pool::PIECE + 5000];
    values[thread_pool::PIECE + 4321] = f64::NAN;
    let ids: Vec<i64> = (0..values.len() as i64).map(|row| row / 8).collect();
    let mut out = vec![0.0; values.len()];
    let columns = Columns::new("scores", &values, &[]);
    let mut message = |ids: &[i64]| {
        normalise_by(&ids, &columns, &CENTRED, Extra::default(), &mut out).map_err(|error| error.to_string())
    };
    let row = thread_pool::PIECE + 4321;
    assert_eq!(
        message(&ids),
        Err(format!("scores[{row}] is NaN, but must be finite; correct it or mark the row invalid"))
    );
    assert!(message(&ids[1..]).is_err_and(|message| message.starts_with("groups has ")));
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
            // Rounding error of the mean and the deviation, in units of the result.
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
